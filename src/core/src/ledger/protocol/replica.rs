//! The knowledge of a replica: the shipped [`Ledger`], with ages in place of times, so that states at different times can
//! be equal.

use std::{
    collections::BTreeMap,
    sync::LazyLock,
    time::{Duration, Instant as Clock},
};

use tokio::time::Instant;

use crate::ledger::protocol::{
    Defect, LIFETIME, Ledger, LivePod, Observation, Pod, Reservation, Reserved, STEP, Uid, World,
};

const NAMESPACE: &str = "prod";

/// The current time, late enough that every age lies in its past.
static NOW: LazyLock<Instant> = LazyLock::new(|| Instant::from_std(Clock::now()) + Duration::from_secs(3600));

#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Replica {
    /// Age of each reservation since the replica first read it, in steps, at most its lifetime.
    pub first_seen: Vec<(Reserved, u8)>,
    /// Age since the replica found each pod missing, in steps: zero or one, for any positive number.
    pub gone: Vec<(Uid, u8)>,
    /// Cached observation. Only a seeded defect approves from it.
    pub cached: Option<Observation>,
}

fn ago(steps: u8) -> Instant {
    *NOW - STEP * u32::from(steps)
}

fn steps_since(instant: Instant) -> u8 {
    u8::try_from(NOW.duration_since(instant).as_secs() / STEP.as_secs()).unwrap()
}

fn reservations(held: &[Reserved]) -> Vec<Reservation> {
    held.iter().map(|reserved| reserved.reservation()).collect()
}

/// Calls `f` with the pods of a list.
fn with_live_pods<T>(listed: &[Pod], f: impl FnOnce(&[LivePod<'_>]) -> T) -> T {
    let uid = |(pod, n): (&Pod, u8)| Uid { pod: n, incarnation: pod.incarnation };
    let numbering: Vec<(String, String)> =
        listed.iter().zip(0..).map(uid).map(|uid| (uid.pod_name(), uid.to_string())).collect();
    let live_pods: Vec<LivePod<'_>> = numbering.iter().map(|(name, uid)| LivePod { name, uid }).collect();
    f(&live_pods)
}

// === impl Uid ===

impl Uid {
    pub(super) fn pod_name(self) -> String {
        format!("etcd-{}", self.pod)
    }

    fn read(text: &str) -> Self {
        let (pod, incarnation) = text.split_once('.').unwrap();
        Self { pod: pod.parse().unwrap(), incarnation: incarnation.parse().unwrap() }
    }
}

impl std::fmt::Display for Uid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.pod, self.incarnation)
    }
}

// === impl Reserved ===

impl Reserved {
    fn reservation(self) -> Reservation {
        Reservation {
            uid: self.uid.to_string(),
            namespace: String::from(NAMESPACE),
            pod: self.uid.pod_name(),
            member: String::new(),
            at: self.request.to_string(),
            by: String::new(),
            of_node: false,
        }
    }

    fn read(reservation: &Reservation) -> Self {
        Self { uid: Uid::read(&reservation.uid), request: reservation.at.parse().unwrap() }
    }
}

// === impl Replica ===

impl Replica {
    fn ledger(&self) -> Ledger {
        let first_seen = self.first_seen.iter().map(|(held, age)| (held.reservation(), ago(*age)));
        let gone = self.gone.iter().map(|(uid, age)| (uid.to_string(), ago(*age)));
        // Only a metric uses it.
        let reserved = BTreeMap::new();
        Ledger { first_seen: first_seen.collect(), gone: gone.collect(), reserved, ..Ledger::default() }
    }

    fn set_ledger(&mut self, ledger: &Ledger) {
        let first_seen = ledger.first_seen.iter();
        self.first_seen = first_seen
            .map(|(reservation, since)| (Reserved::read(reservation), steps_since(*since)))
            .collect();
        self.first_seen.sort_unstable();
        self.gone = ledger.gone.iter().map(|(uid, since)| (Uid::read(uid), steps_since(*since))).collect();
        self.gone.sort_unstable();
    }

    /// Advances the time by one step.
    pub(super) fn age(&mut self) {
        for (_, age) in &mut self.first_seen {
            *age = LIFETIME.min(*age + 1);
        }
        for (_, age) in &mut self.gone {
            *age = 1;
        }
        self.cached = None;
    }

    pub(super) fn observe(&mut self, world: &World, record: &[Reserved]) {
        if world.has_defect(Defect::RestartsLifetimes) {
            self.first_seen.clear();
        }
        let mut ledger = self.ledger();
        ledger.observe(&reservations(record), *NOW);
        self.set_ledger(&ledger);
    }

    pub(super) fn observe_pods(&mut self, record: &[Reserved], listed: &[Pod]) {
        let mut ledger = self.ledger();
        with_live_pods(listed, |live_pods| {
            ledger.observe_pods(&reservations(record), NAMESPACE, live_pods, *NOW);
        });
        self.set_ledger(&ledger);
    }

    /// Returns the time that the replica compares lifetimes with.
    fn now(world: &World) -> Instant {
        if world.has_defect(Defect::ExpiresEarly) { *NOW + STEP * u32::from(LIFETIME - 1) } else { *NOW }
    }

    pub(super) fn active(&self, world: &World, record: &[Reserved]) -> Vec<Reserved> {
        self.ledger().active(&reservations(record), Self::now(world)).map(Reserved::read).collect()
    }

    pub(super) fn may_be_newer_than(&self, world: &World, record: &[Reserved], listed: &[Pod]) -> bool {
        let (ledger, record) = (self.ledger(), reservations(record));
        with_live_pods(listed, |live_pods| {
            ledger.may_be_newer_than(&record, NAMESPACE, live_pods, Self::now(world))
        })
    }

    pub(super) fn with(
        &mut self,
        world: &World,
        record: &[Reserved],
        new: Reserved,
        listed: &[Pod],
    ) -> Vec<Reserved> {
        let mut ledger = self.ledger();
        let next = with_live_pods(listed, |live_pods| {
            ledger.record_with(&reservations(record), new.reservation(), live_pods, Self::now(world))
        });
        self.set_ledger(&ledger);
        let mut next: Vec<Reserved> = next.iter().map(Reserved::read).collect();
        next.sort_unstable();
        next
    }
}
