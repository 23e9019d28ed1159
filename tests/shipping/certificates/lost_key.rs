//! The key that all replicas share: restored after a loss, and replaced after a leak.

use std::{net::TcpListener, time::Duration};

use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams},
};
use nix::sys::signal::Signal;
use serde_json::json;

use crate::certificates::self_managed::permit;
use test_support::{
    guard::self_managed::SelfManagedGuard,
    kubernetes::control_plane::ControlPlane,
    wait::{wait_for, wait_until},
};

const SECRET: &str = "etcd-guard-certificates";

/// The longest time for a recovery, on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread")]
async fn lost_key_is_restored_only_while_a_replica_uses_it() {
    let control_plane = ControlPlane::start(&[]);
    let kubeconfig = permit(&control_plane);
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let url = format!("--register-url=https://{free}");
    let flags = ["--certificate-life=1h", "--register", &url];
    let mut guard = SelfManagedGuard::launch(&kubeconfig, free, &flags);
    guard.wait_until_ready().await;
    let secrets: Api<Secret> = Api::namespaced(control_plane.client().await, "etcd-guard");
    let key = async || secrets.get_opt(SECRET).await.ok()??.data?.remove("tls.key");
    let first = wait_for("a key is stored", TIMEOUT, key).await;

    // A running guard that serves the key writes the same key again.
    assert!(!guard.has_logged("lost Secret restored"));
    secrets.delete(SECRET, &DeleteParams::default()).await.unwrap();
    assert_eq!(wait_for("a key is stored", TIMEOUT, key).await, first);
    wait_until("the guard logs the restoration", TIMEOUT, async || guard.has_logged("lost Secret restored"))
        .await;

    let spoilt = Patch::Merge(json!({"stringData": {"tls.crt": "rubbish", "tls.key": "rubbish"}}));
    secrets.patch(SECRET, &PatchParams::default(), &spoilt).await.unwrap();
    wait_until("the key is restored", TIMEOUT, async || key().await.as_ref() == Some(&first)).await;
    wait_until("the guard logs the cause", TIMEOUT, async || {
        guard.has_logged("the Secret holds no usable certificate")
    })
    .await;

    // The procedure of docs/security.md: all guards stop, the Secret is deleted, and a guard starts.
    guard.signal(Signal::SIGTERM);
    guard.wait_for_end().await;
    secrets.delete(SECRET, &DeleteParams::default()).await.unwrap();
    let guard = SelfManagedGuard::launch(&kubeconfig, free, &flags);
    guard.wait_until_ready().await;
    wait_until("the generation is logged", TIMEOUT, async || guard.has_logged("first certificate generated"))
        .await;
    assert_ne!(key().await.unwrap(), first);
}
