//! Writes of node status by the guard itself. The webhook changes only what other clients write: a kubelet writes an
//! unchanged status every five minutes, and the values that it wrote while no replica answered would remain until then.
//!
//! A node is read when the watch shows a change of it, and written if the values differ from those of the rules. A
//! write contains the version that was read, so that of several replicas one succeeds, and the others find nothing to
//! change. The write passes the webhook, which leaves recorded values unchanged.

use std::{collections::BTreeMap, pin::pin, sync::Arc, time::Instant};

use futures::{StreamExt, stream};
use kube::Client;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};
use serde_json::Value;
use tokio::time::sleep_until;

use crate::reload::LiveConfig;
use etcd_guard_inject::{
    config::Config,
    nodes::{
        evaluation::{Correction, correct},
        record::RECORD,
        tracking::{TrackedNode, Unrecorded},
    },
};
use etcd_guard_kubernetes::{CallError, NodeEvent, NodeMetadata, NodeStatus, watch_nodes};

/// Maximum number of nodes that are read and written concurrently, which bounds the load after a start.
const MAX_CONCURRENT_NODES: usize = 8;

/// Metrics of the writes.
#[derive(Clone, Debug, Default)]
pub(crate) struct NodeMetrics {
    writes: Family<ResultLabel, Counter>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

/// Writes the status of nodes whenever it differs from the configuration.
pub(crate) struct NodeReconciler {
    client: Client,
    status: NodeStatus,
    config: LiveConfig,
    metrics: NodeMetrics,
}

/// The result of a read, and of the write that followed it.
enum Step {
    /// The status is as configured, or the node does not exist.
    Unchanged,
    /// The watch has not shown the version that was read.
    NotSeen,
    /// The status was written.
    Written,
}

// === impl NodeReconciler ===

impl NodeReconciler {
    /// Creates a reconciler that calls the API server through this client.
    pub(crate) fn new(client: Client, config: LiveConfig, metrics: NodeMetrics) -> Self {
        Self { status: NodeStatus::new(client.clone()), client, config, metrics }
    }

    /// Reconciles all nodes until the future is dropped.
    pub(crate) async fn run(mut self) {
        loop {
            self.run_with_label().await;
        }
    }

    /// Watches and reconciles nodes until the configuration selects another label, by which other nodes are due.
    async fn run_with_label(&mut self) {
        let label = label_in(&self.config.borrow_and_update()).map(str::to_owned);
        let mut reload = self.config.clone();
        let mut events = pin!(watch_nodes(self.client.clone()));
        let mut nodes: BTreeMap<String, TrackedNode> = BTreeMap::new();
        loop {
            let due = nodes.values().filter_map(TrackedNode::due).min();
            tokio::select! {
                Some(event) = events.next() => observe(&mut nodes, event, label.as_deref()),
                // Without a configuration file, nothing ever changes the configuration.
                Ok(()) = reload.changed() => {
                    if label_in(&reload.borrow_and_update()) != label.as_deref() {
                        return;
                    }
                    let now = Instant::now();
                    for node in nodes.values_mut() {
                        node.reevaluate(now);
                    }
                }
                () = sleep_until(due.unwrap_or_else(Instant::now).into()), if due.is_some() => {
                    self.reconcile_due(&mut nodes).await;
                }
            }
        }
    }

    /// Reads all nodes that are due, and writes those that differ.
    async fn reconcile_due(&self, nodes: &mut BTreeMap<String, TrackedNode>) {
        let now = Instant::now();
        let due = nodes.iter_mut().filter(|(_, node)| node.due().is_some_and(|due| due <= now));
        let steps: Vec<_> = due.map(|(name, node)| self.reconcile_tracked(name, node)).collect();
        stream::iter(steps).buffer_unordered(MAX_CONCURRENT_NODES).collect::<()>().await;
    }

    async fn reconcile_tracked(&self, name: &str, node: &mut TrackedNode) {
        match self.reconcile_node(name, node).await {
            Ok(Step::Unchanged) => node.set_read(Instant::now()),
            Ok(Step::NotSeen) => {
                node.set_read(Instant::now());
                node.retry();
            }
            Ok(Step::Written) => node.set_written(Instant::now()),
            // Another replica or the kubelet was faster. The next read shows whether a difference remains.
            Err(CallError::Conflict { .. }) => {
                node.set_written(Instant::now());
                node.retry();
            }
            Err(error) => {
                tracing::warn!(node = %name, "{error}");
                node.set_written(Instant::now());
                node.retry();
            }
        }
    }

    async fn reconcile_node(&self, name: &str, node: &mut TrackedNode) -> Result<Step, CallError> {
        let Some(stored) = self.status.read(name).await? else { return Ok(Step::Unchanged) };
        let version = stored.pointer("/metadata/resourceVersion").and_then(Value::as_str).unwrap_or_default();
        let is_raw = match node.unrecorded(version) {
            Unrecorded::Machine => true,
            Unrecorded::Unknown => false,
            Unrecorded::NotSeen => return Ok(Step::NotSeen),
        };
        let config = Arc::clone(&self.config.borrow());
        let Correction { patch, reason, warning } = correct(&stored, is_raw, config.over_commit.as_ref());
        if node.is_new_warning(warning.as_deref()) {
            tracing::warn!(node = %name, reason = reason.as_str(), "{}", warning.unwrap_or_default());
        }
        let Some(patch) = patch else { return Ok(Step::Unchanged) };
        let written = self.status.merge(name, &patch).await;
        self.metrics.count(match &written {
            Ok(()) => "written",
            Err(CallError::Conflict { .. }) => "conflict",
            Err(CallError::Failed { .. }) => "failed",
        });
        written?;
        tracing::info!(node = %name, reason = reason.as_str(), "wrote the status of a node");
        Ok(Step::Written)
    }
}

fn label_in(config: &Config) -> Option<&str> {
    config.over_commit.as_ref().map(|settings| settings.label.as_str())
}

/// Records an event of the watch.
fn observe(nodes: &mut BTreeMap<String, TrackedNode>, event: NodeEvent, label: Option<&str>) {
    match event {
        // Changes may be missing, and with them the evidence about unrecorded values.
        NodeEvent::Listing => nodes.clear(),
        NodeEvent::Deleted(name) => drop(nodes.remove(&name)),
        NodeEvent::Changed(NodeMetadata { name, version, labels, annotations }) => {
            let is_labelled = label.is_some_and(|label| labels.contains_key(label));
            let has_record = annotations.contains_key(RECORD);
            let now = Instant::now();
            nodes.entry(name).or_insert_with(|| TrackedNode::new(now)).observe(
                &version,
                is_labelled,
                has_record,
                now,
            );
        }
    }
}

// === impl NodeMetrics ===

impl NodeMetrics {
    /// Registers the metrics.
    pub(crate) fn register(&self, registry: &mut Registry) {
        registry.register(
            "node_writes",
            "Writes of the status of over-committed nodes by this replica, by result",
            self.writes.clone(),
        );
        for result in ["written", "conflict", "failed"] {
            drop(self.writes.get_or_create(&ResultLabel { result }));
        }
    }

    fn count(&self, result: &'static str) {
        self.writes.get_or_create(&ResultLabel { result }).inc();
    }
}
