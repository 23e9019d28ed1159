//! Assessment of scaling an owner of members down. A StatefulSet deletes the pods with the highest ordinals; for other
//! owners, healthy members are assumed to be deleted first. Members that are still listed continue to count as voters.

use std::ops::Range;

use crate::{
    assess::{
        doubt::doubts,
        missing_voters::{describe_missing, inaccessible_pod, missing_voters, silent_pods},
        unproven::unproven,
    },
    escape::to_shell_word,
    explain::{role_advice, secret_advice},
    membership::{Member, Membership, MembershipError},
    reason::Reason,
    snapshot::{MemberPod, Snapshot},
    tally::Tally,
    verdict::Verdict,
};

/// Evaluates the deletion of the pods of `set` with ordinals outside of `kept`.
pub fn evaluate_scale_down(snapshot: &Snapshot, set: &str, kept: Range<u32>) -> Verdict {
    let is_deleted =
        |pod: &MemberPod| ordinal(set, &pod.name).is_some_and(|ordinal| !kept.contains(&ordinal));
    let limit = match kept.start {
        0 => format!("ordinals below {}", kept.end),
        start => format!("ordinals from {start} and below {}", kept.end),
    };
    evaluate_deleted_pods(snapshot, set, &limit, is_deleted)
}

/// Evaluates the deletion of `count` of these pods, which belong to `owner`. The controller chooses the pods, so that
/// healthy members are assumed to be among them.
pub fn evaluate_any_pods(snapshot: &Snapshot, owner: &str, names: &[&str], count: usize) -> Verdict {
    let serves = |pod: &MemberPod| pod.reply.is_healthy() && pod.departure().is_none();
    let of_owner = snapshot.pods.iter().filter(|pod| names.contains(&pod.name.as_str()));
    let (healthy, others): (Vec<_>, Vec<_>) = of_owner.partition(|pod| serves(pod));
    let deleted: Vec<&str> = healthy.iter().chain(&others).take(count).map(|pod| pod.name.as_str()).collect();
    let remaining = names.len().saturating_sub(count);
    let is_deleted = |pod: &MemberPod| deleted.contains(&pod.name.as_str());
    evaluate_deleted_pods(snapshot, owner, &format!("{remaining} replicas"), is_deleted)
}

fn evaluate_deleted_pods(
    snapshot: &Snapshot,
    owner: &str,
    limit: &str,
    is_deleted: impl Fn(&MemberPod) -> bool,
) -> Verdict {
    let cluster = &snapshot.cluster;
    let deleted = snapshot.pods.iter().find(|pod| is_deleted(pod));
    let owner_kind = deleted.map(|pod| pod.owner_kind.as_str()).unwrap_or_default();
    let membership = match Membership::new(snapshot) {
        Ok(membership) => membership,
        Err(MembershipError::Unproven) => return unproven_denial(snapshot, owner, owner_kind),
        Err(MembershipError::Ambiguous(identity)) => {
            let (pod, cause) = (identity.pod, identity.cause);
            let text = format!(
                "the pods of {cluster} cannot be matched with its members; not healthy: {pod} ({cause})"
            );
            let remedy = match snapshot.pods.iter().find(|pod| pod.reply.is_healthy()) {
                Some(pod) => format!(
                    "Compare the pods with the member list: {}",
                    pod.etcdctl_command(&snapshot.namespace, "member list -w table")
                ),
                None => format!("Check the pods: kubectl -n {} get pods -o wide", snapshot.namespace),
            };
            let mut verdict = Verdict::new(Reason::AmbiguousMember, text).with_remedy(&remedy);
            verdict.inaccessible_pod = Some((snapshot.namespace.clone(), pod));
            return verdict;
        }
    };
    let runs_deleted = |member: &Member<'_>| member.pod.is_some_and(&is_deleted);
    let tally = Tally::new(&membership, runs_deleted);
    let Tally { voters, quorum, remaining, .. } = tally;
    let leaving: Vec<_> = snapshot
        .pods
        .iter()
        .filter(|pod| is_deleted(pod))
        .filter_map(|pod| membership.member_of_pod(&pod.name))
        .map(Member::id)
        .collect();
    let remains = |pod: &&MemberPod| !is_deleted(pod) && pod.reply.is_healthy() && pod.departure().is_none();
    if let Some(proof) = membership.contradiction() {
        let text = format!("the member list of {cluster} is wrong: {proof}");
        let remedy =
            format!("Check the pods: kubectl -n {} get pods -o wide", to_shell_word(&snapshot.namespace));
        return Verdict::new(Reason::MemberListWrong, text).with_remedy(&remedy);
    }
    let Some(first_leaving) = leaving.first() else {
        let text = format!("the pods that the scale-down deletes run no member of {cluster}");
        return Verdict::new(Reason::IntentHarmless, text);
    };
    if !tally.has_quorum() {
        // The state of a deleted member has no effect on the voters that remain.
        let mut missing = missing_voters(&membership);
        missing.retain(|voter| snapshot.pod(&voter.name).is_none_or(|pod| !is_deleted(pod)));
        let text = format!(
            "scaling {owner} down to {limit} would leave {remaining} of {voters} voters of {cluster} healthy, quorum \
             {quorum}{}",
            describe_missing(&missing, owner_kind)
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
        let mut verdict = Verdict::new(Reason::IntentProtected, text).with_remedy(&remedy);
        let pod = inaccessible_pod(snapshot, &missing, |_| true);
        verdict.inaccessible_pod = pod.map(|pod| snapshot.namespaced_name(pod));
        return verdict;
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
    for doubt in doubts(&membership, &tally, runs_deleted) {
        verdict.warn(&doubt);
    }
    verdict
}

/// Returns the denial if no member proves a quorum, with the cause of each pod.
fn unproven_denial(snapshot: &Snapshot, owner: &str, owner_kind: &str) -> Verdict {
    let (cluster, ns) = (&snapshot.cluster, to_shell_word(&snapshot.namespace));
    let reason = unproven(snapshot);
    let missing = silent_pods(snapshot);
    let remedy = match reason {
        Reason::CredentialsRejected => match (snapshot.without_role.first(), snapshot.pods.first()) {
            (Some(pod), _) => role_advice(&snapshot.namespace, pod),
            (None, Some(pod)) => secret_advice(snapshot, pod),
            (None, None) => format!("Create the Secret of the members: kubectl -n {ns} get secrets"),
        },
        Reason::EtcdUnreachable => {
            format!(
                "If the pods run, check ports, TLS and network policies: kubectl -n {ns} get pods -o wide"
            )
        }
        Reason::ElectionInProgress => {
            format!(
                "An election takes about a second: retry in 3 s. If it persists: kubectl -n {ns} get pods -o wide"
            )
        }
        _ => format!("Restore the members first: kubectl -n {ns} get pods -o wide"),
    };
    let text = format!(
        "scaling {owner} down requires a quorum, but no member of {cluster} proves a quorum{}",
        describe_missing(&missing, owner_kind)
    );
    let mut verdict = Verdict::new(reason, text).with_remedy(&remedy);
    let pod = inaccessible_pod(snapshot, &missing, |_| true);
    verdict.inaccessible_pod = pod.map(|pod| snapshot.namespaced_name(pod));
    verdict
}

/// Returns the ordinal of a pod of this StatefulSet.
fn ordinal(set: &str, pod: &str) -> Option<u32> {
    pod.strip_prefix(set)?.strip_prefix('-')?.parse().ok()
}

#[cfg(test)]
mod tests;
