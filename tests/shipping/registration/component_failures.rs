//! The guard is ready even if the webhook configurations of its other components fail.

use std::{net::TcpListener, time::Duration};

use k8s_openapi::api::core::v1::Secret;
use kube::Api;

use crate::{certificates::self_managed::permit, project_path};
use test_support::{
    guard::self_managed::SelfManagedGuard,
    kubernetes::control_plane::ControlPlane,
    wait::{wait_for, wait_until},
};

/// The longest time until a certificate with a lifetime of half a minute is rotated, on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Permissions to read and not to write one mutating configuration, and no permissions for the other one.
const REDUCED_PERMISSIONS: &str = r#"[
    {"op": "replace", "path": "/rules/1/resourceNames", "value": ["etcd-guard-nodes"]},
    {"op": "replace", "path": "/rules/1/verbs", "value": ["get"]}
]"#;

#[tokio::test(flavor = "multi_thread")]
async fn guard_serves_despite_failed_ca_bundle_update() {
    let control_plane = ControlPlane::start(&[]);
    let (kubeconfig, kubectl) = (permit(&control_plane), control_plane.kubectl());
    kubectl.run_checked(&[
        "patch",
        "clusterrole/etcd-guard-certificates",
        "--type=json",
        "-p",
        REDUCED_PERMISSIONS,
    ]);
    for part in ["inject", "over-commit"] {
        let file = project_path(&format!("deploy/components/{part}/webhook.yaml"));
        kubectl.run_checked(&["apply", "-f", &file.to_string_lossy()]);
    }
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let url = format!("--register-url=https://{free}");
    let guard = SelfManagedGuard::launch(&kubeconfig, free, &["--certificate-life=30s", "--register", &url]);
    guard.wait_until_ready().await;
    wait_until("the guard logs the components without a bundle", TIMEOUT, async || {
        ["etcd-guard-inject", "etcd-guard-nodes"]
            .iter()
            .all(|part| guard.has_logged(&format!("{part} failed")))
    })
    .await;

    // The failures do not prevent the rotation of the certificate.
    let secrets: Api<Secret> = Api::namespaced(control_plane.client().await, "etcd-guard");
    let stored = async || {
        let secret = secrets.get_opt("etcd-guard-certificates").await.ok()??;
        secret.data?.remove("tls.crt")
    };
    let first = wait_for("a certificate is stored", TIMEOUT, stored).await;
    wait_until("another certificate is stored", TIMEOUT, async || {
        stored().await.is_some_and(|current| current != first)
    })
    .await;
    guard.wait_until_ready().await;
}
