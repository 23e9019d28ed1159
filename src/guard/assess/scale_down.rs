//! Assessment of scaling a StatefulSet down: the pods with the highest ordinals are deleted, and members that are still
//! listed continue to count as voters.

use crate::guard::model::{
    membership::{Member, Membership, MembershipError},
    reason::Reason,
    snapshot::{MemberPod, Snapshot},
    tally::Tally,
    verdict::Verdict,
};

/// Evaluates the deletion of the pods of `set` with ordinals from `first_to_go`.
pub(in crate::guard) fn evaluate_scale_down(snapshot: &Snapshot, set: &str, first_to_go: u32) -> Verdict {
    let cluster = &snapshot.cluster;
    let is_deleted = |pod: &MemberPod| ordinal(set, &pod.name).is_some_and(|ordinal| ordinal >= first_to_go);
    let membership = match Membership::new(snapshot) {
        Ok(membership) => membership,
        Err(MembershipError::Unproven) => {
            let text =
                format!("scaling {set} down requires a quorum, and no member of {cluster} could prove one");
            let remedy =
                format!("Restore the members first: kubectl -n {} get pods -o wide", snapshot.namespace);
            return Verdict::new(Reason::QuorumLost, text).with_remedy(&remedy);
        }
        Err(MembershipError::Ambiguous(_)) => {
            let text = format!("the pods of {cluster} cannot be matched with its members");
            let remedy = match snapshot.pods.iter().find(|pod| pod.reply.is_healthy()) {
                Some(pod) => format!(
                    "Compare the pods with the member list: {}",
                    pod.etcdctl_command(&snapshot.namespace, "member list -w table")
                ),
                None => format!("Check the pods: kubectl -n {} get pods -o wide", snapshot.namespace),
            };
            return Verdict::new(Reason::AmbiguousMember, text).with_remedy(&remedy);
        }
    };
    let tally = Tally::new(&membership, |member| member.pod.is_some_and(is_deleted));
    let Tally { voters, quorum, remaining, .. } = tally;
    let leaving: Vec<_> = snapshot
        .pods
        .iter()
        .filter(|pod| is_deleted(pod))
        .filter_map(|pod| membership.member_of_pod(&pod.name))
        .map(Member::id)
        .collect();
    let remains = |pod: &&MemberPod| !is_deleted(pod) && pod.reply.is_healthy() && pod.departure().is_none();
    let Some(first_leaving) = leaving.first() else {
        let text = format!("the pods that the scale-down deletes run no member of {cluster}");
        return Verdict::new(Reason::IntentHarmless, text);
    };
    if !tally.has_quorum() {
        let text = format!(
            "scaling {set} down to ordinals below {first_to_go} would leave {remaining} of {voters} voters of {cluster} \
             healthy, quorum {quorum}"
        );
        let remedy = match snapshot.pods.iter().find(remains) {
            Some(pod) => format!(
                "Remove the members first, one at a time: {}",
                pod.etcdctl_command(&snapshot.namespace, &format!("member remove {first_leaving}"))
            ),
            None => {
                format!("Restore the other members first: kubectl -n {} get pods -o wide", snapshot.namespace)
            }
        };
        return Verdict::new(Reason::IntentProtected, text).with_remedy(&remedy);
    }
    let mut verdict = Verdict::new(
        Reason::IntentHarmless,
        format!("{cluster} retains {remaining} of {voters} voters, quorum {quorum}"),
    );
    for id in leaving {
        verdict.warn(&format!(
            "member {id} remains a voter of etcd {cluster}: remove it from the member list first"
        ));
    }
    verdict
}

/// Returns the ordinal of a pod of this StatefulSet.
fn ordinal(set: &str, pod: &str) -> Option<u32> {
    pod.strip_prefix(set)?.strip_prefix('-')?.parse().ok()
}

#[cfg(test)]
mod tests;
