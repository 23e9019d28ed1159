//! Labels of nodes.

use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use serde_json::json;

use super::call::{CallError, call};

/// Writes labels of nodes, with the identity of a client.
pub struct NodeLabels {
    api: Api<Node>,
}

// === impl NodeLabels ===

impl NodeLabels {
    /// Writes with this client.
    #[must_use]
    pub fn new(client: Client) -> Self {
        Self { api: Api::all(client) }
    }

    /// Gives a label this value, or takes it away. Nothing is read before: where it is so already, nothing is written.
    pub async fn set(&self, node: &str, key: &str, value: Option<&str>) -> Result<(), CallError> {
        let what = format!("setting label {key} of node {node}");
        let patch = Patch::Merge(json!({"metadata": {"labels": {key: value}}}));
        // A node is many kilobytes: its metadata is answer enough.
        call(&what, self.api.patch_metadata(node, &PatchParams::default(), &patch)).await.map(drop)
    }
}
