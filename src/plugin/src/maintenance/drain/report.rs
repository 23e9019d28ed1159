//! The plan of a drain for people and programs.

use std::fmt::Write;

use serde::Serialize;

use super::{
    plan::{Entry, can_complete, plan, table},
    pods::{Handling, Permitted, handling},
    read::{NodeView, names, read_node},
};
use crate::guard_client::GuardClient;

/// The plan of a drain. The fields are those of the JSON output.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct NodeReport {
    node: String,
    /// Whether the guard has read all clusters, and every member can leave the node.
    completes: bool,
    members: Vec<Entry>,
    others: Vec<OtherPod>,
    /// Clusters or volumes that could not be read, one sentence each.
    pub(crate) problems: Vec<String>,
}

/// A pod that the order of evictions does not contain.
#[derive(Clone, Debug, Serialize)]
struct OtherPod {
    namespace: String,
    pod: String,
    /// Whether no drain evicts it.
    stays: bool,
    /// The cause by which it stays, or the flag that its eviction requires.
    note: Option<&'static str>,
}

/// Returns the plan of a drain of the node, with all flags that permit evictions.
pub(crate) async fn check_node(guard: &GuardClient, node: &str) -> anyhow::Result<NodeReport> {
    let view = read_node(guard, node, Permitted { empty_dir: true, unmanaged: true }).await?;
    Ok(NodeReport::new(node, &view, plan(&view.members)))
}

// === impl NodeReport ===

impl NodeReport {
    pub(super) fn new(node: &str, view: &NodeView, members: Vec<Entry>) -> Self {
        let others = view.others.iter().map(|pod| {
            let (namespace, name) = names(pod);
            let (stays, cause) = match handling(pod, Permitted::default()) {
                Handling::Evict => (false, None),
                Handling::Ignore(cause) => (true, Some(cause)),
                Handling::Refuse(cause) => (false, Some(cause)),
            };
            OtherPod { namespace: namespace.to_owned(), pod: name.to_owned(), stays, note: cause }
        });
        Self {
            node: node.to_owned(),
            completes: can_complete(&members) && !view.is_incomplete,
            members,
            others: others.collect(),
            problems: view.problems.clone(),
        }
    }

    /// Whether the guard has read all clusters, and every member can leave the node.
    pub(crate) const fn completes(&self) -> bool {
        self.completes
    }

    /// Returns the plan as lines.
    pub(crate) fn text(&self) -> String {
        let mut text = table(&format!("Drain of node {}", self.node), &self.members);
        for OtherPod { namespace, pod, stays, note } in &self.others {
            let kind = if *stays { "stays" } else { "no etcd member" };
            let note = note.map(|note| format!(" ({note})")).unwrap_or_default();
            // Writing to a String does not fail.
            let _ = writeln!(text, "  {kind}: {namespace}/{pod}{note}");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(metadata: &Value) -> k8s_openapi::api::core::v1::Pod {
        serde_json::from_value(json!({"metadata": metadata})).unwrap()
    }

    #[test]
    fn other_pods_have_the_cause_of_their_handling() {
        let owner = |kind: &str| json!([{"apiVersion": "apps/v1", "kind": kind, "name": "a", "uid": "1", "controller": true}]);
        let view = NodeView {
            members: Vec::new(),
            others: vec![
                pod(&json!({"namespace": "default", "name": "web", "ownerReferences": owner("ReplicaSet")})),
                pod(
                    &json!({"namespace": "kube-system", "name": "proxy", "ownerReferences": owner("DaemonSet")}),
                ),
                pod(&json!({"namespace": "default", "name": "bare"})),
            ],
            problems: Vec::new(),
            is_incomplete: false,
        };
        let report = NodeReport::new("worker", &view, Vec::new());
        let expected = "\
Drain of node worker
  no etcd member runs on the node
  no etcd member: default/web
  stays: kube-system/proxy (pod of a DaemonSet)
  no etcd member: default/bare (no controller creates the pod again: pass --force)
";
        assert_eq!(report.text(), expected);
        assert!(report.completes());
    }

    #[test]
    fn drain_of_a_partly_read_node_does_not_complete() {
        let problems = vec![String::from("namespace prod: the API server did not respond within 10s")];
        let view = NodeView { members: Vec::new(), others: Vec::new(), problems, is_incomplete: true };
        assert!(!NodeReport::new("worker", &view, Vec::new()).completes());
    }
}
