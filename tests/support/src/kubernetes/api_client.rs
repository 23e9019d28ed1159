//! Clients of the Kubernetes API with the identity of a kubeconfig.

use std::{path::Path, time::Duration};

use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};

/// The longest time for one call. A healthy API server answers in milliseconds, on a busy machine in seconds.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// Creates a client; it works only in the runtime that creates it.
pub async fn client(kubeconfig: &Path) -> Client {
    // `kube` uses the process-wide provider, which may be installed already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let kubeconfig = Kubeconfig::read_from(kubeconfig).expect("a kubeconfig");
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .expect("a usable kubeconfig");
    // Retries would hide the first answer of a denied eviction, a 429.
    config.default_retry = false;
    config.connect_timeout = Some(CALL_TIMEOUT);
    config.read_timeout = Some(CALL_TIMEOUT);
    config.write_timeout = Some(CALL_TIMEOUT);
    Client::try_from(config).expect("a client")
}
