//! Disruptions during the deletions: members are killed, frozen and slowed, replicas and API servers end,
//! certificates are rotated, and owners of objects disappear. They run in sequence: each ends before the next starts.

use std::{collections::BTreeMap, time::Duration};

use fastrand::Rng;
use nix::sys::signal::Signal;
use tokio::time::sleep;

use crate::{
    environment::{Environment, HEALTHY_TIMEOUT},
    stress::{Requests, StressTest, Subject},
};
use test_support::{process_node::ProcessAction, wait::wait_until};

/// The pause between two disruptions, in milliseconds.
const PAUSE: std::ops::Range<u64> = 100..700;

/// How long a member is frozen or slowed, in milliseconds; a probe times out after a second.
const LASTS: std::ops::Range<u64> = 200..2500;

/// A kind of disruption.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Disruption {
    KillMember,
    FreezeMembers,
    SlowMember,
    KillReplica,
    RestartReplica,
    RotateCertificates,
    RestartApiServer,
    DangleOwner,
}

/// The number of completed disruptions of each kind.
pub(crate) type DisruptionCounts = BTreeMap<Disruption, u32>;

impl Disruption {
    const ALL: [Self; 8] = [
        Self::KillMember,
        Self::FreezeMembers,
        Self::SlowMember,
        Self::KillReplica,
        Self::RestartReplica,
        Self::RotateCertificates,
        Self::RestartApiServer,
        Self::DangleOwner,
    ];

    /// Returns the disruptions of a test: those that apply to its subject.
    pub(crate) fn of(test: &StressTest) -> Vec<Self> {
        if test.requests == Requests::Evictions {
            return Vec::new();
        }
        let concerns_guard = |kind: &Self| {
            matches!(
                kind,
                Self::KillReplica | Self::RestartReplica | Self::RotateCertificates | Self::DangleOwner
            )
        };
        Self::ALL.into_iter().filter(|kind| test.subject == Subject::Guard || !concerns_guard(kind)).collect()
    }

    /// Returns the relative frequency; long disruptions are rare.
    fn weight(self) -> usize {
        match self {
            Self::KillMember | Self::FreezeMembers | Self::SlowMember => 6,
            Self::KillReplica | Self::RestartReplica => 3,
            Self::RotateCertificates | Self::DangleOwner => 2,
            Self::RestartApiServer => 1,
        }
    }

    pub(crate) fn description(self) -> &'static str {
        match self {
            Self::KillMember => "members killed",
            Self::FreezeMembers => "times members frozen",
            Self::SlowMember => "members slowed",
            Self::KillReplica => "replicas killed",
            Self::RestartReplica => "replicas restarted",
            Self::RotateCertificates => "certificates rotated",
            Self::RestartApiServer => "API servers killed",
            Self::DangleOwner => "dangling owners",
        }
    }
}

impl Environment {
    /// Runs disruptions in sequence as long as the condition holds: each kind once, then at random by weight. A
    /// disruption is never cancelled, so that each effect is reverted.
    pub(crate) async fn run_disruptions(
        &self,
        test: &StressTest,
        mut rng: Rng,
        completed: &mut DisruptionCounts,
        is_running: impl Fn(&DisruptionCounts) -> bool,
    ) {
        let kinds = Disruption::of(test);
        let mut deck = Vec::new();
        while is_running(completed) {
            if deck.is_empty() {
                let missing = kinds.iter().filter(|kind| !completed.contains_key(kind)).copied();
                deck.extend(missing);
                if deck.is_empty() {
                    deck.extend(kinds.iter().flat_map(|kind| std::iter::repeat_n(*kind, kind.weight())));
                }
                rng.shuffle(&mut deck);
            }
            sleep(Duration::from_millis(rng.u64(PAUSE))).await;
            let Some(disruption) = deck.last().copied() else { continue };
            if self.disruption(disruption, &mut rng).await {
                *completed.entry(disruption).or_default() += 1;
                deck.pop();
            }
        }
    }

    /// Runs a disruption, and returns whether it was possible: while all members are terminating, none can be killed.
    async fn disruption(&self, disruption: Disruption, rng: &mut Rng) -> bool {
        let lasts = Duration::from_millis(rng.u64(LASTS));
        let mut present = self.oracle.present().await;
        rng.shuffle(&mut present);
        match (disruption, present.as_slice()) {
            (Disruption::KillMember, [name, ..]) => self.oracle.fault(name, ProcessAction::Kill).await,
            (Disruption::SlowMember, [name, ..]) => self.oracle.slow(name, lasts).await,
            // At most as many members as a cluster tolerates.
            (Disruption::FreezeMembers, names) => {
                let count = rng.usize(1..self.oracle.names.len().div_ceil(2)).min(names.len());
                let mut applied = false;
                for name in &names[..count] {
                    applied |= self.oracle.fault(name, ProcessAction::Pause).await;
                }
                sleep(lasts).await;
                for name in &names[..count] {
                    self.oracle.thaw(name).await;
                }
                applied
            }
            (Disruption::KillMember | Disruption::SlowMember, []) => false,
            (Disruption::KillReplica, _) => self.restart_replica(rng, Signal::SIGKILL).await,
            (Disruption::RestartReplica, _) => self.restart_replica(rng, Signal::SIGTERM).await,
            (Disruption::RotateCertificates, _) => {
                self.rotate_certificates().await;
                true
            }
            (Disruption::DangleOwner, _) => self.dangle(rng).await,
            (Disruption::RestartApiServer, _) => {
                self.restart_api_server().await;
                true
            }
        }
    }

    /// Ends a replica and restarts it.
    async fn restart_replica(&self, rng: &mut Rng, signal: Signal) -> bool {
        let mut replicas = self.replicas.lock().await;
        let Some(number) = (!replicas.is_empty()).then(|| rng.usize(..replicas.len())) else { return false };
        let replica = &mut replicas[number];
        replica.signal(signal);
        wait_until("the replica ends", HEALTHY_TIMEOUT, async || replica.has_ended().is_some()).await;
        replica.restart().await;
        true
    }
}
