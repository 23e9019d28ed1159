//! Flags of commands that connect to the API server and to the guard with the kubeconfig and the permissions of the user.

use clap::Args;
use http::Uri;

use crate::{
    api_server::ApiServer,
    guard_client::{GuardClient, GuardEndpoint},
};
use etcd_guard_cli::access::AccessFlags;

/// Access to the API server
#[derive(Clone, Debug, Args)]
pub(super) struct ClusterFlags {
    #[command(flatten)]
    access: AccessFlags,
    /// The namespace; by default the namespace of the context
    #[arg(short, long)]
    namespace: Option<String>,
}

/// Access to the API server and, through it, to the guard
#[derive(Clone, Debug, Args)]
pub(super) struct GuardFlags {
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

fn parse_address(text: &str) -> Result<Uri, String> {
    let uri: Uri = text.parse().map_err(|error| format!("{error}"))?;
    let is_plain = uri.scheme_str() == Some("http") && uri.host().is_some();
    is_plain.then_some(uri).ok_or_else(|| String::from("expected http://HOST:PORT"))
}

// === impl ClusterFlags ===

impl ClusterFlags {
    /// Creates a client of the API server.
    pub(super) async fn connect(self) -> anyhow::Result<ApiServer> {
        let kubectl = format!("kubectl{}", self.selection());
        ApiServer::new(self.access.config().await?, self.namespace, kubectl)
    }

    /// Returns the value of --namespace.
    pub(super) fn namespace_flag(&self) -> Option<&str> {
        self.namespace.as_deref()
    }

    /// Returns the flags that select the same cluster and the same identity, each with a space before it.
    pub(super) fn selection(&self) -> String {
        self.access.selection()
    }
}

// === impl GuardFlags ===

impl GuardFlags {
    /// Creates the clients of the API server and of the guard.
    pub(super) async fn connect(self) -> anyhow::Result<GuardClient> {
        let api_server = self.cluster.connect().await?;
        let endpoint = match self.guard {
            Some(url) => GuardEndpoint::Url(url),
            None => {
                GuardEndpoint::PortForward { namespace: self.guard_namespace, selector: self.guard_selector }
            }
        };
        Ok(GuardClient { api_server, endpoint })
    }

    /// Returns the label selector of the guard's pods.
    pub(super) fn guard_selector(&self) -> &str {
        &self.guard_selector
    }

    /// Returns the namespace of the guard.
    pub(super) fn guard_namespace(&self) -> &str {
        &self.guard_namespace
    }

    /// Returns the value of --namespace.
    pub(super) fn namespace_flag(&self) -> Option<&str> {
        self.cluster.namespace_flag()
    }
}
