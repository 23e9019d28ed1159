//! Flags of commands that connect to the API server and to the guard with the kubeconfig and the permissions of the user.

use std::{path::PathBuf, time::Duration};

use anyhow::Context;
use clap::{Args, ValueEnum};
use http::Uri;
use kube::{
    Client,
    config::{KubeConfigOptions, Kubeconfig},
};

use crate::{
    escape::to_shell_word,
    guard_client::{CALL_TIMEOUT, GuardClient, GuardEndpoint},
};

/// Access to the API server
#[derive(Clone, Debug, Args)]
pub(in crate::cli) struct ClusterFlags {
    /// The kubeconfig file; by default $KUBECONFIG, then ~/.kube/config
    #[arg(long, global = true, env = "ETCD_GUARD_KUBECONFIG")]
    kubeconfig: Option<PathBuf>,
    /// The kubeconfig context; by default the current context
    #[arg(long, global = true)]
    context: Option<String>,
    /// The namespace; by default the namespace of the context
    #[arg(short, long)]
    namespace: Option<String>,
}

/// Access to the API server and, through it, to the guard
#[derive(Clone, Debug, Args)]
pub(in crate::cli) struct GuardFlags {
    #[command(flatten)]
    cluster: ClusterFlags,
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
pub(in crate::cli) enum Output {
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

/// A client of the API server with the identity of the user.
pub(in crate::cli) struct ClusterClient {
    pub(in crate::cli) client: Client,
    /// The namespace that the user selected, or the default of the kubeconfig context.
    pub(in crate::cli) namespace: String,
    /// URL of the API server.
    pub(in crate::cli) server: Uri,
}

// === impl ClusterFlags ===

impl ClusterFlags {
    /// Creates a client with this timeout of API calls.
    pub(in crate::cli) async fn connect_within(self, timeout: Duration) -> anyhow::Result<ClusterClient> {
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
        Ok(ClusterClient { client, namespace, server })
    }

    /// Returns the value of --namespace.
    pub(in crate::cli) fn namespace_flag(&self) -> Option<&str> {
        self.namespace.as_deref()
    }

    /// Returns the flags that select the same cluster, each with a space before it.
    pub(in crate::cli) fn selection(&self) -> String {
        let Self { kubeconfig, context, .. } = self;
        let kubeconfig = kubeconfig.as_ref().map(|path| path.display().to_string());
        let flags = [("--kubeconfig", kubeconfig.as_ref()), ("--context", context.as_ref())];
        let given = flags.into_iter().filter_map(|(flag, value)| Some((flag, value?)));
        given.flat_map(|(flag, value)| [format!(" {flag} "), to_shell_word(value)]).collect()
    }
}

// === impl GuardFlags ===

impl GuardFlags {
    /// Returns the kubectl command with the flags that select the same cluster.
    pub(in crate::cli) fn kubectl(&self) -> String {
        format!("kubectl{}", self.cluster.selection())
    }

    /// Connects with the default timeout of API calls.
    pub(in crate::cli) async fn connect(self) -> anyhow::Result<GuardClient> {
        self.connect_within(CALL_TIMEOUT).await
    }

    /// Connects with this timeout of API calls.
    pub(in crate::cli) async fn connect_within(self, timeout: Duration) -> anyhow::Result<GuardClient> {
        let ClusterClient { client, namespace, server } = self.cluster.connect_within(timeout).await?;
        let endpoint = match self.guard {
            Some(url) => GuardEndpoint::Url(url),
            None => {
                GuardEndpoint::PortForward { namespace: self.guard_namespace, selector: self.guard_selector }
            }
        };
        Ok(GuardClient { client, namespace, server, endpoint })
    }

    /// Returns the label selector of the guard's pods.
    pub(in crate::cli) fn guard_selector(&self) -> &str {
        &self.guard_selector
    }

    /// Returns the namespace of the guard.
    pub(in crate::cli) fn guard_namespace(&self) -> &str {
        &self.guard_namespace
    }

    /// Returns the value of --namespace.
    pub(in crate::cli) fn namespace_flag(&self) -> Option<&str> {
        self.cluster.namespace_flag()
    }
}
