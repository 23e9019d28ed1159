//! State of each cluster that outlives one evaluation: the cluster lock, the last snapshot with its denials, its ledgers, and the
//! names and addresses of the member pods.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex as SyncMutex, PoisonError},
    time::Duration,
};

use tokio::{sync::Mutex, time::Instant};

use crate::{observe::member_pod_cache::MemberPodCache, reserve::store::LedgerName};
use etcd_guard_cache::{ExpiringCache, Lifetime};
use etcd_guard_core::{
    cluster_key::{CLUSTER_TTL, ClusterKey, MAX_CLUSTERS},
    policy::Policy,
    snapshot::{MemberPod, Snapshot},
    verdict::Verdict,
};

/// The time for which a snapshot may deny further deletions. A burst of deletions is evaluated with one probe round. A
/// client that retries later gets a new probe round.
pub(crate) const SNAPSHOT_TTL: Duration = Duration::from_millis(500);

/// The time for which a snapshot may deny while a new probe round is in progress. Only the request that started the
/// round waits for its result.
pub(crate) const SNAPSHOT_TTL_WHILE_PROBING: Duration = Duration::from_secs(1);

/// The time for which an evaluation can confirm that a pod was found silent.
const SILENCE_TTL: Duration = Duration::from_secs(30);

/// Maximum number of stored denials of a snapshot, one for each pod and policy. A cluster has few of both. Further denials are
/// derived again.
const MAX_DENIALS: usize = 32;

/// Caches by cluster. Each cache evicts unused clusters, and has a maximum size.
pub(crate) struct ClusterCache {
    locks: ExpiringCache<ClusterKey, Arc<Mutex<()>>>,
    snapshots: ExpiringCache<ClusterKey, CachedSnapshot>,
    /// The ledgers of clusters that need more than that of their namespace.
    other_ledgers: ExpiringCache<ClusterKey, Arc<BTreeSet<LedgerName>>>,
    /// Pods that evaluations found silent, by uid, as they were found first. The API server repeats an admission if the object has
    /// changed meanwhile, which must not wait again.
    pub(crate) silences: ExpiringCache<String, MemberPod>,
    /// The pods of each cluster that ran all voters in the last snapshot, and the addresses of its members.
    pub(crate) member_pods: MemberPodCache,
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
            other_ledgers: ExpiringCache::new(MAX_CLUSTERS, Lifetime::SinceUse(CLUSTER_TTL)),
            silences: ExpiringCache::new(MAX_CLUSTERS, Lifetime::SinceInsertion(SILENCE_TTL)),
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

    /// Returns the ledgers that the last evaluation of this cluster needed beside that of its namespace.
    pub(crate) fn other_ledgers(&self, key: &ClusterKey) -> BTreeSet<LedgerName> {
        self.other_ledgers.get(key).map(|names| (*names).clone()).unwrap_or_default()
    }

    /// Stores the ledgers that this cluster needs beside that of its namespace.
    pub(crate) fn store_other_ledgers(&self, key: &ClusterKey, names: BTreeSet<LedgerName>) {
        if names.is_empty() {
            self.other_ledgers.invalidate(key);
        } else {
            self.other_ledgers.insert(key.clone(), Arc::new(names));
        }
    }
}
