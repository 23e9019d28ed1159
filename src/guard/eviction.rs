//! Evictions: their reviews carry no pod, only its name.
//!
//! To read the pod first and then list its siblings would be one call more than a deletion takes. A pod of a StatefulSet
//! tells its family by its name, as far as the watch of StatefulSets knows it: then the family's pods are read at once, beside
//! the record, and the pod is found among them. A list is as fresh as a read of the pod: both ask for the latest.
//!
//! All other pods are read alone first: most of them run no etcd, and a namespace may have thousands.

use tokio::sync::OwnedMutexGuard;

use super::{
    Guard, NoLook, deadline::Deadline, decision::Reads, etcd_pod, family::Family, gone, request::Request,
    verdict::Verdict,
};

/// What was read while the family's turn was held, and is as good as what the turn's holder would read now.
pub(super) struct InTurn {
    pub(super) turn: OwnedMutexGuard<()>,
    pub(super) reads: Reads,
}

// === impl Guard ===

impl Guard {
    /// The verdict on a pod that only its name is known of; `None` if the pod must be read first. That is so also while
    /// another decision of its cluster is under way: what is read before the turn is old when it comes, and the last
    /// look may deny without any list.
    pub(super) async fn judge_by_name(&self, request: &Request, deadline: Deadline) -> Option<Verdict> {
        if request.pod.is_some() {
            return None;
        }
        let (namespace, name) = (&request.namespace, &request.name);
        let (set, uid) = self.looker.annotations.stateful_set_by_pod_name(namespace, name)?;
        let family = Family::of_stateful_set(namespace, set, uid);
        let turn = self.turn_of(&family).try_lock_owned().ok()?;
        let reads = match self.ids.get(&family) {
            Some(_) => self.read(request, &family, deadline).await,
            None => {
                let pods = self.looker.pods_beside(request, deadline).await;
                pods.map(|pods| Reads { pods, by_name: false, records: None })
            }
        };
        let reads = match reads {
            Ok(reads) => reads,
            Err(no_look @ NoLook::TooLate(_)) => return Some(self.judge_unread(request, no_look)),
            // The pod may be readable all the same, and with it the policy for what cannot be found out.
            Err(_) => return None,
        };
        let Some(pod) = reads.pods.iter().find(|pod| request.means(pod)).cloned() else {
            return Some(gone(request));
        };
        let is_member = etcd_pod::read(&pod, &pod.metadata.annotations).is_some();
        if is_member && !family.has(namespace, &pod) {
            return None;
        }
        Some(self.judge_pod(request, &pod, Some(InTurn { turn, reads }), deadline).await)
    }
}
