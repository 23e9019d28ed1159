//! The guard is ready, and stays so, whatever becomes of the configurations of its other parts.

use std::{net::TcpListener, time::Duration};

use k8s_openapi::api::core::v1::Secret;
use kube::Api;

use crate::{
    path_of,
    self_managed::permit,
    support::{
        control_plane::ControlPlane,
        self_managed_guard::SelfManagedGuard,
        wait::{some, until},
    },
};

/// Longest until a certificate that lives for half a minute is exchanged, next to compilers.
const LIMIT: Duration = Duration::from_secs(120);

/// Of the mutating configurations one can be read and not written, and one not even read.
const ROLE_WITHOUT: &str = r#"[
    {"op": "replace", "path": "/rules/1/resourceNames", "value": ["etcd-guard-nodes"]},
    {"op": "replace", "path": "/rules/1/verbs", "value": ["get"]}
]"#;

#[tokio::test(flavor = "multi_thread")]
async fn a_part_that_cannot_get_its_bundle_does_not_keep_the_guard_from_serving() {
    let control_plane = ControlPlane::start(&[]);
    let (kubeconfig, kubectl) = (permit(&control_plane), control_plane.kubectl());
    kubectl.must(&["patch", "clusterrole/etcd-guard-certificates", "--type=json", "-p", ROLE_WITHOUT]);
    for part in ["inject", "over-commit"] {
        let file = path_of(&format!("deploy/components/{part}/webhook.yaml"));
        kubectl.must(&["apply", "-f", &file.to_string_lossy()]);
    }
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let url = format!("--register-url=https://{free}");
    let guard = SelfManagedGuard::launch(&kubeconfig, free, &["--certificate-life=30s", "--register", &url]);
    guard.wait_until_ready().await;
    until("it says which parts have no bundle", LIMIT, async || {
        ["etcd-guard-inject", "etcd-guard-nodes"]
            .iter()
            .all(|part| guard.has_logged(&format!("{part} failed")))
    })
    .await;

    // Nor do they keep it from going on to the next certificate.
    let secrets: Api<Secret> = Api::namespaced(control_plane.client().await, "etcd-guard");
    let stored = async || {
        let secret = secrets.get_opt("etcd-guard-certificates").await.ok()??;
        secret.data?.remove("tls.crt")
    };
    let first = some("a certificate is stored", LIMIT, stored).await;
    until("another one is", LIMIT, async || stored().await.is_some_and(|it| it != first)).await;
    guard.wait_until_ready().await;
}
