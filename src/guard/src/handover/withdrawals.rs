//! Removes the recorded handovers of node signals that have ended, so that the same signal can trigger another handover later.

use std::{collections::BTreeMap, sync::Arc};

use tokio::task::JoinSet;

use crate::{
    handover::{mover::Mover, signals::signals},
    reserve::store::{Ledger, ReserveError},
};
use etcd_guard_core::handover::{Trigger, node_of_signal};
use etcd_guard_kubernetes::{LookupError, NodeReader};

/// Number of attempts of one removal. An entry that remains prevents the next handover of the same signal, and nothing else.
const MAX_ATTEMPTS: usize = 5;

/// Removes the handovers of withdrawn signals, one removal at a time.
pub(super) struct Withdrawals {
    mover: Arc<Mover>,
    nodes: NodeReader,
    /// Number of possible withdrawals.
    count: u64,
    /// The value of `count` at the start of the last successful removal.
    removed: u64,
    /// The removal in progress, with the number of withdrawals before its beginning.
    running: JoinSet<(u64, Result<(), String>)>,
}

// === impl Withdrawals ===

impl Withdrawals {
    pub(super) fn new(mover: Arc<Mover>, nodes: NodeReader) -> Self {
        Self { mover, nodes, count: 0, removed: 0, running: JoinSet::new() }
    }

    /// Records that signals may have been withdrawn, and starts a removal, unless one is running.
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

    /// Waits for the running removal. Starts another one if withdrawals were added since its start. After a failure, the next call of
    /// `start` repeats it.
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
/// read after the ledgers: an entry in a ledger proves that the signal was present before the read of the node. A node or a
/// ledger that cannot be read or written does not prevent the other removals.
async fn remove(mover: &Mover, nodes: &NodeReader) -> Result<(), String> {
    for _ in 0..MAX_ATTEMPTS {
        let listed = mover.services.reservations.list().await.map_err(|error| error.to_string())?;
        let (mut ledgers, invalid) = listed;
        let taints = mover.configured_taints();
        let mut recorded: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for signal in ledgers.iter().flat_map(Ledger::signals).filter(|signal| is_known_here(signal, &taints))
        {
            if let Some(node) = node_of_signal(signal) {
                recorded.entry(node.to_owned()).or_default().push(signal.to_owned());
            }
        }
        let mut failure = invalid.first().map(ToString::to_string);
        let mut gone: Vec<String> = Vec::new();
        for (node, signals_of_node) in recorded {
            let present: Vec<String> = match nodes.get(&node).await {
                Ok(state) => signals(&state, &taints).into_iter().map(|signal| signal.id).collect(),
                Err(LookupError::NotFound { .. }) => Vec::new(),
                Err(error) => {
                    failure = Some(error.to_string());
                    continue;
                }
            };
            gone.extend(signals_of_node.into_iter().filter(|id| !present.contains(id)));
        }
        let mut has_conflict = false;
        let has_any =
            |ledger: &&mut Ledger| ledger.signals().any(|known| gone.iter().any(|gone| gone == known));
        for ledger in ledgers.iter_mut().filter(has_any) {
            let removed = mover
                .services
                .reservations
                .remove_handovers(ledger, |id| gone.iter().any(|known| known == id));
            match removed.await {
                Ok(()) => {}
                Err(ReserveError::StartAgain) => has_conflict = true,
                Err(error) => failure = Some(error.to_string()),
            }
        }
        if !has_conflict {
            return failure.map_or(Ok(()), Err);
        }
    }
    Err(String::from("other replicas changed the ledgers during each attempt"))
}

/// Whether this replica would recognize the signal on a node: another replica may have read a newer configuration with
/// further taints.
fn is_known_here(signal: &str, taints: &[String]) -> bool {
    let Some((trigger, detail)) = signal.split_once('/') else { return false };
    let is_configured =
        |key: &String| detail.strip_prefix(key.as_str()).is_some_and(|rest| rest.starts_with('@'));
    trigger != Trigger::Configured.as_str() || taints.iter().any(is_configured)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignores_taints_of_another_configuration() {
        let taints = [String::from("example.com/retiring")];
        for (signal, expected) in [
            ("configured/example.com/retiring@10:00/n1/u1", true),
            ("configured/example.com/retiring-soon@10:00/n1/u1", false),
            ("configured/example.com/other@10:00/n1/u1", false),
            ("karpenter/karpenter.sh/disrupted@10:00/n1/u1", true),
            ("cordon//n1/u1", true),
        ] {
            assert_eq!(is_known_here(signal, &taints), expected, "{signal}");
        }
    }

    #[test]
    fn signals_of_nodes_contain_the_node() {
        for (signal, node) in [
            ("cordon//n1/u1", Some("n1")),
            ("karpenter/karpenter.sh/disrupted@10:00/n1/u1", Some("n1")),
            ("condition/DrainInProgress/n1/u1", Some("n1")),
            ("request/u1/etcd-1@10:00", None),
            ("rollout/u1/revision", None),
            ("future//n1/u1", None),
        ] {
            assert_eq!(node_of_signal(signal), node, "{signal}");
        }
    }
}
