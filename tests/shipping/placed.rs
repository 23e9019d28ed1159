//! Where the pods of what is shipped come to run: the two replicas apart, and all of them where a quota is asked for.

use std::{collections::BTreeSet, fs, time::Duration};

use serde_json::{Value, json};

use crate::{
    kustomize,
    support::{
        control_plane::ControlPlane,
        kubectl::Kubectl,
        scheduler::{SCHEDULER, Scheduler},
        wait::until,
    },
};

/// Longest that a step may take, next to compilers.
const LIMIT: Duration = Duration::from_secs(120);

const NODES: [&str; 2] = ["first", "second"];

/// Of updates whose new replicas counted the old ones, every second ended on one node.
const UPDATES: usize = 4;

/// What a kubectl prints as JSON.
fn get(kubectl: &Kubectl, words: &[&str]) -> Value {
    serde_json::from_str(&kubectl.must(&[&["get", "-o", "json"], words].concat()).stdout).unwrap()
}

/// Whether the Deployment is what was asked for, and nothing of before is left.
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
async fn the_two_replicas_run_on_two_nodes_and_after_each_update_again() {
    let control_plane = ControlPlane::start(&NODES);
    let kubectl = control_plane.kubectl();
    let _kubelets = control_plane.process_node(&NODES, "etcd-guard", control_plane.dir.join("nodes"));
    let _scheduler = Scheduler::start(&control_plane);
    let shipped = kustomize("deploy/base");
    let account = "      serviceAccountName: etcd-guard\n";
    assert_eq!(shipped.matches(account).count(), 1, "{shipped}");
    let by_the_real_one = format!("      schedulerName: {SCHEDULER}\n{account}");
    let file = control_plane.dir.join("deploy.yaml");
    fs::write(&file, shipped.replace(account, &by_the_real_one)).unwrap();
    kubectl.must(&["apply", "-f", &file.to_string_lossy()]);

    for update in 0..=UPDATES {
        if update > 0 {
            let annotations = json!({"annotations": {"update": update.to_string()}});
            let patch = json!({"spec": {"template": {"metadata": annotations}}}).to_string();
            kubectl.must(&["-n", "etcd-guard", "patch", "deployment/etcd-guard", "-p", &patch]);
        }
        until(&format!("both replicas are ready, update {update}"), LIMIT, async || is_rolled_out(&kubectl))
            .await;
        let pods = guard_pods(&kubectl);
        let nodes: BTreeSet<_> = pods.iter().filter_map(|it| it["spec"]["nodeName"].as_str()).collect();
        assert_eq!(nodes, BTreeSet::from(NODES), "update {update}");
    }
}

/// Takes pods of the two critical classes only where a quota speaks of them, as GKE does.
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
async fn where_critical_pods_need_a_quota_one_comes_with_the_guard_and_with_lxcfs() {
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
        until("the node is known", LIMIT, async || {
            kubectl.run(&["label", "node", node, "kubernetes.io/os=linux", "--overwrite"]).await.success
        })
        .await;
    }
    let critical = r#"{"spec": {"priorityClassName": "system-node-critical"}}"#;
    let overrides = format!("--overrides={critical}");
    until("a critical pod without a quota is refused", LIMIT, async || {
        let said = kubectl.run(&["run", "pause", "--image=pause", &overrides, "--dry-run=server"]).await;
        said.stderr.contains("insufficient quota to match these scopes")
    })
    .await;

    let file = control_plane.dir.join("deploy.yaml");
    fs::write(&file, kustomize("deploy/overlays/lxcfs")).unwrap();
    kubectl.must(&["apply", "-f", &file.to_string_lossy()]);
    until("both replicas have their pods", LIMIT, async || guard_pods(&kubectl).len() == 2).await;
    until("lxcfs has a pod for each node", LIMIT, async || {
        let pods = get(&kubectl, &["-n", "etcd-guard-lxcfs", "pods"]);
        pods["items"].as_array().unwrap().len() == NODES.len()
    })
    .await;
}
