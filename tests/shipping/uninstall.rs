//! Uninstalling in the documented order locks nothing and leaves nothing.

use std::{fs, time::Duration};

use crate::{
    kustomize,
    support::{control_plane::ControlPlane, wait::until},
};

/// Longest that the namespace controller may take.
const GONE_LIMIT: Duration = Duration::from_secs(60);

const CONFIGURATIONS: &str = "validatingwebhookconfigurations,mutatingwebhookconfigurations";

#[tokio::test]
async fn configurations_first_and_then_all_the_rest() {
    let control_plane = ControlPlane::start(&[]);
    let kubectl = control_plane.kubectl();
    let file = control_plane.dir.join("deploy.yaml");
    // With every part that has a configuration of its own.
    fs::write(&file, kustomize("deploy/overlays/mutating")).unwrap();
    let file = file.to_string_lossy();
    kubectl.must(&["apply", "-f", &file]);
    let left = |kinds: &str| {
        let label = "app.kubernetes.io/name=etcd-guard";
        kubectl.must(&["get", kinds, "-l", label, "-o", "name"]).stdout.lines().count()
    };
    assert_eq!(left(CONFIGURATIONS), 4);
    // The order that must not be: the guard is gone, its configuration is not.
    kubectl.must(&["-n", "etcd-guard", "delete", "deployment,service", "etcd-guard"]);
    kubectl.must(&["create", "namespace", "prod"]);
    kubectl.must(&["label", "namespace", "prod", "etcd-guard.io/guard=enabled"]);
    let nowhere = "--overrides={\"spec\":{\"nodeName\":\"nowhere\"}}";
    // A new namespace has no service account for a moment.
    until("the pod is made", GONE_LIMIT, async || {
        kubectl.run(&["-n", "prod", "run", "pause", "--image=pause", nowhere]).await.success
    })
    .await;

    let refused = kubectl.run(&["-n", "prod", "delete", "pod", "pause", "--force", "--grace-period=0"]).await;
    assert!(!refused.success && refused.stderr.contains("failed calling webhook"), "{refused:?}");

    // The way out, and the documented order: `unregister`, then whatever was applied.
    let mut unregister = crate::support::child::mortal(env!("CARGO_BIN_EXE_etcd-guard"));
    unregister.args(["unregister", "--kubeconfig"]).arg(control_plane.admin_kubeconfig());
    crate::stdout(&mut unregister);
    assert_eq!(left(CONFIGURATIONS), 0);
    // The apiserver learns of it by a watch. A controller that clears pods of no node may be faster.
    let delete =
        ["-n", "prod", "delete", "pod", "pause", "--force", "--grace-period=0", "--ignore-not-found"];
    until("the pod can be deleted", GONE_LIMIT, async || kubectl.run(&delete).await.success).await;
    kubectl.must(&["delete", "--ignore-not-found", "--wait=false", "-f", &file]);
    kubectl.must(&["delete", "namespace", "prod", "--wait=false"]);
    until("both namespaces are gone", GONE_LIMIT, async || {
        let left = kubectl.must(&["get", "namespaces", "-o", "name"]).stdout;
        !left.contains("etcd-guard") && !left.contains("prod")
    })
    .await;
    assert_eq!(left(&format!("clusterroles,clusterrolebindings,{CONFIGURATIONS}")), 0);
}
