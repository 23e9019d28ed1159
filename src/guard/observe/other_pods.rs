//! Pods of other owners that run voters of the target's cluster: if each member has a StatefulSet or a Deployment of its
//! own, without an owner, or after a StatefulSet has released its pods.
//!
//! Etcd pods of any owner and any labels are candidates. Pods that match a voter by a peer URL, a hostname or a name are
//! probed first. If a voter is still without a pod, all other etcd pods of the namespace are probed. The guard never
//! probes only a part of them: a voter that it does not see may be terminating.

use std::borrow::Borrow;

use tokio::time::Instant;

use crate::{
    etcd::{ListedMember, MemberError, ProbeResult},
    guard::{
        discovery::etcd_pod::EtcdPod,
        model::{
            membership::identity::may_run,
            reservation::Reservation,
            snapshot::{MemberPod, Snapshot},
        },
        observe::{
            error::ObserveError,
            external::{ClusterAccess, voters_without_pod},
            observer::ClusterObserver,
            related::add_related,
            siblings::{Siblings, member_pod},
        },
    },
    k8s::pod::Pod,
};

/// Maximum number of pods that are probed although they match no voter. It bounds the duration of a probe round, and
/// exceeds the number of etcd pods in most namespaces.
pub(in crate::guard) const MAX_UNMATCHED_PODS: usize = 64;

type Candidate = (Pod, EtcdPod);

// === impl ClusterObserver ===

impl ClusterObserver {
    /// Adds the pods of other owners that run voters of the cluster to the snapshot of the target's siblings.
    ///
    /// # Errors
    ///
    /// Returns [`ObserveError::TooManyPods`] if a voter is in no pod that matches it, and the namespace has more than
    /// [`MAX_UNMATCHED_PODS`] other etcd pods.
    pub(super) async fn find_other_pods(
        &self,
        snapshot: &mut Snapshot,
        siblings: &Siblings,
        reserved: &[Reservation],
        target: Option<&str>,
        until: Instant,
    ) -> Result<(), ObserveError> {
        let (mut pods, mut excluded): (Vec<&Candidate>, Vec<&Candidate>) =
            (siblings.other_pods.iter().collect(), siblings.excluded.iter().collect());
        let access = ClusterAccess::new(siblings.endpoints());
        self.add_matching(snapshot, [&mut pods, &mut excluded], &access, reserved, until).await;
        if is_complete(snapshot) || pods.is_empty() {
            return Ok(());
        }
        if pods.len() > MAX_UNMATCHED_PODS {
            // A stopped container takes part in nothing, so that its deletion does not depend on other pods.
            let is_stopped = target
                .and_then(|name| snapshot.pod(name))
                .is_some_and(|target| !target.running && target.reply.status().is_none());
            return if is_stopped { Ok(()) } else { Err(ObserveError::TooManyPods { count: pods.len() }) };
        }
        let voters = voters_without_pod(snapshot);
        let pods = self.with_credentials(&siblings.namespace, &pods, &access, &voters, until).await;
        let found = self.probe_other_pods(&siblings.namespace, &pods, reserved, until).await;
        add_related(snapshot, found);
        // These pods may have returned the first member list.
        self.add_matching(snapshot, [&mut Vec::new(), &mut excluded], &access, reserved, until).await;
        Ok(())
    }

    /// Probes the pods that match a voter without a pod, and removes them from the candidates.
    async fn add_matching(
        &self,
        snapshot: &mut Snapshot,
        candidates: [&mut Vec<&Candidate>; 2],
        access: &ClusterAccess,
        reserved: &[Reservation],
        until: Instant,
    ) {
        let voters = voters_without_pod(snapshot);
        let mut matching = Vec::new();
        for candidates in candidates {
            candidates.retain(|candidate| {
                let is_match = matches_any(candidate, &snapshot.namespace, &voters);
                if is_match {
                    matching.push(*candidate);
                }
                !is_match
            });
        }
        if !matching.is_empty() {
            let pods = self.with_credentials(&snapshot.namespace, &matching, access, &voters, until).await;
            let found = self.probe_other_pods(&snapshot.namespace, &pods, reserved, until).await;
            add_related(snapshot, found);
        }
    }

    /// Probes pods of other owners.
    async fn probe_other_pods(
        &self,
        namespace: &str,
        pods: &[(&Pod, EtcdPod)],
        reserved: &[Reservation],
        until: Instant,
    ) -> Vec<MemberPod> {
        let replies = self.probe(namespace, pods, until).await;
        let found = pods
            .iter()
            .zip(replies)
            .map(|((pod, etcd_pod), reply)| member_pod(pod, etcd_pod, reply, reserved).of_other_owner());
        found.collect()
    }

    /// Adds credentials to the endpoints of pods of other owners, within the limits of the cluster's access. The pods may
    /// run these voters.
    pub(super) async fn with_credentials<'a>(
        &self,
        namespace: &str,
        candidates: &'a [impl Borrow<Candidate>],
        access: &ClusterAccess,
        voters: &[ListedMember],
        until: Instant,
    ) -> Vec<(&'a Pod, EtcdPod)> {
        let pods = candidates.iter().map(|candidate| {
            let (pod, etcd_pod) = candidate.borrow();
            (pod, etcd_pod.clone())
        });
        let mut pods: Vec<(&Pod, EtcdPod)> = pods.collect();
        self.complete(namespace, &mut pods, until).await;
        access.limit(&mut pods, voters);
        pods
    }
}

/// Whether a member list is proven and each of its voters has a pod, or the pods cannot be matched at all.
fn is_complete(snapshot: &Snapshot) -> bool {
    snapshot.pods.iter().any(|pod| pod.reply.is_healthy()) && voters_without_pod(snapshot).is_empty()
}

fn matches_any((pod, etcd_pod): &Candidate, namespace: &str, voters: &[ListedMember]) -> bool {
    let unprobed = ProbeResult::NoStatus { cause: MemberError::Other(String::from("not probed")) };
    let pod = member_pod(pod, etcd_pod, unprobed, &[]);
    voters.iter().any(|voter| may_run(&pod, namespace, voter))
}
