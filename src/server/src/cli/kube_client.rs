//! The client for the API server of commands that run in a pod.

use std::{path::PathBuf, time::Duration};

use anyhow::Context;
use kube::config::{KubeConfigOptions, Kubeconfig};

use etcd_guard_cli::client::{ObservedCall, observed_client};

/// Maximum time without data on a connection to the API server. It exceeds the 290 s after which the API server ends an
/// idle watch.
const READ_TIMEOUT: Duration = Duration::from_secs(300);

/// Creates a client with the identity of a kubeconfig, or of the pod that the process runs in.
pub(super) async fn client(kubeconfig: Option<PathBuf>) -> anyhow::Result<kube::Client> {
    Ok(client_and_api_servers(kubeconfig, |_| {}).await?.0)
}

/// Creates a client, and returns it with the addresses of the API server, each as `HOST:PORT`. Passes each call to `on_call`.
pub(super) async fn client_and_api_servers(
    kubeconfig: Option<PathBuf>,
    on_call: impl Fn(ObservedCall) + Clone + Send + Sync + 'static,
) -> anyhow::Result<(kube::Client, Vec<String>)> {
    let mut config = match kubeconfig {
        Some(path) => {
            let kubeconfig =
                Kubeconfig::read_from(&path).with_context(|| format!("--kubeconfig {}", path.display()))?;
            kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
                .await
                .with_context(|| format!("--kubeconfig {}", path.display()))?
        }
        None => kube::Config::infer().await.context(
            "no access to the API server; pass --kubeconfig, or run in a pod with a service account",
        )?,
    };
    // Without a timeout, a watch on a dead connection would return stale data forever.
    config.read_timeout = Some(READ_TIMEOUT);
    config.reset_reader_on_write = true;
    let api_servers = api_servers(&config.cluster_url);
    let client = observed_client(config, on_call).context("failed to create a client for the API server")?;
    Ok((client, api_servers))
}

/// Returns `HOST:PORT` of the URL, and of the Service whose address a pod finds in its environment.
fn api_servers(url: &http::Uri) -> Vec<String> {
    let default_port = if url.scheme_str() == Some("http") { 80 } else { 443 };
    let port = url.port_u16().unwrap_or(default_port);
    let service = || {
        let host = std::env::var("KUBERNETES_SERVICE_HOST").ok()?;
        let port = std::env::var("KUBERNETES_SERVICE_PORT").ok()?;
        Some(if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") })
    };
    url.host().map(|host| format!("{host}:{port}")).into_iter().chain(service()).collect()
}
