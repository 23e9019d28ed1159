//! The knowledge of a replica: the shipped [`Sightings`], with ages in place of times, so that states at different times can
//! be equal.

use std::{
    sync::LazyLock,
    time::{Duration, Instant as Clock},
};

use tokio::time::Instant;

use crate::ledger::protocol::{
    Defect, LIFETIME, LivePod, Observation, Pod, PodState, Reservation, Reserved, STEP, Sightings, Uid, World,
};

const NAMESPACE: &str = "prod";

/// The uid of the Lease.
const LEASE: &str = "1";

/// The current time, late enough that every age lies in its past.
static NOW: LazyLock<Instant> = LazyLock::new(|| Instant::from_std(Clock::now()) + Duration::from_secs(3600));

#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Replica {
    /// Age of each reservation since the replica first read it, in steps, at most its lifetime.
    pub first_seen: Vec<(Reserved, u8)>,
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
    let text = |(pod, n): (&Pod, u8)| {
        let uid = Uid { pod: n, incarnation: pod.incarnation };
        (uid.pod_name(), uid.to_string(), pod.state == PodState::Serving)
    };
    let texts: Vec<(String, String, bool)> = listed.iter().zip(0..).map(text).collect();
    let live_pods: Vec<LivePod<'_>> = texts
        .iter()
        .map(|(name, uid, serves)| LivePod { namespace: NAMESPACE, name, uid, serves: *serves, image_id: "" })
        .collect();
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
            cluster: None,
            by_name: false,
            image_id: None,
        }
    }

    fn read(reservation: &Reservation) -> Self {
        Self { uid: Uid::read(&reservation.uid), request: reservation.at.parse().unwrap() }
    }
}

// === impl Replica ===

impl Replica {
    fn sightings(&self) -> Sightings {
        let first_seen = self.first_seen.iter().map(|(held, age)| (held.reservation(), ago(*age)));
        Sightings {
            lease: Some(String::from(LEASE)),
            first_seen: first_seen.collect(),
            ..Sightings::default()
        }
    }

    fn set_sightings(&mut self, sightings: &Sightings) {
        let first_seen = sightings.first_seen.iter();
        self.first_seen = first_seen
            .map(|(reservation, since)| (Reserved::read(reservation), steps_since(*since)))
            .collect();
        self.first_seen.sort_unstable();
    }

    /// Advances the time by one step.
    pub(super) fn age(&mut self) {
        for (_, age) in &mut self.first_seen {
            *age = LIFETIME.min(*age + 1);
        }
        self.cached = None;
    }

    pub(super) fn observe(&mut self, world: &World, ledger: &[Reserved]) {
        if world.has_defect(Defect::RestartsLifetimes) {
            self.first_seen.clear();
        }
        let mut sightings = self.sightings();
        sightings.observe(Some(LEASE), reservations(ledger), *NOW);
        self.set_sightings(&sightings);
    }

    /// Returns the time that the replica compares lifetimes with.
    fn now(world: &World) -> Instant {
        if world.has_defect(Defect::ExpiresEarly) { *NOW + STEP * u32::from(LIFETIME - 1) } else { *NOW }
    }

    pub(super) fn active(&self, world: &World, ledger: &[Reserved]) -> Vec<Reserved> {
        self.sightings().active(&reservations(ledger), Self::now(world)).map(Reserved::read).collect()
    }

    pub(super) fn may_be_newer_than(&self, world: &World, ledger: &[Reserved], listed: &[Pod]) -> bool {
        let (sightings, ledger) = (self.sightings(), reservations(ledger));
        with_live_pods(listed, |live_pods| {
            sightings.may_be_newer_than(&ledger, NAMESPACE, live_pods, Self::now(world))
        })
    }

    pub(super) fn with(
        &self,
        world: &World,
        ledger: &[Reserved],
        new: Reserved,
        listed: &[Pod],
    ) -> Vec<Reserved> {
        let next = with_live_pods(listed, |live_pods| {
            self.sightings().with(&reservations(ledger), &[new.reservation()], live_pods, Self::now(world))
        });
        let mut next: Vec<Reserved> = next.iter().map(Reserved::read).collect();
        next.sort_unstable();
        next
    }
}
