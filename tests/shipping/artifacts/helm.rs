//! The life of a release with Helm 3, with Helm 4, and from one to the other. Without nodes: no pod runs.

use serde_json::Value;

use crate::{project_path, stdout};
use test_support::{
    kubernetes::control_plane::ControlPlane,
    processes::{child::scoped_command, testbed::program},
};

const WEBHOOKS: &str = "validatingwebhookconfiguration/etcd-guard";
const CERTIFICATES: &str = "deployment/etcd-guard-certificates";

/// Runs the documented commands.
fn life_of_a_release(installer: &str, upgrader: &str) {
    let control_plane = ControlPlane::start(&[]);
    let kubectl = control_plane.kubectl();
    let home = tempfile::tempdir().unwrap();
    let helm = |name: &str, arguments: &[&str], flags: &[&str]| {
        let mut command = scoped_command(program(name));
        for variable in ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"] {
            command.env(variable, home.path());
        }
        command.args(arguments).args(["--namespace=etcd-guard", "--kubeconfig"]);
        stdout(command.arg(control_plane.admin_kubeconfig()).args(flags))
    };
    let object = |name: &str| -> Value {
        let read = kubectl.run_checked(&["-n", "etcd-guard", "get", name, "-o", "json"]);
        serde_json::from_str(&read.stdout).unwrap()
    };
    let chart = project_path("deploy/chart/etcd-guard");
    let chart = chart.to_str().unwrap();
    helm(installer, &["install", "etcd-guard", chart], &["--create-namespace"]);
    // As the process that renews the certificates does.
    let bundle = r#"[{"op":"add","path":"/webhooks/0/clientConfig/caBundle","value":"QQ=="}]"#;
    let patch = || kubectl.run_checked(&["patch", WEBHOOKS, "--type=json", "-p", bundle]);
    patch();

    let upgrade = ["upgrade", "etcd-guard", chart, "--reset-then-reuse-values"];
    helm(upgrader, &upgrade, &["--set=replicaCount=3,webhooks.timeoutSeconds=9"]);
    let webhook = &object(WEBHOOKS)["webhooks"][0];
    assert_eq!(webhook["timeoutSeconds"], 9);
    assert_eq!(webhook["clientConfig"]["caBundle"], "QQ==", "the API server still trusts the guard");
    assert_eq!(object("deployment/etcd-guard")["spec"]["replicas"], 3);

    // As in docs/break-glass.md: switch the guard off, and on again.
    kubectl.run_checked(&["-n", "etcd-guard", "scale", CERTIFICATES, "--replicas=0"]);
    kubectl.run_checked(&["delete", WEBHOOKS]);
    helm(upgrader, &upgrade, &[]);
    assert_eq!(object(CERTIFICATES)["spec"]["replicas"], 1);
    assert_eq!(object(WEBHOOKS)["webhooks"][0]["timeoutSeconds"], 9);

    patch();
    helm(upgrader, &["rollback", "etcd-guard", "1"], &[]);
    let webhook = &object(WEBHOOKS)["webhooks"][0];
    assert_eq!(
        (&webhook["timeoutSeconds"], &webhook["clientConfig"]["caBundle"]),
        (&10.into(), &"QQ==".into())
    );
    assert_eq!(object("deployment/etcd-guard")["spec"]["replicas"], 2);

    kubectl.run_checked(&["delete", WEBHOOKS]);
    helm(upgrader, &["uninstall", "etcd-guard"], &["--no-hooks"]);
    let kinds =
        "deployments,services,configmaps,clusterroles,clusterrolebindings,validatingadmissionpolicies";
    let left =
        kubectl.run_checked(&["get", kinds, "-A", "-o", "name", "-l", "app.kubernetes.io/name=etcd-guard"]);
    assert_eq!(left.stdout, "");
}

#[tokio::test]
async fn helm_3_installs_upgrades_and_uninstalls() {
    life_of_a_release("helm-3", "helm-3");
}

#[tokio::test]
async fn helm_4_installs_upgrades_and_uninstalls() {
    life_of_a_release("helm-4", "helm-4");
}

#[tokio::test]
async fn helm_4_upgrades_a_release_of_helm_3() {
    life_of_a_release("helm-3", "helm-4");
}
