//! Flags of `serve` about the server's certificate.

use std::{path::PathBuf, sync::Arc, time::Duration};

use clap::Args;
use rustls::crypto::CryptoProvider;

use crate::{
    Readiness,
    certificates::{CertificateReconciler, watch_validity},
    cli::certificates::IssuingFlags,
    tls::{
        ServedCertificate, Tls,
        files::{CertificateFileWatcher, CertificateFiles},
    },
};
use etcd_guard_core::opt_in_label::OptInLabel;

/// Source and verification of certificates.
#[derive(Debug, Args)]
pub(super) struct CertificateFlags {
    /// The server's certificate chain in PEM; it is reloaded when it changes. Of several pairs of files, the newest is
    /// served
    #[arg(
        long,
        value_name = "FILE",
        env = "ETCD_GUARD_TLS_CERT",
        requires = "tls_key",
        required_unless_present = "self_managed_certs"
    )]
    tls_cert: Vec<PathBuf>,
    /// The private key in PEM, one for each certificate
    #[arg(long, value_name = "FILE", env = "ETCD_GUARD_TLS_KEY", requires = "tls_cert")]
    tls_key: Vec<PathBuf>,
    /// How often to read both files
    #[arg(
        long,
        value_name = "DURATION",
        default_value = "10s",
        env = "ETCD_GUARD_TLS_RELOAD_INTERVAL",
        value_parser = humantime::parse_duration
    )]
    tls_reload_interval: Duration,
    /// Accept only callers with a certificate of a CA in this file, such as that of the API server
    #[arg(long, value_name = "FILE", env = "ETCD_GUARD_CLIENT_CA")]
    client_ca: Option<PathBuf>,
    /// Create and renew certificates in this process, share them in a Secret, and update the caBundle of the webhooks; for
    /// development and servers outside of the cluster. In a cluster run the command `certificates` instead, under an account of
    /// its own
    #[arg(long, env = "ETCD_GUARD_SELF_MANAGED_CERTS", conflicts_with_all = ["tls_cert", "tls_key"])]
    self_managed_certs: bool,
    #[command(flatten)]
    issuing: IssuingFlags,
}

/// The source of the certificate, to be started after the server has bound its ports.
pub(super) struct CertificateSource {
    flags: CertificateFlags,
    provider: Arc<CryptoProvider>,
    served: ServedCertificate,
    watcher: Option<CertificateFileWatcher>,
}

// === impl CertificateFlags ===

impl CertificateFlags {
    /// The label of guarded namespaces.
    pub(super) fn opt_in_label(&self) -> &OptInLabel {
        self.issuing.opt_in_label()
    }

    /// Configures TLS, and reads the certificate files if there are any.
    pub(super) fn prepare(self, provider: Arc<CryptoProvider>) -> anyhow::Result<(Tls, CertificateSource)> {
        if self.issuing.registers() && !self.self_managed_certs {
            anyhow::bail!(
                "--register requires --self-managed-certs, or use `etcd-guard certificates --register`"
            );
        }
        let served = ServedCertificate::default();
        let tls = Tls::new(Arc::clone(&provider), served.clone(), self.client_ca.as_deref())?;
        if self.tls_cert.len() != self.tls_key.len() {
            anyhow::bail!("--tls-cert and --tls-key must be given equally often");
        }
        let pairs = self.tls_cert.iter().cloned().zip(self.tls_key.iter().cloned());
        let files: Vec<_> = pairs.map(|(certificate, key)| CertificateFiles { certificate, key }).collect();
        let watcher = if files.is_empty() {
            None
        } else {
            Some(CertificateFileWatcher::start(files, Arc::clone(&provider), served.clone())?)
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
        let settings = flags.issuing.settings(namespace)?;
        let reconciler =
            CertificateReconciler::new(client, settings, provider).with_server(served, readiness);
        tokio::spawn(reconciler.run());
        Ok(())
    }
}
