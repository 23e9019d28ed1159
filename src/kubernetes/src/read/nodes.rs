//! Changes of nodes, from watches: of their metadata for over-commit, and of their taints and conditions for handovers.
//! The images in a status are most of a node, and are never stored.

use std::{collections::BTreeMap, future::ready};

use futures::{Stream, StreamExt};
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client,
    core::{ApiResource, Object, PartialObjectMeta, Request, params::GetParams},
    runtime::{WatchStreamExt, watcher},
};
use serde::Deserialize;

use super::{api_reader::read_body, watching::restarts_of};
use crate::error::LookupError;
use etcd_guard_core::objects::pod::{Condition, null_as_default};

/// Length of one watch call, in seconds. A connection that broke without notice shows no changes until the call ends.
const WATCH_SECONDS: u32 = 30;

/// Number of nodes in one page of a list. A page is buffered, and a kubelet can write annotations of 256 KiB.
const PAGE_SIZE: u32 = 50;

/// The plural name of the resource, for the metric.
const NODES: &str = "nodes";

/// The metadata of a node.
#[derive(Clone, Debug, Default)]
pub struct NodeMetadata {
    /// The node's name.
    pub name: String,
    /// The resource version.
    pub version: String,
    /// The labels.
    pub labels: BTreeMap<String, String>,
    /// The annotations.
    pub annotations: BTreeMap<String, String>,
}

/// A change of a node.
#[derive(Clone, Debug)]
pub enum NodeEvent {
    /// A new list follows. Changes since the previous event may be missing.
    Listing,
    /// A node of the list, or a new or changed node.
    Changed(NodeMetadata),
    /// The node with this name was deleted.
    Deleted(String),
}

/// The parts of a node that show whether its pods are about to be disrupted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeState {
    /// The node's name.
    pub name: String,
    /// Distinguishes a node from its successor of the same name.
    pub uid: String,
    /// Whether the node is cordoned.
    pub is_unschedulable: bool,
    /// The taints.
    pub taints: Vec<Taint>,
    /// The conditions.
    pub conditions: Vec<Condition>,
}

/// A taint, in part.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Taint {
    /// The key.
    #[serde(default)]
    pub key: String,
    /// The time at which the taint was added; not all writers set it.
    #[serde(default)]
    pub time_added: Option<String>,
}

/// A change of the state of a node.
#[derive(Clone, Debug)]
pub enum NodeStateEvent {
    /// A new list follows.
    Listing,
    /// The list is complete. Nodes that it does not contain do not exist.
    Listed,
    /// A node of the list, or a new or changed node.
    Changed(NodeState),
    /// The node with this name was deleted.
    Deleted(String),
}

/// Reads and watches the states of nodes.
#[derive(Clone)]
pub struct NodeReader {
    client: Client,
}

/// A node, in part.
type PartialNode = Object<NodeSpec, NodeStatus>;

#[derive(Clone, Debug, Default, Deserialize)]
struct NodeSpec {
    #[serde(default)]
    unschedulable: bool,
    #[serde(default, deserialize_with = "null_as_default")]
    taints: Vec<Taint>,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct NodeStatus {
    #[serde(default, deserialize_with = "null_as_default")]
    conditions: Vec<Condition>,
}

// === impl NodeReader ===

impl NodeReader {
    /// Creates a reader that calls the API server through this client.
    pub fn new(client: Client) -> Self {
        Self { client }
    }

    /// Watches the states of all nodes. The stream does not end; after an error it lists the nodes again.
    pub fn watch(&self) -> impl Stream<Item = NodeStateEvent> + Send + use<> {
        let config = watcher::Config::default().timeout(WATCH_SECONDS).page_size(PAGE_SIZE);
        let resource = ApiResource::erase::<Node>(&());
        let api: Api<PartialNode> = Api::all_with(self.client.clone(), &resource);
        let (events, restarts) = (watcher(api, config).default_backoff(), restarts_of(NODES));
        events.filter_map(move |event| {
            ready(match event {
                Ok(watcher::Event::Init) => Some(NodeStateEvent::Listing),
                Ok(watcher::Event::InitDone) => Some(NodeStateEvent::Listed),
                Ok(watcher::Event::InitApply(node) | watcher::Event::Apply(node)) => {
                    Some(NodeStateEvent::Changed(NodeState::from(node)))
                }
                Ok(watcher::Event::Delete(node)) => {
                    Some(NodeStateEvent::Deleted(node.metadata.name.unwrap_or_default()))
                }
                Err(error) => {
                    restarts.inc();
                    tracing::warn!(%error, "the watch of nodes for handovers failed; it is restarted");
                    None
                }
            })
        })
    }

    /// Returns the stored node.
    pub async fn get(&self, name: &str) -> Result<NodeState, LookupError> {
        let subject = format!("node {name}");
        let request = Request::new("/api/v1/nodes").get(name, &GetParams::default());
        let body = read_body(&self.client, &subject, request).await?;
        let node: PartialNode = serde_json::from_slice(&body)
            .map_err(|error| LookupError::Failed { subject, cause: error.to_string() })?;
        Ok(NodeState::from(node))
    }
}

// === impl NodeState ===

impl From<PartialNode> for NodeState {
    fn from(node: PartialNode) -> Self {
        Self {
            name: node.metadata.name.unwrap_or_default(),
            uid: node.metadata.uid.unwrap_or_default(),
            is_unschedulable: node.spec.unschedulable,
            taints: node.spec.taints,
            conditions: node.status.map(|status| status.conditions).unwrap_or_default(),
        }
    }
}

/// Watches the metadata of all nodes. The stream does not end; after an error it lists the nodes again.
pub fn watch_nodes(client: Client) -> impl Stream<Item = NodeEvent> + Send {
    let config = watcher::Config::default().timeout(WATCH_SECONDS).page_size(PAGE_SIZE);
    let api: Api<PartialObjectMeta<Node>> = Api::all(client);
    let (events, restarts) = (watcher(api, config).default_backoff(), restarts_of(NODES));
    events.filter_map(move |event| {
        ready(match event {
            Ok(watcher::Event::Init) => Some(NodeEvent::Listing),
            Ok(watcher::Event::InitDone) => None,
            Ok(watcher::Event::InitApply(node) | watcher::Event::Apply(node)) => {
                Some(NodeEvent::Changed(NodeMetadata::from(node)))
            }
            Ok(watcher::Event::Delete(node)) => Some(NodeEvent::Deleted(NodeMetadata::from(node).name)),
            Err(error) => {
                restarts.inc();
                tracing::warn!(%error, "the watch of nodes failed; it is restarted");
                None
            }
        })
    })
}

// === impl NodeMetadata ===

impl From<PartialObjectMeta<Node>> for NodeMetadata {
    fn from(node: PartialObjectMeta<Node>) -> Self {
        let metadata = node.metadata;
        Self {
            name: metadata.name.unwrap_or_default(),
            version: metadata.resource_version.unwrap_or_default(),
            labels: metadata.labels.unwrap_or_default(),
            annotations: metadata.annotations.unwrap_or_default(),
        }
    }
}
