//! Memory of clusters that had several voters. While a member does not answer, nothing else shows the other voters.

use moka::sync::Cache;

use crate::guard::model::cluster_key::{ClusterKey, MAX_CLUSTERS};

/// The clusters with several voters in a member list at any time since the start of this replica.
pub(in crate::guard) struct VoterHistory(Cache<ClusterKey, ()>);

// === impl VoterHistory ===

impl VoterHistory {
    /// Creates an empty memory. Entries do not expire: a cluster that lost all but one of its pods still has its voters.
    pub(in crate::guard) fn new() -> Self {
        Self(Cache::builder().max_capacity(MAX_CLUSTERS).build())
    }

    /// Records the number of voters that a member list contained.
    pub(in crate::guard) fn record(&self, cluster_key: &ClusterKey, voters: usize) {
        if voters > 1 && !self.0.contains_key(cluster_key) {
            self.0.insert(cluster_key.clone(), ());
        }
    }

    /// Whether a member list of this cluster contained several voters.
    pub(in crate::guard) fn had_more_voters(&self, cluster_key: &ClusterKey) -> bool {
        self.0.contains_key(cluster_key)
    }
}
