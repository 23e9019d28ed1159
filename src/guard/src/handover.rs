//! Handovers: leadership moves before a disruption, off nodes that are about to be disrupted, and on request. Other requests
//! defragment the members, or replace one.
//!
//! Each replica sees the signals. Only the replica that first writes an entry to the ledger acts. The entry
//! names the signal, so that each signal causes at most one move. It also names the transferee, whose deletion the guard
//! denies meanwhile. The write contains the resource version that was read before the probe round, like the write of a
//! reservation.

mod choice;
mod defragmentation;
mod doomed_nodes;
mod errand;
mod mover;
mod node_watch;
mod replacement;
mod report;
mod request;
mod request_watch;
mod rollout_watch;
mod signals;
mod withdrawals;

use std::sync::Arc;

use self::{
    doomed_nodes::DoomedNodes, mover::Mover, node_watch::NodeWatch, report::Reporter,
    request_watch::RequestWatch, rollout_watch::RolloutWatch,
};
use crate::services::Services;
use etcd_guard_kubernetes::NodeReader;

/// Moves leadership on signals.
pub(crate) struct Handovers {
    requests: RequestWatch,
    /// The watches of nodes and rollouts; absent without `--handover`.
    signals: Option<(NodeWatch, RolloutWatch)>,
}

// === impl Handovers ===

impl Handovers {
    /// Creates the watches of requests and, with `nodes`, those of nodes and rollouts.
    pub(crate) fn new(services: &Arc<Services>, nodes: Option<NodeReader>) -> Self {
        let doomed = DoomedNodes::default();
        let mover = Arc::new(Mover {
            services: Arc::clone(services),
            doomed: doomed.clone(),
            nodes: nodes.clone(),
            reporter: Reporter::new(services.events.clone(), services.observer.metrics.clone()),
        });
        let signals = nodes.map(|nodes| {
            (NodeWatch::new(Arc::clone(&mover), doomed, nodes), RolloutWatch::new(Arc::clone(&mover)))
        });
        Self { requests: RequestWatch::new(mover), signals }
    }

    /// Moves leadership until the future is dropped.
    pub(crate) async fn run(&self) {
        let signals = async {
            match &self.signals {
                Some((nodes, rollouts)) => {
                    tokio::join!(nodes.run(), rollouts.run());
                }
                None => std::future::pending().await,
            }
        };
        tokio::join!(self.requests.run(), signals);
    }
}
