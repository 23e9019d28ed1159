//! The shared records of reservations and handovers: one Lease per etcd cluster in the guard's namespace.
//!
//! A replica reads the record before the probe round and writes it afterwards with the resource version of the read. If
//! another replica approved a deletion in between, the write fails and the evaluation restarts.

mod provisional;
mod record;
mod records;

use std::{
    collections::{BTreeMap, btree_map::Entry},
    fmt,
    sync::{Arc, Mutex},
    time::Duration,
};

use k8s_openapi::jiff::Timestamp;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{TypedMetric, gauge::ConstGauge},
    registry::Registry,
};
use tokio::time::{Instant, sleep};

pub(crate) use self::record::Record;
use self::record::{
    CLUSTER_ANNOTATION, COMPLETE_ANNOTATION, InvalidRecord, PROVISIONAL_NAME, ReadRecords, lock,
};
use crate::reserve::handovers;
use etcd_guard_cache::{ExpiringCache, Lifetime};
use etcd_guard_core::{
    cluster_key::CLUSTER_TTL,
    etcd::member::ClusterId,
    handover::Handover,
    ledger::{Ledger, RESERVATION_TTL},
    mistakes::Mistake,
    reservation::{LivePod, Reservation},
    wall_clock::WallClock,
};
use etcd_guard_kubernetes::{LeaseRecord, Leases, LookupError, WriteError};

/// Annotation of the Lease that contains the reservations as a JSON list.
const RESERVATIONS_ANNOTATION: &str = "etcd-guard.io/reservations";

/// Maximum number of ledgers. It exceeds the number of Leases, which an approval creates and which are deleted after at most twice
/// [`STALE_RECORD_INTERVAL`]. A ledger that is evicted starts the lifetimes of its reservations again: if a list of all records
/// exceeded the limit, none of them would expire.
const MAX_LEDGERS: u64 = 65_536;

/// Interval after which an unchanged record is deleted: a multiple of the lifetime of a reservation.
const STALE_RECORD_INTERVAL: Duration = Duration::from_secs(600);

/// Reads and writes the records of reservations.
pub(crate) struct ReservationStore {
    leases: Leases,
    ledgers: Ledgers,
    wall_clock: WallClock,
    /// Admits one write of the provisional record at a time. Other replicas can still write it at the same time.
    provisional_writes: tokio::sync::Mutex<()>,
}

/// The ledger of each record that this replica has read, by the name of the Lease.
#[derive(Clone, Debug)]
struct Ledgers(ExpiringCache<String, Arc<Mutex<Ledger>>>);

/// The records that an evaluation reads before its probe round.
pub(crate) enum Records {
    /// The complete record of the cluster that the previous probe round reported for these pods.
    Known(ClusterId, Record),
    /// The incomplete record of this cluster, and the provisional record, which was read second.
    Incomplete(ClusterId, Box<[Record; 2]>),
    /// The provisional record, before the first probe round of the cluster.
    Provisional(Record),
    /// All records, after a probe round in which no member reported the cluster id, or in which the id had changed.
    All(Vec<Result<Record, InvalidRecord>>),
}

/// All records, by the name of the Lease.
pub(crate) struct AllRecords(BTreeMap<String, Record>);

// === impl ReservationStore ===

impl ReservationStore {
    pub(crate) fn new(leases: Leases, wall_clock: WallClock) -> Self {
        let ledgers = ExpiringCache::new(MAX_LEDGERS, Lifetime::SinceUse(CLUSTER_TTL));
        Self {
            leases,
            ledgers: Ledgers(ledgers),
            wall_clock,
            provisional_writes: tokio::sync::Mutex::default(),
        }
    }

    /// Registers the metrics of reservations.
    pub(crate) fn register(&self, registry: &mut Registry) {
        registry.register_collector(Box::new(self.ledgers.clone()));
    }

    /// Reads the record of a cluster, and the provisional record if it can contain further approvals of the cluster. Reads all
    /// records without a cluster id. A record that cannot be parsed can contain reservations: it is an error if it is that of the
    /// cluster, the provisional one, or any one without a cluster id.
    pub(crate) async fn read(&self, cluster: Option<ClusterId>) -> Result<Records, LookupError> {
        match cluster {
            Some(cluster) => {
                let record = self.read_record(&lease_name(cluster)).await?;
                if record.is_complete {
                    return Ok(Records::Known(cluster, record));
                }
                // The provisional record is read second: its writer changes the records of all clusters after it. A write of this
                // evaluation therefore fails, unless the provisional record already contained the reservation at this read.
                let provisional = Box::pin(self.read_record(PROVISIONAL_NAME)).await?;
                Ok(Records::Incomplete(cluster, Box::new([record, provisional])))
            }
            None => {
                let leases = self.leases.list().await?;
                // The lifetime of an entry starts with the first read, also of a record that no evaluation selects.
                let read = |lease| self.parse_record(lease).map(|record| self.observe(record));
                Ok(Records::All(leases.into_iter().map(read).collect()))
            }
        }
    }

    async fn read_record(&self, name: &str) -> Result<Record, LookupError> {
        let record = self.parse_record(self.leases.read(name).await?).map_err(|invalid| invalid.error)?;
        Ok(self.observe(record))
    }

    /// Reads all records and returns the active reservations of all clusters.
    pub(crate) async fn read_active(&self) -> Result<Vec<Reservation>, LookupError> {
        self.read_all().await.map(|records| records.active())
    }

    /// Reads all records. Fails if a record cannot be parsed, because it can contain reservations.
    pub(crate) async fn read_all(&self) -> Result<AllRecords, LookupError> {
        let leases = self.leases.list().await?;
        let parse = |lease: LeaseRecord| {
            let record = self.parse_record(lease).map_err(|invalid| invalid.error)?;
            Ok((record.lease.name.clone(), self.observe(record)))
        };
        leases.into_iter().map(parse).collect::<Result<_, LookupError>>().map(AllRecords)
    }

    /// Returns the record of this cluster; `None` if it was not read.
    pub(crate) fn select(&self, records: Records, cluster: ClusterId) -> Result<Option<Record>, LookupError> {
        let name = lease_name(cluster);
        match records {
            Records::Known(known, record) => Ok((known == cluster).then_some(record)),
            Records::Incomplete(known, records) => Ok((known == cluster).then(|| {
                let read = Arc::new(ReadRecords::new(records.iter()));
                let [record, provisional] = *records;
                self.observe(record.complete(provisional.active(), read))
            })),
            Records::Provisional(_) => Ok(None),
            Records::All(records) => {
                let read = Arc::new(ReadRecords::new(records.iter().flatten()));
                let mut provisional = Vec::new();
                for record in &records {
                    match record {
                        Ok(record) if record.is_provisional() => provisional.extend(record.active()),
                        Err(invalid) if invalid.name == PROVISIONAL_NAME => {
                            return Err(invalid.error.clone());
                        }
                        Ok(_) | Err(_) => {}
                    }
                }
                let found = records.into_iter().find(|record| name_of(record) == name);
                let record =
                    found.unwrap_or_else(|| self.empty_record(&name)).map_err(|invalid| invalid.error)?;
                Ok(Some(self.observe(record.complete(provisional, read))))
            }
        }
    }

    /// Returns the record of this cluster among all records, or an empty one. A write to it fails if another replica has
    /// created the record since the read.
    pub(crate) fn entry<'a>(
        &self,
        records: &'a mut AllRecords,
        cluster: ClusterId,
    ) -> Result<&'a mut Record, LookupError> {
        self.entry_of(records, lease_name(cluster))
    }

    fn entry_of<'a>(&self, records: &'a mut AllRecords, name: String) -> Result<&'a mut Record, LookupError> {
        let read = Arc::new(ReadRecords::new(records.0.values()));
        let record = match records.0.entry(name) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(vacant) => {
                let empty = self.empty_record(vacant.key()).map_err(|invalid| invalid.error)?;
                vacant.insert(self.observe(empty))
            }
        };
        record.read = Some(read);
        Ok(record)
    }

    fn empty_record(&self, name: &str) -> Result<Record, InvalidRecord> {
        self.parse_record(LeaseRecord { name: name.to_owned(), ..LeaseRecord::default() })
    }

    fn parse_record(&self, lease: LeaseRecord) -> Result<Record, InvalidRecord> {
        let mut reservations =
            parse(&lease).map_err(|error| InvalidRecord { name: lease.name.clone(), error })?;
        if Mistake::ExpireByWallClock.is_active() {
            let age = |at: Timestamp| self.wall_clock.now().as_second() - at.as_second();
            let is_live = |at: Timestamp| age(at) < RESERVATION_TTL.as_secs().cast_signed();
            reservations.retain(|reservation| reservation.at.parse().is_ok_and(is_live));
        }
        let ledger = self.ledgers.0.get(&lease.name).unwrap_or_default();
        let is_complete =
            lease.annotations.contains_key(COMPLETE_ANNOTATION) || Mistake::IgnoreOtherRecords.is_active();
        let handovers = handovers::parse(&lease);
        Ok(Record { lease, reservations, handovers, ledger, is_complete, read: None })
    }

    /// Observes the record in the ledger of this replica, which starts the lifetimes of new reservations.
    fn observe(&self, mut record: Record) -> Record {
        record.ledger = self.ledgers.0.get_or_default(&record.lease.name).0;
        let now = Instant::now();
        record.ledger().observe(&record.reservations, now);
        record.ledger().observe_handovers(&record.handovers, now);
        record
    }

    /// Adds a reservation to the record. Returns [`WriteError::Conflict`] if the Lease changed since the read.
    pub(crate) async fn add(
        &self,
        record: &mut Record,
        cluster: String,
        new: Reservation,
        live_pods: &[LivePod<'_>],
    ) -> Result<(), WriteError> {
        self.add_all(record, cluster, vec![new], live_pods).await
    }

    /// Adds several reservations to the record at once, with the errors of [`Self::add`].
    ///
    /// Two records can hold reservations of one cluster if an evaluation writes the provisional record, or creates the cluster's own
    /// one. The creator then reads the provisional record, and the writer of a provisional reservation lists all records, so that at
    /// least one of the two finds the other reservation. It withdraws its own and reports a conflict. The writer of a provisional
    /// reservation also changes all other records: each of them can be that of the same cluster.
    pub(crate) async fn add_all(
        &self,
        record: &mut Record,
        cluster: String,
        new: Vec<Reservation>,
        live_pods: &[LivePod<'_>],
    ) -> Result<(), WriteError> {
        let is_alone = record.lease.version.is_some() || Mistake::IgnoreOtherRecords.is_active();
        let at = self.wall_clock.now().to_string();
        let new: Vec<_> = new.into_iter().map(|new| Reservation { at: at.clone(), ..new }).collect();
        if record.is_provisional() {
            return Box::pin(self.add_provisional(record, &cluster, &new, live_pods)).await;
        }
        let previous = self.write_new(record, &cluster, &new, live_pods).await?;
        if is_alone {
            return Ok(());
        }
        let checked = Box::pin(self.require_first(record)).await;
        if checked.is_err() {
            // A reservation that is not withdrawn expires.
            let _ = self.write(record, previous, record.handovers.clone()).await;
        }
        checked
    }

    /// Writes the record with new reservations. Returns the active reservations before them: a withdrawal must not start the
    /// lifetimes of expired ones again.
    async fn write_new(
        &self,
        record: &mut Record,
        cluster: &str,
        new: &[Reservation],
        live_pods: &[LivePod<'_>],
    ) -> Result<Vec<Reservation>, WriteError> {
        record.add_cluster_names([cluster.to_owned()]);
        let (now, previous) = (Instant::now(), record.active());
        let reservations = new.iter().cloned().fold(record.reservations.clone(), |reservations, new| {
            record.ledger().record_with(&reservations, new, live_pods, now)
        });
        self.write(record, reservations, record.handovers.clone()).await?;
        Ok(previous)
    }

    /// Adds a handover to the record of the cluster with these names, with the errors of [`Self::add`].
    pub(crate) async fn add_handover(
        &self,
        record: &mut Record,
        cluster_names: impl IntoIterator<Item = String>,
        new: Handover,
    ) -> Result<(), WriteError> {
        record.add_cluster_names(cluster_names);
        let handovers = handovers::with(&record.handovers, new, self.wall_clock.now());
        self.write(record, record.reservations.clone(), handovers).await
    }

    /// Removes the handovers of withdrawn signals, with the errors of [`Self::add`].
    pub(crate) async fn remove_handovers(
        &self,
        record: &mut Record,
        is_withdrawn: impl Fn(&str) -> bool,
    ) -> Result<(), WriteError> {
        let remaining = record.handovers.iter().filter(|known| !is_withdrawn(&known.signal));
        let remaining = remaining.cloned().collect();
        self.write(record, record.reservations.clone(), remaining).await
    }

    /// Removes the reservations of a pod. Returns [`WriteError::Conflict`] if the Lease changed since the read.
    pub(crate) async fn cancel(
        &self,
        record: &mut Record,
        namespace: &str,
        uid: &str,
        live_pods: &[LivePod<'_>],
    ) -> Result<(), WriteError> {
        let reservations =
            record.ledger().record_without(&record.reservations, namespace, uid, live_pods, Instant::now());
        let handovers = record.handovers.clone();
        self.write(record, reservations, handovers).await
    }

    /// Deletes stale records periodically and never returns. A record is stale if its reservations and handovers did not change
    /// between two reads that are [`STALE_RECORD_INTERVAL`] apart on the clock of this replica.
    pub(crate) async fn delete_stale_records(&self) {
        let mut last: BTreeMap<String, Content> = BTreeMap::new();
        loop {
            sleep(STALE_RECORD_INTERVAL).await;
            let leases = match self.leases.list().await {
                Ok(leases) => leases,
                Err(error) => {
                    tracing::warn!(%error, "could not delete stale reservation records");
                    continue;
                }
            };
            let (stale, changed): (Vec<LeaseRecord>, Vec<LeaseRecord>) =
                leases.into_iter().partition(|lease| last.get(&lease.name) == Some(&content(lease)));
            // A signal that lasts longer must not trigger a second handover.
            for lease in stale.into_iter().filter(|lease| !handovers::is_needed(lease, self.wall_clock.now()))
            {
                // A conflict means that the record is in use again.
                match self.leases.delete(&lease).await {
                    Ok(()) | Err(WriteError::Conflict) => {}
                    Err(error) => tracing::warn!(%error, "could not delete stale reservation records"),
                }
            }
            last = changed.into_iter().map(|lease| (lease.name.clone(), content(&lease))).collect();
        }
    }

    async fn write(
        &self,
        record: &mut Record,
        reservations: Vec<Reservation>,
        handovers: Vec<Handover>,
    ) -> Result<(), WriteError> {
        let name = record.lease.name.clone();
        let failed = |error: serde_json::Error| WriteError::Failed { name, cause: error.to_string() };
        let texts = serde_json::to_string(&reservations)
            .and_then(|text| serde_json::to_string(&handovers).map(|handovers| (text, handovers)));
        let (text, handovers_text) = texts.map_err(failed)?;
        let handovers_entry = (handovers::ANNOTATION.to_owned(), handovers_text);
        if Mistake::LoseLeaseUpdate.is_active() {
            return Ok(());
        }
        let cluster = record.lease.annotations.remove_entry(CLUSTER_ANNOTATION);
        let complete = record.is_complete.then(|| (COMPLETE_ANNOTATION.to_owned(), String::from("true")));
        let annotations = cluster
            .into_iter()
            .chain(complete)
            .chain([(RESERVATIONS_ANNOTATION.to_owned(), text)])
            .chain(Some(handovers_entry).filter(|_| !handovers.is_empty()))
            .collect();
        record.lease = self.leases.write(&record.lease, annotations).await?;
        let now = Instant::now();
        record.ledger().observe(&reservations, now);
        record.ledger().observe_handovers(&handovers, now);
        (record.reservations, record.handovers) = (reservations, handovers);
        Ok(())
    }
}

/// Reservations and handovers as texts.
type Content = [Option<String>; 2];

/// Returns the content of a Lease that evaluations have written. Provisional reservations of other clusters change the Lease as well.
fn content(lease: &LeaseRecord) -> Content {
    [RESERVATIONS_ANNOTATION, handovers::ANNOTATION].map(|name| lease.annotations.get(name).cloned())
}

/// Returns the name of the Lease, also if its content cannot be parsed.
fn name_of(record: &Result<Record, InvalidRecord>) -> &str {
    match record {
        Ok(record) => &record.lease.name,
        Err(invalid) => &invalid.name,
    }
}

fn lease_name(cluster: ClusterId) -> String {
    format!("etcd-guard.{cluster}")
}

fn parse(lease: &LeaseRecord) -> Result<Vec<Reservation>, LookupError> {
    let text = lease.annotations.get(RESERVATIONS_ANNOTATION).map_or("[]", String::as_str);
    serde_json::from_str(text).map_err(|error| LookupError::Failed {
        subject: format!("Lease {}", lease.name),
        cause: format!(
            "its annotation {RESERVATIONS_ANNOTATION} cannot be parsed ({error}); delete the Lease if no deletion is in progress"
        ),
    })
}

// === impl Ledgers ===

impl Collector for Ledgers {
    /// Counts the reservations at each scrape, because they expire.
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let now = Instant::now();
        let active: usize = self.0.values().map(|ledger| lock(&ledger).active_count(now)).sum();
        let gauge = ConstGauge::new(i64::try_from(active).unwrap_or(i64::MAX));
        let help =
            "Approved deletions that may still be in progress, in the records that this replica read last";
        gauge.encode(encoder.encode_descriptor("reservations", help, None, ConstGauge::<i64>::TYPE)?)?;
        let longest =
            self.0.values().map(|ledger| lock(&ledger).longest_reservation(now)).max().unwrap_or_default();
        let gauge = ConstGauge::new(longest.as_secs_f64());
        let help = "Longest time for which a pod that still exists has been reserved; 0 without reservations";
        let name = "longest_reservation_seconds";
        gauge.encode(encoder.encode_descriptor(name, help, None, ConstGauge::<f64>::TYPE)?)
    }
}

#[cfg(test)]
mod tests;
