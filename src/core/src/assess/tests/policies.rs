//! Verdicts that depend on the policy: single members, ephemeral data, leaders.

use super::*;
use crate::{
    discovery::credential_sources::DataKey,
    objects::data_object::{DataKind, DataObject},
    snapshot::StopScript,
};

/// The reason for the deletion of a pod, with evidence that is not part of the snapshot.
fn reason_with(snapshot: &Snapshot, pod: usize, policy: &Policy, evidence: SingleMemberEvidence) -> Reason {
    let membership = Membership::new(snapshot);
    assess_members(snapshot, &membership, &snapshot.pods[pod], policy, evidence).reason
}

#[test]
fn denies_single_member() {
    assert_eq!(cluster(1).reason(0), Reason::SingleMember);
    assert_eq!(cluster(1).crash(0).reason(0), Reason::MemberNotServing);
}

#[test]
fn two_members_can_lose_none() {
    assert_eq!(cluster(2).reason(1), Reason::QuorumAtRisk);
    assert!(cluster(2).text(1).contains("No voter can go. Add a member first"));
}

#[test]
fn policy_allows_single_member() {
    let policy = Policy { single_member: Permission::Allow, ..Policy::default() };
    let snapshot = cluster(1);
    assert_eq!(assess(&snapshot, &snapshot.pods[0], &policy).reason, Reason::SingleMemberAllowed);
    let three = cluster(3).silence(1).silence(2);
    assert!(!assess(&three, &three.pods[0], &policy).reason.allows(), "one of three is no single member");
}

#[test]
fn policy_allows_data_loss() {
    let policy = Policy { ephemeral_data: Permission::Allow, ..Policy::default() };
    let snapshot = cluster(3).change(1, |pod| pod.storage = Storage::Ephemeral);
    assert_eq!(assess(&snapshot, &snapshot.pods[1], &policy).reason, Reason::SafeToDelete);
    let down = snapshot.silence(2);
    assert_eq!(assess(&down, &down.pods[1], &policy).reason, Reason::QuorumAtRisk);
}

#[test]
fn leader_policy_never_allows_quorum_loss() {
    let policy = Policy { leader: LeaderPolicy::Transfer, ..Policy::default() };
    let snapshot = cluster(3);
    assert!(assess(&snapshot, &snapshot.pods[0], &policy).wants_transfer(&policy));
    let down = snapshot.silence(2);
    assert_eq!(assess(&down, &down.pods[0], &policy).reason, Reason::QuorumAtRisk);
}

#[test]
fn silent_single_member_is_allowed_only_with_evidence() {
    let allow = Policy { single_member: Permission::Allow, ..Policy::default() };
    let evidence =
        SingleMemberEvidence { replicas: Some(1), initial_members: 1, ..SingleMemberEvidence::default() };
    let rejected = MemberError::CredentialsRejected(String::from("user name is empty"));
    let broken = [
        (cluster(1).silence(0), Reason::EtcdUnreachable),
        (cluster(1).starve(0), Reason::ElectionInProgress),
        (
            cluster(1).change(0, |pod| pod.reply = ProbeResult::NoStatus { cause: rejected.clone() }),
            Reason::CredentialsRejected,
        ),
    ];
    for (snapshot, without) in broken {
        let reason = |policy: &Policy, evidence| reason_with(&snapshot, 0, policy, evidence);
        assert_eq!(reason(&allow, evidence), Reason::SingleMemberAllowed);
        assert_eq!(reason(&Policy::default(), evidence), without);
        for missing in [
            SingleMemberEvidence::default(),
            SingleMemberEvidence { replicas: None, ..evidence },
            SingleMemberEvidence { had_more_voters: true, ..evidence },
        ] {
            assert_eq!(reason(&allow, missing), without, "{missing:?}");
        }
        let lost = snapshot.clone().change(0, |pod| pod.storage = Storage::Ephemeral);
        assert_eq!(reason_with(&lost, 0, &allow, evidence), Reason::PermanentLoss);
    }
    let serving = cluster(2);
    let reason = reason_with(&serving, 1, &allow, evidence);
    assert_eq!(reason, Reason::QuorumAtRisk, "an answer outranks the evidence");
}

#[test]
fn voter_that_never_started_has_nothing_to_lose() {
    let unstarted = |snapshot: Snapshot| {
        snapshot.relist(|list| {
            list[3].name.clear();
            list[3].client_urls.clear();
        })
    };
    let new = |storage: Storage| cluster(4).refuse(3).change(3, |pod| pod.storage = storage);
    assert_eq!(unstarted(new(Storage::Ephemeral)).reason(3), Reason::SafeToDelete);
    assert_eq!(unstarted(new(Storage::ClaimTerminating)).reason(3), Reason::SafeToDelete);
    assert_eq!(new(Storage::Ephemeral).reason(3), Reason::PermanentLoss, "it has started before");
    let answers = unstarted(cluster(4).change(3, |pod| pod.storage = Storage::Ephemeral));
    assert_eq!(answers.reason(3), Reason::PermanentLoss, "it has started, and its name is not listed yet");
    let mut listed_once = unstarted(new(Storage::Ephemeral));
    if let ProbeResult::Healthy { members, .. } = &mut listed_once.pods[1].reply {
        members[3] = listed(3);
    }
    assert_eq!(listed_once.reason(3), Reason::PermanentLoss, "one of the lists has its name");
}

#[test]
fn selects_the_most_advanced_voter_as_transferee() {
    let best =
        |snapshot: &Snapshot| transferee(snapshot, &snapshot.pods[0], None).map(|(pod, _)| pod.name.clone());
    let ahead = cluster(5).restate(2, |status| status.applied_index = 200);
    assert_eq!(best(&ahead).as_deref(), Some("etcd-2"));
    assert_ne!(best(&ahead.clone().change(2, |pod| pod.reserved = true)).as_deref(), Some("etcd-2"));
    assert_ne!(best(&ahead.clone().change(2, |pod| pod.terminating = true)).as_deref(), Some("etcd-2"));
    assert_ne!(best(&ahead.clone().starve(2)).as_deref(), Some("etcd-2"));
    assert_ne!(best(&ahead.restate(2, |status| status.is_learner = true)).as_deref(), Some("etcd-2"));
    assert_eq!(best(&cluster(3).silence(1).starve(2)), None);
}

#[test]
fn updated_voter_takes_over_during_a_rollout() {
    let ahead = cluster(3).restate(2, |status| status.applied_index = 200);
    let rollout = ahead.change(1, |pod| pod.revision = String::from("new"));
    let best = |rollout: &Snapshot, revision| {
        transferee(rollout, &rollout.pods[0], revision).map(|(pod, _)| pod.name.clone())
    };
    assert_eq!(best(&rollout, Some("new")).as_deref(), Some("etcd-1"));
    assert_eq!(best(&rollout, Some("newer")).as_deref(), Some("etcd-2"), "no voter is updated");
    assert_eq!(best(&rollout, None).as_deref(), Some("etcd-2"), "there is no rollout");
    assert_eq!(best(&rollout.clone().starve(1), Some("new")).as_deref(), Some("etcd-2"), "it does not serve");
}

#[test]
fn permanent_loss_requires_one_spare_voter() {
    let ends = [
        (
            Storage::Ephemeral,
            "the data of etcd-1 is deleted as well, so its member cannot return, and prod/etcd has no",
        ),
        (
            Storage::OnNode,
            "the data of etcd-1 is on its node, and the replacement pod may start on another node",
        ),
        (Storage::ClaimTerminating, "the claim with the data of etcd-1 is deleted as well"),
        (Storage::RemovedByHook, "a preStop hook of etcd-1 removes its member, and prod/etcd has no"),
    ];
    for (storage, words) in ends {
        let ends = |pod: &mut MemberPod| pod.storage = storage;
        let three = cluster(3).change(1, ends);
        assert_eq!(three.reason(1), Reason::PermanentLoss, "{storage:?}");
        assert!(three.text(1).starts_with(&format!("PermanentLoss: {words}")), "{}", three.text(1));
        assert_eq!(cluster(5).change(1, ends).reason(1), Reason::SafeToDelete, "{storage:?}");
    }
}

/// The remedy must not cost the spare voter that the denial protects.
#[test]
fn remedy_for_a_hook_keeps_a_spare_voter() {
    let removed = |snapshot: Snapshot| snapshot.change(1, |pod| pod.storage = Storage::RemovedByHook);
    let text = removed(cluster(3)).text(1);
    assert!(!text.contains("member remove"), "{text}");
    assert!(text.contains("Add 2 voters first, so that the cluster can lose this one"), "{text}");
    assert!(text.contains("kubectl -n prod scale statefulset etcd --replicas=5\n"), "{text}");
    let text = removed(cluster(4)).text(1);
    assert!(text.contains("kubectl -n prod scale statefulset etcd --replicas=5\n"), "{text}");
    assert_eq!(removed(cluster(5)).reason(1), Reason::SafeToDelete, "the remedy suffices");
    let text = removed(cluster(5).silence(4)).text(1);
    assert!(text.contains("Repair etcd-4, then retry"), "{text}");
    let text = removed(cluster(5).change(4, |pod| pod.terminating = true)).text(1);
    assert!(text.contains("Wait until all pods are ready, then retry"), "{text}");
    let text = removed(cluster(3)).change(1, |pod| pod.owner_kind = String::from("EtcdCluster")).text(1);
    assert!(text.contains("List the members: ") && text.contains("member list -w table\n"), "{text}");
}

#[test]
fn unread_script_of_a_hook_names_what_settles_it() {
    let script = |source: Option<DataKey>, problem: Option<&str>| StopScript {
        container: String::from("etcd"),
        path: String::from("/scripts/stop.sh"),
        source,
        problem: problem.map(str::to_owned),
    };
    let text = |script: StopScript| {
        let doubtful = cluster(3).change(1, |pod| {
            pod.storage = Storage::RemovedByHook;
            pod.stop_script = Some(script.clone());
        });
        assert_eq!(doubtful.reason(1), Reason::PermanentLoss);
        doubtful.text(1)
    };
    let object = DataObject { kind: DataKind::ConfigMap, name: String::from("scripts") };
    let source = DataKey { object, key: String::from("stop.sh") };
    let readable =
        text(script(Some(source), Some("the guard is not allowed to read ConfigMap prod/scripts")));
    assert!(
        readable.starts_with(
            "PermanentLoss: a preStop hook of etcd-1 runs a script that may remove its member, /scripts/stop.sh (the guard is \
             not allowed to read ConfigMap prod/scripts), and prod/etcd has no"
        ),
        "{readable}"
    );
    assert!(
        readable.contains(": kubectl etcd-guard inspect -n prod etcd-1 --role | kubectl apply -f -\n"),
        "{readable}"
    );
    let of_image = text(script(None, None));
    assert!(of_image.contains("/scripts/stop.sh (it is in no ConfigMap that the pod mounts)"), "{of_image}");
    assert!(
        of_image.ends_with("annotate --overwrite pod/etcd-1 etcd-guard.io/ephemeral-data=allow"),
        "{of_image}"
    );
}

#[test]
fn stopped_member_is_lost_with_data_not_by_hook() {
    let crashed = |storage| cluster(3).change(1, |pod| pod.storage = storage).crash(1).reason(1);
    assert_eq!(crashed(Storage::Ephemeral), Reason::PermanentLoss);
    assert_eq!(crashed(Storage::ClaimTerminating), Reason::PermanentLoss);
    assert_eq!(crashed(Storage::RemovedByHook), Reason::MemberNotServing);
}

/// The member list shrinks while each deletion retains its quorum.
#[test]
fn too_few_voters_protect_each_serving_voter() {
    let policy = Policy { min_voters: 5, leader: LeaderPolicy::Transfer, ..Policy::default() };
    let reason = |snapshot: &Snapshot, pod: usize| assess(snapshot, &snapshot.pods[pod], &policy).reason;
    assert_eq!(reason(&cluster(5), 1), Reason::SafeToDelete, "a cluster of this size can be restarted");
    assert_eq!(reason(&cluster(4), 1), Reason::TooFewVoters);
    assert_eq!(reason(&cluster(4), 0), Reason::TooFewVoters, "leadership does not move in vain");
    assert_eq!(reason(&cluster(4).crash(1), 1), Reason::MemberNotServing, "it costs no serving voter");
    assert_eq!(reason(&cluster(3).silence(1), 2), Reason::QuorumAtRisk, "the more urgent reason");
    let restart = Policy { min_voters: 3, single_member: Permission::Allow, ..Policy::default() };
    let single = cluster(1);
    assert_eq!(assess(&single, &single.pods[0], &restart).reason, Reason::TooFewVoters);
}
