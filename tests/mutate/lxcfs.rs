//! The files of lxcfs.

use serde_json::{Value, json};

use crate::{
    mutated_cluster::{ACCOUNT_LIMIT, MutatedCluster, SYSTEM, mount_paths, pod},
    support::wait::some,
};

fn asking() -> Value {
    pod(json!({"sidecar-injector.lxcfs/inject": "true", "theirs": "kept"}))
}

#[tokio::test]
async fn a_pod_that_asks_is_stored_with_the_files() {
    let mut cluster = MutatedCluster::start("", &[], &["inject"]).await;
    let (stored, _) = cluster.applied(&asking()).await;
    assert_eq!(cluster.guard.news().await, ["CREATE allowed Injected"]);
    let paths = mount_paths(&stored["spec"]["containers"][0]);
    assert!(
        paths.contains(&"/proc/meminfo") && paths.contains(&"/sys/devices/system/cpu/online"),
        "{paths:?}"
    );
    assert_eq!(stored["metadata"]["annotations"]["theirs"], "kept");
    assert!(stored["metadata"]["annotations"]["etcd-guard.io/injected"].is_string());
}

#[tokio::test]
async fn a_pod_says_which_files_go_to_which_containers_and_nodes_that_have_lxcfs_are_preferred() {
    let mut cluster = MutatedCluster::start("lxcfs: {nodeAffinity: prefer}", &[], &["inject"]).await;
    let mut choosy = pod(json!({
        "sidecar-injector.lxcfs/inject": "true",
        "etcd-guard.io/lxcfs-files": "meminfo,uptime",
        "etcd-guard.io/lxcfs-exclude-containers": "proxy",
    }));
    let containers = choosy["spec"]["containers"].as_array_mut().unwrap();
    containers.push(json!({"name": "proxy", "image": "proxy:1"}));
    let (stored, _) = cluster.applied(&choosy).await;
    assert!(cluster.guard.news().await.contains(&String::from("CREATE allowed Injected")));
    let files = |n: usize| -> Vec<&str> {
        let paths = mount_paths(&stored["spec"]["containers"][n]).into_iter();
        paths.filter(|it| !it.contains("serviceaccount")).collect()
    };
    assert_eq!(files(0), ["/proc/meminfo", "/proc/uptime"]);
    assert_eq!(files(1), [""; 0]);
    let affinity = &stored["spec"]["affinity"]["nodeAffinity"];
    let preferred = &affinity["preferredDuringSchedulingIgnoredDuringExecution"][0]["preference"];
    assert_eq!(preferred["matchExpressions"][0]["key"], "etcd-guard.io/lxcfs-ready");
    assert_eq!(affinity.get("requiredDuringSchedulingIgnoredDuringExecution"), None);
}

#[tokio::test]
async fn a_pod_that_does_not_ask_is_stored_as_it_came() {
    let mut cluster = MutatedCluster::start("", &[], &["inject"]).await;
    let (stored, _) = cluster.applied(&pod(json!({}))).await;
    assert_eq!(cluster.guard.news().await, ["CREATE allowed NothingToInject"]);
    assert_eq!(stored["spec"]["volumes"].as_array().unwrap().len(), 1, "the service account's token");
}

#[tokio::test]
async fn in_a_restricted_namespace_the_pod_is_admitted_unmutated_with_a_warning() {
    let labels = ["pod-security.kubernetes.io/enforce=restricted"];
    let mut cluster = MutatedCluster::start("", &labels, &["inject"]).await;
    let mut asking = asking();
    asking["spec"]["securityContext"] =
        json!({"runAsNonRoot": true, "runAsUser": 1, "seccompProfile": {"type": "RuntimeDefault"}});
    asking["spec"]["containers"][0]["securityContext"] =
        json!({"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}});
    let (stored, said) = cluster.applied(&asking).await;
    assert!(
        said.stderr
            .contains("Warning: lxcfs was not injected: the namespace enforces Pod Security restricted"),
        "{said:?}"
    );
    assert_eq!(cluster.guard.news().await, ["CREATE allowed PodSecurity"]);
    assert_eq!(stored["spec"]["volumes"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn a_server_dry_run_shows_the_files_and_stores_nothing() {
    let mut cluster = MutatedCluster::start("", &[], &["inject"]).await;
    let said = cluster.create(&asking(), &["--dry-run=server", "-o", "json"]).await;
    let shown: Value = serde_json::from_str(&said.stdout).unwrap();
    assert!(mount_paths(&shown["spec"]["containers"][0]).contains(&"/proc/meminfo"));
    assert_eq!(cluster.guard.news().await, ["CREATE allowed Injected"]);
    assert!(!cluster.kubectl(&["get", "pod", "web"]).await.success);
}

#[tokio::test]
async fn while_the_guard_is_gone_pods_are_admitted_as_they_came() {
    let mut cluster = MutatedCluster::start("", &[], &["inject"]).await;
    cluster.create(&asking(), &["--dry-run=server"]).await;
    assert_eq!(cluster.guard.news().await, ["CREATE allowed Injected"], "it is asked while it is there");
    cluster.guard.kill();
    let (stored, _) = cluster.applied(&asking()).await;
    assert_eq!(stored["spec"]["volumes"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn a_pod_of_the_system_is_not_even_asked_about() {
    let mut cluster = MutatedCluster::start("skipNamespaces: []", &[], &["inject"]).await;
    let here = ["--dry-run=server", "-o", "json"];
    let there = [&here[..], &["--namespace", SYSTEM]].concat();
    let said = some("the system has its service account", ACCOUNT_LIMIT, async || {
        Some(cluster.create(&asking(), &there).await).filter(|it| it.success)
    })
    .await;
    let shown: Value = serde_json::from_str(&said.stdout).unwrap();
    assert!(!mount_paths(&shown["spec"]["containers"][0]).contains(&"/proc/meminfo"));
    assert_eq!(cluster.guard.news().await, [""; 0]);
    assert!(cluster.create(&asking(), &here).await.success);
    assert_eq!(cluster.guard.news().await, ["CREATE allowed Injected"]);
}
