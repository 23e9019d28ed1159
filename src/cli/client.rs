//! How subcommands reach the apiserver.

use std::{path::PathBuf, time::Duration};

use anyhow::Context;
use kube::config::{KubeConfigOptions, Kubeconfig};

/// Longest silence on a connection to the apiserver: more than the 290 s after which it ends a quiet watch by itself.
const READ_TIMEOUT: Duration = Duration::from_secs(300);

/// A client with the identity of a kubeconfig, or of the pod that this runs in.
pub(super) async fn client(kubeconfig: Option<PathBuf>) -> anyhow::Result<kube::Client> {
    let mut config = match kubeconfig {
        Some(path) => {
            let kubeconfig =
                Kubeconfig::read_from(&path).with_context(|| format!("--kubeconfig {}", path.display()))?;
            kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
                .await
                .with_context(|| format!("--kubeconfig {}", path.display()))?
        }
        None => kube::Config::infer().await.context(
            "no way to reach the apiserver: give --kubeconfig, or run in a pod with a service account",
        )?,
    };
    // By default the client tries again by itself up to fifteen times and waits for as long as the server tells: that
    // would eat the time for an answer unseen. Whoever asked hears the cause at once, and asks again.
    config.default_retry = false;
    // Else a watch whose connection died without a word would show yesterday for ever.
    config.read_timeout = Some(READ_TIMEOUT);
    config.reset_reader_on_write = true;
    kube::Client::try_from(config).context("the client for the apiserver")
}

/// Runs a command that asks the apiserver, to its end.
pub(super) fn run<T>(command: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    install_provider()?;
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(command)
}

/// Makes ring the process's provider of cryptography: kube and etcd-client take that one.
pub(super) fn install_provider() -> anyhow::Result<std::sync::Arc<rustls::crypto::CryptoProvider>> {
    let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
    if provider.as_ref().clone().install_default().is_err() {
        anyhow::bail!("another cryptography provider is installed already");
    }
    Ok(provider)
}
