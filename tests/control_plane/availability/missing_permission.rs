//! A guard without the permission to list StatefulSets: it does not know the policies of the owners.

use std::path::{Path, PathBuf};

use kube::config::Kubeconfig;
use serde_json::{Value, json};
use test_support::{
    guard::{
        process::GuardProcess,
        review::{deletion_review, eviction_review},
    },
    guarded_cluster::GuardedCluster,
    http_client::Connection,
    kubernetes::kubectl::Kubectl,
    project,
};

/// Creates an account with the shipped permissions except those for StatefulSets, and returns its kubeconfig.
fn kubeconfig_without_stateful_sets(etcd: &GuardedCluster, files: &Path) -> PathBuf {
    let kubectl: Kubectl = etcd.kubectl_everywhere();
    let name = format!("guard-{}", etcd.namespace);
    let text = std::fs::read_to_string(project::path("deploy/base/rbac.yaml")).unwrap();
    let mut objects: Vec<Value> =
        text.split("\n---\n").map(|document| serde_saphyr::from_str(document).unwrap()).collect();
    for object in &mut objects {
        object["metadata"]["name"] = json!(name);
        if let Some(namespace) = object["metadata"].get_mut("namespace") {
            *namespace = json!("etcd-guard");
        }
        if let Some(rules) = object.get_mut("rules") {
            rules.as_array_mut().unwrap().retain(|rule| rule["resources"][0] != "statefulsets");
        }
        if object.get("roleRef").is_some() {
            object["roleRef"]["name"] = json!(name);
            object["subjects"][0]["name"] = json!(name);
        }
    }
    let file = files.join("rbac.json");
    std::fs::write(&file, json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string()).unwrap();
    kubectl.run_checked(&["apply", "-n", "etcd-guard", "-f", &file.to_string_lossy()]);
    let token = kubectl.run_checked(&["create", "token", &name, "-n", "etcd-guard"]).stdout;
    let mut kubeconfig = Kubeconfig::read_from(etcd.control_plane.guard_kubeconfig()).unwrap();
    for user in &mut kubeconfig.auth_infos {
        user.auth_info.as_mut().unwrap().token = Some(token.trim().to_owned().into());
    }
    let file = files.join("kubeconfig");
    std::fs::write(&file, serde_json::to_string(&kubeconfig).unwrap()).unwrap();
    file
}

/// Sends a review to this guard. Returns reason, message and warnings of the verdict.
async fn send(guard: &GuardProcess, review: String) -> (String, String) {
    let mut connection = Connection::tls(guard.https(), &guard.ca_pem).await.unwrap();
    let answer = connection.post("/validate?timeout=10s", review).await.unwrap();
    let answer: Value = serde_json::from_str(&answer.body).unwrap();
    let response = &answer["response"];
    let reason = response["auditAnnotations"]["reason"].as_str().unwrap_or_default().to_owned();
    (reason, format!("{} {}", response["status"]["message"], response["warnings"]))
}

/// The policies of the owners are not known, and none of them can revoke a break-glass of the pod.
#[tokio::test]
async fn break_glass_of_pod_needs_no_stateful_sets() {
    let etcd = GuardedCluster::start().await;
    let files = tempfile::tempdir_in(&etcd.control_plane.dir).unwrap();
    let kubeconfig = kubeconfig_without_stateful_sets(&etcd, files.path());
    let guard = GuardProcess::start(&kubeconfig, &files.path().join("guard")).await;
    let pod = etcd.pods.get(&etcd.leader().await).await.unwrap();
    for review in [deletion_review(&pod), eviction_review(&pod)] {
        let (reason, text) = send(&guard, review).await;
        assert!(
            reason == "LookupFailed" && text.contains("the StatefulSets of namespace"),
            "{reason}: {text}"
        );
    }

    // The copy in the review is older, and has no break-glass. The live pod decides.
    etcd.break_glass(&format!("pod/{}", pod.metadata.name.as_deref().unwrap())).await;
    for review in [deletion_review(&pod), eviction_review(&pod)] {
        let (reason, text) = send(&guard, review).await;
        assert!(reason == "BreakGlass" && text.contains("overrules LookupFailed"), "{reason}: {text}");
        assert!(text.contains("could not be reserved"), "{text}");
    }

    // A forged copy with a break-glass has no effect on another pod.
    let mut forged = etcd.pods.get(&etcd.followers().await[0]).await.unwrap();
    forged.metadata.annotations =
        etcd.pods.get(pod.metadata.name.as_deref().unwrap()).await.unwrap().metadata.annotations;
    let (reason, text) = send(&guard, deletion_review(&forged)).await;
    assert_eq!(reason, "LookupFailed", "{text}");
}
