//! Labels of nodes.

use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use serde_json::json;

use crate::{call::call, error::CallError};

/// Writes labels of nodes.
pub struct NodeLabels {
    api: Api<Node>,
}

// === impl NodeLabels ===

impl NodeLabels {
    /// Creates a writer that calls the API server through this client.
    pub fn new(client: Client) -> Self {
        Self { api: Api::all(client) }
    }

    /// Sets a label, or removes it if `value` is `None`. The label is not read before, because the API server ignores a
    /// patch without changes.
    pub async fn set(&self, node: &str, key: &str, value: Option<&str>) -> Result<(), CallError> {
        let operation = format!("setting label {key} of node {node}");
        let patch = Patch::Merge(json!({"metadata": {"labels": {key: value}}}));
        // The response contains only the metadata of the node, because a node has many kilobytes.
        call(&operation, self.api.patch_metadata(node, &PatchParams::default(), &patch)).await.map(drop)
    }
}
