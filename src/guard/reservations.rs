//! The shared record of allowed deletions: one Lease per etcd cluster in the guard's own namespace.
//!
//! It is read before the probe round and written after it, with the resource version that was read: if another replica
//! allowed anything in between, the write fails and the decision starts over.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use moka::sync::Cache;
use tokio::{
    sync::Mutex,
    time::{Instant, sleep},
};

use super::{
    CLUSTER_LIFE, MOST_CLUSTERS,
    ledger::{Ledger, Reservation},
};
use crate::{
    etcd::ClusterId,
    k8s::{Leases, LookupError, Page, WriteError},
};

/// Where the record stands in the Lease, as a JSON list.
const ANNOTATION: &str = "etcd-guard.io/reservations";

/// A record that did not change for this long holds nothing that lives: ten times the life of a reservation.
const UNCHANGED_FOR: Duration = Duration::from_secs(600);

/// Reads and writes the records.
pub(super) struct Reservations {
    leases: Leases,
    /// What this replica saw of each record, by the Lease's name.
    ledgers: Cache<String, Arc<Mutex<Ledger>>>,
}

/// A record as it was read, for one decision.
pub(super) struct Record {
    page: Page,
    ledger: Arc<Mutex<Ledger>>,
}

// === impl Reservations ===

impl Reservations {
    pub(super) fn new(leases: Leases) -> Self {
        let ledgers = Cache::builder().max_capacity(MOST_CLUSTERS).time_to_idle(CLUSTER_LIFE).build();
        Self { leases, ledgers }
    }

    /// Reads the record of a cluster. One that cannot be parsed is an error: who wrote it meant something by it.
    pub(super) async fn read(&self, cluster: ClusterId) -> Result<Record, LookupError> {
        let name = format!("etcd-guard.{cluster}");
        let page = self.leases.read(&name).await?;
        let reservations = parse(&page)?;
        let ledger = self.ledgers.get_with(name, Arc::default);
        ledger.lock().await.observe(&reservations, Instant::now());
        Ok(Record { page, ledger })
    }

    /// Adds a reservation, if nobody wrote since the record was read.
    pub(super) async fn add(
        &self,
        record: &mut Record,
        new: Reservation,
        living: &[&str],
    ) -> Result<(), WriteError> {
        let reservations = record.ledger.lock().await.with(new, living, Instant::now());
        self.write(record, reservations).await
    }

    /// Takes a reservation back, if nobody wrote since.
    pub(super) async fn take_back(
        &self,
        record: &mut Record,
        namespace: &str,
        uid: &str,
        living: &[&str],
    ) -> Result<(), WriteError> {
        let reservations = record.ledger.lock().await.without(namespace, uid, living, Instant::now());
        self.write(record, reservations).await
    }

    /// Deletes the records of clusters that nobody decided about for long, for ever. What is old is told by this
    /// replica's own clock: a record goes if it did not change between two looks that are far apart.
    pub(super) async fn clear_away(&self) {
        let mut last: HashMap<String, Option<String>> = HashMap::new();
        loop {
            sleep(UNCHANGED_FOR).await;
            let pages = match self.leases.list().await {
                Ok(pages) => pages,
                Err(error) => {
                    tracing::warn!(%error, "clearing away old reservations");
                    continue;
                }
            };
            let (old, young): (Vec<Page>, Vec<Page>) =
                pages.into_iter().partition(|page| last.get(&page.name) == Some(&page.version));
            for page in old {
                // Whoever writes in between keeps it.
                match self.leases.delete(&page).await {
                    Ok(()) | Err(WriteError::Conflict) => {}
                    Err(error) => tracing::warn!(%error, "clearing away old reservations"),
                }
            }
            last = young.into_iter().map(|page| (page.name, page.version)).collect();
        }
    }

    async fn write(&self, record: &mut Record, reservations: Vec<Reservation>) -> Result<(), WriteError> {
        let text = serde_json::to_string(&reservations).map_err(|error| WriteError::Failed {
            name: record.page.name.clone(),
            cause: error.to_string(),
        })?;
        let annotations = BTreeMap::from([(ANNOTATION.to_owned(), text)]);
        record.page = self.leases.write(&record.page, annotations).await?;
        record.ledger.lock().await.observe(&reservations, Instant::now());
        Ok(())
    }
}

fn parse(page: &Page) -> Result<Vec<Reservation>, LookupError> {
    let text = page.annotations.get(ANNOTATION).map_or("[]", String::as_str);
    serde_json::from_str(text).map_err(|error| LookupError::Failed {
        what: format!("Lease {}", page.name),
        cause: format!(
            "its annotation {ANNOTATION} is not readable ({error}); delete that Lease if nobody needs it"
        ),
    })
}

// === impl Record ===

impl Record {
    /// Whether a pod of this namespace may be on its way out that is none of these.
    pub(super) async fn holds_any_but(&self, namespace: &str, uids: &[&str]) -> bool {
        self.ledger.lock().await.holds_any_but(namespace, uids, Instant::now())
    }

    /// Whether a yes for this pod still counts.
    pub(super) async fn holds(&self, uid: &str) -> bool {
        self.ledger.lock().await.holds(uid, Instant::now())
    }

    /// What may be on its way out at this moment.
    pub(super) async fn live(&self) -> Vec<Reservation> {
        self.ledger.lock().await.live(Instant::now()).cloned().collect()
    }
}
