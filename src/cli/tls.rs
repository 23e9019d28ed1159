//! Where the server's certificate comes from: flags of `serve`.

use std::{path::PathBuf, sync::Arc, time::Duration};

use anyhow::Context;
use clap::Args;
use rustls::crypto::CryptoProvider;

use crate::{
    certificates::{Keeper, Part, Registration, Settings, watch_validity},
    server::{
        Readiness,
        tls::{
            Serving, Tls,
            files::{Files, Watcher},
        },
    },
};

/// The Service that the shipped manifests make.
const SERVICE: &str = "etcd-guard";

/// Flags about certificates.
#[derive(Debug, Args)]
pub(super) struct TlsFlags {
    /// The server's certificate chain, PEM; read again when it changes
    #[arg(
        long,
        env = "ETCD_GUARD_TLS_CERT",
        requires = "tls_key",
        required_unless_present = "self_managed_certs"
    )]
    tls_cert: Option<PathBuf>,
    /// The certificate's key, PEM
    #[arg(long, env = "ETCD_GUARD_TLS_KEY", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// How often the two files are looked at
    #[arg(long, default_value = "10s", env = "ETCD_GUARD_TLS_RELOAD_INTERVAL", value_parser = humantime::parse_duration)]
    tls_reload_interval: Duration,
    /// Only callers whose certificate leads to one of this file's get an answer: the apiserver's own identity
    #[arg(long, env = "ETCD_GUARD_CLIENT_CA")]
    client_ca: Option<PathBuf>,
    /// Make certificates in the cluster, share them through a Secret, renew them, and keep every caBundle right
    #[arg(long, env = "ETCD_GUARD_SELF_MANAGED_CERTS", conflicts_with_all = ["tls_cert", "tls_key"])]
    self_managed_certs: bool,
    /// How long self-managed certificates live; they are renewed when a third of that is left
    #[arg(long, default_value = "90d", env = "ETCD_GUARD_CERTIFICATE_LIFE", value_parser = parse_life)]
    certificate_life: Duration,
    /// Apply webhook configurations at the start, server-side, and again when they are gone: the guard's, or those listed
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
    register: Option<Vec<Part>>,
    /// https://HOST:PORT by which the apiserver reaches this server, where that is no Service
    #[arg(long, env = "ETCD_GUARD_REGISTER_URL", requires = "register", value_parser = parse_url)]
    register_url: Option<String>,
}

/// A certificate's source, once the server has its ports.
pub(super) struct Source {
    flags: TlsFlags,
    provider: Arc<CryptoProvider>,
    serving: Serving,
    watcher: Option<Watcher>,
}

/// Below this, no time is left between the steps of a change.
const SHORTEST_LIFE: Duration = Duration::from_secs(30);

fn parse_life(text: &str) -> Result<Duration, String> {
    let life = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    if life < SHORTEST_LIFE {
        return Err(format!("at least {} are needed", humantime::format_duration(SHORTEST_LIFE)));
    }
    Ok(life)
}

fn parse_url(text: &str) -> Result<String, String> {
    match text.parse::<http::Uri>() {
        Ok(url) if url.scheme_str() == Some("https") && url.host().is_some() && url.path() == "/" => {
            Ok(text.to_owned())
        }
        _ => Err(String::from("an URL such as https://192.0.2.1:8443 is wanted, without a path")),
    }
}

// === impl TlsFlags ===

impl TlsFlags {
    /// Reads the files, if there are any, and sets up TLS.
    pub(super) fn prepare(self, provider: Arc<CryptoProvider>) -> anyhow::Result<(Tls, Source)> {
        let serving = Serving::default();
        let tls = Tls::new(Arc::clone(&provider), serving.clone(), self.client_ca.as_deref())?;
        let watcher = match (&self.tls_cert, &self.tls_key) {
            (Some(certificate), Some(key)) => {
                let files = Files { certificate: certificate.clone(), key: key.clone() };
                Some(Watcher::start(files, Arc::clone(&provider), serving.clone())?)
            }
            _ => None,
        };
        Ok((tls, Source { flags: self, provider, serving, watcher }))
    }
}

// === impl Source ===

impl Source {
    /// Keeps the certificate new for as long as the process lives.
    pub(super) fn start(
        self,
        client: &kube::Client,
        namespace: &str,
        readiness: Readiness,
    ) -> anyhow::Result<()> {
        let Self { flags, provider, serving, watcher } = self;
        if let Some(watcher) = watcher {
            // Until the apiserver has told the time, which it has by the time that it has answered at all.
            readiness.certificate_trusted(true);
            tokio::spawn(watcher.watch(flags.tls_reload_interval));
            tokio::spawn(watch_validity(client.clone(), serving, readiness));
            return Ok(());
        }
        let mut names =
            ["svc", "svc.cluster.local"].map(|end| format!("{SERVICE}.{namespace}.{end}")).to_vec();
        if let Some(url) = &flags.register_url {
            let url: http::Uri = url.parse().context("--register-url")?;
            let host = url.host().context("--register-url names no host")?;
            names.push(host.trim_matches(['[', ']']).to_owned());
        }
        let registration = flags.register.map(|parts| Registration {
            namespace: namespace.to_owned(),
            parts,
            url: flags.register_url.clone(),
        });
        let settings =
            Settings { namespace: namespace.to_owned(), names, life: flags.certificate_life, registration };
        tokio::spawn(Keeper::new(client, settings, provider, serving, readiness).keep());
        Ok(())
    }
}
