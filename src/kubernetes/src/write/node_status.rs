//! The status of nodes, as untyped JSON, so that fields of newer Kubernetes releases are preserved.

use kube::{
    Api, Client,
    api::{Patch, PatchParams},
    core::{ApiResource, DynamicObject},
};
use serde_json::Value;

use crate::{call::call, error::CallError};

/// The field manager of this program's writes.
const FIELD_MANAGER: &str = "etcd-guard";

/// Reads nodes and writes their status.
#[derive(Clone)]
pub struct NodeStatus {
    api: Api<DynamicObject>,
}

// === impl NodeStatus ===

impl NodeStatus {
    /// Creates a handle that calls the API server through this client.
    pub fn new(client: Client) -> Self {
        let kind = ApiResource::erase::<k8s_openapi::api::core::v1::Node>(&());
        Self { api: Api::all_with(client, &kind) }
    }

    /// Returns the stored node, or `None` if it does not exist.
    pub async fn read(&self, name: &str) -> Result<Option<Value>, CallError> {
        let operation = format!("reading node {name}");
        let node = call(&operation, self.api.get_opt(name)).await?;
        let failed = |error: serde_json::Error| CallError::Failed { operation, cause: error.to_string() };
        node.map(serde_json::to_value).transpose().map_err(failed)
    }

    /// Merges this patch into the node with its status subresource. If the patch contains a resource version, a
    /// concurrent change is a conflict.
    pub async fn merge(&self, name: &str, patch: &Value) -> Result<(), CallError> {
        let parameters =
            PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        let patch = Patch::Merge(patch);
        let write = self.api.patch_status(name, &parameters, &patch);
        call(&format!("writing the status of node {name}"), write).await.map(drop)
    }
}
