//! What the silence of a member proves.

use super::*;
use crate::snapshot::{ContainerState, Listener, Path, silence::CONFIRMATION_TIME};

impl Snapshot {
    fn assessment(&self, n: usize) -> (Reason, bool) {
        let assessment = assess(self, &self.pods[n], &Policy::default());
        (assessment.reason, assessment.awaits_confirmation)
    }

    /// The pod and the probe of this member were observed for the first time.
    fn first_seen(self, n: usize) -> Self {
        let taken_at = self.taken_at;
        self.change(n, |pod| pod.silent_since = Some(taken_at))
    }

    /// Sets what is known about the path to every member.
    fn with_paths(mut self, listener: Listener, has_answered: bool) -> Self {
        for pod in &mut self.pods {
            pod.path = Path { listener, has_answered };
        }
        self
    }
}

/// No member answers: the first is frozen, the second has just restarted, and the kubelet has not reported it yet.
fn nobody_answers() -> Snapshot {
    cluster(3).refuse(0).crash(1).refuse(2)
}

/// Both members that the quorum consists of listen on the loopback address.
#[test]
fn refusal_of_loopback_listener_proves_nothing() {
    for has_answered in [false, true] {
        let snapshot = nobody_answers().with_paths(Listener::Loopback, has_answered);
        assert_eq!(snapshot.assessment(1), (Reason::EtcdUnreachable, false));
    }
}

/// A network policy rejects the packets of the guard.
#[test]
fn refusal_on_unknown_path_proves_nothing() {
    for listener in [Listener::Stated, Listener::Guessed] {
        let snapshot = nobody_answers().with_paths(listener, false);
        assert_eq!(snapshot.assessment(1), (Reason::EtcdUnreachable, false));
        let answered = nobody_answers().with_paths(listener, true);
        assert_eq!(answered.assessment(1), (Reason::MemberNotServing, false));
    }
    let other_answers = nobody_answers().with_paths(Listener::Stated, false).starve(2);
    assert_eq!(other_answers.assessment(1), (Reason::MemberNotServing, false));
    let guessed = nobody_answers().with_paths(Listener::Guessed, false).starve(2);
    assert_eq!(guessed.assessment(1), (Reason::QuorumLost, false));
}

#[test]
fn silence_must_be_repeated() {
    assert_eq!(nobody_answers().first_seen(1).assessment(1), (Reason::EtcdUnreachable, true));
    let without_pause = nobody_answers().change(1, |pod| pod.silent_since = None);
    assert_eq!(without_pause.assessment(1), (Reason::EtcdUnreachable, true));
    // With a proven list as well, if the quorum may include the target.
    let lagging = cluster(3).crash(0).starve(2);
    assert_eq!(lagging.assessment(0), (Reason::MemberNotServing, false));
    assert_eq!(lagging.first_seen(0).assessment(0), (Reason::QuorumAtRisk, true));
    // The others are a quorum, whatever the target does.
    assert_eq!(cluster(3).crash(2).first_seen(2).assessment(2), (Reason::MemberNotServing, false));
}

#[test]
fn repeated_silence_has_the_same_cause() {
    let earlier = &cluster(1).crash(0).pods[0];
    let same =
        |change: fn(&mut MemberPod)| cluster(1).crash(0).change(0, change).pods[0].is_silent_as(earlier);
    assert!(same(|_| {}));
    assert!(!same(|pod| pod.uid.push('2')));
    assert!(!same(|pod| pod.report.container = ContainerState::Running));
    assert!(!same(|pod| pod.ip.clear()), "another cause");
    assert!(!same(|pod| pod.reply = cluster(1).pods[0].reply.clone()));
    let taken_at = cluster(1).taken_at;
    let since =
        |time: Duration| cluster(1).crash(0).change(0, |pod| pod.silent_since = Some(taken_at - time));
    assert!(!since(CONFIRMATION_TIME / 2).pods[0].is_silence_confirmed(taken_at));
    assert!(since(CONFIRMATION_TIME).pods[0].is_silence_confirmed(taken_at));
}

/// A wrong image, or no node. No member answers, on an empty volume and on a claim.
#[test]
fn pod_that_never_started_may_go() {
    let never_started = cluster(3).never_start(0).never_start(1).never_start(2);
    let unanswered = never_started.with_paths(Listener::Loopback, false);
    for storage in [Storage::Persistent, Storage::Ephemeral, Storage::RemovedByHook] {
        let snapshot = unanswered.clone().change(1, |pod| pod.storage = storage);
        assert_eq!(snapshot.assessment(1), (Reason::MemberNotServing, false), "{storage:?}");
        assert_eq!(
            snapshot.clone().first_seen(1).assessment(1),
            (Reason::EtcdUnreachable, true),
            "late report"
        );
        let without_node = snapshot.first_seen(1).change(1, |pod| {
            pod.report.is_scheduled = false;
            pod.ip.clear();
        });
        assert_eq!(without_node.assessment(1), (Reason::MemberNotServing, false), "{storage:?}");
    }
    let text = unanswered.clone().change(1, |pod| pod.storage = Storage::Ephemeral).text(1);
    assert!(text.contains("it has no data, because etcd never started in it"), "{text}");
    // An earlier pod can have left data there.
    for storage in [Storage::OnNode, Storage::ClaimTerminating] {
        let snapshot = unanswered.clone().change(1, |pod| pod.storage = storage);
        assert_eq!(snapshot.assessment(1), (Reason::PermanentLoss, false), "{storage:?}");
    }
    let timed_out = unanswered.silence(1);
    assert_eq!(timed_out.assessment(1), (Reason::EtcdUnreachable, false));
}

/// The member of the pod is a voter, and its former pod took its data along.
#[test]
fn pod_that_never_started_costs_no_spare_voter() {
    let broken = cluster(3).never_start(2).change(2, |pod| pod.storage = Storage::Ephemeral);
    assert_eq!(broken.assessment(2), (Reason::MemberNotServing, false));
    assert_eq!(broken.clone().silence(2).assessment(2), (Reason::MemberNotServing, false));
    assert_eq!(broken.first_seen(2).assessment(2), (Reason::PermanentLoss, true));
    let crashed = cluster(3).crash(2).change(2, |pod| pod.storage = Storage::Ephemeral);
    assert_eq!(crashed.assessment(2), (Reason::PermanentLoss, false));
}

/// A flag that this version of etcd does not know.
#[test]
fn crash_loop_of_all_members_needs_permission_to_lose_data() {
    let stated = cluster(3).crash(0).crash(1).crash(2).with_paths(Listener::Stated, false);
    assert_eq!(stated.assessment(1), (Reason::MemberNotServing, false), "its data remains");
    let ephemeral = stated.change(1, |pod| pod.storage = Storage::Ephemeral);
    assert_eq!(ephemeral.assessment(1), (Reason::PermanentLoss, false));
    let text = ephemeral.text(1);
    let command = "kubectl -n prod annotate --overwrite statefulset/etcd etcd-guard.io/ephemeral-data=allow";
    assert!(text.ends_with(command), "{text}");
    let allowed = Policy { ephemeral_data: Permission::Allow, ..Policy::default() };
    let reason = |snapshot: &Snapshot| {
        let assessment = assess(snapshot, &snapshot.pods[1], &allowed);
        (assessment.reason, assessment.awaits_confirmation)
    };
    assert_eq!(reason(&ephemeral), (Reason::MemberNotServing, false));
    assert_eq!(reason(&ephemeral.clone().first_seen(1)), (Reason::EtcdUnreachable, true));
    let one_ready = ephemeral.clone().change(2, |pod| pod.report.is_ready = true);
    assert_eq!(reason(&one_ready), (Reason::EtcdUnreachable, false));
    // The first member that was repaired answers, and finds no quorum.
    let one_answers = ephemeral.starve(2);
    assert_eq!(reason(&one_answers), (Reason::MemberNotServing, false));
    let and_is_ready = one_answers.change(2, |pod| pod.report.is_ready = true);
    assert_eq!(reason(&and_is_ready), (Reason::QuorumLost, false));
}

/// Without a known listener, every container must have stopped.
#[test]
fn guessed_listener_requires_that_no_container_runs() {
    let all = cluster(3).crash(0).crash(1).crash(2).with_paths(Listener::Loopback, false);
    assert_eq!(all.assessment(1), (Reason::MemberNotServing, false));
    let one_runs = all.change(2, |pod| pod.report.container = ContainerState::Running);
    assert_eq!(one_runs.assessment(1), (Reason::EtcdUnreachable, false));
    let stated = one_runs.with_paths(Listener::Stated, false);
    assert_eq!(stated.assessment(1), (Reason::MemberNotServing, false));
}
