//! Flags of `serve` about the server's certificate.

use std::{path::PathBuf, sync::Arc, time::Duration};

use anyhow::Context;
use clap::Args;
use rustls::crypto::CryptoProvider;

use crate::{
    certificates::{CertificateReconciler, CertificateSettings, Registration, WebhookGroup, watch_validity},
    server::{
        Readiness,
        tls::{
            ServedCertificate, Tls,
            files::{CertificateFileWatcher, CertificateFiles},
        },
    },
};

/// The name of the Service in the shipped manifests.
const SERVICE: &str = "etcd-guard";

/// Source and verification of certificates.
#[derive(Debug, Args)]
pub(super) struct CertificateFlags {
    /// The server's certificate chain in PEM; it is reloaded when it changes
    #[arg(
        long,
        env = "ETCD_GUARD_TLS_CERT",
        requires = "tls_key",
        required_unless_present = "self_managed_certs"
    )]
    tls_cert: Option<PathBuf>,
    /// The private key in PEM
    #[arg(long, env = "ETCD_GUARD_TLS_KEY", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Interval between reads of the two files
    #[arg(long, default_value = "10s", env = "ETCD_GUARD_TLS_RELOAD_INTERVAL", value_parser = humantime::parse_duration)]
    tls_reload_interval: Duration,
    /// Accept only clients with a certificate that chains to a CA of this file, such as the API server's identity
    #[arg(long, env = "ETCD_GUARD_CLIENT_CA")]
    client_ca: Option<PathBuf>,
    /// Create and renew certificates in the cluster, share them in a Secret, and update the caBundle of the webhooks
    #[arg(long, env = "ETCD_GUARD_SELF_MANAGED_CERTS", conflicts_with_all = ["tls_cert", "tls_key"])]
    self_managed_certs: bool,
    /// Lifetime of self-managed certificates; they are renewed when a third of it is left
    #[arg(long, default_value = "90d", env = "ETCD_GUARD_CERTIFICATE_LIFE", value_parser = parse_lifetime)]
    certificate_life: Duration,
    /// Apply webhook configurations at the start and after their deletion: those of the guard, or the listed parts
    #[arg(
        long,
        env = "ETCD_GUARD_REGISTER",
        requires = "self_managed_certs",
        value_name = "PART,...",
        value_delimiter = ',',
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "guard"
    )]
    register: Option<Vec<WebhookGroup>>,
    /// URL https://HOST:PORT by which the API server reaches this server without a Service
    #[arg(long, env = "ETCD_GUARD_REGISTER_URL", requires = "register", value_parser = parse_url)]
    register_url: Option<String>,
}

/// The source of the certificate, to be started after the server has bound its ports.
pub(super) struct CertificateSource {
    flags: CertificateFlags,
    provider: Arc<CryptoProvider>,
    served: ServedCertificate,
    watcher: Option<CertificateFileWatcher>,
}

/// Minimum lifetime: a shorter one leaves no time between the steps of a renewal.
const MIN_LIFETIME: Duration = Duration::from_secs(30);

fn parse_lifetime(text: &str) -> Result<Duration, String> {
    let lifetime = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    if lifetime < MIN_LIFETIME {
        return Err(format!("expected at least {}", humantime::format_duration(MIN_LIFETIME)));
    }
    Ok(lifetime)
}

fn parse_url(text: &str) -> Result<String, String> {
    match text.parse::<http::Uri>() {
        Ok(url) if url.scheme_str() == Some("https") && url.host().is_some() && url.path() == "/" => {
            Ok(text.to_owned())
        }
        _ => Err(String::from("expected a URL without a path, such as https://192.0.2.1:8443")),
    }
}

// === impl CertificateFlags ===

impl CertificateFlags {
    /// Configures TLS, and reads the certificate files if there are any.
    pub(super) fn prepare(self, provider: Arc<CryptoProvider>) -> anyhow::Result<(Tls, CertificateSource)> {
        let served = ServedCertificate::default();
        let tls = Tls::new(Arc::clone(&provider), served.clone(), self.client_ca.as_deref())?;
        let watcher = match (&self.tls_cert, &self.tls_key) {
            (Some(certificate), Some(key)) => {
                let files = CertificateFiles { certificate: certificate.clone(), key: key.clone() };
                Some(CertificateFileWatcher::start(files, Arc::clone(&provider), served.clone())?)
            }
            _ => None,
        };
        Ok((tls, CertificateSource { flags: self, provider, served, watcher }))
    }
}

// === impl CertificateSource ===

impl CertificateSource {
    /// Starts the background tasks that renew or reload the certificate.
    pub(super) fn start(
        self,
        client: &kube::Client,
        namespace: &str,
        readiness: Readiness,
    ) -> anyhow::Result<()> {
        let Self { flags, provider, served, watcher } = self;
        if let Some(watcher) = watcher {
            // Assumed until `watch_validity` has compared the certificate with the time of the API server, which
            // happens with its first response.
            readiness.set_certificate_trusted(true);
            tokio::spawn(watcher.watch(flags.tls_reload_interval));
            tokio::spawn(watch_validity(client.clone(), served, readiness));
            return Ok(());
        }
        let mut names =
            ["svc", "svc.cluster.local"].map(|suffix| format!("{SERVICE}.{namespace}.{suffix}")).to_vec();
        if let Some(url) = &flags.register_url {
            let url: http::Uri = url.parse().context("--register-url")?;
            let host = url.host().context("--register-url has no host")?;
            names.push(host.trim_matches(['[', ']']).to_owned());
        }
        let registration = flags.register.map(|groups| Registration {
            namespace: namespace.to_owned(),
            groups,
            url: flags.register_url.clone(),
        });
        let settings = CertificateSettings {
            namespace: namespace.to_owned(),
            names,
            lifetime: flags.certificate_life,
            registration,
        };
        tokio::spawn(CertificateReconciler::new(client, settings, provider, served, readiness).run());
        Ok(())
    }
}
