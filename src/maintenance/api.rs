//! Reads of objects with the permissions of the user.

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{Api, Client, api::ListParams};

use crate::{guard::Survey, guard_client::GuardClient, k8s::error_message};

/// The API server and the guard.
pub(crate) struct ClusterApi {
    pub(crate) guard: GuardClient,
    /// The kubectl command with the flags that select the same cluster.
    pub(crate) kubectl: String,
}

// === impl ClusterApi ===

impl ClusterApi {
    pub(crate) fn client(&self) -> Client {
        self.guard.client.clone()
    }

    pub(crate) async fn nodes(&self) -> anyhow::Result<Vec<Node>> {
        let nodes: Api<Node> = Api::all(self.client());
        let listed = nodes.list(&ListParams::default()).await;
        let listed =
            listed.map_err(|error| anyhow::anyhow!("failed to list nodes: {}", error_message(&error)))?;
        Ok(listed.items)
    }

    /// Returns the pods on a node, in all namespaces.
    pub(crate) async fn pods_on(&self, node: &str) -> anyhow::Result<Vec<Pod>> {
        let pods: Api<Pod> = Api::all(self.client());
        let listed = pods.list(&ListParams::default().fields(&format!("spec.nodeName={node}"))).await;
        let listed = listed.map_err(|error| {
            anyhow::anyhow!("failed to list the pods of all namespaces: {}", error_message(&error))
        })?;
        Ok(listed.items)
    }

    /// Returns the pods of a namespace.
    pub(crate) async fn pods_in(&self, namespace: &str) -> anyhow::Result<Vec<Pod>> {
        let pods: Api<Pod> = Api::namespaced(self.client(), namespace);
        let listed = pods.list(&ListParams::default()).await;
        let listed = listed.map_err(|error| {
            anyhow::anyhow!("failed to list the pods of namespace {namespace}: {}", error_message(&error))
        })?;
        Ok(listed.items)
    }

    /// Returns the status of all guarded clusters, from the guard.
    pub(crate) async fn survey(&self) -> anyhow::Result<Survey> {
        self.guard.get("/status").await
    }
}
