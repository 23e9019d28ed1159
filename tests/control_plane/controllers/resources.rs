//! Deletions of objects that members need to start or to find each other, by real Helm and one by one.

use std::path::Path;

use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api,
    api::{DeleteParams, ListParams},
};

use test_support::{
    guarded_cluster::{GuardedCluster, START_TIMEOUT, Setup},
    kubernetes::kubectl::CommandOutput,
    processes::{
        child::{run_to_end, scoped_command},
        testbed::program,
    },
    wait::wait_until,
};

/// Objects that the members need, and objects of another application in the same release.
const OBJECTS: &str = r"
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: etcd}
---
apiVersion: v1
kind: Secret
metadata: {name: etcd-tls}
stringData: {unused: content-of-the-secret}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: etcd-settings}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: web}
---
apiVersion: v1
kind: Secret
metadata: {name: web}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  selector: {app: web}
  ports: [{port: 80}]
";

/// The objects that the members need, and the objects of the other application.
const NEEDED: [&str; 5] =
    ["service/etcd", "secret/etcd-tls", "configmap/etcd-settings", "serviceaccount/etcd", "statefulset/etcd"];
const UNRELATED: [&str; 3] = ["service/web", "secret/web", "configmap/web"];

/// Returns the example with members that mount a Secret and a `ConfigMap`, and that run with a service account.
fn manifest(shipped: &str) -> String {
    let replace = |text: &str, from: &str, to: &str| {
        assert!(text.contains(from), "{from}");
        text.replace(from, to)
    };
    let account = "      automountServiceAccountToken: false\n";
    let volumes = "      serviceAccountName: etcd\n      volumes:\n      - {name: tls, secret: {secretName: etcd-tls}}\n      \
                   - {name: settings, projected: {sources: [{configMap: {name: etcd-settings}}]}}\n";
    let text = replace(shipped, account, &format!("{account}{volumes}"));
    let mount = "        - {name: data, mountPath: /var/lib/etcd}\n";
    let mounts = "        - {name: tls, mountPath: /etc/etcd/tls}\n        - {name: settings, mountPath: /etc/etcd/settings}\n";
    replace(&text, mount, &format!("{mount}{mounts}")) + OBJECTS
}

async fn exists(etcd: &GuardedCluster, object: &str) -> bool {
    !etcd.kubectl(&["get", object, "--ignore-not-found", "-o", "name"]).await.stdout.is_empty()
}

async fn helm(etcd: &GuardedCluster, home: &Path, arguments: &[&str]) -> CommandOutput {
    let mut command = scoped_command(program("helm"));
    for variable in ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"] {
        command.env(variable, home.join(variable));
    }
    command.args(arguments).args(["--namespace", &etcd.namespace]);
    command.arg("--kubeconfig").arg(etcd.control_plane.admin_kubeconfig());
    CommandOutput::from(&run_to_end(command).await)
}

/// Writes a chart with the objects of the cluster.
fn write_chart(directory: &Path) {
    let shipped = std::fs::read_to_string(test_support::project::path("etcd-manifests/plain.yaml")).unwrap();
    std::fs::create_dir_all(directory.join("templates")).unwrap();
    std::fs::write(directory.join("Chart.yaml"), "apiVersion: v2\nname: etcd\nversion: 1.0.0\n").unwrap();
    std::fs::write(directory.join("templates/etcd.yaml"), manifest(&shipped)).unwrap();
}

#[tokio::test]
async fn helm_uninstall_removes_all_or_nothing_that_members_need() {
    let mut etcd = GuardedCluster::start_as(Setup { change_manifest: manifest, ..Setup::default() }).await;
    let files = tempfile::tempdir_in(&etcd.control_plane.dir).unwrap();
    let chart = files.path().join("etcd");
    write_chart(&chart);
    let path = chart.to_string_lossy();
    let output = helm(&etcd, files.path(), &["install", "etcd", &path, "--take-ownership"]).await;
    assert!(output.success, "{output:?}");
    let mut uids = Vec::new();
    for name in GuardedCluster::names() {
        uids.push(etcd.uid(name).await);
    }

    // Without --debug, Helm does not print the errors of the API server.
    let output = helm(&etcd, files.path(), &["uninstall", "etcd", "--debug"]).await;
    assert!(!output.success, "{output:?}");
    for object in NEEDED {
        assert!(exists(&etcd, object).await, "{object}");
    }
    for object in UNRELATED {
        assert!(!exists(&etcd, object).await, "{object}");
    }
    for text in
        ["resources.guard.etcd-guard.io", "intent.guard.etcd-guard.io", "Service etcd is used by a running"]
    {
        assert!(output.stderr.contains(text), "{text}: {output:?}");
    }
    assert!(!output.stderr.contains("content-of-the-secret"), "{output:?}");
    for (name, uid) in GuardedCluster::names().iter().zip(&uids) {
        assert_eq!(etcd.uid(name).await, *uid);
        assert!(etcd.member(name).serves().await, "{name}");
    }
    assert_eq!(
        etcd.guard.new_verdicts().await,
        ["DELETE allowed IntentHarmless", "DELETE denied IntentProtected"]
    );

    etcd.break_glass("statefulset/etcd").await;
    wait_until("the break-glass applies", START_TIMEOUT, async || {
        etcd.kubectl(&["delete", "service", "etcd", "--dry-run=server"]).await.success
    })
    .await;
    let output = helm(&etcd, files.path(), &["uninstall", "etcd"]).await;
    assert!(output.success, "{output:?}");
    wait_until("everything is deleted", START_TIMEOUT, async || {
        let mut left = false;
        for object in NEEDED {
            left |= exists(&etcd, object).await;
        }
        !left && etcd.kubectl(&["get", "pods", "-l", "app=etcd", "-o", "name"]).await.stdout.is_empty()
    })
    .await;
}

#[tokio::test]
async fn objects_without_running_users_can_be_deleted() {
    let mut etcd = GuardedCluster::start_as(Setup { change_manifest: manifest, ..Setup::default() }).await;
    let output = etcd.kubectl(&["delete", "configmap", "etcd-settings", "kube-root-ca.crt"]).await;
    let text = "IntentProtected: ConfigMap etcd-settings is used by a running etcd cluster (3 pods, including etcd-0)";
    assert!(!output.success && output.stderr.contains(text), "{output:?}");
    assert!(output.stdout.contains("configmap \"kube-root-ca.crt\" deleted"), "{output:?}");
    let advice = format!("kubectl annotate --overwrite -n {} statefulset etcd ", etcd.namespace);
    assert!(output.stderr.contains(&advice), "{output:?}");

    // Each object of a collection is a review of its own, without a name.
    let secrets: Api<Secret> = Api::namespaced(etcd.client.clone(), &etcd.namespace);
    let denial =
        secrets.delete_collection(&DeleteParams::default(), &ListParams::default()).await.unwrap_err();
    assert!(denial.to_string().contains("Secret etcd-tls is used by a running"), "{denial}");
    assert!(exists(&etcd, "secret/etcd-tls").await);

    // Without the StatefulSet and its pods, nothing needs the objects.
    etcd.break_glass("statefulset/etcd").await;
    wait_until("the break-glass applies", START_TIMEOUT, async || {
        etcd.kubectl(&["delete", "statefulset", "etcd", "--wait=false"]).await.success
    })
    .await;
    wait_until("the members have stopped", START_TIMEOUT, async || {
        etcd.kubectl(&["get", "pods", "-l", "app=etcd", "-o", "name"]).await.stdout.is_empty()
    })
    .await;
    etcd.guard.new_verdicts().await;
    let output =
        etcd.kubectl(&["delete", "service/etcd", "secret/etcd-tls", "configmap/etcd-settings"]).await;
    assert!(output.success, "{output:?}");
    assert_eq!(etcd.guard.new_verdicts().await, ["DELETE allowed IntentHarmless"]);
}
