//! The shared record of allowed deletions: one Lease per etcd cluster in the guard's own namespace.
//!
//! It is read before the probe round and written after it, with the resource version that was read: if another replica
//! allowed anything in between, the write fails and the decision starts over.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use moka::sync::Cache;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{TypedMetric, gauge::ConstGauge},
    registry::Registry,
};
use tokio::time::{Instant, sleep};

use super::{
    CLUSTER_LIFE, MOST_CLUSTERS,
    ledger::{Ledger, Living, Reservation},
};
use crate::{
    etcd::ClusterId,
    k8s::{Leases, LookupError, Page, WriteError},
};

/// Where the record stands in the Lease, as a JSON list.
const ANNOTATION: &str = "etcd-guard.io/reservations";

/// For which of a namespace's clusters the record was written last, by its pods' owner: who cannot ask any member for the
/// cluster's id finds the record by it.
const CLUSTER: &str = "etcd-guard.io/cluster";

/// A record that did not change for this long holds nothing that lives: ten times the life of a reservation.
const UNCHANGED_FOR: Duration = Duration::from_secs(600);

/// Reads and writes the records.
pub(super) struct Reservations {
    leases: Leases,
    ledgers: Ledgers,
}

/// What this replica saw of each record, by the Lease's name.
#[derive(Clone, Debug)]
struct Ledgers(Cache<String, Arc<Mutex<Ledger>>>);

/// A record as it was read, for one decision.
pub(super) struct Record {
    page: Page,
    /// What the page says. Others may read and write meanwhile: this decision rests on what it read itself.
    reservations: Vec<Reservation>,
    ledger: Arc<Mutex<Ledger>>,
}

/// What was read before a round.
pub(super) enum Records {
    /// The record of the cluster that the pods were of when they were looked at last.
    Of(ClusterId, Record),
    /// All that there are, where the round has yet to tell which cluster it is.
    All(Vec<Result<Record, Unreadable>>),
}

/// A record that says something, and nobody knows what.
pub(super) struct Unreadable {
    name: String,
    error: LookupError,
}

// === impl Reservations ===

impl Reservations {
    pub(super) fn new(leases: Leases) -> Self {
        let ledgers = Cache::builder().max_capacity(MOST_CLUSTERS).time_to_idle(CLUSTER_LIFE).build();
        Self { leases, ledgers: Ledgers(ledgers) }
    }

    /// Shows how many deletions may be on their way.
    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register_collector(Box::new(self.ledgers.clone()));
    }

    /// Reads the record of a cluster, or all if it is not known which cluster it is. One that cannot be parsed is an
    /// error: who wrote it meant something by it.
    pub(super) async fn read(&self, cluster: Option<ClusterId>) -> Result<Records, LookupError> {
        match cluster {
            Some(cluster) => {
                let page = self.leases.read(&name_of(cluster)).await?;
                let record = self.record(page).map_err(|it| it.error)?;
                Ok(Records::Of(cluster, self.noted(record)))
            }
            None => {
                let pages = self.leases.list().await?;
                Ok(Records::All(pages.into_iter().map(|page| self.record(page)).collect()))
            }
        }
    }

    /// What may be on its way out in any cluster at this moment.
    pub(super) async fn read_all(&self) -> Result<Vec<Reservation>, LookupError> {
        let pages = self.leases.list().await?;
        let records = pages.into_iter().map(|page| self.record(page).map_err(|it| it.error));
        let noted: Result<Vec<Record>, LookupError> =
            records.map(|record| record.map(|it| self.noted(it))).collect();
        Ok(noted?.iter().flat_map(Record::live).collect())
    }

    /// The record of this cluster among those that were read; `None` if it was not read.
    pub(super) fn pick(&self, records: Records, cluster: ClusterId) -> Result<Option<Record>, LookupError> {
        let name = name_of(cluster);
        match records {
            Records::Of(known, record) => Ok((known == cluster).then_some(record)),
            Records::All(records) => {
                let is_it = |it: &Result<Record, Unreadable>| match it {
                    Ok(record) => record.page.name == name,
                    Err(unreadable) => unreadable.name == name,
                };
                let nothing = || self.record(Page { name: name.clone(), ..Page::default() });
                let found = records.into_iter().find(is_it).unwrap_or_else(nothing);
                found.map(|record| Some(self.noted(record))).map_err(|it| it.error)
            }
        }
    }

    /// The record that was written last for the cluster of this name, while nobody tells its id.
    pub(super) fn pick_by_name(&self, records: Records, cluster: &str) -> Option<Record> {
        match records {
            Records::Of(_, record) => Some(record),
            Records::All(records) => {
                let is_it = |it: &Record| it.page.annotations.get(CLUSTER).is_some_and(|it| it == cluster);
                records.into_iter().flatten().find(is_it).map(|record| self.noted(record))
            }
        }
    }

    fn record(&self, page: Page) -> Result<Record, Unreadable> {
        let reservations = parse(&page).map_err(|error| Unreadable { name: page.name.clone(), error })?;
        let ledger = self.ledgers.0.get(&page.name).unwrap_or_default();
        Ok(Record { page, reservations, ledger })
    }

    /// From now on this replica counts the life of what the record holds.
    fn noted(&self, mut record: Record) -> Record {
        record.ledger = self.ledgers.0.get_with_by_ref(&record.page.name, Arc::default);
        record.ledger().observe(&record.reservations, Instant::now());
        record
    }

    /// Adds a reservation of a pod of this cluster, if nobody wrote since the record was read.
    pub(super) async fn add(
        &self,
        record: &mut Record,
        cluster: String,
        new: Reservation,
        living: &[Living<'_>],
    ) -> Result<(), WriteError> {
        record.page.annotations.insert(CLUSTER.to_owned(), cluster);
        let reservations = record.ledger().with(&record.reservations, new, living, Instant::now());
        self.write(record, reservations).await
    }

    /// Takes a reservation back, if nobody wrote since.
    pub(super) async fn take_back(
        &self,
        record: &mut Record,
        namespace: &str,
        uid: &str,
        living: &[Living<'_>],
    ) -> Result<(), WriteError> {
        let reservations =
            record.ledger().without(&record.reservations, namespace, uid, living, Instant::now());
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
        let cluster = record.page.annotations.remove_entry(CLUSTER);
        let annotations = cluster.into_iter().chain([(ANNOTATION.to_owned(), text)]).collect();
        record.page = self.leases.write(&record.page, annotations).await?;
        record.ledger().observe(&reservations, Instant::now());
        record.reservations = reservations;
        Ok(())
    }
}

fn name_of(cluster: ClusterId) -> String {
    format!("etcd-guard.{cluster}")
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

fn lock(ledger: &Mutex<Ledger>) -> MutexGuard<'_, Ledger> {
    ledger.lock().unwrap_or_else(PoisonError::into_inner)
}

// === impl Ledgers ===

impl Collector for Ledgers {
    /// Counted when it is asked for: reservations end by the clock.
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let now = Instant::now();
        let live: usize = self.0.iter().map(|(_, ledger)| lock(&ledger).count(now)).sum();
        let gauge = ConstGauge::new(i64::try_from(live).unwrap_or(i64::MAX));
        let help = "Allowed deletions that may be on their way, in the records that this replica read last";
        gauge.encode(encoder.encode_descriptor("reservations", help, None, ConstGauge::<i64>::TYPE)?)?;
        let longest = self.0.iter().map(|(_, ledger)| lock(&ledger).longest(now)).max().unwrap_or_default();
        let gauge = ConstGauge::new(longest.as_secs_f64());
        let help =
            "How long the longest reserved pod has been reserved without going; 0 without reservations";
        let name = "longest_reservation_seconds";
        gauge.encode(encoder.encode_descriptor(name, help, None, ConstGauge::<f64>::TYPE)?)
    }
}

// === impl Record ===

impl Record {
    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        lock(&self.ledger)
    }

    /// What may be on its way out at this moment.
    fn live(&self) -> Vec<Reservation> {
        self.ledger().live(&self.reservations, Instant::now()).cloned().collect()
    }
}

// === impl Records ===

impl Records {
    fn each(&self) -> impl Iterator<Item = &Record> {
        let (one, all): (Option<&Record>, &[Result<Record, Unreadable>]) = match self {
            Self::Of(_, record) => (Some(record), &[]),
            Self::All(records) => (None, records),
        };
        one.into_iter().chain(all.iter().flatten())
    }

    /// Whether they may be newer than a list of a namespace's pods that was read beside them.
    pub(super) fn outdate(&self, namespace: &str, living: &[Living<'_>]) -> bool {
        let outdates = |record: &Record| {
            record.ledger().outdates(&record.reservations, namespace, living, Instant::now())
        };
        self.each().any(outdates)
    }

    /// Takes note of the reserved pods of a namespace that are gone, of which these live.
    pub(super) fn note_living(&self, namespace: &str, living: &[Living<'_>]) {
        for record in self.each() {
            record.ledger().note_living(&record.reservations, namespace, living, Instant::now());
        }
    }

    /// What may be on its way out at this moment.
    pub(super) fn live(&self) -> Vec<Reservation> {
        self.each().flat_map(Record::live).collect()
    }
}

#[cfg(test)]
mod tests;
