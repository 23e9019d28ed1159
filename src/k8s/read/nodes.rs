//! Changes of nodes, from a watch of their metadata: the images in a status are most of a node, and are not used.

use std::{collections::BTreeMap, future::ready};

use futures::{Stream, StreamExt};
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client,
    core::PartialObjectMeta,
    runtime::{WatchStreamExt, watcher},
};

/// Length of one watch call, in seconds. A connection that broke without notice shows no changes until the call ends.
const WATCH_SECONDS: u32 = 30;

/// Number of nodes in one page of a list. A page is buffered, and a kubelet can write annotations of 256 KiB.
const PAGE_SIZE: u32 = 50;

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

/// Watches the metadata of all nodes. The stream does not end; after an error it lists the nodes again.
pub fn watch_nodes(client: Client) -> impl Stream<Item = NodeEvent> + Send {
    let config = watcher::Config::default().timeout(WATCH_SECONDS).page_size(PAGE_SIZE);
    let api: Api<PartialObjectMeta<Node>> = Api::all(client);
    let events = watcher(api, config).default_backoff();
    events.filter_map(|event| {
        ready(match event {
            Ok(watcher::Event::Init) => Some(NodeEvent::Listing),
            Ok(watcher::Event::InitDone) => None,
            Ok(watcher::Event::InitApply(node) | watcher::Event::Apply(node)) => {
                Some(NodeEvent::Changed(NodeMetadata::from(node)))
            }
            Ok(watcher::Event::Delete(node)) => Some(NodeEvent::Deleted(NodeMetadata::from(node).name)),
            Err(error) => {
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
