//! State of each cluster that outlives one evaluation: the cluster lock, the last snapshot with its denials, the cluster id, and the
//! names and addresses of the member pods.

use std::{
    sync::{Arc, Mutex as SyncMutex, PoisonError},
    time::Duration,
};

use tokio::{sync::Mutex, time::Instant};

use crate::observe::member_pod_cache::MemberPodCache;
use etcd_guard_cache::{ExpiringCache, Lifetime};
use etcd_guard_core::{
    cluster_key::{CLUSTER_TTL, ClusterKey, MAX_CLUSTERS},
    etcd::member::ClusterId,
    ledger::NODE_RESERVATION_TTL,
    policy::Policy,
    snapshot::Snapshot,
    verdict::Verdict,
};

/// The time for which a snapshot may deny further deletions. A burst of deletions is evaluated with one probe round. A
/// client that retries later gets a new probe round.
pub(crate) const SNAPSHOT_TTL: Duration = Duration::from_millis(500);

/// The time for which a snapshot may deny while a new probe round is in progress. Only the request that started the
/// round waits for its result.
pub(crate) const SNAPSHOT_TTL_WHILE_PROBING: Duration = Duration::from_secs(1);

/// The time after a change of the cluster id for which an evaluation reads the records of all ids. A replica that has read the former
/// id before the change can still write a reservation: its request lasts at most 30 s.
const FORMER_RECORD_TTL: Duration = NODE_RESERVATION_TTL.saturating_add(Duration::from_secs(30));

/// Maximum number of stored denials of a snapshot, one for each pod and policy. A cluster has few of both. Further denials are
/// derived again.
const MAX_DENIALS: usize = 32;

/// Caches by cluster. Each cache evicts unused clusters, and has a maximum size.
pub(crate) struct ClusterCache {
    locks: ExpiringCache<ClusterKey, Arc<Mutex<()>>>,
    snapshots: ExpiringCache<ClusterKey, CachedSnapshot>,
    cluster_ids: ExpiringCache<ClusterKey, ReportedId>,
    /// The pods of each cluster that ran all voters in the last snapshot, and the addresses of its members.
    pub(crate) member_pods: MemberPodCache,
}

/// The etcd cluster id that the members reported last.
#[derive(Clone, Copy)]
struct ReportedId {
    last: Option<ClusterId>,
    /// Whether all replies of the last probe round reported this id.
    is_reported: bool,
    /// The time until which the record of a former id can contain reservations of the same pods: the cluster was restored.
    former_until: Option<Instant>,
}

/// The last snapshot of a cluster.
#[derive(Clone)]
pub(crate) struct CachedSnapshot {
    pub(crate) snapshot: Arc<Snapshot>,
    /// The time at which the verdict was ready. With a silent member a probe round takes longer than [`SNAPSHOT_TTL`],
    /// so the age does not count from the start of the round.
    evaluated_at: Instant,
    /// The denials that were derived from the snapshot. Repeated requests for a pod receive the stored one.
    denials: Arc<SyncMutex<Vec<Denial>>>,
}

/// A denial that follows from a snapshot.
struct Denial {
    pod: String,
    policy: Policy,
    verdict: Verdict,
}

// === impl CachedSnapshot ===

impl CachedSnapshot {
    /// Returns the stored denial of the deletion of this pod under this policy.
    pub(crate) fn denial(&self, pod: &str, policy: &Policy) -> Option<Verdict> {
        let denials = self.denials.lock().unwrap_or_else(PoisonError::into_inner);
        let denial = denials.iter().find(|denial| denial.pod == pod && denial.policy == *policy)?;
        let data_age = Instant::now().duration_since(self.snapshot.taken_at);
        Some(Verdict { data_age: Some(data_age), ..denial.verdict.clone() })
    }

    /// Stores the denial of the deletion of this pod under this policy.
    pub(crate) fn store_denial(&self, pod: &str, policy: &Policy, verdict: &Verdict) {
        let mut denials = self.denials.lock().unwrap_or_else(PoisonError::into_inner);
        if denials.len() < MAX_DENIALS {
            let (pod, policy) = (pod.to_owned(), policy.clone());
            denials.push(Denial { pod, policy, verdict: verdict.clone() });
        }
    }
}

// === impl ClusterCache ===

impl ClusterCache {
    /// Creates empty caches.
    pub(crate) fn new() -> Self {
        Self {
            locks: ExpiringCache::new(MAX_CLUSTERS, Lifetime::SinceUse(CLUSTER_TTL)),
            snapshots: ExpiringCache::new(MAX_CLUSTERS, Lifetime::SinceInsertion(SNAPSHOT_TTL_WHILE_PROBING)),
            cluster_ids: ExpiringCache::new(MAX_CLUSTERS, Lifetime::SinceUse(CLUSTER_TTL)),
            member_pods: MemberPodCache::new(),
        }
    }

    /// Returns the lock that admits one evaluation of this cluster at a time.
    pub(crate) fn lock(&self, key: &ClusterKey) -> Arc<Mutex<()>> {
        self.locks.get_or_default(key).0
    }

    /// Returns the last snapshot of this cluster, unless it is older than `max_age`.
    pub(crate) fn snapshot(&self, key: &ClusterKey, max_age: Duration) -> Option<CachedSnapshot> {
        self.snapshots.get(key).filter(|cached| cached.evaluated_at.elapsed() < max_age)
    }

    /// Stores the snapshot of the latest verdict.
    pub(crate) fn store_snapshot(&self, key: &ClusterKey, snapshot: Snapshot) {
        let (snapshot, evaluated_at) = (Arc::new(snapshot), Instant::now());
        let cached = CachedSnapshot { snapshot, evaluated_at, denials: Arc::default() };
        self.snapshots.insert(key.clone(), cached);
    }

    /// Removes the last snapshot, because the cluster has changed since.
    pub(crate) fn invalidate_snapshot(&self, key: &ClusterKey) {
        self.snapshots.invalidate(key);
    }

    /// Returns the etcd cluster id of the last snapshot. With a known id, the record of reservations can be read in
    /// parallel with the pods, before the probe round.
    pub(crate) fn cluster_id(&self, key: &ClusterKey) -> Option<ClusterId> {
        self.cluster_ids.get(key).filter(|known| known.is_reported)?.last
    }

    /// Whether an evaluation of this cluster requires all records of reservations: the members reported no common id, or the id has
    /// changed.
    pub(crate) fn requires_all_records(&self, key: &ClusterKey) -> bool {
        self.cluster_ids.get(key).is_some_and(|known| {
            !known.is_reported || known.former_until.is_some_and(|until| Instant::now() < until)
        })
    }

    /// Stores the etcd cluster id that a probe round returned; `None` if the members reported no common one.
    pub(crate) fn store_cluster_id(&self, key: &ClusterKey, id: Option<ClusterId>) {
        let known = self.cluster_ids.get(key);
        let former = known.and_then(|known| known.last);
        let is_changed = former.is_some() && id.is_some() && former != id;
        let former_until = match known {
            _ if is_changed => Some(Instant::now() + FORMER_RECORD_TTL),
            known => known.and_then(|known| known.former_until),
        };
        let reported = ReportedId { last: id.or(former), is_reported: id.is_some(), former_until };
        self.cluster_ids.insert(key.clone(), reported);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use etcd_guard_core::objects::pod::Pod;

    fn key() -> ClusterKey {
        let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "etcd-0", "uid": "u"}})).unwrap();
        ClusterKey::from_pod("prod", &pod)
    }

    #[tokio::test(start_paused = true)]
    async fn first_evaluation_without_an_answer_requires_all_records() {
        let (cache, key) = (ClusterCache::new(), key());
        assert!(!cache.requires_all_records(&key) && cache.cluster_id(&key).is_none());
        cache.store_cluster_id(&key, None);
        assert!(cache.requires_all_records(&key) && cache.cluster_id(&key).is_none());
        cache.store_cluster_id(&key, Some(ClusterId(1)));
        assert!(!cache.requires_all_records(&key));
        assert_eq!(cache.cluster_id(&key), Some(ClusterId(1)));
    }

    /// The record of the former id can contain reservations, also after a denial and after a probe round without an answer.
    #[tokio::test(start_paused = true)]
    async fn changed_id_requires_all_records_until_reservations_have_expired() {
        let (cache, key) = (ClusterCache::new(), key());
        cache.store_cluster_id(&key, Some(ClusterId(1)));
        cache.store_cluster_id(&key, None);
        cache.store_cluster_id(&key, Some(ClusterId(2)));
        tokio::time::advance(FORMER_RECORD_TTL / 2).await;
        cache.store_cluster_id(&key, Some(ClusterId(2)));
        assert!(cache.requires_all_records(&key));
        assert_eq!(cache.cluster_id(&key), Some(ClusterId(2)));
        tokio::time::advance(FORMER_RECORD_TTL / 2).await;
        assert!(!cache.requires_all_records(&key));
    }
}
