//! Division of the surveys between the replicas of the guard: each replica surveys the namespaces that a hash assigns to it.
//!
//! The replicas find each other through one Lease, in which each replica changes its own entry before each survey. An entry that
//! has not changed for [`MISSED_SURVEYS`] intervals belongs to a replica that has ended. Each replica measures this time on its own
//! clock, like the lifetime of a reservation. While the Lease cannot be read or written, a replica surveys all namespaces.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use etcd_guard_kubernetes::{Leases, WriteError};

/// Name of the Lease.
const LEASE: &str = "etcd-guard.surveys";

/// Annotation of the Lease: a JSON object with a number for each replica, which increases with each survey.
const REPLICAS_ANNOTATION: &str = "etcd-guard.io/replicas";

/// Number of intervals after which a replica without a change counts as ended.
pub(super) const MISSED_SURVEYS: u32 = 3;

/// Maximum number of attempts to write the Lease, while other replicas write it.
const MAX_ATTEMPTS: usize = 5;

/// Maximum number of entries, so that entries of others cannot grow the Lease.
const MAX_REPLICAS: usize = 64;

/// The shares of the replicas, as this replica knows them.
pub(crate) struct Shares {
    leases: Leases,
    /// Name of this replica's pod.
    own: String,
    /// The number of each other replica, with the time at which this replica read it first.
    seen: Mutex<BTreeMap<String, (u64, Instant)>>,
}

/// The namespaces that one replica surveys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Share {
    own: String,
    /// All replicas that survey at the moment, with this one.
    replicas: BTreeSet<String>,
}

// === impl Shares ===

impl Shares {
    /// Creates the shares of the replica in the pod with this name.
    pub(crate) fn new(leases: &Leases, pod: String) -> Self {
        Self { leases: leases.of_surveys(), own: pod, seen: Mutex::default() }
    }

    /// Announces a survey of this replica, and returns its share. `interval` is the time between two surveys.
    pub(super) async fn announce(&self, interval: Duration) -> Result<Share, String> {
        for _ in 0..MAX_ATTEMPTS {
            let record = self.leases.read(LEASE).await.map_err(|error| error.to_string())?;
            let text = record.annotations.get(REPLICAS_ANNOTATION).map_or("{}", String::as_str);
            // Entries that cannot be parsed are replaced: they are no more than announcements.
            let mut entries: BTreeMap<String, u64> = serde_json::from_str(text).unwrap_or_default();
            let others = self.observe(&entries, interval.saturating_mul(MISSED_SURVEYS));
            let number = entries.get(&self.own).copied().unwrap_or_default().wrapping_add(1);
            entries.retain(|replica, _| others.contains(replica));
            entries.insert(self.own.clone(), number);
            let text = serde_json::to_string(&entries).map_err(|error| error.to_string())?;
            match self.leases.write(&record, [(REPLICAS_ANNOTATION.to_owned(), text)].into()).await {
                Ok(_) => return Ok(Share::new(&self.own, others)),
                Err(WriteError::Conflict) => {}
                Err(error) => return Err(error.to_string()),
            }
        }
        Err(format!("other replicas changed the Lease {LEASE} during each attempt"))
    }

    /// Returns the other replicas whose numbers have changed within this time.
    fn observe(&self, entries: &BTreeMap<String, u64>, lifetime: Duration) -> BTreeSet<String> {
        let now = Instant::now();
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.retain(|replica, _| entries.contains_key(replica));
        for (replica, number) in
            entries.iter().filter(|(replica, _)| **replica != self.own).take(MAX_REPLICAS)
        {
            let known = seen.entry(replica.clone()).or_insert((*number, now));
            if known.0 != *number {
                *known = (*number, now);
            }
        }
        let is_live = |(_, (_, since)): &(&String, &(u64, Instant))| now.duration_since(*since) < lifetime;
        seen.iter().filter(is_live).map(|(replica, _)| replica.clone()).collect()
    }
}

// === impl Share ===

impl Share {
    fn new(own: &str, mut replicas: BTreeSet<String>) -> Self {
        replicas.insert(own.to_owned());
        Self { own: own.to_owned(), replicas }
    }

    /// Whether this replica surveys the namespace: its hash together with the namespace is the largest one. If a replica starts or
    /// ends, only namespaces that it gains or loses change their replica.
    pub(super) fn contains(&self, namespace: &str) -> bool {
        let weight = |replica: &&String| {
            let text = format!("{replica}/{namespace}");
            ring::digest::digest(&ring::digest::SHA256, text.as_bytes()).as_ref().to_vec()
        };
        self.replicas.iter().max_by_key(weight) == Some(&self.own)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::*;
    use etcd_guard_kubernetes::fake;

    const INTERVAL: Duration = Duration::from_secs(60);

    /// The Lease of an API server: its version and its annotations.
    type Stored = Arc<Mutex<Option<(u32, Value)>>>;

    fn replica(stored: &Stored, pod: &str) -> Shares {
        let stored = Arc::clone(stored);
        let client = fake::api_server_with(move |call, body| {
            let mut stored = stored.lock().unwrap();
            let lease = |(version, annotations): &(u32, Value)| {
                let version = version.to_string();
                json!({"metadata": {"name": LEASE, "resourceVersion": version, "annotations": annotations}})
            };
            let version = stored.as_ref().map_or(0, |(version, _)| *version);
            let annotations = body["metadata"]["annotations"].clone();
            match call.method.as_str() {
                "GET" => match &*stored {
                    Some(stored) => (200, lease(stored)),
                    None => {
                        let mut missing = fake::status_failure(404, "not found");
                        missing["reason"] = json!("NotFound");
                        (404, missing)
                    }
                },
                "PUT" if body["metadata"]["resourceVersion"] != json!(version.to_string()) => {
                    (409, fake::status_failure(409, "the object has been modified"))
                }
                "POST" | "PUT" => (200, lease(stored.insert((version + 1, annotations)))),
                method => panic!("{method} {}", call.uri),
            }
        });
        Shares::new(&Leases::new(client, "etcd-guard"), pod.to_owned())
    }

    fn namespaces(share: &Share) -> BTreeSet<usize> {
        (0..300).filter(|number| share.contains(&format!("team-{number}"))).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn replicas_divide_all_namespaces() {
        let stored = Stored::default();
        let replicas = ["a", "b", "c"].map(|pod| replica(&stored, pod));
        let first = replicas[0].announce(INTERVAL).await.unwrap();
        assert_eq!(namespaces(&first).len(), 300, "the only replica surveys everything");
        let mut shares = Vec::new();
        for _ in 0..2 {
            shares.clear();
            for replica in &replicas {
                shares.push(namespaces(&replica.announce(INTERVAL).await.unwrap()));
            }
        }
        assert_eq!(shares.iter().map(BTreeSet::len).sum::<usize>(), 300, "no namespace is surveyed twice");
        assert_eq!(shares.iter().flatten().collect::<BTreeSet<_>>().len(), 300);
        assert!(shares.iter().all(|share| (70..130).contains(&share.len())), "{shares:?}");

        // The replica `c` ends.
        let mut last = shares.clone();
        for _ in 0..=MISSED_SURVEYS {
            tokio::time::advance(INTERVAL).await;
            for (number, replica) in replicas[..2].iter().enumerate() {
                last[number] = namespaces(&replica.announce(INTERVAL).await.unwrap());
            }
        }
        assert!(last[0].is_superset(&shares[0]) && last[1].is_superset(&shares[1]), "nothing else moves");
        assert_eq!(last[0].len() + last[1].len(), 300);
        let entries = stored.lock().unwrap().clone().unwrap().1[REPLICAS_ANNOTATION].clone();
        assert!(!entries.as_str().unwrap().contains('c'), "its entry is removed: {entries}");
    }

    #[tokio::test]
    async fn invalid_lease_is_replaced() {
        let stored: Stored = Arc::new(Mutex::new(Some((1, json!({REPLICAS_ANNOTATION: "[1"})))));
        let share = replica(&stored, "a").announce(INTERVAL).await.unwrap();
        assert_eq!(namespaces(&share).len(), 300);
        assert_eq!(stored.lock().unwrap().clone().unwrap().1, json!({REPLICAS_ANNOTATION: "{\"a\":1}"}));
    }
}
