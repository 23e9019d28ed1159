//! A request that one replica carries out in steps: the entry in the ledger that says which one, and that it is answered.

use std::time::Duration;

use tokio::{sync::Semaphore, time::Instant};

use crate::{
    deadline::Deadline,
    handover::mover::Mover,
    reserve::store::{Ledger, ReserveError},
};
use etcd_guard_core::{
    cluster_key::ClusterKey,
    etcd::member::ClusterId,
    handover::{Handover, HandoverState},
    reservation::Reservation,
    snapshot::MemberPod,
};
use etcd_guard_kubernetes::ActionRequest;

/// Time limit for reading the ledger and for one probe round with its evaluation.
pub(super) const STEP_TIMEOUT: Duration = Duration::from_secs(10);

/// Pause before the cluster is probed again.
pub(super) const PAUSE: Duration = Duration::from_secs(1);

/// Time limit for recording the end.
const END_TIMEOUT: Duration = Duration::from_secs(10);

/// Age of a probe round at which a step no longer relies on it. Reservations live for 60 s.
const MAX_STEP_AGE: Duration = Duration::from_secs(20);

/// Maximum number of attempts to write to a ledger that others change.
pub(super) const MAX_WRITES: usize = 10;

/// A request of an annotation.
pub(super) struct Errand<'a> {
    pub(super) mover: &'a Mover,
    pub(super) cluster_key: &'a ClusterKey,
    pub(super) request: &'a ActionRequest,
    /// The beginning of the signal in the ledger.
    pub(super) kind: &'static str,
    /// The requester of the reservations.
    pub(super) requester: &'static str,
    /// Limits the number of clusters that requests of this kind probe or change at the same time.
    pub(super) slots: &'a Semaphore,
    /// Records an event: whether it is a warning, its reason, its text.
    pub(super) report: &'a (dyn Fn(bool, &'static str, &str) + Send + Sync),
}

/// What this replica has written.
#[derive(Default)]
pub(super) struct Claim {
    /// The entry that this replica wrote last.
    entry: Option<Handover>,
    /// The cluster, once a member has reported it.
    pub(super) cluster: Option<ClusterId>,
}

/// Result of one step.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The next step follows at once.
    Next,
    /// Another replica acts, or leadership moved a moment ago. Contains the time after which the next step follows.
    Busy(Duration),
    /// No step is possible at the moment. Contains the cause.
    Wait(String),
    /// No step will be possible. Contains the cause.
    Refuse(String),
    /// Nothing is left to do.
    Ended,
}

// === impl Errand ===

impl Errand<'_> {
    /// Whether the annotation still has the value of this request.
    pub(super) fn is_requested(&self) -> bool {
        self.mover.services.observer.annotations.requests().contains(self.request)
    }

    /// Returns what this replica does instead of a step if the request is answered, or another replica acts.
    pub(super) fn yields(&self, claim: &Claim, id: ClusterId, ledger: &Ledger) -> Option<Step> {
        match ledger.handover_state(id, &self.signal()) {
            Some(HandoverState::Ended) => Some(Step::Ended),
            Some(HandoverState::InProgress(rest)) if !ledger.contains(claim.entry.as_ref()) => {
                Some(Step::Busy(rest))
            }
            _ => None,
        }
    }

    /// Claims the step that rests on this ledger, which was read after `started`. Returns what this replica does instead of the step if the
    /// ledger has changed, or if this replica stood still: its reservation may have expired, and others may have approved a deletion.
    pub(super) async fn begin(
        &self,
        (claim, id): (&mut Claim, ClusterId),
        (ledger, started): (&mut Ledger, Instant),
        former: Option<&Reservation>,
        new: Option<Reservation>,
    ) -> Result<Option<Step>, String> {
        let instead = self.claim(claim, id, ledger, former, new).await?;
        Ok(instead.or_else(|| (started.elapsed() > MAX_STEP_AGE).then_some(Step::Next)))
    }

    /// Writes the entry of this replica to the ledger on which a step rests, with a reservation in the place of a former one. Returns what
    /// this replica does instead of the step if the ledger has changed since it was read: the numbers of the step are then stale.
    pub(super) async fn claim(
        &self,
        claim: &mut Claim,
        id: ClusterId,
        ledger: &mut Ledger,
        former: Option<&Reservation>,
        new: Option<Reservation>,
    ) -> Result<Option<Step>, String> {
        let entry = claim.entry.insert(self.entry(id, false)).clone();
        match self.mover.services.reservations.replace(ledger, former, new, entry).await {
            Ok(()) => Ok(None),
            Err(ReserveError::StartAgain) => Ok(Some(Step::Busy(PAUSE))),
            Err(error) => Err(error.to_string()),
        }
    }

    /// The entry that says that this replica acts, or that the request is answered: no pod and no term, because leadership does not move.
    fn entry(&self, id: ClusterId, ended: bool) -> Handover {
        Handover {
            signal: self.signal(),
            cluster: id.to_string(),
            uid: String::new(),
            pod: String::new(),
            term: 0,
            ended,
            at: self.now(),
        }
    }

    fn signal(&self) -> String {
        format!("{}/{}/{}", self.kind, self.request.uid, self.request.value)
    }

    pub(super) fn now(&self) -> String {
        self.mover.services.policies.wall_clock.now().to_string()
    }

    /// Creates a reservation of this requester.
    pub(super) fn new_reservation(&self, pod: &MemberPod, id: ClusterId, member: String) -> Reservation {
        Reservation {
            uid: pod.uid.clone(),
            namespace: self.request.namespace.clone(),
            pod: pod.name.clone(),
            member,
            at: self.now(),
            by: self.requester.to_owned(),
            of_node: false,
            cluster: Some(id.to_string()),
            by_name: false,
            image_id: None,
        }
    }

    /// Returns the reservation of this requester for a pod.
    pub(super) fn reservation<'l>(&self, ledger: &'l Ledger, pod: &str) -> Option<&'l Reservation> {
        let is_own = |held: &&Reservation| held.by == self.requester && held.pod == pod;
        ledger.active().iter().find(is_own)
    }

    /// Records the end, and ends the reservation of this pod. Returns whether no other replica had recorded the end.
    pub(super) async fn end(&self, id: ClusterId, reserved: Option<&str>) -> Result<bool, String> {
        let deadline = Deadline::from_timeout(Some(END_TIMEOUT));
        for _ in 0..MAX_WRITES {
            let mut ledger = self.mover.read_ledger(self.cluster_key.namespace(), deadline).await?;
            if ledger.handover_state(id, &self.signal()) == Some(HandoverState::Ended) {
                return Ok(false);
            }
            let held = reserved.and_then(|pod| self.reservation(&ledger, pod)).cloned();
            let reservations = &self.mover.services.reservations;
            let write = reservations.replace(&mut ledger, held.as_ref(), None, self.entry(id, true));
            match deadline.within("writing the end to the API server", write).await {
                Ok(Err(ReserveError::StartAgain)) => {}
                Ok(written) => return written.map(|()| true).map_err(|error| error.to_string()),
                Err(late) => return Err(late.to_string()),
            }
        }
        Err(String::from("other replicas changed the ledger during each attempt"))
    }
}
