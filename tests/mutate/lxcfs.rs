//! Injection of the lxcfs files.

use serde_json::{Value, json};

use crate::mutated_cluster::{ACCOUNT_TIMEOUT, MutatedCluster, SYSTEM_NAMESPACE, mount_paths, pod};
use test_support::wait::wait_for;

fn requesting() -> Value {
    pod(json!({"sidecar-injector.lxcfs/inject": "true", "theirs": "kept"}))
}

#[tokio::test]
async fn injects_files_on_request() {
    let mut cluster = MutatedCluster::start("", &[], &["inject"]).await;
    let (stored, _) = cluster.applied(&requesting()).await;
    assert_eq!(cluster.guard.new_verdicts().await, ["CREATE allowed Injected"]);
    let paths = mount_paths(&stored["spec"]["containers"][0]);
    assert!(
        paths.contains(&"/proc/meminfo") && paths.contains(&"/sys/devices/system/cpu/online"),
        "{paths:?}"
    );
    assert_eq!(stored["metadata"]["annotations"]["theirs"], "kept");
    assert!(stored["metadata"]["annotations"]["etcd-guard.io/injected"].is_string());
}

#[tokio::test]
async fn injects_selected_files_and_prefers_lxcfs_nodes() {
    let mut cluster = MutatedCluster::start("lxcfs: {nodeAffinity: prefer}", &[], &["inject"]).await;
    let mut choosy = pod(json!({
        "sidecar-injector.lxcfs/inject": "true",
        "etcd-guard.io/lxcfs-files": "meminfo,uptime",
        "etcd-guard.io/lxcfs-exclude-containers": "proxy",
    }));
    let containers = choosy["spec"]["containers"].as_array_mut().unwrap();
    containers.push(json!({"name": "proxy", "image": "proxy:1"}));
    let (stored, _) = cluster.applied(&choosy).await;
    assert!(cluster.guard.new_verdicts().await.contains(&String::from("CREATE allowed Injected")));
    let files = |n: usize| -> Vec<&str> {
        let paths = mount_paths(&stored["spec"]["containers"][n]).into_iter();
        paths.filter(|path| !path.contains("serviceaccount")).collect()
    };
    assert_eq!(files(0), ["/proc/meminfo", "/proc/uptime"]);
    assert_eq!(files(1), [""; 0]);
    let affinity = &stored["spec"]["affinity"]["nodeAffinity"];
    let preferred = &affinity["preferredDuringSchedulingIgnoredDuringExecution"][0]["preference"];
    assert_eq!(preferred["matchExpressions"][0]["key"], "node-restriction.kubernetes.io/lxcfs-ready");
    assert_eq!(affinity.get("requiredDuringSchedulingIgnoredDuringExecution"), None);
}

#[tokio::test]
async fn leaves_pods_without_request_unchanged() {
    let mut cluster = MutatedCluster::start("", &[], &["inject"]).await;
    let (stored, _) = cluster.applied(&pod(json!({}))).await;
    assert_eq!(cluster.guard.new_verdicts().await, ["CREATE allowed NothingToInject"]);
    assert_eq!(stored["spec"]["volumes"].as_array().unwrap().len(), 1, "the service account's token");
}

#[tokio::test]
async fn warns_in_restricted_namespace_without_injecting() {
    let labels = ["pod-security.kubernetes.io/enforce=restricted"];
    let mut cluster = MutatedCluster::start("", &labels, &["inject"]).await;
    let mut requesting = requesting();
    requesting["spec"]["securityContext"] =
        json!({"runAsNonRoot": true, "runAsUser": 1, "seccompProfile": {"type": "RuntimeDefault"}});
    requesting["spec"]["containers"][0]["securityContext"] =
        json!({"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}});
    let (stored, output) = cluster.applied(&requesting).await;
    assert!(
        output
            .stderr
            .contains("Warning: lxcfs was not injected: the namespace enforces Pod Security restricted"),
        "{output:?}"
    );
    assert_eq!(cluster.guard.new_verdicts().await, ["CREATE allowed PodSecurity"]);
    assert_eq!(stored["spec"]["volumes"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn dry_run_shows_files_and_stores_nothing() {
    let mut cluster = MutatedCluster::start("", &[], &["inject"]).await;
    let output = cluster.create(&requesting(), &["--dry-run=server", "-o", "json"]).await;
    let shown: Value = serde_json::from_str(&output.stdout).unwrap();
    assert!(mount_paths(&shown["spec"]["containers"][0]).contains(&"/proc/meminfo"));
    assert_eq!(cluster.guard.new_verdicts().await, ["CREATE allowed Injected"]);
    assert!(!cluster.kubectl(&["get", "pod", "web"]).await.success);
}

#[tokio::test]
async fn admits_pods_unchanged_without_guard() {
    let mut cluster = MutatedCluster::start("", &[], &["inject"]).await;
    cluster.create(&requesting(), &["--dry-run=server"]).await;
    assert_eq!(
        cluster.guard.new_verdicts().await,
        ["CREATE allowed Injected"],
        "the API server calls the running guard"
    );
    cluster.guard.kill();
    let (stored, _) = cluster.applied(&requesting()).await;
    assert_eq!(stored["spec"]["volumes"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn does_not_receive_pods_of_kube_system() {
    let mut cluster = MutatedCluster::start("skipNamespaces: []", &[], &["inject"]).await;
    let here = ["--dry-run=server", "-o", "json"];
    let there = [&here[..], &["--namespace", SYSTEM_NAMESPACE]].concat();
    let output = wait_for("the system has its service account", ACCOUNT_TIMEOUT, async || {
        Some(cluster.create(&requesting(), &there).await).filter(|output| output.success)
    })
    .await;
    let shown: Value = serde_json::from_str(&output.stdout).unwrap();
    assert!(!mount_paths(&shown["spec"]["containers"][0]).contains(&"/proc/meminfo"));
    assert_eq!(cluster.guard.new_verdicts().await, [""; 0]);
    assert!(cluster.create(&requesting(), &here).await.success);
    assert_eq!(cluster.guard.new_verdicts().await, ["CREATE allowed Injected"]);
}
