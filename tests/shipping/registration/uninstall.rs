//! Uninstalling in the documented order blocks no deletions and leaves nothing behind.

use std::{fs, process::Stdio, time::Duration};

use serde_json::json;

use crate::{helm_template, kubeconfig_with, kustomize, objects};
use test_support::{
    kubernetes::control_plane::ControlPlane, processes::child::scoped_command, wait::wait_until,
};

/// The longest time for the namespace controller.
const DELETION_TIMEOUT: Duration = Duration::from_secs(60);

const CONFIGURATIONS: &str = "validatingwebhookconfigurations,mutatingwebhookconfigurations";

#[tokio::test]
async fn uninstallations_leave_nothing_behind() {
    let control_plane = ControlPlane::start(&[]);
    uninstall_removes_webhooks_first(&control_plane).await;
    chart_hook_deletes_every_configuration(&control_plane).await;
}

async fn uninstall_removes_webhooks_first(control_plane: &ControlPlane) {
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
    assert_eq!(left(CONFIGURATIONS), 5);
    // The wrong order: the guard is removed before its configuration.
    kubectl.run_checked(&["-n", "etcd-guard", "delete", "deployment,service", "etcd-guard"]);
    kubectl.run_checked(&["create", "namespace", "prod"]);
    kubectl.run_checked(&["label", "namespace", "prod", "etcd-guard.io/guard=enabled"]);
    let nowhere = "--overrides={\"spec\":{\"nodeName\":\"nowhere\"}}";
    // A new namespace has no service account for a moment.
    wait_until("the pod is created", DELETION_TIMEOUT, async || {
        kubectl.run(&["-n", "prod", "run", "pause", "--image=etcd", nowhere]).await.success
    })
    .await;

    let denied = kubectl.run(&["-n", "prod", "delete", "pod", "pause", "--force", "--grace-period=0"]).await;
    assert!(!denied.success && denied.stderr.contains("failed calling webhook"), "{denied:?}");

    // The remedy: `unregister` deletes what the documented label selects. Then the applied objects.
    let unregister = |arguments: &[&str]| {
        let mut program = scoped_command(env!("CARGO_BIN_EXE_etcd-guard"));
        program.arg("unregister").args(arguments).arg("--kubeconfig").arg(control_plane.admin_kubeconfig());
        let output = program.stdin(Stdio::null()).output().unwrap();
        let [stdout, stderr] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
        (output.status.code(), stdout, stderr)
    };
    let (status, stdout, stderr) = unregister(&["--dry-run"]);
    assert_eq!((status, stdout.lines().count()), (Some(0), 5), "{stdout}{stderr}");
    assert!(stdout.contains("validatingwebhookconfiguration/etcd-guard deleted (dry run)\n"), "{stdout}");
    assert!(stderr.contains("/etcd-guard: deletions, evictions and scale-downs of etcd members"), "{stderr}");
    let (status, stdout, stderr) = unregister(&[]);
    assert_eq!((status, stdout.as_str()), (Some(1), ""), "{stderr}");
    assert!(stderr.contains("error: confirmation is required") && stderr.contains("--yes"), "{stderr}");
    let (status, _, stderr) = unregister(&["--yes", "--context=none"]);
    assert!(status == Some(1) && stderr.starts_with("error: "), "{stderr}");
    assert_eq!(left(CONFIGURATIONS), 5, "nothing was deleted yet");
    let (status, stdout, stderr) = unregister(&["--yes"]);
    assert_eq!((status, stdout.lines().count()), (Some(0), 5), "{stdout}{stderr}");
    assert_eq!(left(CONFIGURATIONS), 0);
    let (status, stdout, _) = unregister(&[]);
    assert!(status == Some(0) && stdout.starts_with("no webhook configuration of the guard"), "{stdout}");
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

/// The Job of the chart, with its arguments and its permissions, for every webhook configuration.
async fn chart_hook_deletes_every_configuration(control_plane: &ControlPlane) {
    let kubectl = control_plane.kubectl();
    kubectl.run_checked(&["create", "namespace", "etcd-guard"]);
    let parts = "--set=parts.inject=true,parts.nodes=true,parts.rules=true,parts.nodeDeletions=true";
    let mut all = objects(&helm_template(&[parts]));
    let job = all.iter().find(|object| object["kind"] == "Job").unwrap().clone();
    assert_eq!(job["metadata"]["annotations"]["helm.sh/hook"], "pre-delete");
    let pod = &job["spec"]["template"]["spec"];
    all.retain(|object| object["kind"] != "Job");
    let file = control_plane.dir.join("chart.json");
    fs::write(&file, json!({"apiVersion": "v1", "kind": "List", "items": all}).to_string()).unwrap();
    kubectl.run_checked(&["apply", "-f", &file.to_string_lossy()]);
    let left = || kubectl.run_checked(&["get", CONFIGURATIONS, "-o", "name"]).stdout.lines().count();
    assert_eq!(left(), 6);

    let account = pod["serviceAccountName"].as_str().unwrap();
    let token = kubectl.run_checked(&["-n", "etcd-guard", "create", "token", account]).stdout;
    let kubeconfig = kubeconfig_with(control_plane, account, token.trim());
    let arguments: Vec<_> =
        pod["containers"][0]["args"].as_array().unwrap().iter().map(|word| word.as_str().unwrap()).collect();
    wait_until("the hook succeeds, once the authorizer knows its role", DELETION_TIMEOUT, async || {
        let mut hook = scoped_command(env!("CARGO_BIN_EXE_etcd-guard"));
        hook.args(&arguments).env("ETCD_GUARD_KUBECONFIG", &kubeconfig);
        hook.output().unwrap().status.success()
    })
    .await;
    assert_eq!(left(), 0);
    let account = format!("--as=system:serviceaccount:etcd-guard:{account}");
    let other = ["auth", "can-i", "delete", "validatingwebhookconfigurations/other", &account];
    assert_eq!(kubectl.run(&other).await.stdout.trim(), "no");
}
