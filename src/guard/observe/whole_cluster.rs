//! Probe rounds of a whole cluster without a target, with the pods on which they rest.

use crate::{
    guard::{
        model::{cluster_key::ClusterKey, deadline::Deadline, reservation::Reservation, snapshot::Snapshot},
        observe::{observer::ClusterObserver, siblings::Siblings},
    },
    k8s::pod::Pod,
};

// === impl ClusterObserver ===

impl ClusterObserver {
    /// Takes a snapshot of a cluster from pods that were already listed. The caller reads `reserved` before this call.
    /// Returns the pods with the endpoints of their members as well.
    pub(in crate::guard) async fn observe_cluster(
        &self,
        cluster_key: &ClusterKey,
        pods: &[Pod],
        reserved: &[Reservation],
        deadline: Deadline,
    ) -> (Siblings, Snapshot) {
        let siblings = self.siblings_with_credentials(cluster_key, pods.to_vec(), deadline).await;
        let snapshot = self.observe_siblings(&siblings, reserved, deadline).await;
        (siblings, snapshot)
    }
}
