//! The knowledge of a replica: the shipped [`Sightings`], with ages in place of times, so that states at different times can be
//! equal.

use std::{
    sync::LazyLock,
    time::{Duration, Instant as Clock},
};

use tokio::time::Instant;

use super::{Defect, LIFETIME, Lease, Pod, Reserved, STEP, World};
use crate::{
    ledger::Sightings,
    reservation::{LivePod, Reservation},
};

/// The current time, late enough that every age lies in its past.
static NOW: LazyLock<Instant> = LazyLock::new(|| Instant::from_std(Clock::now()) + Duration::from_secs(3600));

/// What the replica knows about each Lease.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Replica(Vec<Known>);

#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Known {
    lease: Option<u8>,
    /// Age of each reservation since the first read in steps, at most its lifetime.
    first_seen: Vec<(Reserved, u8)>,
}

// === impl Replica ===

impl Replica {
    pub(super) fn new(leases: usize) -> Self {
        Self(vec![Known::default(); leases])
    }

    pub(super) fn age(&mut self) {
        for (_, age) in self.0.iter_mut().flat_map(|known| &mut known.first_seen) {
            *age = LIFETIME.min(*age + 1);
        }
    }

    /// Records a read. Returns the reservations, with those of a deleted Lease.
    pub(super) fn observe(&mut self, world: &World, n: usize, lease: &Lease) -> Vec<Reserved> {
        let known = &mut self.0[n];
        if world.has(Defect::ForgetsDeletedLease) && known.lease != lease.uid {
            *known = Known::default();
        }
        let mut sightings = known.sightings();
        let uid = lease.uid.map(|uid| uid.to_string());
        let read = lease.held.iter().map(|held| held.reservation()).collect();
        let mut held: Vec<Reserved> =
            sightings.observe(uid.as_deref(), read, *NOW).iter().map(Reserved::read).collect();
        held.sort_unstable();
        *known = Known::of(&sightings);
        held
    }

    /// Returns the reservations of these Leases that have not expired.
    pub(super) fn all_active(&self, world: &World, leases: &[Lease]) -> Vec<Reserved> {
        leases.iter().enumerate().flat_map(|(n, lease)| self.active(world, n, &lease.held)).collect()
    }

    /// Returns the reservations of a Lease that have not expired.
    pub(super) fn active(&self, world: &World, n: usize, held: &[Reserved]) -> Vec<Reserved> {
        let held: Vec<Reservation> = held.iter().map(|held| held.reservation()).collect();
        self.0[n].sightings().active(&held, now(world)).map(Reserved::read).collect()
    }

    /// Returns the reservations with a new one.
    pub(super) fn with(
        &self,
        world: &World,
        n: usize,
        held: &[Reserved],
        new: Reserved,
        pods: &[(Pod, bool)],
    ) -> Vec<Reserved> {
        let held: Vec<Reservation> = held.iter().map(|held| held.reservation()).collect();
        let new = new.reservation();
        let mut pods = pods.to_vec();
        if world.has(Defect::RemovesSilentSuccessors) {
            for (_, serves) in &mut pods {
                *serves = true;
            }
        }
        let held: Vec<Reservation> = held
            .into_iter()
            .map(|held| Reservation { by_name: held.by_name && !world.has(Defect::RemovesNames), ..held })
            .collect();
        let next = with_live_pods(&pods, |pods| self.0[n].sightings().with(&held, &[new], pods, now(world)));
        let mut next: Vec<Reserved> = next.iter().map(Reserved::read).collect();
        next.sort_unstable();
        next
    }
}

/// Whether a pod of the list is leaving because of the reservation.
pub(super) fn takes(world: &World, held: Reserved, pods: &[(Pod, bool)], pod: u8) -> bool {
    let reservation =
        Reservation { by_name: held.by_name && !world.has(Defect::ForgetsNames), ..held.reservation() };
    with_live_pods(pods, |pods| {
        let live = pods[usize::from(pod)];
        let serves = live.serves || world.has(Defect::IgnoresSilentSuccessors);
        reservation.takes(&LivePod { serves, ..live })
    })
}

/// Returns the time that the replica compares lifetimes with.
fn now(world: &World) -> Instant {
    if world.has(Defect::ExpiresEarly) { *NOW + STEP * u32::from(LIFETIME - 1) } else { *NOW }
}

/// Calls `f` with the listed pods, each with whether it serves.
fn with_live_pods<T>(pods: &[(Pod, bool)], f: impl FnOnce(&[LivePod<'_>]) -> T) -> T {
    let texts: Vec<[String; 2]> = pods
        .iter()
        .zip(0..)
        .map(|((pod, _), n)| [format!("etcd-{n}"), format!("{n}.{}", pod.incarnation)])
        .collect();
    let live: Vec<LivePod<'_>> = texts
        .iter()
        .zip(pods)
        .map(|([name, uid], (_, serves))| LivePod { namespace: "", name, uid, serves: *serves, image_id: "" })
        .collect();
    f(&live)
}

// === impl Known ===

impl Known {
    fn sightings(&self) -> Sightings {
        let age = |(held, age): &(Reserved, u8)| (held.reservation(), *NOW - STEP * u32::from(*age));
        Sightings {
            lease: self.lease.map(|uid| uid.to_string()),
            first_seen: self.first_seen.iter().map(age).collect(),
            ..Sightings::default()
        }
    }

    fn of(sightings: &Sightings) -> Self {
        let steps = |since: &Instant| NOW.duration_since(*since).as_secs() / STEP.as_secs();
        let seen = sightings.first_seen.iter();
        let mut first_seen: Vec<(Reserved, u8)> =
            seen.map(|(known, since)| (Reserved::read(known), steps(since).try_into().unwrap())).collect();
        first_seen.sort_unstable();
        Self { lease: sightings.lease.as_deref().map(|uid| uid.parse().unwrap()), first_seen }
    }
}

// === impl Reserved ===

impl Reserved {
    /// Each pod has its own name, so that the namespaces need not differ.
    fn reservation(self) -> Reservation {
        Reservation {
            uid: format!("{}.{}", self.pod, self.incarnation),
            namespace: String::new(),
            pod: format!("etcd-{}", self.pod),
            member: self.pod.to_string(),
            at: self.request.to_string(),
            by: String::new(),
            of_node: false,
            cluster: self.id.map(|id| id.to_string()),
            by_name: self.by_name,
            image_id: None,
        }
    }

    fn read(reservation: &Reservation) -> Self {
        let (pod, incarnation) = reservation.uid.split_once('.').unwrap();
        Self {
            pod: pod.parse().unwrap(),
            incarnation: incarnation.parse().unwrap(),
            id: reservation.cluster.as_deref().map(|id| id.parse().unwrap()),
            by_name: reservation.by_name,
            request: reservation.at.parse().unwrap(),
        }
    }
}
