//! What happens meanwhile: members that are killed, frozen and slowed, replicas and apiservers that end, certificates that
//! are exchanged. One after the other, so that each is over when it is said to be.

use std::{collections::BTreeMap, time::Duration};

use fastrand::Rng;
use nix::sys::signal::Signal;
use tokio::time::sleep;

use crate::{
    scene::{Scene, WHOLE_LIMIT},
    storm::Against,
    support::{process_node::Order, wait::until},
};

/// Pause between two of them, in milliseconds.
const PAUSE: std::ops::Range<u64> = 100..700;

/// How long a member is frozen or slowed, in milliseconds: a probe waits for a second.
const LASTS: std::ops::Range<u64> = 200..2500;

/// Something bad.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Harm {
    KillMember,
    FreezeMembers,
    SlowMember,
    KillReplica,
    RestartReplica,
    RotateCertificates,
    RestartApiserver,
}

/// What was done how often.
pub(crate) type Done = BTreeMap<Harm, u32>;

impl Harm {
    const ALL: [Self; 7] = [
        Self::KillMember,
        Self::FreezeMembers,
        Self::SlowMember,
        Self::KillReplica,
        Self::RestartReplica,
        Self::RotateCertificates,
        Self::RestartApiserver,
    ];

    /// What can be done to those who answer.
    pub(crate) fn against(against: Against) -> Vec<Self> {
        let concerns_replicas =
            |it: &Self| matches!(it, Self::KillReplica | Self::RestartReplica | Self::RotateCertificates);
        Self::ALL.into_iter().filter(|it| against == Against::Guard || !concerns_replicas(it)).collect()
    }

    /// How often in a deck: what takes long is rare.
    fn weight(self) -> usize {
        match self {
            Self::KillMember | Self::FreezeMembers | Self::SlowMember => 6,
            Self::KillReplica | Self::RestartReplica => 3,
            Self::RotateCertificates => 2,
            Self::RestartApiserver => 1,
        }
    }

    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::KillMember => "members killed",
            Self::FreezeMembers => "times members frozen",
            Self::SlowMember => "members slowed",
            Self::KillReplica => "replicas killed",
            Self::RestartReplica => "replicas restarted",
            Self::RotateCertificates => "certificates rotated",
            Self::RestartApiserver => "apiservers killed",
        }
    }
}

impl Scene {
    /// Does one thing after the other, as long as this says that it goes on: each once, then as often as it weighs. Never
    /// cut short: a fault must not be forgotten.
    pub(crate) async fn do_harm(&self, mut rng: Rng, done: &mut Done, goes_on: impl Fn(&Done) -> bool) {
        let kinds = Harm::against(self.against);
        let mut deck = Vec::new();
        while goes_on(done) {
            if deck.is_empty() {
                let left_out = kinds.iter().filter(|it| !done.contains_key(it)).copied();
                deck.extend(left_out);
                if deck.is_empty() {
                    deck.extend(kinds.iter().flat_map(|it| std::iter::repeat_n(*it, it.weight())));
                }
                rng.shuffle(&mut deck);
            }
            sleep(Duration::from_millis(rng.u64(PAUSE))).await;
            let Some(harm) = deck.last().copied() else { continue };
            if self.harm(harm, &mut rng).await {
                *done.entry(harm).or_default() += 1;
                deck.pop();
            }
        }
    }

    /// Whether it could be done: where all members are on their way out there is none to be killed.
    async fn harm(&self, harm: Harm, rng: &mut Rng) -> bool {
        let lasts = Duration::from_millis(rng.u64(LASTS));
        let mut present = self.truth.present().await;
        rng.shuffle(&mut present);
        match (harm, present.as_slice()) {
            (Harm::KillMember, [name, ..]) => self.truth.fault(name, Order::Kill).await,
            (Harm::SlowMember, [name, ..]) => self.truth.slow(name, lasts).await,
            // As many as a cluster should bear, or fewer.
            (Harm::FreezeMembers, names) => {
                let count = rng.usize(1..self.truth.names.len().div_ceil(2)).min(names.len());
                let mut did = false;
                for name in &names[..count] {
                    did |= self.truth.fault(name, Order::Pause).await;
                }
                sleep(lasts).await;
                for name in &names[..count] {
                    self.truth.thaw(name).await;
                }
                did
            }
            (Harm::KillMember | Harm::SlowMember, []) => false,
            (Harm::KillReplica, _) => self.end_a_replica(rng, Signal::SIGKILL).await,
            (Harm::RestartReplica, _) => self.end_a_replica(rng, Signal::SIGTERM).await,
            (Harm::RotateCertificates, _) => {
                self.rotate_certificates().await;
                true
            }
            (Harm::RestartApiserver, _) => {
                self.restart_the_apiserver().await;
                true
            }
        }
    }

    /// Ends a replica, and starts it again.
    async fn end_a_replica(&self, rng: &mut Rng, signal: Signal) -> bool {
        let mut replicas = self.replicas.lock().await;
        let Some(number) = (!replicas.is_empty()).then(|| rng.usize(..replicas.len())) else { return false };
        let replica = &mut replicas[number];
        replica.signal(signal);
        until("the replica ends", WHOLE_LIMIT, async || replica.has_ended().is_some()).await;
        replica.start_again().await;
        true
    }
}
