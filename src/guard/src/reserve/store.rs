//! The ledgers: one Lease per guarded namespace, in the namespace of the guard.
//!
//! An evaluation reads the ledger of its namespace together with the pods, before the probe round, and writes it afterwards with
//! the version that it read. A cluster with voters in other namespaces needs further ledgers: the evaluation then starts again
//! and reads all of them before another probe round. The rules, and what goes wrong without each of them, are listed in the model
//! (`ledger/namespaces.rs`).

mod ledger;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures::future::try_join_all;
use k8s_openapi::jiff::Timestamp;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{TypedMetric, gauge::ConstGauge},
    registry::Registry,
};
use tokio::time::{Instant, sleep};

pub(crate) use self::ledger::{Ledger, Ledgers};
use crate::reserve::{
    handovers,
    ledger_error::{LedgerError, LedgerFault, of_write},
};
use etcd_guard_cache::{ExpiringCache, Lifetime};
use etcd_guard_core::{
    cluster_key::CLUSTER_TTL,
    etcd::member::ClusterId,
    handover::Handover,
    ledger::{RESERVATION_TTL, Sightings},
    mistakes::Mistake,
    reservation::{LivePod, Reservation},
    wall_clock::WallClock,
};
use etcd_guard_kubernetes::{LeaseRecord, Leases, LookupError, WriteError};

/// Annotation of the Lease that contains the reservations as a JSON list.
pub(crate) const RESERVATIONS_ANNOTATION: &str = "etcd-guard.io/reservations";

/// Maximum length of the reservations and handovers of one ledger. The API server accepts 256 KiB of annotations per object.
const MAX_LEDGER_BYTES: usize = 200 * 1024;

/// Maximum number of ledgers whose first reads a replica remembers. An evicted one starts the lifetimes of its reservations again.
const MAX_LEDGERS: u64 = 65_536;

/// Maximum number of repeated writes of one evaluation. Each one means that another cluster of the namespace made progress.
const MAX_WRITES: usize = 16;

/// Interval after which an unchanged Lease is deleted: a multiple of the lifetime of a reservation.
const STALE_INTERVAL: Duration = Duration::from_secs(600);

/// Names a ledger. Its order is the order of writes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum LedgerName {
    /// The ledger of a guarded namespace.
    Namespace(String),
    /// The ledger of a cluster with voters whose pods are not found.
    Cluster(ClusterId),
}

/// What an evaluation knows about its cluster after the probe round.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Facts<'a> {
    /// The id of the cluster; `None` if the members report no common one. The voters are then unknown.
    pub(crate) cluster: Option<ClusterId>,
    /// The existing pods that were read.
    pub(crate) pods: &'a [LivePod<'a>],
    /// Names of the pods that run the voters of the cluster; `None` if they are not proven.
    pub(crate) voters: Option<&'a [&'a str]>,
    /// The move of leadership that precedes the deletion.
    pub(crate) handover: Option<&'a Handover>,
}

/// Why a reservation was not stored.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ReserveError {
    /// Another evaluation has approved a deletion since the ledgers were read, or a ledger was not read.
    #[error("the Lease was changed concurrently")]
    StartAgain,
    /// The ledgers cannot be read or written.
    #[error("{0}")]
    Unavailable(LedgerError),
}

/// Reads and writes the ledgers.
pub(crate) struct ReservationStore {
    leases: Leases,
    sightings: AllSightings,
    wall_clock: WallClock,
}

/// What this replica knows about each ledger, by the name of the Lease.
#[derive(Clone, Debug)]
struct AllSightings(ExpiringCache<String, Arc<Mutex<Sightings>>>);

fn lock(sightings: &Mutex<Sightings>) -> MutexGuard<'_, Sightings> {
    sightings.lock().unwrap_or_else(PoisonError::into_inner)
}

// === impl LedgerName ===

impl LedgerName {
    /// Returns the name of the Lease.
    pub(crate) fn lease(&self) -> String {
        match self {
            Self::Namespace(namespace) => format!("etcd-guard.ns.{namespace}"),
            Self::Cluster(id) => format!("etcd-guard.cluster.{id}"),
        }
    }
}

// === impl ReservationStore ===

impl ReservationStore {
    pub(crate) fn new(leases: Leases, wall_clock: WallClock) -> Self {
        let sightings = ExpiringCache::new(MAX_LEDGERS, Lifetime::SinceUse(CLUSTER_TTL));
        Self { leases, sightings: AllSightings(sightings), wall_clock }
    }

    /// Registers the metrics of reservations.
    pub(crate) fn register(&self, registry: &mut Registry) {
        registry.register_collector(Box::new(self.sightings.clone()));
    }

    /// Reads these ledgers. A ledger that cannot be parsed can contain reservations: it is an error.
    pub(crate) async fn read(&self, names: BTreeSet<LedgerName>) -> Result<Ledgers, LedgerError> {
        let read = async |name: LedgerName| {
            let ledger = self.read_lease(&name.lease()).await?;
            Ok::<_, LedgerError>((name, ledger))
        };
        Ok(Ledgers(try_join_all(names.into_iter().map(read)).await?.into_iter().collect()))
    }

    /// Reads the ledger of a namespace.
    pub(crate) async fn read_namespace(&self, namespace: &str) -> Result<Ledgers, LedgerError> {
        self.read([LedgerName::Namespace(namespace.to_owned())].into()).await
    }

    async fn read_lease(&self, name: &str) -> Result<Ledger, LedgerError> {
        let lease = self.leases.read(name).await;
        self.parse(lease.map_err(|error| LedgerError::of_read(self.leases.namespace(), name, error))?)
    }

    /// Lists all ledgers, for reports and handovers. One that cannot be parsed is reported, and does not hide the others.
    pub(crate) async fn list(&self) -> Result<(Vec<Ledger>, Vec<LedgerError>), LookupError> {
        let (mut ledgers, mut invalid) = (Vec::new(), Vec::new());
        for lease in self.leases.list().await? {
            match self.parse(lease) {
                Ok(ledger) => ledgers.push(ledger),
                Err(error) => invalid.push(error),
            }
        }
        Ok((ledgers, invalid))
    }

    /// Lists the reservations of all ledgers that have not expired, and the errors of those that cannot be parsed.
    pub(crate) async fn list_active(&self) -> Result<(Vec<Reservation>, Vec<LedgerError>), LookupError> {
        let (ledgers, invalid) = self.list().await?;
        let active: BTreeSet<&Reservation> = ledgers.iter().flat_map(Ledger::active).collect();
        Ok((active.into_iter().cloned().collect(), invalid))
    }

    /// Parses a Lease that was just read, and records the read, which starts the lifetimes of new reservations.
    fn parse(&self, lease: LeaseRecord) -> Result<Ledger, LedgerError> {
        let mut read = parse(&lease).map_err(|error| {
            let (namespace, lease) = (self.leases.namespace().to_owned(), lease.name.clone());
            LedgerError { namespace, lease, fault: LedgerFault::Unreadable(error.to_string()) }
        })?;
        if Mistake::ExpireByWallClock.is_active() {
            let age = |at: Timestamp| self.wall_clock.now().as_second() - at.as_second();
            let is_live = |at: Timestamp| age(at) < RESERVATION_TTL.as_secs().cast_signed();
            read.retain(|reservation| reservation.at.parse().is_ok_and(is_live));
        }
        let handovers = handovers::parse(&lease);
        let sightings = self.sightings.0.get_or_default(&lease.name).0;
        let now = Instant::now();
        let (reservations, active) = {
            let mut known = lock(&sightings);
            known.observe_handovers(&handovers, now);
            let reservations = known.observe(lease.uid.as_deref(), read, now);
            let mut active: Vec<Reservation> = known.active(&reservations, now).cloned().collect();
            if Mistake::IgnoreWithoutClusterId.is_active() {
                active.retain(|reservation| reservation.cluster.is_some());
            }
            (reservations, active)
        };
        Ok(Ledger { lease, reservations, active, replaced: None, handovers, sightings })
    }

    /// Stores reservations in all these ledgers, in the order of their names.
    ///
    /// A conflict starts the evaluation again, except if it concerns another cluster of the namespace: this evaluation knows its
    /// cluster, needs one ledger, and no changed reservation is that of a pod of its voters. Then only the write is repeated.
    pub(crate) async fn reserve(
        &self,
        ledgers: &mut Ledgers,
        new: &[Reservation],
        facts: &Facts<'_>,
    ) -> Result<(), ReserveError> {
        let at = self.wall_clock.now().to_string();
        let cluster = facts.cluster.map(|id| id.to_string());
        let stamp = |new: &Reservation| Reservation {
            at: at.clone(),
            cluster: new.cluster.clone().or_else(|| cluster.clone()),
            ..new.clone()
        };
        let new: Vec<Reservation> = new.iter().map(stamp).collect();
        let is_single = ledgers.0.len() == 1;
        let mut written: Vec<LedgerName> = Vec::new();
        for (name, ledger) in &mut ledgers.0 {
            let result = match self.write_new(ledger, &new, facts).await {
                Err(ReserveError::StartAgain) if is_single => self.repeat(ledger, &new, facts).await,
                written => written,
            };
            if let Err(error) = result {
                self.withdraw_new(ledgers, &written, &new).await;
                return Err(error);
            }
            written.push(name.clone());
        }
        Ok(())
    }

    /// Repeats the write of a single ledger after a conflict.
    async fn repeat(
        &self,
        ledger: &mut Ledger,
        new: &[Reservation],
        facts: &Facts<'_>,
    ) -> Result<(), ReserveError> {
        let (evaluated, handovers) = (ledger.reservations.clone(), ledger.handovers.clone());
        for _ in 0..MAX_WRITES {
            *ledger = self.read_lease(&ledger.lease.name).await.map_err(ReserveError::Unavailable)?;
            let Some(voters) = facts.voters.filter(|_| facts.cluster.is_some()) else {
                return Err(ReserveError::StartAgain);
            };
            // The pod may have become a transferee.
            if ledger.handovers != handovers {
                return Err(ReserveError::StartAgain);
            }
            // All voters run in the namespace of the target, because one ledger suffices.
            let is_ours = |changed: &Reservation| {
                new.iter().any(|new| {
                    let is_voter = new.pod == changed.pod || voters.contains(&changed.pod.as_str());
                    new.uid == changed.uid || (new.namespace == changed.namespace && is_voter)
                })
            };
            let added = ledger.reservations.iter().filter(|known| !evaluated.contains(known));
            let removed = evaluated.iter().filter(|known| !ledger.reservations.contains(known));
            if added.chain(removed).any(is_ours) {
                return Err(ReserveError::StartAgain);
            }
            match self.write_new(ledger, new, facts).await {
                Err(ReserveError::StartAgain) => {}
                written => return written,
            }
        }
        Err(ReserveError::StartAgain)
    }

    async fn write_new(
        &self,
        ledger: &mut Ledger,
        new: &[Reservation],
        facts: &Facts<'_>,
    ) -> Result<(), ReserveError> {
        let (before, next) = {
            let (known, now) = (lock(&ledger.sightings), Instant::now());
            let before: Vec<Reservation> = known.active(&ledger.reservations, now).cloned().collect();
            (before, known.with(&ledger.reservations, new, facts.pods, now))
        };
        let handovers = match facts.handover {
            Some(new) => handovers::with(&ledger.handovers, new.clone(), self.wall_clock.now()),
            None => ledger.handovers.clone(),
        };
        self.write(ledger, next, handovers).await?;
        ledger.replaced = Some(before);
        Ok(())
    }

    /// Withdraws new reservations from the ledgers that were written before a conflict. What cannot be withdrawn expires.
    async fn withdraw_new(&self, ledgers: &mut Ledgers, written: &[LedgerName], new: &[Reservation]) {
        let is_new = |known: &Reservation| new.iter().any(|new| new.uid == known.uid);
        for (_, ledger) in ledgers.0.iter_mut().filter(|(name, _)| written.contains(name)) {
            self.restore(ledger, is_new).await;
        }
    }

    /// Withdraws the reservation of a pod from ledgers that [`Self::reserve`] has written. What cannot be withdrawn expires.
    pub(crate) async fn withdraw(&self, ledgers: &mut Ledgers, uid: &str) {
        for ledger in ledgers.0.values_mut() {
            self.restore(ledger, |known| known.uid == uid).await;
        }
    }

    /// Restores the reservations that the last write replaced: the deletion of an earlier approval can still arrive.
    async fn restore(&self, ledger: &mut Ledger, is_withdrawn: impl Fn(&Reservation) -> bool) {
        let Some(replaced) = ledger.replaced.take() else { return };
        let mut remaining = ledger.reservations.clone();
        remaining.retain(|known| !is_withdrawn(known));
        remaining.extend(replaced.into_iter().filter(is_withdrawn));
        let _ = self.write(ledger, remaining, ledger.handovers.clone()).await;
    }

    /// Removes exactly this reservation, adds another one, and writes a handover, unless the Lease changed since the read. Reservations
    /// of other requests for the same pod remain.
    pub(crate) async fn replace(
        &self,
        ledger: &mut Ledger,
        former: Option<&Reservation>,
        new: Option<Reservation>,
        handover: Handover,
    ) -> Result<(), ReserveError> {
        let mut reservations = ledger.reservations.clone();
        reservations.retain(|known| Some(known) != former);
        reservations.extend(new);
        reservations.sort_by(|one, other| one.uid.cmp(&other.uid));
        let handovers = handovers::with(&ledger.handovers, handover, self.wall_clock.now());
        self.write(ledger, reservations, handovers).await
    }

    /// Adds a handover. Returns [`ReserveError::StartAgain`] if the Lease changed since the read.
    pub(crate) async fn add_handover(&self, ledger: &mut Ledger, new: Handover) -> Result<(), ReserveError> {
        let handovers = handovers::with(&ledger.handovers, new, self.wall_clock.now());
        self.write(ledger, ledger.reservations.clone(), handovers).await
    }

    /// Removes the handovers of withdrawn signals, with the errors of [`Self::add_handover`].
    pub(crate) async fn remove_handovers(
        &self,
        ledger: &mut Ledger,
        is_withdrawn: impl Fn(&str) -> bool,
    ) -> Result<(), ReserveError> {
        let remaining = ledger.handovers.iter().filter(|known| !is_withdrawn(&known.signal));
        let remaining = remaining.cloned().collect();
        self.write(ledger, ledger.reservations.clone(), remaining).await
    }

    /// Returns an error of the reservations that concerns no single Lease.
    pub(crate) fn error(&self, fault: LedgerFault) -> LedgerError {
        LedgerError { namespace: self.leases.namespace().to_owned(), lease: String::new(), fault }
    }

    /// Returns what a failed write means for its evaluation.
    fn unavailable(&self, error: WriteError) -> ReserveError {
        of_write(self.leases.namespace(), error).map_or(ReserveError::StartAgain, ReserveError::Unavailable)
    }

    async fn write(
        &self,
        ledger: &mut Ledger,
        reservations: Vec<Reservation>,
        handovers: Vec<Handover>,
    ) -> Result<(), ReserveError> {
        let unavailable = |fault: LedgerFault| {
            let (namespace, lease) = (self.leases.namespace().to_owned(), ledger.lease.name.clone());
            ReserveError::Unavailable(LedgerError { namespace, lease, fault })
        };
        let text = |json: Result<String, serde_json::Error>| {
            json.map_err(|error| unavailable(LedgerFault::Failed(error.to_string())))
        };
        let reservations_text = text(serde_json::to_string(&reservations))?;
        let handovers_text = text(serde_json::to_string(&handovers))?;
        let bytes = reservations_text.len() + handovers_text.len();
        if bytes > MAX_LEDGER_BYTES {
            return Err(unavailable(LedgerFault::Full {
                reservations: reservations.len(),
                kibibytes: bytes / 1024,
                limit: MAX_LEDGER_BYTES / 1024,
            }));
        }
        if Mistake::LoseLeaseUpdate.is_active() {
            return Ok(());
        }
        let handovers_entry =
            (!handovers.is_empty()).then(|| (handovers::ANNOTATION.to_owned(), handovers_text));
        let annotations =
            [(RESERVATIONS_ANNOTATION.to_owned(), reservations_text)].into_iter().chain(handovers_entry);
        let written = self.leases.write(&ledger.lease, annotations.collect()).await;
        ledger.lease = written.map_err(|error| self.unavailable(error))?;
        let now = Instant::now();
        let mut known = lock(&ledger.sightings);
        known.observe_handovers(&handovers, now);
        ledger.reservations = known.observe(ledger.lease.uid.as_deref(), reservations, now);
        drop(known);
        ledger.handovers = handovers;
        Ok(())
    }

    /// Deletes stale Leases periodically and never returns. A Lease is stale if its reservations and handovers did not change
    /// between two reads that are [`STALE_INTERVAL`] apart on the clock of this replica.
    pub(crate) async fn delete_stale_ledgers(&self) {
        let mut last: BTreeMap<String, Content> = BTreeMap::new();
        loop {
            sleep(STALE_INTERVAL).await;
            let leases = match self.leases.list().await {
                Ok(leases) => leases,
                Err(error) => {
                    tracing::warn!(%error, "could not delete stale reservation Leases");
                    continue;
                }
            };
            let (stale, changed): (Vec<LeaseRecord>, Vec<LeaseRecord>) =
                leases.into_iter().partition(|lease| last.get(&lease.name) == Some(&content(lease)));
            // A signal that lasts longer must not trigger a second handover.
            for lease in stale.into_iter().filter(|lease| !handovers::is_needed(lease, self.wall_clock.now()))
            {
                // A conflict means that the ledger is in use again.
                match self.leases.delete(&lease).await {
                    Ok(()) | Err(WriteError::Conflict) => {}
                    Err(error) => tracing::warn!(%error, "could not delete stale reservation Leases"),
                }
            }
            last = changed.into_iter().map(|lease| (lease.name.clone(), content(&lease))).collect();
        }
    }
}

/// Reservations and handovers as texts.
type Content = [Option<String>; 2];

fn content(lease: &LeaseRecord) -> Content {
    [RESERVATIONS_ANNOTATION, handovers::ANNOTATION].map(|name| lease.annotations.get(name).cloned())
}

fn parse(lease: &LeaseRecord) -> Result<Vec<Reservation>, serde_json::Error> {
    serde_json::from_str(lease.annotations.get(RESERVATIONS_ANNOTATION).map_or("[]", String::as_str))
}

// === impl AllSightings ===

impl Collector for AllSightings {
    /// Counts the reservations at each scrape, because they expire.
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let now = Instant::now();
        let active: usize = self.0.values().map(|known| lock(&known).active_count(now)).sum();
        let gauge = ConstGauge::new(i64::try_from(active).unwrap_or(i64::MAX));
        let help =
            "Approved deletions that may still be in progress, in the records that this replica read last";
        gauge.encode(encoder.encode_descriptor("reservations", help, None, ConstGauge::<i64>::TYPE)?)?;
        let longest =
            self.0.values().map(|known| lock(&known).longest_reservation(now)).max().unwrap_or_default();
        let gauge = ConstGauge::new(longest.as_secs_f64());
        let help = "Longest time for which a pod that still exists has been reserved; 0 without reservations";
        let name = "longest_reservation_seconds";
        gauge.encode(encoder.encode_descriptor(name, help, None, ConstGauge::<f64>::TYPE)?)
    }
}

#[cfg(test)]
mod tests;
