//! Scaling a StatefulSet down: its highest ordinals go, and members that are still listed go on counting as voters.

use std::collections::BTreeSet;

use super::{
    identity,
    snapshot::{MemberPod, Snapshot},
    verdict::{Reason, Verdict},
};
use crate::etcd::ListedMember;

/// Judges that the pods of `set` from the ordinal `first_to_go` on are to go.
pub(super) fn judge(snapshot: &Snapshot, set: &str, first_to_go: u32) -> Verdict {
    let cluster = &snapshot.cluster;
    let goes = |pod: &MemberPod| ordinal(set, &pod.name).is_some_and(|ordinal| ordinal >= first_to_go);
    let list = listed(snapshot);
    if list.is_empty() {
        let text = format!(
            "no member of etcd cluster {cluster} proves a quorum: nothing is scaled down in that state"
        );
        let next = format!("Bring members back first: kubectl -n {} get pods -o wide", snapshot.namespace);
        return Verdict::new(Reason::QuorumLost, text).with_next(&next);
    }
    let Ok(members) = identity::resolve(snapshot, &list) else {
        let text = format!("which member of etcd cluster {cluster} each pod runs cannot be told");
        let next = format!(
            "Compare the pods' names with the members': kubectl etcd-guard status -n {}",
            snapshot.namespace
        );
        return Verdict::new(Reason::AmbiguousMember, text).with_next(&next);
    };
    let voters: BTreeSet<_> =
        list.iter().filter(|member| !member.is_learner).map(|member| member.id).collect();
    let quorum = voters.len() / 2 + 1;
    let serves = |pod: &&MemberPod| pod.reply.is_serving() && !pod.terminating;
    let has_vote = |pod: &&MemberPod| members.of(&pod.name).is_some_and(|id| voters.contains(&id));
    let elsewhere = snapshot.elsewhere.iter().filter(|it| it.reply.is_serving());
    let elsewhere = elsewhere.filter(|it| voters.contains(&it.id)).count();
    let remaining =
        snapshot.pods.iter().filter(|pod| !goes(pod)).filter(serves).filter(has_vote).count() + elsewhere;
    let leaving: Vec<_> =
        snapshot.pods.iter().filter(|pod| goes(pod)).filter_map(|pod| members.of(&pod.name)).collect();
    if leaving.is_empty() {
        let text = format!("the pods that go run no listed member of etcd cluster {cluster}");
        return Verdict::new(Reason::IntentHarmless, text);
    }
    let helper = snapshot.pods.iter().filter(|pod| !goes(pod)).find(serves);
    let remove = match (helper, leaving.first()) {
        (Some(pod), Some(id)) => {
            format!(
                "kubectl -n {} exec {} -c {} -- etcdctl member remove {id}",
                snapshot.namespace, pod.name, pod.container
            )
        }
        _ => String::from("etcdctl member remove"),
    };
    if remaining < quorum {
        let text = format!(
            "scaling {set} down to ordinals below {first_to_go} would leave {remaining} of {} voters of etcd cluster \
             {cluster} healthy, quorum {quorum}",
            voters.len()
        );
        let next = format!("Remove the members first, one at a time: {remove}");
        return Verdict::new(Reason::IntentProtected, text).with_next(&next);
    }
    let mut verdict = Verdict::new(
        Reason::IntentHarmless,
        format!("etcd cluster {cluster} keeps {remaining} of {} voters, quorum {quorum}", voters.len()),
    );
    for id in leaving {
        verdict.warn(&format!(
            "member {id} stays a voter of etcd {cluster}: remove it first, with etcdctl member remove {id}"
        ));
    }
    verdict
}

fn listed(snapshot: &Snapshot) -> Vec<ListedMember> {
    super::assess::union_of_lists(snapshot)
}

/// The ordinal of a pod of this StatefulSet.
fn ordinal(set: &str, pod: &str) -> Option<u32> {
    pod.strip_prefix(set)?.strip_prefix('-')?.parse().ok()
}
