//! Clusters that had several voters. While a member does not answer, no other source shows the other voters.
//!
//! Each replica keeps them in memory as long as it runs. The recorder of owners stores them in the record of the
//! namespace, from which a replica reads them after a restart.

use std::collections::{BTreeMap, BTreeSet};

use moka::{policy::EvictionPolicy, sync::Cache};

use etcd_guard_core::cluster_key::{ClusterKey, MAX_CLUSTERS};

/// The clusters with several voters in a member list at any time since the start of this replica.
pub(crate) struct VoterHistory(Cache<ClusterKey, ()>);

// === impl VoterHistory ===

impl VoterHistory {
    /// Creates an empty memory. Entries do not expire: a cluster that lost all but one of its pods still has its voters.
    pub(super) fn new() -> Self {
        Self(Cache::builder().max_capacity(MAX_CLUSTERS).eviction_policy(EvictionPolicy::lru()).build())
    }

    /// Records the number of voters that a member list contained.
    pub(crate) fn record(&self, cluster_key: &ClusterKey, voters: usize) {
        if voters > 1 && !self.contains(cluster_key) {
            self.0.insert(cluster_key.clone(), ());
        }
    }

    /// Whether a member list of this cluster contained several voters. A full memory drops the cluster that was neither recorded nor
    /// requested for the longest time.
    pub(super) fn contains(&self, cluster_key: &ClusterKey) -> bool {
        self.0.get(cluster_key).is_some()
    }

    /// Returns the uids of the controllers of these clusters, by namespace.
    pub(super) fn controllers(&self) -> BTreeMap<String, BTreeSet<String>> {
        let mut controllers: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for (key, ()) in &self.0 {
            if let Some(uid) = key.controller_uid() {
                controllers.entry(key.namespace().to_owned()).or_default().insert(uid.to_owned());
            }
        }
        controllers
    }
}
