//! The deletion of a Node. Pod garbage collection then deletes the pods of the node without a further request.

use std::collections::BTreeSet;

use crate::{
    assess::{
        doubt::doubts,
        missing_voters::{MissingVoter, describe_missing, inaccessible_pod, missing_voters, silent_pods},
    },
    membership::{Member, Membership},
    reason::Reason,
    snapshot::{MemberPod, Snapshot},
    tally::Tally,
    verdict::Verdict,
};

/// Returns the verdict on the deletion of a node that runs the pods with these uids. The deletion is denied only if the
/// cluster needs a member on the node that answered in this probe round: a node is usually deleted because its machine
/// no longer exists, and a denial would then protect nothing.
pub fn evaluate_node_deletion(snapshot: &Snapshot, node: &str, uids: &BTreeSet<&str>) -> Verdict {
    let cluster = &snapshot.cluster;
    let is_on_node = |pod: &MemberPod| uids.contains(pod.uid.as_str());
    let answers = |pod: &&MemberPod| is_on_node(pod) && !pod.terminating && pod.reply.status().is_some();
    let Some(answering) = snapshot.pods.iter().find(answers) else {
        let text = format!("no member of {cluster} on node {node} answers");
        return Verdict::new(Reason::IntentHarmless, text);
    };
    let denial = |text: String, missing: &[MissingVoter]| {
        let text = format!("{text}{}", describe_missing(missing, &answering.owner_kind));
        let mut verdict = Verdict::new(Reason::IntentProtected, text);
        let pod = inaccessible_pod(snapshot, missing, |_| true);
        verdict.inaccessible_pod = pod.map(|pod| snapshot.namespaced_name(pod));
        verdict
    };
    let Ok(membership) = Membership::new(snapshot) else {
        let text = format!(
            "node {node} runs pod {} of {cluster}: its member answers, and no member of the cluster proves a quorum",
            answering.name
        );
        return denial(text, &silent_pods(snapshot));
    };
    let member_is_on_node = |member: &Member<'_>| member.pod.is_some_and(is_on_node);
    let tally = Tally::new(&membership, member_is_on_node);
    let has_voter = membership.voters().any(|voter| voter.pod.as_ref().is_some_and(answers));
    let clusters = snapshot.cluster_ids();
    if has_voter && clusters.len() > 1 {
        let ids: Vec<String> = clusters.iter().map(ToString::to_string).collect();
        let text = format!(
            "node {node} runs pod {} of {cluster}: its member answers, and the pods of {cluster} belong to different etcd clusters ({})",
            answering.name,
            ids.join(", ")
        );
        return denial(text, &[]);
    }
    if let Some(proof) = membership.contradiction() {
        let text = format!(
            "node {node} runs pod {} of {cluster}: its member answers, and the member list of {cluster} is wrong: {proof}",
            answering.name
        );
        return denial(text, &[]);
    }
    let has_voter = has_voter || !membership.explains_reads();
    let (remaining, voters, quorum) = (tally.remaining, tally.voters, tally.quorum);
    if !has_voter || tally.has_quorum() {
        let text =
            format!("without node {node}, {cluster} retains {remaining} of {voters} voters, quorum {quorum}");
        let mut verdict = Verdict::new(Reason::IntentHarmless, text);
        for doubt in doubts(&membership, &tally, member_is_on_node) {
            verdict.warn(&doubt);
        }
        return verdict;
    }
    let text = format!(
        "node {node} runs pod {} of {cluster}: without the node, {remaining} of {voters} voters would be healthy, quorum \
         {quorum}",
        answering.name
    );
    // The state of a member on the node has no effect on the voters that remain.
    let mut missing = missing_voters(&membership);
    missing.retain(|voter| snapshot.pod(&voter.name).is_none_or(|pod| !is_on_node(pod)));
    denial(text, &missing)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{etcd::member::ClusterId, snapshot::fixture::cluster};

    fn reason(snapshot: &Snapshot, uids: &[&str]) -> Reason {
        evaluate_node_deletion(snapshot, "worker", &uids.iter().copied().collect()).reason
    }

    #[test]
    fn denies_node_whose_members_the_quorum_needs() {
        let healthy = cluster(3);
        assert_eq!(reason(&healthy, &["uid-0"]), Reason::IntentHarmless);
        assert_eq!(reason(&healthy, &["uid-0", "uid-1"]), Reason::IntentProtected);
        assert_eq!(reason(&healthy, &[]), Reason::IntentHarmless);
        assert_eq!(reason(&cluster(1), &["uid-0"]), Reason::IntentProtected);
        let degraded = cluster(3).crash(2);
        assert_eq!(reason(&degraded, &["uid-0"]), Reason::IntentProtected);
        let leaving = cluster(3).change(2, |pod| pod.reserved = true);
        assert_eq!(reason(&leaving, &["uid-0"]), Reason::IntentProtected);
    }

    #[test]
    fn allows_node_whose_members_do_not_answer() {
        let dead_node = cluster(3).silence(0).silence(1);
        assert_eq!(reason(&dead_node, &["uid-0", "uid-1"]), Reason::IntentHarmless);
        assert_eq!(reason(&dead_node.clone().silence(2), &["uid-0", "uid-1"]), Reason::IntentHarmless);
        let terminating = cluster(3).silence(1).change(0, |pod| pod.terminating = true);
        assert_eq!(reason(&terminating, &["uid-0"]), Reason::IntentHarmless);
    }

    #[test]
    fn denies_last_answering_member_without_quorum() {
        let lost = cluster(3).starve(0).silence(1).silence(2);
        assert_eq!(reason(&lost, &["uid-0"]), Reason::IntentProtected);
        assert_eq!(reason(&lost, &["uid-1"]), Reason::IntentHarmless);
    }

    /// Otherwise voters of one cluster would count for the quorum of the other one.
    #[test]
    fn denies_node_if_pods_belong_to_several_clusters() {
        let mixed = cluster(3).restate(2, |status| status.cluster_id = ClusterId(0xc2));
        assert_eq!(reason(&mixed, &["uid-0"]), Reason::IntentProtected);
        assert_eq!(
            reason(&mixed.silence(0), &["uid-0"]),
            Reason::IntentHarmless,
            "the member does not answer"
        );
    }

    #[test]
    fn allows_node_of_learner() {
        let learner = cluster(2).relist(|list| list[1].is_learner = true);
        assert_eq!(reason(&learner, &["uid-1"]), Reason::IntentHarmless);
    }
}
