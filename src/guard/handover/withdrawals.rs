//! The removal of recorded handovers whose nodes no longer show the signal, so that the same signal can trigger another
//! handover later. Removals run one after the other.

use std::{collections::BTreeMap, sync::Arc};

use tokio::task::JoinSet;

use crate::{
    guard::{
        handover::{mover::Mover, signals::signals},
        model::handover::node_of_signal,
    },
    k8s::{LookupError, NodeReader, WriteError},
};

/// Number of attempts of one removal. An entry that remains prevents the next handover of the same signal, and nothing else.
const MAX_ATTEMPTS: usize = 5;

/// The withdrawals of signals, and their removal from the records.
pub(super) struct Withdrawals {
    mover: Arc<Mover>,
    nodes: NodeReader,
    /// The number of withdrawals, and of those before the beginning of the last successful removal.
    count: u64,
    removed: u64,
    /// The removal in progress, with the number of withdrawals before its beginning.
    running: JoinSet<(u64, Result<(), String>)>,
}

// === impl Withdrawals ===

impl Withdrawals {
    pub(super) fn new(mover: Arc<Mover>, nodes: NodeReader) -> Self {
        Self { mover, nodes, count: 0, removed: 0, running: JoinSet::new() }
    }

    /// Records that signals may have been withdrawn, and removes their handovers.
    pub(super) fn add(&mut self) {
        self.count += 1;
        self.start();
    }

    /// Starts a removal if withdrawals are pending and no removal is in progress.
    pub(super) fn start(&mut self) {
        if self.removed < self.count && self.running.is_empty() {
            let (mover, nodes, count) = (Arc::clone(&self.mover), self.nodes.clone(), self.count);
            self.running.spawn(async move { (count, remove(&mover, &nodes).await) });
        }
    }

    pub(super) fn is_running(&self) -> bool {
        !self.running.is_empty()
    }

    /// Waits for the end of the removal. Withdrawals since its beginning start the next one. After a failure, the caller starts
    /// the next one.
    pub(super) async fn finish(&mut self) {
        match self.running.join_next().await {
            Some(Ok((count, Ok(())))) => {
                self.removed = count;
                self.start();
            }
            Some(Ok((_, Err(error)))) => {
                tracing::warn!(error, "could not remove the handovers of withdrawn signals");
            }
            // A removal that panicked is repeated like one that failed.
            Some(Err(_)) | None => {}
        }
    }
}

/// Removes the handovers of withdrawn signals, so that the same signal can trigger another handover later. The nodes are
/// read after the records: an entry in a record proves that the signal was present before the read of the node.
async fn remove(mover: &Mover, nodes: &NodeReader) -> Result<(), String> {
    for _ in 0..MAX_ATTEMPTS {
        let mut records = mover.reservations.read_all().await.map_err(|error| error.to_string())?;
        let mut recorded: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for signal in records.signals() {
            if let Some(node) = node_of_signal(signal) {
                recorded.entry(node.to_owned()).or_default().push(signal.to_owned());
            }
        }
        let mut gone: Vec<String> = Vec::new();
        for (node, signals_of_node) in recorded {
            let present: Vec<String> = match nodes.get(&node).await {
                Ok(state) => {
                    signals(&state, &mover.configured_taints()).into_iter().map(|signal| signal.id).collect()
                }
                Err(LookupError::NotFound { .. }) => Vec::new(),
                Err(error) => return Err(error.to_string()),
            };
            gone.extend(signals_of_node.into_iter().filter(|id| !present.contains(id)));
        }
        let mut has_conflict = false;
        for record in records.with_signals(&gone) {
            let removed =
                mover.reservations.remove_handovers(record, |id| gone.iter().any(|known| known == id));
            match removed.await {
                Ok(()) => {}
                Err(WriteError::Conflict) => has_conflict = true,
                Err(error) => return Err(error.to_string()),
            }
        }
        if !has_conflict {
            return Ok(());
        }
    }
    Err(String::from("other replicas changed the records during each attempt"))
}
