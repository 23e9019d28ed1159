//! The cases. Each one leaves a healthy cluster to the next one.
//!
//! An approval alone does not prove that the guard was called. Each approval is therefore verified by an effect that
//! only the guard can cause: a reservation, a warning or, for a request that has neither, a denial right after it.

mod concurrency;
mod handover;
mod members;
mod policies;
pub(crate) mod requests;
mod restart;
pub(crate) mod runner;
mod single_members;
mod workloads;

use self::runner::Cases;

// === impl Cases ===

impl Cases<'_> {
    /// Runs all cases. The order matters: the last one deletes the cluster.
    pub(super) async fn run(&mut self) -> anyhow::Result<()> {
        self.pod_without_etcd().await?;
        self.leader().await?;
        self.follower_dry_run().await?;
        self.consecutive_deletions().await?;
        self.later_eviction().await?;
        self.concurrent_deletions().await?;
        self.budget().await?;
        self.collection().await?;
        self.single_members().await?;
        self.audit_mode().await?;
        self.workload_operations().await?;
        self.requested_move().await?;
        self.rolling_restart().await?;
        self.leadership_transfer().await?;
        self.final_enforcement().await?;
        self.garbage_collection().await
    }
}
