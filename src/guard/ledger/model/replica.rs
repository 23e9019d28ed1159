//! What a replica knows of the record: the product's [`Ledger`], whose times are kept as ages so that states of
//! different times can be the same.

use std::{
    collections::HashMap,
    sync::LazyLock,
    time::{Duration, Instant as Clock},
};

use tokio::time::Instant;

use super::{Held, LIFE, Ledger, Living, Look, Mistake, Pod, Reservation, STEP, Uid, World};

const NAMESPACE: &str = "prod";

/// The present, late enough for all ages to lie behind it.
static NOW: LazyLock<Instant> = LazyLock::new(|| Instant::from_std(Clock::now()) + Duration::from_secs(3600));

#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Replica {
    /// How many steps ago each reservation was first seen. What is older than its life is as old as its life.
    pub(super) first_seen: Vec<(Held, u8)>,
    /// How many steps ago each pod was seen to be gone: none, or any number.
    pub(super) gone: Vec<(Uid, u8)>,
    /// Only a guard that is built wrongly says yes by it.
    pub(super) last_look: Option<Look>,
}

fn ago(steps: u8) -> Instant {
    *NOW - STEP * u32::from(steps)
}

fn steps_since(instant: Instant) -> u8 {
    u8::try_from(NOW.duration_since(instant).as_secs() / STEP.as_secs()).unwrap()
}

fn reservations(held: &[Held]) -> Vec<Reservation> {
    held.iter().map(|it| it.reservation()).collect()
}

/// Calls `look` with the pods of a list.
fn with_living<T>(listed: &[Pod], look: impl FnOnce(&[Living<'_>]) -> T) -> T {
    let uid = |(pod, n): (&Pod, u8)| Uid { pod: n, incarnation: pod.incarnation };
    let names: Vec<(String, String)> =
        listed.iter().zip(0..).map(uid).map(|uid| (uid.pod_name(), uid.to_string())).collect();
    let living: Vec<Living<'_>> = names.iter().map(|(name, uid)| Living { name, uid }).collect();
    look(&living)
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

// === impl Held ===

impl Held {
    fn reservation(self) -> Reservation {
        Reservation {
            uid: self.uid.to_string(),
            namespace: String::from(NAMESPACE),
            pod: self.uid.pod_name(),
            member: String::new(),
            at: self.call.to_string(),
            by: String::new(),
        }
    }

    fn read(reservation: &Reservation) -> Self {
        Self { uid: Uid::read(&reservation.uid), call: reservation.at.parse().unwrap() }
    }
}

// === impl Replica ===

impl Replica {
    fn ledger(&self) -> Ledger {
        let first_seen = self.first_seen.iter().map(|(held, age)| (held.reservation(), ago(*age)));
        let gone = self.gone.iter().map(|(uid, age)| (uid.to_string(), ago(*age)));
        // For a metric alone.
        let reserved = HashMap::new();
        Ledger { first_seen: first_seen.collect(), gone: gone.collect(), reserved }
    }

    fn take_over(&mut self, ledger: &Ledger) {
        let first_seen = ledger.first_seen.iter();
        self.first_seen = first_seen.map(|(it, since)| (Held::read(it), steps_since(*since))).collect();
        self.first_seen.sort_unstable();
        self.gone = ledger.gone.iter().map(|(uid, since)| (Uid::read(uid), steps_since(*since))).collect();
        self.gone.sort_unstable();
    }

    /// A step of time.
    pub(super) fn age(&mut self) {
        for (_, age) in &mut self.first_seen {
            *age = LIFE.min(*age + 1);
        }
        for (_, age) in &mut self.gone {
            *age = 1;
        }
        self.last_look = None;
    }

    pub(super) fn observe(&mut self, world: &World, record: &[Held]) {
        if world.makes(Mistake::CountsAnew) {
            self.first_seen.clear();
        }
        let mut ledger = self.ledger();
        ledger.observe(&reservations(record), *NOW);
        self.take_over(&ledger);
    }

    pub(super) fn note_living(&mut self, record: &[Held], listed: &[Pod]) {
        let mut ledger = self.ledger();
        with_living(listed, |living| ledger.note_living(&reservations(record), NAMESPACE, living, *NOW));
        self.take_over(&ledger);
    }

    /// When this replica takes it to be, where lives are concerned.
    fn now(world: &World) -> Instant {
        if world.makes(Mistake::ForgetsEarly) { *NOW + STEP * u32::from(LIFE - 1) } else { *NOW }
    }

    pub(super) fn live(&self, world: &World, record: &[Held]) -> Vec<Held> {
        self.ledger().live(&reservations(record), Self::now(world)).map(Held::read).collect()
    }

    pub(super) fn outdates(&self, world: &World, record: &[Held], listed: &[Pod]) -> bool {
        let (ledger, record) = (self.ledger(), reservations(record));
        with_living(listed, |living| ledger.outdates(&record, NAMESPACE, living, Self::now(world)))
    }

    pub(super) fn with(&mut self, world: &World, record: &[Held], new: Held, listed: &[Pod]) -> Vec<Held> {
        let mut ledger = self.ledger();
        let next = with_living(listed, |living| {
            ledger.with(&reservations(record), new.reservation(), living, Self::now(world))
        });
        self.take_over(&ledger);
        let mut next: Vec<Held> = next.iter().map(Held::read).collect();
        next.sort_unstable();
        next
    }
}
