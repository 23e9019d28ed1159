//! `etcd-guard certificates`: creates and renews the certificates of the webhook servers, which mount the Secret. It has
//! no listener, so that its permissions are out of reach for callers of the webhooks.

pub(crate) mod unregister;

use std::{path::PathBuf, time::Duration};

use anyhow::Context;
use clap::Args;
use tokio::signal::unix::{SignalKind, signal};

use super::kube_client::client;
use crate::certificates::{CertificateReconciler, CertificateSettings, ServerAddress};
use etcd_guard_cli::{
    access::install_provider,
    registration::{Registration, WebhookGroup},
};
use etcd_guard_core::opt_in_label::OptInLabel;

/// The name of the Service in the shipped manifests.
const SERVICE: &str = "etcd-guard";

/// The port of the Service, and the default of HTTPS.
const HTTPS_PORT: u16 = 443;

/// Minimum lifetime: a shorter one leaves no time between the steps of a renewal.
const MIN_LIFETIME: Duration = Duration::from_secs(30);

/// Lifetime below which a mounted certificate can expire before its renewal arrives. A renewal starts when a third is
/// left, and the kubelet needs up to two minutes to update a mounted Secret.
const MIN_MOUNTED_LIFETIME: Duration = Duration::from_secs(600);

/// Create and renew the certificates of the webhook servers
#[derive(Debug, Args)]
pub(super) struct Certificates {
    #[command(flatten)]
    issuing: IssuingFlags,
    /// The kubeconfig file; by default $KUBECONFIG, then the service account of the pod
    #[arg(long, env = "ETCD_GUARD_KUBECONFIG")]
    kubeconfig: Option<PathBuf>,
    /// The namespace of the Secret and of the Service; by default the namespace of the service account or kubeconfig
    #[arg(long, env = "ETCD_GUARD_NAMESPACE")]
    namespace: Option<String>,
}

/// The issued certificates and the registered webhooks.
#[derive(Debug, Args)]
pub(super) struct IssuingFlags {
    /// Lifetime of self-managed certificates; they are renewed when a third of it is left
    #[arg(
        long,
        value_name = "DURATION",
        default_value = "90d",
        env = "ETCD_GUARD_CERTIFICATE_LIFE",
        value_parser = parse_lifetime
    )]
    certificate_life: Duration,
    /// Apply webhook configurations at the start and after their deletion: those of the guard, or the listed parts
    #[arg(
        long,
        env = "ETCD_GUARD_REGISTER",
        value_name = "PART,...",
        value_delimiter = ',',
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "guard"
    )]
    register: Option<Vec<WebhookGroup>>,
    /// `https://HOST:PORT` by which the API server reaches a server without a Service; requires `--register`
    #[arg(long, value_name = "URL", env = "ETCD_GUARD_REGISTER_URL", requires = "register", value_parser = parse_url)]
    register_url: Option<String>,
    /// The label of guarded namespaces; the webhook configurations must select the same namespaces
    #[arg(
        long,
        env = "ETCD_GUARD_OPT_IN_LABEL",
        value_name = "KEY=VALUE",
        default_value_t = OptInLabel::default()
    )]
    opt_in_label: OptInLabel,
}

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

// === impl Certificates ===

impl Certificates {
    pub(super) fn run(self) -> anyhow::Result<()> {
        let provider = install_provider()?;
        tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
            let mut term = signal(SignalKind::terminate()).context("failed to handle SIGTERM")?;
            let mut interrupt = signal(SignalKind::interrupt()).context("failed to handle SIGINT")?;
            let Self { issuing, kubeconfig, namespace } = self;
            let lifetime = issuing.certificate_life;
            if lifetime < MIN_MOUNTED_LIFETIME {
                let (life, minimum) = [lifetime, MIN_MOUNTED_LIFETIME].map(humantime::format_duration).into();
                tracing::warn!(
                    "--certificate-life {life}: a certificate can expire before the kubelet updates the mounted \
                     Secret; set at least {minimum}"
                );
            }
            let client = client(kubeconfig).await?;
            let namespace = namespace.unwrap_or_else(|| client.default_namespace().to_owned());
            let settings = issuing.settings(&namespace)?;
            let settings = CertificateSettings { server: Some(issuing.server_address(&namespace)?), ..settings };
            let reconciler = CertificateReconciler::new(&client, settings, provider);
            tracing::info!(%namespace, version = env!("CARGO_PKG_VERSION"), "managing certificates");
            // A step that is interrupted continues after the next start.
            tokio::select! { () = reconciler.run() => {}, _ = term.recv() => {}, _ = interrupt.recv() => {} }
            tracing::info!("stopped");
            Ok(())
        })
    }
}

// === impl IssuingFlags ===

impl IssuingFlags {
    /// Whether webhook configurations are applied.
    pub(super) fn registers(&self) -> bool {
        self.register.is_some()
    }

    /// The label of guarded namespaces.
    pub(super) fn opt_in_label(&self) -> &OptInLabel {
        &self.opt_in_label
    }

    /// The settings for a server in this process and namespace.
    pub(super) fn settings(&self, namespace: &str) -> anyhow::Result<CertificateSettings> {
        let mut names =
            ["svc", "svc.cluster.local"].map(|suffix| format!("{SERVICE}.{namespace}.{suffix}")).to_vec();
        if self.register_url.is_some() {
            names.push(self.server_address(namespace)?.host);
        }
        let registration = self.register.as_ref().map(|groups| Registration {
            namespace: namespace.to_owned(),
            groups: groups.clone(),
            url: self.register_url.clone(),
            opt_in_label: self.opt_in_label.clone(),
        });
        let (namespace, lifetime) = (namespace.to_owned(), self.certificate_life);
        Ok(CertificateSettings { namespace, names, lifetime, registration, server: None })
    }

    /// The address by which the API server reaches the server.
    fn server_address(&self, namespace: &str) -> anyhow::Result<ServerAddress> {
        let Some(url) = &self.register_url else {
            return Ok(ServerAddress { host: format!("{SERVICE}.{namespace}.svc"), port: HTTPS_PORT });
        };
        let url: http::Uri = url.parse().context("--register-url")?;
        let host = url.host().context("--register-url has no host")?.trim_matches(['[', ']']).to_owned();
        Ok(ServerAddress { host, port: url.port_u16().unwrap_or(HTTPS_PORT) })
    }
}
