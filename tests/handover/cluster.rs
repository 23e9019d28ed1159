//! A guarded cluster whose members run on three nodes, and the events of the guard about it.

use std::time::Duration;

use k8s_openapi::{api::core::v1::Node, jiff::Timestamp};
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};
use tokio::sync::{Mutex, MutexGuard};

use test_support::{
    guard::process::{ALL_NETWORKS, GuardProcess, HANDOVER},
    guarded_cluster::{GuardedCluster, START_TIMEOUT, Setup},
    kubernetes::control_plane::{ControlPlane, DRAINED_NODES},
    wait::{wait_for, wait_until},
};

/// Admits one test at a time.
static SERIAL: Mutex<()> = Mutex::const_new(());

/// Time in which a handover that must not take place would have taken place.
pub(crate) const QUIET_TIME: Duration = Duration::from_secs(4);

/// The conditions of nodes (KEP-5683) that are signals.
pub(crate) const LIFECYCLE_CONDITIONS: [&str; 4] =
    ["DrainInProgress", "Drained", "MaintenanceInProgress", "GracefulNodeShutdownInProgress"];

/// The only test that runs, with the nodes in their original state.
pub(crate) struct Turn {
    _lock: MutexGuard<'static, ()>,
}

impl Turn {
    pub(crate) async fn start() -> Self {
        let lock = SERIAL.lock().await;
        let control_plane = ControlPlane::shared();
        control_plane.grant_handover_permissions();
        // A test that failed may have left them cordoned. They do not exist before the first test.
        let nodes: Api<Node> = Api::all(control_plane.client().await);
        for node in DRAINED_NODES {
            let restored = json!({"spec": {"unschedulable": null, "taints": null}});
            let _ = nodes.patch(node, &PatchParams::default(), &Patch::Merge(restored)).await;
            for kind in LIFECYCLE_CONDITIONS {
                let removed = json!({"status": {"conditions": [{"type": kind, "$patch": "delete"}]}});
                let _ = nodes.patch_status(node, &PatchParams::default(), &Patch::Strategic(removed)).await;
            }
        }
        // Pods of earlier tests remain in the API, and later members can get their addresses.
        let deny = ["annotate", "statefulset", "--all", "-A", "--overwrite", "etcd-guard.io/leader=deny"];
        control_plane.kubectl().run(&deny).await;
        Self { _lock: lock }
    }
}

/// Starts a cluster with the policy `transfer`.
pub(crate) async fn start(handover: bool) -> GuardedCluster {
    start_with(handover, ALL_NETWORKS).await
}

/// Starts a cluster with the policy `transfer` and this configuration.
pub(crate) async fn start_with(handover: bool, config: &str) -> GuardedCluster {
    let etcd =
        GuardedCluster::start_as(Setup { nodes: &DRAINED_NODES, handover, config, ..Setup::default() }).await;
    annotate(&etcd, "statefulset/etcd", "etcd-guard.io/leader=transfer").await;
    etcd
}

/// Starts another replica of the guard.
pub(crate) async fn start_replica(etcd: &GuardedCluster, number: usize, handover: bool) -> GuardProcess {
    let dir = etcd.dir().join(format!("replica-{number}"));
    std::fs::create_dir_all(&dir).unwrap();
    if handover {
        std::fs::write(dir.join(HANDOVER), "").unwrap();
    }
    GuardProcess::start(&etcd.control_plane.guard_kubeconfig(), &dir).await
}

pub(crate) async fn annotate(etcd: &GuardedCluster, object: &str, annotation: &str) {
    let output = etcd.kubectl(&["annotate", "--overwrite", object, annotation]).await;
    assert!(output.success, "{output:?}");
}

/// Returns the node of a member.
pub(crate) fn node_of(pod: &str) -> &'static str {
    let position = GuardedCluster::names().iter().position(|name| *name == pod).unwrap();
    DRAINED_NODES[position]
}

/// Changes a node.
pub(crate) async fn patch_node(etcd: &GuardedCluster, node: &str, spec: Value) {
    let nodes: Api<Node> = Api::all(etcd.client.clone());
    nodes.patch(node, &PatchParams::default(), &Patch::Merge(json!({"spec": spec}))).await.unwrap();
}

pub(crate) async fn cordon(etcd: &GuardedCluster, node: &str) {
    patch_node(etcd, node, json!({"unschedulable": true})).await;
}

pub(crate) async fn uncordon(etcd: &GuardedCluster, node: &str) {
    patch_node(etcd, node, json!({"unschedulable": null})).await;
}

/// Sets a condition of a node, as a component sets it before it disrupts the pods of this node.
pub(crate) async fn set_condition(etcd: &GuardedCluster, node: &str, kind: &str, is_true: bool) {
    let nodes: Api<Node> = Api::all(etcd.client.clone());
    let (status, now) = (if is_true { "True" } else { "False" }, Timestamp::now());
    let condition = json!({"type": kind, "status": status, "reason": "Test", "lastTransitionTime": now});
    let patch = Patch::Strategic(json!({"status": {"conditions": [condition]}}));
    nodes.patch_status(node, &PatchParams::default(), &patch).await.unwrap();
}

/// Returns the value of a request for this pod, made now.
pub(crate) fn request(pod: &str) -> String {
    format!("{pod}@{}", Timestamp::now())
}

/// Returns the notes of the guard's events about an object (`KIND/NAME`) with this reason.
pub(crate) async fn notes(etcd: &GuardedCluster, object: &str, reason: &str) -> Vec<String> {
    let output = etcd.kubectl(&["get", "events.events.k8s.io", "-o", "json"]).await;
    assert!(output.success, "{output:?}");
    let events: Value = serde_json::from_str(&output.stdout).unwrap();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let is_wanted = |event: &&Value| {
        let regarding = &event["regarding"];
        format!("{}/{}", text(&regarding["kind"]), text(&regarding["name"])) == object
            && event["reportingController"] == "etcd-guard"
            && event["reason"] == reason
    };
    events["items"].as_array().unwrap().iter().filter(is_wanted).map(|event| text(&event["note"])).collect()
}

/// Waits for an event of the guard about an object whose note begins with this text.
pub(crate) async fn wait_for_note(etcd: &GuardedCluster, object: &str, reason: &str, start: &str) -> String {
    wait_for(&format!("{object} has the event {reason}: {start}"), START_TIMEOUT, async || {
        notes(etcd, object, reason).await.into_iter().find(|note| note.starts_with(start))
    })
    .await
}

/// Waits until another pod than this one leads, and returns the new leader.
pub(crate) async fn wait_for_move(etcd: &GuardedCluster, from: &str) -> String {
    wait_until(&format!("leadership leaves {from}"), START_TIMEOUT, async || etcd.leader().await != from)
        .await;
    etcd.leader().await
}

/// Returns the term of the cluster. Each move of leadership increases the term by one.
pub(crate) async fn term(etcd: &GuardedCluster) -> u64 {
    let leader = etcd.leader().await;
    etcd.member(&leader).status().await.expect("the leader answers").raft_term()
}
