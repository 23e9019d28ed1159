//! Uninstalling in the documented order blocks no deletions and leaves nothing behind.

use std::{fs, time::Duration};

use crate::kustomize;
use test_support::{kubernetes::control_plane::ControlPlane, wait::wait_until};

/// The longest time for the namespace controller.
const DELETION_TIMEOUT: Duration = Duration::from_secs(60);

const CONFIGURATIONS: &str = "validatingwebhookconfigurations,mutatingwebhookconfigurations";

#[tokio::test]
async fn uninstall_removes_webhooks_first() {
    let control_plane = ControlPlane::start(&[]);
    let kubectl = control_plane.kubectl();
    let file = control_plane.dir.join("deploy.yaml");
    // With every component that has a configuration of its own.
    fs::write(&file, kustomize("deploy/overlays/mutating")).unwrap();
    let file = file.to_string_lossy();
    kubectl.run_checked(&["apply", "-f", &file]);
    let left = |kinds: &str| {
        let label = "app.kubernetes.io/name=etcd-guard";
        kubectl.run_checked(&["get", kinds, "-l", label, "-o", "name"]).stdout.lines().count()
    };
    assert_eq!(left(CONFIGURATIONS), 4);
    // The wrong order: the guard is removed before its configuration.
    kubectl.run_checked(&["-n", "etcd-guard", "delete", "deployment,service", "etcd-guard"]);
    kubectl.run_checked(&["create", "namespace", "prod"]);
    kubectl.run_checked(&["label", "namespace", "prod", "etcd-guard.io/guard=enabled"]);
    let nowhere = "--overrides={\"spec\":{\"nodeName\":\"nowhere\"}}";
    // A new namespace has no service account for a moment.
    wait_until("the pod is created", DELETION_TIMEOUT, async || {
        kubectl.run(&["-n", "prod", "run", "pause", "--image=pause", nowhere]).await.success
    })
    .await;

    let denied = kubectl.run(&["-n", "prod", "delete", "pod", "pause", "--force", "--grace-period=0"]).await;
    assert!(!denied.success && denied.stderr.contains("failed calling webhook"), "{denied:?}");

    // The remedy, and the documented order: `unregister`, then the applied objects.
    let mut unregister = test_support::processes::child::scoped_command(env!("CARGO_BIN_EXE_etcd-guard"));
    unregister.args(["unregister", "--kubeconfig"]).arg(control_plane.admin_kubeconfig());
    crate::stdout(&mut unregister);
    assert_eq!(left(CONFIGURATIONS), 0);
    // The API server learns of the removal by a watch. A controller that deletes pods without a node may be faster.
    let delete =
        ["-n", "prod", "delete", "pod", "pause", "--force", "--grace-period=0", "--ignore-not-found"];
    wait_until("the pod can be deleted", DELETION_TIMEOUT, async || kubectl.run(&delete).await.success).await;
    kubectl.run_checked(&["delete", "--ignore-not-found", "--wait=false", "-f", &file]);
    kubectl.run_checked(&["delete", "namespace", "prod", "--wait=false"]);
    wait_until("both namespaces are deleted", DELETION_TIMEOUT, async || {
        let left = kubectl.run_checked(&["get", "namespaces", "-o", "name"]).stdout;
        !left.contains("etcd-guard") && !left.contains("prod")
    })
    .await;
    assert_eq!(left(&format!("clusterroles,clusterrolebindings,{CONFIGURATIONS}")), 0);
}
