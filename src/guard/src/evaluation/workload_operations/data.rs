//! The data of the etcd members in a namespace: in pods, in the claims of pods, and in claims without a pod.

use etcd_guard_core::{
    assess::is_silence_evident,
    discovery::{etcd_pod, recognition},
    membership::{Membership, identity::has_peer_at},
    objects::{claim::Claim, pod::Pod, stateful_set::StatefulSet},
    snapshot::{Silence, Snapshot, Storage},
};

/// The member pods of a namespace.
pub(super) struct MemberPods<'a> {
    /// Pods in which etcd runs, without terminating pods.
    pub(super) running: Vec<&'a Pod>,
    /// Pods of members, also if etcd does not run: the member's data exists while its container is stopped.
    pub(super) with_data: Vec<&'a Pod>,
}

// === impl MemberPods ===

impl<'a> MemberPods<'a> {
    pub(super) fn new(pods: &'a [Pod]) -> Self {
        Self {
            running: pods.iter().filter(|pod| runs_member(pod)).collect(),
            with_data: pods.iter().filter(|pod| is_member_pod(pod)).collect(),
        }
    }
}

pub(super) fn is_controlled_by(pod: &Pod, stateful_set: &str) -> bool {
    pod.stateful_set() == Some(stateful_set)
}

/// Returns whether etcd runs in this pod and the pod is not terminating. A pod with several members counts: the state of one says
/// nothing about the others.
pub(super) fn runs_member(pod: &Pod) -> bool {
    !pod.is_terminating()
        && !pod.is_finished()
        && etcd_pod::read(pod, &pod.metadata.annotations)
            .is_some_and(|member| member.is_running(pod) || has_several_members(pod))
}

pub(super) fn has_several_members(pod: &Pod) -> bool {
    !recognition::several_members(pod, &pod.metadata.annotations).is_empty()
}

/// Returns whether etcd runs or may start in this pod: it is neither terminating nor finished.
pub(super) fn may_run_member(pod: &Pod) -> bool {
    !pod.is_terminating() && !pod.is_finished() && etcd_pod::read(pod, &pod.metadata.annotations).is_some()
}

/// Returns whether this is the pod of a member. A terminating pod counts, because its successor mounts the same claim.
/// So does a finished pod of a StatefulSet, which replaces the pod.
fn is_member_pod(pod: &Pod) -> bool {
    let is_replaced = !pod.is_finished() || pod.stateful_set().is_some();
    is_replaced && etcd_pod::read(pod, &pod.metadata.annotations).is_some()
}

/// Returns whether the data of this pod's member is deleted with the pod. A pod that is terminating or finished loses its
/// data in any case.
pub(super) fn holds_ephemeral_data(pod: &Pod) -> bool {
    !pod.is_terminating()
        && !pod.is_finished()
        && etcd_pod::read(pod, &pod.metadata.annotations)
            .is_some_and(|member| member.storage == Storage::Ephemeral && member.has_started(pod))
}

/// Returns whether the pods of this StatefulSet run etcd. `template` is a pod with the annotations that the pods inherit.
pub(super) fn is_etcd_template(template: &Pod) -> bool {
    etcd_pod::read(template, &template.metadata.annotations).is_some()
}

/// Returns the claims that belong to pods of this StatefulSet.
pub(super) fn claims_of_set<'a>(set: &StatefulSet, claims: &'a [Claim]) -> Vec<&'a str> {
    let is_of_set = |claim: &&Claim| set.ordinal_of_claim(&claim.metadata.name).is_some();
    claims.iter().filter(is_of_set).map(|claim| claim.metadata.name.as_str()).collect()
}

/// Returns whether the probe round shows that no member runs in these pods: each address refuses connections or does not
/// exist, and a refusal is evidence. The kubelet reports late that a container runs.
pub(super) fn are_stopped(snapshot: &Snapshot, is_of_set: impl Fn(&str) -> bool) -> bool {
    let mut pods = snapshot.pods.iter().filter(|pod| is_of_set(&pod.name) && !pod.terminating);
    pods.all(|pod| pod.silence() != Some(Silence::ClosedByProxy) && is_silence_evident(snapshot, pod))
}

/// Returns whether the snapshot proves that a pod of this name, which does not exist, has no vote: every voter is known
/// to run elsewhere.
pub(super) fn has_absent_pod_no_vote(snapshot: &Snapshot, pod: &str) -> bool {
    Membership::new(snapshot).is_ok_and(|membership| {
        membership.voters().all(|voter| {
            let is_elsewhere = voter.pod.is_some() || voter.external.is_some();
            is_elsewhere && voter.listed.name != pod && !has_peer_at(&voter.listed, pod, "")
        })
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use etcd_guard_core::snapshot::{Listener, fixture::cluster};

    fn pod(state: &serde_json::Value, metadata: &serde_json::Value) -> Pod {
        let mut pod = json!({
            "metadata": {"name": "etcd-2", "namespace": "prod", "uid": "u2"},
            "spec": {"containers": [{"name": "etcd", "image": "quay.io/coreos/etcd:v3.6.16"}]},
            "status": {
                "phase": "Running",
                "containerStatuses": [{"name": "etcd", "state": state, "restartCount": 3}]
            }
        });
        for (name, value) in metadata.as_object().unwrap() {
            pod["metadata"][name] = value.clone();
        }
        serde_json::from_value(pod).unwrap()
    }

    #[test]
    fn finds_member_data_in_every_pod_state_but_finished() {
        let running = pod(&json!({"running": {}}), &json!({}));
        assert!(runs_member(&running) && is_member_pod(&running) && holds_ephemeral_data(&running));
        let crashing = pod(&json!({"waiting": {"reason": "CrashLoopBackOff"}}), &json!({}));
        assert!(!runs_member(&crashing) && may_run_member(&crashing));
        assert!(is_member_pod(&crashing) && holds_ephemeral_data(&crashing));
        let terminating = pod(&json!({"running": {}}), &json!({"deletionTimestamp": "2026-01-31T12:00:00Z"}));
        assert!(!runs_member(&terminating) && !may_run_member(&terminating) && is_member_pod(&terminating));
        assert!(!holds_ephemeral_data(&terminating));
        let mut ended = running;
        ended.status.phase = String::from("Succeeded");
        assert!(!is_member_pod(&ended));
        let owner = json!([{"kind": "StatefulSet", "name": "etcd", "uid": "set", "controller": true}]);
        ended.metadata.owner_references = serde_json::from_value(owner).unwrap();
        assert!(is_member_pod(&ended), "the StatefulSet replaces the pod, and its claim remains");
    }

    #[test]
    fn container_that_never_started_holds_no_data() {
        let mut pulling = pod(&json!({"waiting": {"reason": "ErrImagePull"}}), &json!({}));
        pulling.status.container_statuses[0].restart_count = 0;
        assert!(!holds_ephemeral_data(&pulling));
        pulling.status.container_statuses.clear();
        assert!(!holds_ephemeral_data(&pulling));
    }

    #[test]
    fn absent_pod_has_no_vote_if_all_voters_run_elsewhere() {
        let snapshot = cluster(3);
        assert!(has_absent_pod_no_vote(&snapshot, "etcd-3"));
        let mut without_pod = cluster(3);
        without_pod.pods.pop();
        assert!(!has_absent_pod_no_vote(&without_pod, "etcd-2"));
        assert!(!has_absent_pod_no_vote(&without_pod, "etcd-3"), "the voter without a pod may be this one");
        let mut silent = cluster(3);
        for number in 0..3 {
            silent = silent.crash(number);
        }
        assert!(!has_absent_pod_no_vote(&silent, "etcd-3"));
    }

    #[test]
    fn refused_connections_prove_that_members_are_stopped() {
        let mut crashed = cluster(3);
        for number in 0..3 {
            crashed = crashed.crash(number);
        }
        assert!(are_stopped(&crashed, |_| true));
        let started = cluster(3).crash(0).crash(1);
        assert!(!are_stopped(&started, |_| true));
        assert!(are_stopped(&started, |name| name != "etcd-2"));
        let on_loopback = started.change(1, |pod| pod.path.listener = Listener::Loopback);
        assert!(!are_stopped(&on_loopback, |name| name != "etcd-2"), "its refusal proves nothing");
    }
}
