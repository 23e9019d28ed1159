//! The Kubernetes API, with the identity of a kubeconfig.

use std::{path::Path, time::Duration};

use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};

/// Longest that one call may take. A healthy apiserver answers in milliseconds, next to compilers in seconds.
const CALL_LIMIT: Duration = Duration::from_secs(30);

/// A client; it belongs to the runtime that it is made in.
pub async fn client(kubeconfig: &Path) -> Client {
    // kube takes the process's provider, which may be there already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let kubeconfig = Kubeconfig::read_from(kubeconfig).expect("a kubeconfig");
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .expect("a usable kubeconfig");
    // A denied eviction answers 429: what a test sees shall be the first answer.
    config.default_retry = false;
    config.connect_timeout = Some(CALL_LIMIT);
    config.read_timeout = Some(CALL_LIMIT);
    config.write_timeout = Some(CALL_LIMIT);
    Client::try_from(config).expect("a client")
}
