//! The key that all replicas share: lost, it comes back; given away, it is exchanged.

use std::{net::TcpListener, time::Duration};

use k8s_openapi::api::core::v1::Secret;
use kube::{Api, api::DeleteParams, api::Patch, api::PatchParams};
use nix::sys::signal::Signal;
use serde_json::json;

use crate::{
    self_managed::permit,
    support::{
        control_plane::ControlPlane,
        self_managed_guard::SelfManagedGuard,
        wait::{some, until},
    },
};

const SECRET: &str = "etcd-guard-certificates";

/// Longest that recovery may take, next to compilers.
const LIMIT: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_key_comes_back_and_is_told_and_one_that_nobody_serves_is_gone() {
    let control_plane = ControlPlane::start(&[]);
    let kubeconfig = permit(&control_plane);
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let url = format!("--register-url=https://{free}");
    let flags = ["--certificate-life=1h", "--register", &url];
    let mut guard = SelfManagedGuard::launch(&kubeconfig, free, &flags);
    guard.wait_until_ready().await;
    let secrets: Api<Secret> = Api::namespaced(control_plane.client().await, "etcd-guard");
    let key = async || secrets.get_opt(SECRET).await.ok()??.data?.remove("tls.key");
    let first = some("a key is stored", LIMIT, key).await;

    // Deleted under a guard that serves it, the same key is written again.
    assert!(!guard.has_logged("the lost Secret is written again"));
    secrets.delete(SECRET, &DeleteParams::default()).await.unwrap();
    assert_eq!(some("a key is stored", LIMIT, key).await, first);
    until("it says so", LIMIT, async || guard.has_logged("the lost Secret is written again")).await;

    let spoilt = Patch::Merge(json!({"stringData": {"tls.crt": "rubbish", "tls.key": "rubbish"}}));
    secrets.patch(SECRET, &PatchParams::default(), &spoilt).await.unwrap();
    until("the key is back", LIMIT, async || key().await.as_ref() == Some(&first)).await;
    until("it says why", LIMIT, async || guard.has_logged("the Secret holds no usable certificate")).await;

    // As docs/security.md has it: nobody serves it any more, then it is deleted, then one starts.
    guard.signal(Signal::SIGTERM);
    guard.wait_for_end().await;
    secrets.delete(SECRET, &DeleteParams::default()).await.unwrap();
    let guard = SelfManagedGuard::launch(&kubeconfig, free, &flags);
    guard.wait_until_ready().await;
    assert!(guard.has_logged("a first certificate is made"));
    assert_ne!(key().await.unwrap(), first);
}
