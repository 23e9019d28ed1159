//! Flags of commands that connect to the guard with the kubeconfig and the permissions of the user.

use std::{path::PathBuf, time::Duration};

use anyhow::Context;
use clap::{Args, ValueEnum};
use http::Uri;
use kube::{
    Client,
    config::{KubeConfigOptions, Kubeconfig},
};

use crate::guard_client::{CALL_TIMEOUT, GuardClient, GuardEndpoint};

/// Access to the API server and, through it, to the guard
#[derive(Clone, Debug, Args)]
pub(super) struct GuardFlags {
    /// The kubeconfig file; by default $KUBECONFIG, then ~/.kube/config
    #[arg(long, global = true, env = "ETCD_GUARD_KUBECONFIG")]
    kubeconfig: Option<PathBuf>,
    /// The kubeconfig context; by default the current context
    #[arg(long, global = true)]
    context: Option<String>,
    /// The namespace; by default the namespace of the context
    #[arg(short, long)]
    namespace: Option<String>,
    /// Connect to the guard at this address, such as `http://127.0.0.1:8080`, instead of through a port-forward
    #[arg(long, env = "ETCD_GUARD_URL", value_parser = parse_address)]
    guard: Option<Uri>,
    /// The namespace of the guard
    #[arg(long, default_value = "etcd-guard", env = "ETCD_GUARD_NAMESPACE")]
    guard_namespace: String,
    /// Label selector of the guard's pods
    #[arg(long, default_value = "app.kubernetes.io/name=etcd-guard")]
    guard_selector: String,
}

/// Output format
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Output {
    /// Human-readable text
    Text,
    /// JSON
    Json,
}

fn parse_address(text: &str) -> Result<Uri, String> {
    let uri: Uri = text.parse().map_err(|error| format!("{error}"))?;
    let is_plain = uri.scheme_str() == Some("http") && uri.host().is_some();
    is_plain.then_some(uri).ok_or_else(|| String::from("expected http://HOST:PORT"))
}

// === impl GuardFlags ===

impl GuardFlags {
    /// Returns the kubectl command with the flags that select the same cluster.
    pub(super) fn kubectl(&self) -> String {
        let kubeconfig = self.kubeconfig.as_ref().map(|path| format!(" --kubeconfig '{}'", path.display()));
        let context = self.context.as_ref().map(|context| format!(" --context '{context}'"));
        ["kubectl", kubeconfig.as_deref().unwrap_or(""), context.as_deref().unwrap_or("")].concat()
    }

    /// Connects with the default timeout of API calls.
    pub(super) async fn connect(self) -> anyhow::Result<GuardClient> {
        self.connect_within(CALL_TIMEOUT).await
    }

    /// Connects with this timeout of API calls.
    pub(super) async fn connect_within(self, timeout: Duration) -> anyhow::Result<GuardClient> {
        let options = KubeConfigOptions { context: self.context.clone(), ..KubeConfigOptions::default() };
        let kubeconfig = match &self.kubeconfig {
            Some(path) => {
                Kubeconfig::read_from(path).with_context(|| format!("--kubeconfig {}", path.display()))?
            }
            None => Kubeconfig::read().context("no kubeconfig; pass --kubeconfig or set KUBECONFIG")?,
        };
        let mut config = kube::Config::from_custom_kubeconfig(kubeconfig, &options).await?;
        config.read_timeout = Some(timeout);
        // A waiting user gets the error at once, instead of after up to fifteen retries.
        config.default_retry = false;
        let namespace = self.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
        let server = config.cluster_url.clone();
        let client = Client::try_from(config).context("failed to create a client for the API server")?;
        let endpoint = match self.guard {
            Some(url) => GuardEndpoint::Url(url),
            None => {
                GuardEndpoint::PortForward { namespace: self.guard_namespace, selector: self.guard_selector }
            }
        };
        Ok(GuardClient { client, namespace, server, endpoint })
    }

    /// Returns the namespace of the guard.
    pub(super) fn guard_namespace(&self) -> &str {
        &self.guard_namespace
    }

    /// Returns the value of --namespace.
    pub(super) fn namespace_flag(&self) -> Option<&str> {
        self.namespace.as_deref()
    }
}
