//! A request that one replica carries out: the entry in the ledger that says which one, and that it is answered.

use std::time::Duration;

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
};
use etcd_guard_kubernetes::ActionRequest;

/// Time limit for recording the end.
const END_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum number of attempts to write to a ledger that others change.
const MAX_WRITES: usize = 10;

/// A request of an annotation.
pub(super) struct Errand<'a> {
    pub(super) mover: &'a Mover,
    pub(super) cluster_key: &'a ClusterKey,
    pub(super) request: &'a ActionRequest,
    /// The beginning of the signal in the ledger.
    pub(super) kind: &'static str,
    /// The requester of the reservations.
    pub(super) requester: &'static str,
}

// === impl Errand ===

impl Errand<'_> {
    /// Whether the annotation still has the value of this request.
    pub(super) fn is_requested(&self) -> bool {
        self.mover.services.observer.annotations.requests().contains(self.request)
    }

    /// The entry that says that this replica acts, or that the request is answered: no pod and no term, because leadership does not move.
    pub(super) fn entry(&self, id: ClusterId, ended: bool) -> Handover {
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

    pub(super) fn signal(&self) -> String {
        format!("{}/{}/{}", self.kind, self.request.uid, self.request.value)
    }

    pub(super) fn now(&self) -> String {
        self.mover.services.policies.wall_clock.now().to_string()
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
