//! The choice of the transferee. Pure: a snapshot and an order determine the next step.

use etcd_guard_core::{
    assess::{best_transferee, transferees},
    etcd::{member::MemberId, probe_result::ProbeResult},
    membership::{Member, Membership, MembershipError, leadership::Leadership},
    snapshot::{MemberPod, Snapshot},
};

/// A move of leadership that is to be made.
pub(super) struct Order<'a> {
    /// Whether leadership has to leave this pod.
    pub(super) leaves: &'a (dyn Fn(&MemberPod) -> bool + Sync),
    /// The pod that becomes the leader; `None` for the best voter.
    pub(super) transferee: Option<&'a str>,
    /// The revision to which a rollout in progress updates the pods.
    pub(super) rollout: Option<&'a str>,
    /// Returns the reason why the best voter must not be in this pod.
    pub(super) obstacle: &'a (dyn Fn(&MemberPod) -> Option<String> + Sync),
}

/// The next step of a handover.
#[derive(Debug)]
pub(super) enum Choice<'a> {
    /// Move leadership from this pod to this member.
    Move { leader: &'a MemberPod, transferee: &'a MemberPod, member: MemberId, term: u64 },
    /// Leadership is where the order wants it.
    NotNeeded(String),
    /// No leader is proven at the moment.
    Unproven(String),
    /// No voter can take over.
    NoTransferee { leader: &'a MemberPod, cause: String },
    /// The order cannot be carried out.
    Rejected(String),
}

/// Chooses the transferee: the pod of the order, or that of the best voter without an obstacle.
pub(super) fn choose<'a>(snapshot: &'a Snapshot, order: &Order<'_>) -> Choice<'a> {
    let cluster = &snapshot.cluster;
    if snapshot.cluster_ids().len() > 1 {
        return Choice::Rejected(format!("the pods of {cluster} belong to different etcd clusters"));
    }
    let membership = match Membership::new(snapshot) {
        Ok(membership) => membership,
        Err(MembershipError::Unproven) => {
            return Choice::Unproven(format!("no member of {cluster} proves a quorum"));
        }
        Err(MembershipError::Ambiguous(identity)) => {
            return Choice::Rejected(format!(
                "{} cannot be matched with one member: {}",
                identity.pod, identity.cause
            ));
        }
    };
    let Leadership { leader, term } = membership.leadership();
    let leader = leader.and_then(|leader| membership.voters().find(|voter| voter.id() == leader));
    let Some(leader) = leader.filter(|leader| leader.is_healthy()) else {
        return Choice::Unproven(format!("{cluster} has no proven leader"));
    };
    let Some(leader_pod) = leader.pod else {
        return Choice::Rejected(format!(
            "the leader of {cluster}, {}, runs in no visible pod",
            leader.name()
        ));
    };
    if !(order.leaves)(leader_pod) || order.transferee == Some(leader_pod.name.as_str()) {
        return Choice::NotNeeded(format!("{} leads {cluster} already (term {term})", leader_pod.name));
    }
    let mut candidates = transferees(snapshot, leader_pod);
    match order.transferee {
        Some(name) => candidates.retain(|(pod, _)| pod.name == name),
        None => candidates.retain(|(pod, _)| (order.obstacle)(pod).is_none()),
    }
    match best_transferee(candidates, order.rollout) {
        Some((transferee, status)) => {
            Choice::Move { leader: leader_pod, transferee, member: status.member_id, term }
        }
        None => match order.transferee {
            Some(name) => Choice::Rejected(unsuitable(&membership, cluster, name)),
            None => {
                let others = membership.voters().filter(|voter| voter.id() != leader.id());
                let causes: Vec<String> = others.map(|voter| cause(voter, order.obstacle)).collect();
                let cause =
                    if causes.is_empty() { String::from("it is the only voter") } else { causes.join(", ") };
                Choice::NoTransferee { leader: leader_pod, cause }
            }
        },
    }
}

/// Returns why the pod of the order cannot become the leader.
fn unsuitable(membership: &Membership<'_>, cluster: &str, name: &str) -> String {
    match membership.member_of_pod(name) {
        None => format!("pod {name} runs no member of {cluster}"),
        Some(member) if member.listed.is_learner => format!("{name} is a learner"),
        Some(member) => cause(member, &|_| None),
    }
}

/// Returns why a voter cannot take over.
fn cause(voter: &Member<'_>, obstacle: &dyn Fn(&MemberPod) -> Option<String>) -> String {
    let name = voter.name();
    if let Some(departure) = voter.departure() {
        return format!("{name} is leaving ({})", departure.as_str());
    }
    if !voter.is_healthy() {
        let cause = voter.reply().and_then(ProbeResult::cause);
        return match cause {
            Some(cause) => format!("{name} is not healthy ({cause})"),
            None => format!("{name} is not healthy"),
        };
    }
    match voter.pod {
        Some(pod) => format!("{name}: {}", (obstacle)(pod).unwrap_or_default()),
        None => format!("{name} runs in no visible pod"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use etcd_guard_core::snapshot::fixture::{cluster, id};

    fn choose_any<'a>(snapshot: &'a Snapshot, doomed: &[&str]) -> Choice<'a> {
        let is_doomed = |pod: &MemberPod| doomed.contains(&pod.name.as_str());
        let obstacle = |pod: &MemberPod| is_doomed(pod).then(|| String::from("node n is cordoned"));
        choose(snapshot, &Order { leaves: &is_doomed, transferee: None, rollout: None, obstacle: &obstacle })
    }

    fn choose_pod<'a>(snapshot: &'a Snapshot, name: &str) -> Choice<'a> {
        let order = Order { leaves: &|_| true, transferee: Some(name), rollout: None, obstacle: &|_| None };
        choose(snapshot, &order)
    }

    fn transferee<'a>(choice: &Choice<'a>) -> &'a str {
        match choice {
            Choice::Move { transferee, .. } => &transferee.name,
            _ => "",
        }
    }

    #[test]
    fn moves_to_most_advanced_voter_on_another_node() {
        let advanced = cluster(3).restate(2, |status| status.applied_index = 200);
        assert_eq!(transferee(&choose_any(&advanced, &["etcd-0"])), "etcd-2");
        assert_eq!(
            transferee(&choose_any(&advanced, &["etcd-0", "etcd-2"])),
            "etcd-1",
            "not onto a doomed node"
        );
        match choose_any(&advanced, &["etcd-0"]) {
            Choice::Move { leader, member, term, .. } => {
                assert_eq!((leader.name.as_str(), member, term), ("etcd-0", id(2), 7));
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn uids_decide_between_equal_voters() {
        let mut reversed = cluster(3);
        reversed.pods.reverse();
        for snapshot in [cluster(3), reversed] {
            assert_eq!(transferee(&choose_any(&snapshot, &["etcd-0"])), "etcd-2");
        }
    }

    #[test]
    fn leaves_leadership_on_other_nodes() {
        assert!(matches!(choose_any(&cluster(3), &["etcd-1"]), Choice::NotNeeded(_)));
    }

    #[test]
    fn moves_to_no_leaving_silent_or_doomed_voter() {
        let snapshot = cluster(4).change(1, |pod| pod.terminating = true).crash(2);
        match choose_any(&snapshot, &["etcd-0", "etcd-3"]) {
            Choice::NoTransferee { leader, cause } => {
                assert_eq!(leader.name, "etcd-0");
                assert!(cause.contains("etcd-1 is leaving (terminating)"), "{cause}");
                assert!(cause.contains("etcd-2 is not healthy ("), "{cause}");
                assert!(cause.contains("etcd-3: node n is cordoned"), "{cause}");
            }
            other => panic!("{other:?}"),
        }
        let reserved = cluster(3).change(1, |pod| pod.reserved = true).crash(2);
        assert!(matches!(
            choose_any(&reserved, &["etcd-0"]),
            Choice::Unproven(_) | Choice::NoTransferee { .. }
        ));
        assert!(matches!(choose_any(&cluster(1), &["etcd-0"]), Choice::NoTransferee { .. }));
    }

    #[test]
    fn request_names_its_transferee() {
        assert_eq!(transferee(&choose_pod(&cluster(3), "etcd-1")), "etcd-1");
        assert!(matches!(choose_pod(&cluster(3), "etcd-0"), Choice::NotNeeded(_)));
        let leaving = cluster(3).change(1, |pod| pod.terminating = true);
        let rejected = |snapshot: &Snapshot, name: &str| match choose_pod(snapshot, name) {
            Choice::Rejected(cause) => cause,
            other => panic!("{other:?}"),
        };
        assert_eq!(rejected(&leaving, "etcd-1"), "etcd-1 is leaving (terminating)");
        assert_eq!(rejected(&cluster(3), "web-0"), "pod web-0 runs no member of prod/etcd");
    }

    #[test]
    fn waits_for_a_proven_leader() {
        let electing = cluster(3)
            .restate(0, |status| status.leader = None)
            .restate(1, |status| status.leader = None)
            .restate(2, |status| status.leader = None);
        assert!(matches!(choose_any(&electing, &["etcd-0"]), Choice::Unproven(_)));
        let silent = cluster(3).starve(0).starve(1).starve(2);
        assert!(matches!(choose_any(&silent, &["etcd-0"]), Choice::Unproven(_)));
    }
}
