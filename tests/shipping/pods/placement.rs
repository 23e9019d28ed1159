//! The placement of the shipped pods: two replicas on different nodes, and critical pods with a quota.

use std::{collections::BTreeSet, fs, time::Duration};

use serde_json::{Value, json};

use crate::kustomize;
use test_support::{
    kubernetes::{
        control_plane::ControlPlane,
        kubectl::Kubectl,
        scheduler::{SCHEDULER, Scheduler},
    },
    wait::wait_until,
};

/// The longest time for a step, on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(120);

const NODES: [&str; 2] = ["first", "second"];

/// The number of updates. If new replicas counted the old ones for the placement, every second update would end on one
/// node.
const UPDATES: usize = 4;

/// Runs `kubectl get` and returns the JSON document.
fn get(kubectl: &Kubectl, words: &[&str]) -> Value {
    serde_json::from_str(&kubectl.run_checked(&[&["get", "-o", "json"], words].concat()).stdout).unwrap()
}

/// Whether the Deployment is rolled out, and no earlier pod is left.
fn is_rolled_out(kubectl: &Kubectl) -> bool {
    let deployment = get(kubectl, &["-n", "etcd-guard", "deployment/etcd-guard"]);
    let status = &deployment["status"];
    status["observedGeneration"] == deployment["metadata"]["generation"]
        && ["replicas", "updatedReplicas", "readyReplicas"].iter().all(|count| status[count] == 2)
        && guard_pods(kubectl).len() == 2
}

fn guard_pods(kubectl: &Kubectl) -> Vec<Value> {
    get(kubectl, &["-n", "etcd-guard", "pods"])["items"].as_array().unwrap().clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_run_on_separate_nodes_after_each_update() {
    let control_plane = ControlPlane::start(&NODES);
    let kubectl = control_plane.kubectl();
    let _kubelets = control_plane.process_node(&NODES, "etcd-guard", control_plane.dir.join("nodes"));
    let _scheduler = Scheduler::start(&control_plane);
    let shipped = kustomize("deploy/base");
    let account = "      serviceAccountName: etcd-guard\n";
    assert_eq!(shipped.matches(account).count(), 1, "{shipped}");
    let with_scheduler = format!("      schedulerName: {SCHEDULER}\n{account}");
    let file = control_plane.dir.join("deploy.yaml");
    fs::write(&file, shipped.replace(account, &with_scheduler)).unwrap();
    kubectl.run_checked(&["apply", "-f", &file.to_string_lossy()]);

    for update in 0..=UPDATES {
        if update > 0 {
            let annotations = json!({"annotations": {"update": update.to_string()}});
            let patch = json!({"spec": {"template": {"metadata": annotations}}}).to_string();
            kubectl.run_checked(&["-n", "etcd-guard", "patch", "deployment/etcd-guard", "-p", &patch]);
        }
        wait_until(&format!("both replicas are ready, update {update}"), TIMEOUT, async || {
            is_rolled_out(&kubectl)
        })
        .await;
        let pods = guard_pods(&kubectl);
        let nodes: BTreeSet<_> = pods.iter().filter_map(|pod| pod["spec"]["nodeName"].as_str()).collect();
        assert_eq!(nodes, BTreeSet::from(NODES), "update {update}");
    }
}

/// Returns an admission configuration that allows pods of the two critical classes only with a quota, as GKE does.
fn limited() -> Value {
    let classes = ["system-node-critical", "system-cluster-critical"];
    json!({
        "apiVersion": "apiserver.config.k8s.io/v1",
        "kind": "AdmissionConfiguration",
        "plugins": [{
            "name": "ResourceQuota",
            "configuration": {
                "apiVersion": "apiserver.config.k8s.io/v1",
                "kind": "ResourceQuotaConfiguration",
                "limitedResources": [{
                    "resource": "pods",
                    "matchScopes": [{"scopeName": "PriorityClass", "operator": "In", "values": classes}],
                }],
            },
        }],
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn manifests_include_quota_for_critical_pods() {
    let folder = tempfile::tempdir().unwrap();
    let admission = folder.path().join("admission.json");
    fs::write(&admission, limited().to_string()).unwrap();
    let admission = format!("--admission-control-config-file={}", admission.display());
    let control_plane = ControlPlane::start_with(
        &NODES,
        &["--controllers", "resourcequota-controller", "--apiserver-flag", &admission],
    );
    let kubectl = control_plane.kubectl();
    let _kubelets = control_plane.process_node(&NODES, "etcd-guard", control_plane.dir.join("nodes"));
    for node in NODES {
        wait_until("the node exists", TIMEOUT, async || {
            kubectl.run(&["label", "node", node, "kubernetes.io/os=linux", "--overwrite"]).await.success
        })
        .await;
    }
    let critical = r#"{"spec": {"priorityClassName": "system-node-critical"}}"#;
    let overrides = format!("--overrides={critical}");
    wait_until("a critical pod without a quota is denied", TIMEOUT, async || {
        let output = kubectl.run(&["run", "pause", "--image=pause", &overrides, "--dry-run=server"]).await;
        output.stderr.contains("insufficient quota to match these scopes")
    })
    .await;

    let file = control_plane.dir.join("deploy.yaml");
    fs::write(&file, kustomize("deploy/overlays/lxcfs")).unwrap();
    kubectl.run_checked(&["apply", "-f", &file.to_string_lossy()]);
    wait_until("both replicas and the certificate manager have their pods", TIMEOUT, async || {
        guard_pods(&kubectl).len() == 3
    })
    .await;
    wait_until("lxcfs has a pod for each node", TIMEOUT, async || {
        let pods = get(&kubectl, &["-n", "etcd-guard-lxcfs", "pods"]);
        pods["items"].as_array().unwrap().len() == NODES.len()
    })
    .await;
}
