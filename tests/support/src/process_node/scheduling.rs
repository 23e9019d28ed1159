//! Node objects, and the binding of pods to nodes.

use k8s_openapi::api::core::v1::{Binding, Node, Pod};
use kube::{
    Api, Client,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use serde_json::json;

use super::key;

/// The annotation of pods that are bound to the next node while theirs is cordoned. Other pods wait for their node.
pub const MOVES: &str = "process-node.test/moves";

/// Pods with another scheduler name are not bound here.
const SCHEDULER: &str = "default-scheduler";

/// Creates a Node object as a kubelet does, unless it exists: several process nodes can share one.
pub(super) async fn register_node(admin: &Client, name: &str) -> Result<(), kube::Error> {
    let nodes: Api<Node> = Api::all(admin.clone());
    let metadata = json!({"name": name, "labels": {"kubernetes.io/hostname": name}});
    let node = serde_json::from_value(json!({"metadata": metadata})).expect("a Node");
    match nodes.create(&PostParams::default(), &node).await {
        Err(kube::Error::Api(status)) if status.code == 409 => return Ok(()),
        result => drop(result?),
    }
    // A new node is tainted until a controller removes the taint, and that controller does not run here.
    nodes.patch(name, &PatchParams::default(), &Patch::Merge(json!({"spec": {"taints": null}}))).await?;
    let capacity = json!({"cpu": "64", "memory": "64Gi", "pods": "250"});
    let ready = json!({"type": "Ready", "status": "True", "reason": "KubeletReady"});
    let status = json!({"status": {"capacity": capacity, "allocatable": capacity, "conditions": [ready]}});
    nodes.patch_status(name, &PatchParams::default(), &Patch::Merge(status)).await?;
    Ok(())
}

/// Binds pods as a scheduler does: the pods of a set are distributed in turn over the nodes that are not cordoned.
pub(super) async fn bind(admin: &Client, nodes: &[&str], pods: &[Pod]) -> Result<(), kube::Error> {
    let waiting: Vec<&Pod> = pods.iter().filter(|pod| is_waiting(pod)).collect();
    if waiting.is_empty() {
        return Ok(());
    }
    let objects = Api::<Node>::all(admin.clone()).list(&ListParams::default()).await?;
    let is_schedulable =
        |node: &Node| node.spec.as_ref().is_some_and(|spec| spec.unschedulable != Some(true));
    for pod in waiting {
        let (namespace, name) = key(pod);
        let ordinal = name.rsplit('-').next().and_then(|suffix| suffix.parse().ok()).unwrap_or(0);
        let moves =
            pod.metadata.annotations.as_ref().is_some_and(|annotations| annotations.contains_key(MOVES));
        let considered = if moves { nodes.len() } else { 1 };
        let mut candidates = nodes.iter().cycle().skip(ordinal % nodes.len()).take(considered);
        let has_room = |node: &&&str| {
            let object = objects.iter().find(|object| object.metadata.name.as_deref() == Some(**node));
            object.is_some_and(is_schedulable)
        };
        let Some(node) = candidates.find(has_room) else { continue };
        let binding = json!({
            "metadata": {"name": name, "uid": pod.metadata.uid},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        });
        let binding: Binding = serde_json::from_value(binding).expect("a Binding");
        let api: Api<Pod> = Api::namespaced(admin.clone(), &namespace);
        let bound: Result<serde_json::Value, _> =
            api.create_subresource("binding", &name, &PostParams::default(), &binding).await;
        match bound {
            // The pod no longer exists, or it is bound already.
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {}
            result => drop(result?),
        }
    }
    Ok(())
}

fn is_waiting(pod: &Pod) -> bool {
    let Some(spec) = &pod.spec else { return false };
    pod.metadata.deletion_timestamp.is_none()
        && spec.node_name.is_none()
        && spec.scheduler_name.as_deref() == Some(SCHEDULER)
}
