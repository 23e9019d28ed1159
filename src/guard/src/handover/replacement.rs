//! The steps of the replacement of a member that only etcd can carry out: to remove the member, to add its successor as a learner, and to
//! promote the learner.
//!
//! Each step is a request of its own, and the plugin does what is between them. A step rests on a probe round that began after the
//! ledger was read, and the write of its entry to that ledger precedes the call: an approval that was given meanwhile starts the step
//! again, and the removed member counts as leaving for other replicas until the list shows the removal. A step whose result is there
//! already is complete, so that each can be repeated.

use std::{fmt::Write as _, time::Duration};

use tokio::time::{Instant, sleep};

use crate::{
    deadline::Deadline,
    handover::{
        errand::{Claim, Errand, PAUSE, STEP_TIMEOUT, Step},
        request::{Phase, Replace},
    },
    observe::namespace_pods::NamespacePods,
    reserve::store::Ledger,
};
use etcd_guard_core::{
    etcd::{
        endpoint::Endpoint,
        member::{AlarmKind, ClusterId, ListedMember, MemberId},
    },
    membership::{Member, Membership, identity::is_of_absent_pod},
    snapshot::{MemberPod, Snapshot},
    tally::quorum,
};
use etcd_guard_etcd::{self as etcd, MemberChange};

/// Time limit for a change of the member list. The entry in the ledger that names the acting replica lives longer.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);

/// Time for which a cluster that does not allow the step is waited for.
const PATIENCE: Duration = Duration::from_secs(30);

/// Time for which a learner may lag behind. The plugin then asks again.
const PATIENCE_WITH_LEARNER: Duration = Duration::from_secs(120);

/// The requester of the reservations.
pub(super) const REQUESTER: &str = "etcd-guard (replacement)";

/// Reasons of the events about a completed step, and about one that was not possible.
const REMOVED: &str = "MemberRemoved";
const ADDED: &str = "LearnerAdded";
const PROMOTED: &str = "LearnerPromoted";
pub(super) const REPLACEMENT_FAILED: &str = "ReplacementFailed";

/// A request to carry out one step.
pub(super) struct Replacement<'a> {
    pub(super) errand: Errand<'a>,
    pub(super) replace: &'a Replace,
}

/// What the state of a cluster demands.
#[derive(Debug, PartialEq, Eq)]
enum Demand {
    /// To change the member list.
    Change(MemberChange),
    /// The step is complete. Contains the text of the event.
    Complete(String),
    /// To wait. Contains the cause.
    Wait(String),
    /// To give up. Contains the cause.
    Refuse(String),
}

// === impl Replacement ===

impl Replacement<'_> {
    /// Carries out the step, and reports its end.
    pub(super) async fn run(&self) {
        let mut claim = Claim::default();
        let mut waiting_since: Option<Instant> = None;
        let patience = match self.replace.phase {
            Phase::Remove | Phase::Add => PATIENCE,
            Phase::Promote => PATIENCE_WITH_LEARNER,
        };
        while self.errand.is_requested() {
            let step = match self.errand.slots.acquire().await {
                Ok(_slot) => self.attempt(&mut claim).await,
                Err(_) => return,
            };
            let cause = match step {
                Ok(Step::Next) => continue,
                Ok(Step::Busy(rest)) => {
                    sleep(rest.max(PAUSE)).await;
                    continue;
                }
                Ok(Step::Ended) => return,
                Ok(Step::Refuse(cause)) => return self.fail(&claim, &cause).await,
                Ok(Step::Wait(cause)) | Err(cause) => cause,
            };
            if waiting_since.get_or_insert_with(Instant::now).elapsed() >= patience {
                return self.fail(&claim, &cause).await;
            }
            sleep(PAUSE).await;
        }
    }

    async fn attempt(&self, claim: &mut Claim) -> Result<Step, String> {
        let started = Instant::now();
        let deadline = Deadline::from_timeout(Some(STEP_TIMEOUT));
        let Errand { mover, cluster_key, request, .. } = self.errand;
        let ledger = mover.read_ledger(cluster_key.namespace(), deadline).await?;
        let (_, listed, snapshot) = mover.observe(cluster_key, Some(&ledger), deadline).await?;
        let Some(id) = snapshot.cluster_id() else {
            return Ok(Step::Wait(format!(
                "the members of {} report no common cluster ID",
                snapshot.cluster
            )));
        };
        claim.cluster = Some(id);
        if let Some(step) = self.errand.yields(claim, id, &ledger) {
            return Ok(step);
        }
        if !is_pod_of(&request.name, &self.replace.pod) {
            let (pod, set) = (&self.replace.pod, &request.name);
            return Ok(Step::Refuse(format!("{pod} is no pod of StatefulSet {set}")));
        }
        let change = match demand(&snapshot, self.replace) {
            Demand::Wait(cause) => return Ok(Step::Wait(cause)),
            Demand::Refuse(cause) => return Ok(Step::Refuse(cause)),
            Demand::Complete(text) => return self.complete(id, &listed, &snapshot, text).await,
            Demand::Change(change) => change,
        };
        let Some(endpoint) = self.endpoint(&listed, &snapshot) else {
            return Ok(Step::Refuse(format!(
                "no other healthy member of {} runs in a pod of StatefulSet {}: use etcdctl",
                snapshot.cluster, request.name
            )));
        };
        // The member leaves the list: until all lists show that, no other deletion may count on it.
        let leaving = snapshot.pod(&self.replace.pod).filter(|_| matches!(change, MemberChange::Remove(_)));
        self.act((claim, id), (ledger, started), leaving, (endpoint, &change)).await
    }

    /// Announces the change in the ledger that was read at the start of the attempt, and calls etcd.
    async fn act(
        &self,
        (claim, id): (&mut Claim, ClusterId),
        (mut ledger, started): (Ledger, Instant),
        leaving: Option<&MemberPod>,
        (endpoint, change): (&Endpoint, &MemberChange),
    ) -> Result<Step, String> {
        let errand = &self.errand;
        let former = leaving.and_then(|pod| errand.reservation(&ledger, &pod.name)).cloned();
        let new = leaving.map(|pod| errand.new_reservation(pod, id, self.replace.old.to_string()));
        if let Some(step) = errand.begin((claim, id), (&mut ledger, started), former.as_ref(), new).await? {
            return Ok(step);
        }
        let connections = &errand.mover.services.observer.connections;
        match etcd::change_members(connections, endpoint, change, CALL_TIMEOUT).await {
            // The next probe round shows the result.
            Ok(()) => Ok(Step::Next),
            Err(error) => Ok(Step::Wait(format!("etcd refused: {error}"))),
        }
    }

    /// Returns the address of the leader or, if the leader has another owner, of another healthy voter that stays.
    fn endpoint<'l>(&self, listed: &'l NamespacePods, snapshot: &Snapshot) -> Option<&'l Endpoint> {
        let membership = Membership::new(snapshot).ok()?;
        let leader = membership.leadership().leader;
        let mut voters: Vec<&Member<'_>> = membership.voters().filter(|voter| stays(voter)).collect();
        voters.retain(|voter| voter.id() != self.replace.old);
        voters.sort_by_key(|voter| leader != Some(voter.id()));
        voters.into_iter().find_map(|voter| listed.endpoint(&voter.pod?.name))
    }

    /// Ends the alarms of a removed member, and reports the end, unless another replica has.
    async fn complete(
        &self,
        id: ClusterId,
        listed: &NamespacePods,
        snapshot: &Snapshot,
        mut text: String,
    ) -> Result<Step, String> {
        let old = self.replace.old;
        let reason = match self.replace.phase {
            Phase::Remove => REMOVED,
            Phase::Add => ADDED,
            Phase::Promote => PROMOTED,
        };
        // Also after a later step: the removed member may have raised one, or the first attempt may have failed.
        if old != MemberId(0) {
            // Otherwise etcd rejects writes although the member is gone. The id 0 stands for a member that etcd cannot determine.
            let alarms = [
                ("CORRUPT", AlarmKind::Corrupt, snapshot.corrupt_members().contains(&old)),
                ("NOSPACE", AlarmKind::NoSpace, snapshot.members_without_space().contains(&old)),
            ];
            for (name, kind, _) in alarms.into_iter().filter(|(_, _, is_active)| *is_active) {
                let endpoint = self.endpoint(listed, snapshot).ok_or("no member answers")?;
                let connections = &self.errand.mover.services.observer.connections;
                let removed = [old];
                let disarm = etcd::disarm(connections, endpoint, kind, &removed, CALL_TIMEOUT);
                disarm.await.map_err(|error| {
                    format!("the alarm {name} of member {old} could not be disarmed: {error}")
                })?;
                let _ = write!(text, "; its alarm {name} is disarmed");
            }
        }
        if self.errand.end(id, Some(&self.replace.pod)).await? {
            tracing::info!(cluster = snapshot.cluster, text, "completed a step of a replacement");
            (self.errand.report)(false, reason, &text);
        }
        Ok(Step::Ended)
    }

    async fn fail(&self, claim: &Claim, cause: &str) {
        // A removal that etcd may still carry out keeps its reservation until it expires.
        if let Some(id) = claim.cluster
            && matches!(self.errand.end(id, None).await, Ok(false))
        {
            return;
        }
        let (namespace, object) = (&self.errand.request.namespace, &self.errand.request.name);
        tracing::warn!(namespace, object, cause, "a step of a replacement failed");
        (self.errand.report)(true, REPLACEMENT_FAILED, cause);
    }
}

/// Whether a StatefulSet of this name has pods with this name.
fn is_pod_of(set: &str, pod: &str) -> bool {
    let ordinal = pod.strip_prefix(set).and_then(|rest| rest.strip_prefix('-'));
    ordinal.is_some_and(|ordinal| !ordinal.is_empty() && ordinal.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Whether a voter is healthy, stays, and runs in a pod whose deletion needs the ledger of this namespace.
fn stays(voter: &Member<'_>) -> bool {
    voter.pod.is_some() && voter.is_healthy() && !voter.is_leaving()
}

/// Returns what the cluster demands.
fn demand(snapshot: &Snapshot, replace: &Replace) -> Demand {
    let Ok(membership) = Membership::new(snapshot) else {
        return Demand::Wait(format!("the members of {} are not known", snapshot.cluster));
    };
    if snapshot.cluster_ids().len() > 1 {
        return Demand::Refuse(format!("the pods of {} belong to several clusters", snapshot.cluster));
    }
    if let Some(proof) = membership.contradiction() {
        return Demand::Refuse(format!("the member list is wrong: {proof}"));
    }
    let leader = membership.leadership().leader;
    let leads = |voter: &&Member<'_>| leader == Some(voter.id());
    match membership.voters().find(leads) {
        None => return Demand::Wait(String::from("no leader is known")),
        Some(voter) if voter.id() == replace.old && replace.phase == Phase::Remove => {
            return Demand::Refuse(format!("{} leads: move leadership first", voter.name()));
        }
        Some(voter) if !stays(voter) => {
            return Demand::Wait(format!("the leader {} does not stay", voter.name()));
        }
        Some(_) => {}
    }
    let old = membership.members().iter().find(|member| member.id() == replace.old);
    match (replace.phase, old) {
        (Phase::Remove, None) => {
            let (MemberId(id), pod, voters) = (replace.old, &replace.pod, membership.voters().count());
            let member = if id == 0 { String::from("the member") } else { format!("member {id:x}") };
            Demand::Complete(format!("{member} of {pod} is removed; the cluster has {voters} voters"))
        }
        (Phase::Remove, Some(member)) => remove(snapshot, &membership, member, replace),
        (Phase::Add | Phase::Promote, Some(member)) => {
            Demand::Refuse(format!("member {} of {} is still listed", member.id(), replace.pod))
        }
        (Phase::Add, None) => add(snapshot, &membership, replace),
        (Phase::Promote, None) => promote(snapshot, &membership, replace),
    }
}

/// The other voters must have a quorum of the list as it is, and thereby also of the shorter one.
fn remove(
    snapshot: &Snapshot,
    membership: &Membership<'_>,
    member: &Member<'_>,
    replace: &Replace,
) -> Demand {
    let is_of_pod = match (member.pod, member.is_responding()) {
        (Some(pod), _) => pod.name == replace.pod,
        (None, false) => is_of_absent_pod(&member.listed, &replace.pod, &snapshot.namespace),
        // It runs elsewhere.
        (None, true) => false,
    };
    if !is_of_pod {
        let (id, pod, name) = (member.id(), &replace.pod, member.name());
        return Demand::Refuse(format!("member {id} ({name}) is not that of {pod}"));
    }
    let voters = membership.voters().count();
    match too_few(membership, Some(member.id()), quorum(voters)) {
        Some(cause) => Demand::Wait(cause),
        None if is_even(voters) => Demand::Refuse(even_voters(voters)),
        None => Demand::Change(MemberChange::Remove(member.id())),
    }
}

/// A learner has no vote. It must be the only one: etcd adds no second one, and the next steps must not promote another.
fn add(snapshot: &Snapshot, membership: &Membership<'_>, replace: &Replace) -> Demand {
    let pod = match prepared_pod(snapshot, replace) {
        Ok(pod) => pod,
        Err(cause) => return Demand::Wait(cause),
    };
    if let Some(member) = membership.members().iter().find(|member| is_successor(member, pod)) {
        let role = if member.listed.is_learner { "learner" } else { "voter" };
        return Demand::Complete(format!("{} is listed as {role} {}", pod.name, member.id()));
    }
    if let Some(learner) = membership.members().iter().find(|member| member.listed.is_learner) {
        return Demand::Refuse(format!("the cluster has the learner {} already", learner.name()));
    }
    let needed = quorum(membership.voters().count());
    match too_few(membership, None, needed) {
        Some(cause) => Demand::Wait(cause),
        None => Demand::Change(MemberChange::AddLearner(pod.peer_urls.clone())),
    }
}

/// The voters without the learner must have a quorum of the longer list: the learner may fail as soon as it has a vote.
fn promote(snapshot: &Snapshot, membership: &Membership<'_>, replace: &Replace) -> Demand {
    let pod = match prepared_pod(snapshot, replace) {
        Ok(pod) => pod,
        Err(cause) => return Demand::Wait(cause),
    };
    let voters = membership.voters().count();
    let Some(member) = membership.members().iter().find(|member| is_successor(member, pod)) else {
        return Demand::Refuse(format!(
            "the list has no member with the peer URL of {}: add it first",
            pod.name
        ));
    };
    if !member.listed.is_learner {
        let text = format!("{} is voter {}; the cluster has {voters} voters", pod.name, member.id());
        return Demand::Complete(text);
    }
    if member.is_corrupt {
        return Demand::Refuse(format!("the data of learner {} is corrupt", member.id()));
    }
    let is_started = pod.reply.status().is_some_and(|status| status.member_id == member.id());
    if !is_started {
        return Demand::Wait(format!("learner {} in {} does not answer", member.id(), pod.name));
    }
    // The others must have the new quorum alone, which is the present one. So the successor may be leaving; and for a minute it seems to
    // be, because the deletion of the old PVC reserves its name.
    match too_few(membership, None, quorum(voters.saturating_add(1))) {
        Some(cause) => Demand::Wait(cause),
        None if is_even(voters.saturating_add(1)) => Demand::Refuse(even_voters(voters.saturating_add(1))),
        None => Demand::Change(MemberChange::Promote(member.id())),
    }
}

/// Whether a promotion to this number of voters raises the quorum. A deletion that another replica approves in the same moment counts the
/// former quorum, and could then be one too many.
fn is_even(voters: usize) -> bool {
    voters.is_multiple_of(2)
}

fn even_voters(voters: usize) -> String {
    format!(
        "{voters} voters tolerate no more failures than {}: first scale in or out by one",
        voters.saturating_sub(1)
    )
}

/// Returns the pod of the successor, which must advertise its peer URLs.
fn prepared_pod<'s>(snapshot: &'s Snapshot, replace: &Replace) -> Result<&'s MemberPod, String> {
    let pod = snapshot.pod(&replace.pod).filter(|pod| !pod.terminating);
    let pod = pod.ok_or_else(|| format!("pod {} does not exist", replace.pod))?;
    if pod.peer_urls.is_empty() {
        return Err(format!("the command of pod {} does not show --initial-advertise-peer-urls", pod.name));
    }
    Ok(pod)
}

/// Whether the member has a peer URL of the pod.
fn is_successor(member: &Member<'_>, pod: &MemberPod) -> bool {
    let ListedMember { peer_urls, .. } = &member.listed;
    pod.peer_urls.iter().any(|url| peer_urls.contains(url))
}

/// Returns why fewer voters than needed are healthy and stay, without this one.
fn too_few(membership: &Membership<'_>, without: Option<MemberId>, needed: usize) -> Option<String> {
    let others = || membership.voters().filter(|voter| Some(voter.id()) != without);
    let healthy = others().filter(|voter| stays(voter)).count();
    if healthy >= needed {
        return None;
    }
    let missing = others().filter(|voter| !stays(voter)).map(|voter| match voter.departure() {
        Some(departure) => format!("{} is leaving ({})", voter.name(), departure.as_str()),
        None if voter.pod.is_none() => format!("{} runs in no pod of this namespace", voter.name()),
        None => format!("{} is not healthy", voter.name()),
    });
    let missing: Vec<String> = missing.collect();
    let name = without.map(|id| membership.members().iter().find(|member| member.id() == id));
    let without = name.flatten().map(|member| format!("without {}, ", member.name())).unwrap_or_default();
    let (voters, missing) = (membership.voters().count(), missing.join(", "));
    let missing = if missing.is_empty() { missing } else { format!(": {missing}") };
    Some(format!(
        "{without}{healthy} of {voters} voters are healthy and stay, and {needed} are needed{missing}"
    ))
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    };

    use serde_json::json;
    use tokio::{net::TcpListener, sync::Semaphore};

    use super::*;
    use crate::{
        handover::{doomed_nodes::DoomedNodes, mover::Mover, report::Reporter},
        services::Services,
    };
    use etcd_guard_core::{
        cluster_key::ClusterKey,
        etcd::{
            error::MemberError,
            member::{Alarm, Status, Suffrage},
            probe_result::ProbeResult,
        },
        handover::REPLACEMENT,
        snapshot::{
            ExternalMember,
            fixture::{cluster, id, listed, status},
        },
    };
    use etcd_guard_kubernetes::{Action, ActionRequest, fake};

    fn replace(phase: Phase, n: usize) -> Replace {
        Replace { phase, pod: format!("etcd-{n}"), old: id(n) }
    }

    /// Returns what a step for pod `etcd-N` demands, in words.
    fn demanded(snapshot: &Snapshot, phase: Phase, n: usize) -> String {
        match demand(snapshot, &replace(phase, n)) {
            Demand::Change(change) => format!("{change:?}"),
            Demand::Complete(text) => format!("complete: {text}"),
            Demand::Wait(cause) => format!("wait: {cause}"),
            Demand::Refuse(cause) => format!("refuse: {cause}"),
        }
    }

    fn set_list(snapshot: &mut Snapshot, list: &[ListedMember]) {
        for pod in &mut snapshot.pods {
            if let ProbeResult::Healthy { members, .. } = &mut pod.reply {
                *members = list.to_vec();
            }
        }
    }

    fn advertise(snapshot: &mut Snapshot, n: usize) {
        snapshot.pods[n].peer_urls = vec![format!("http://etcd-{n}.etcd.prod.svc:2380")];
    }

    /// A cluster of `size` pods, in which the member of the last one was removed.
    fn without_last(size: usize) -> Snapshot {
        let mut snapshot = cluster(size).never_start(size - 1);
        set_list(&mut snapshot, &(0..size - 1).map(listed).collect::<Vec<_>>());
        advertise(&mut snapshot, size - 1);
        snapshot
    }

    /// The same cluster with the successor as a learner, which answers.
    fn with_learner(size: usize) -> Snapshot {
        let (position, new) = (size - 1, MemberId(0xbeef));
        let mut snapshot = without_last(size);
        let mut list: Vec<ListedMember> = (0..position).map(listed).collect();
        list.push(ListedMember { id: new, is_learner: true, ..listed(position) });
        set_list(&mut snapshot, &list);
        let status = Status { member_id: new, is_learner: true, ..status(position) };
        snapshot.pods[position].reply = ProbeResult::StatusOnly { status, cause: MemberError::Learner };
        snapshot
    }

    #[test]
    fn removes_only_if_the_others_have_a_quorum() {
        let remove = |snapshot: &Snapshot, n| demanded(snapshot, Phase::Remove, n);
        let removal = |n| format!("{:?}", MemberChange::Remove(id(n)));
        assert_eq!(remove(&cluster(3), 2), removal(2));
        assert_eq!(remove(&cluster(3).crash(2), 2), removal(2), "a lost member");
        assert_eq!(
            remove(&cluster(3).crash(1), 2),
            "wait: without etcd-2, 1 of 3 voters are healthy and stay, and 2 are needed: etcd-1 is not healthy"
        );
        let leaving = cluster(3).change(1, |pod| pod.reserved = true);
        assert!(remove(&leaving, 2).ends_with("etcd-1 is leaving (reserved)"), "{}", remove(&leaving, 2));
        assert!(remove(&cluster(2), 1).starts_with("wait: without etcd-1, 1 of 2 voters"));
        assert_eq!(remove(&cluster(5).crash(3), 4), removal(4));
        assert!(
            remove(&cluster(5).crash(2).crash(3), 4)
                .contains("2 of 5 voters are healthy and stay, and 3 are")
        );
        // Of four voters, three are needed before the removal, although two are enough afterwards.
        assert!(
            remove(&cluster(4).crash(2), 3).contains("2 of 4 voters are healthy and stay, and 3 are needed")
        );
    }

    #[test]
    fn removes_neither_the_leader_nor_the_member_of_another_pod() {
        assert_eq!(demanded(&cluster(3), Phase::Remove, 0), "refuse: etcd-0 leads: move leadership first");
        let other = Replace { pod: String::from("etcd-1"), ..replace(Phase::Remove, 2) };
        assert!(
            matches!(demand(&cluster(3), &other), Demand::Refuse(cause) if cause.contains("(etcd-2) is not that of"))
        );
        // A member of another namespace with the same name of its pod, and one of this namespace whose pod is gone.
        let without_pod = |url: &str, name: &str| {
            let mut snapshot = cluster(3);
            let mut list: Vec<ListedMember> = (0..3).map(listed).collect();
            (list[2].peer_urls, list[2].name) = (vec![url.to_owned()], name.to_owned());
            set_list(&mut snapshot, &list);
            snapshot.pods.pop();
            demanded(&snapshot, Phase::Remove, 2)
        };
        let removal = format!("{:?}", MemberChange::Remove(id(2)));
        assert_eq!(without_pod("http://etcd-2.etcd.prod.svc:2380", "any"), removal);
        assert_eq!(without_pod("http://10.0.0.9:2380", "etcd-2"), removal);
        for (url, name) in [("http://etcd-2.etcd.test.svc:2380", "etcd-2"), ("http://10.0.0.9:2380", "other")]
        {
            let refusal = format!("refuse: member {} ({name}) is not that of etcd-2", id(2));
            assert_eq!(without_pod(url, name), refusal);
        }
        let mut outside = cluster(3);
        let MemberPod { reply, .. } = outside.pods.pop().unwrap();
        let external = ExternalMember { id: id(2), reply, reserved: false };
        outside.external_members.push(external);
        assert!(
            demanded(&outside, Phase::Remove, 2).ends_with("is not that of etcd-2"),
            "it answers elsewhere"
        );
        let leaving = cluster(3).change(0, |pod| pod.terminating = true);
        assert_eq!(demanded(&leaving, Phase::Remove, 2), "wait: the leader etcd-0 does not stay");
        assert!(demanded(&without_last(3), Phase::Remove, 2).starts_with("complete: member "));
        let mut split = cluster(3);
        let ProbeResult::Healthy { status, .. } = &mut split.pods[2].reply else { panic!("healthy") };
        status.cluster_id = ClusterId(2);
        assert!(demanded(&split, Phase::Remove, 1).contains("several clusters"), "{split:?}");
    }

    #[test]
    fn adds_one_learner_with_the_peer_url_of_the_pod() {
        let snapshot = without_last(3);
        let url = vec![String::from("http://etcd-2.etcd.prod.svc:2380")];
        assert_eq!(demanded(&snapshot, Phase::Add, 2), format!("{:?}", MemberChange::AddLearner(url)));
        let present = demanded(&with_learner(3), Phase::Add, 2);
        assert_eq!(present, "complete: etcd-2 is listed as learner beef");
        assert!(demanded(&cluster(3), Phase::Add, 2).contains("is still listed"));
        let mut other = without_last(3);
        let learner = ListedMember { id: MemberId(7), is_learner: true, ..listed(5) };
        set_list(&mut other, &[listed(0), listed(1), learner]);
        assert_eq!(demanded(&other, Phase::Add, 2), "refuse: the cluster has the learner etcd-5 already");
        let mut silent = without_last(3);
        silent.pods[2].peer_urls.clear();
        assert!(demanded(&silent, Phase::Add, 2).contains("does not show --initial-advertise-peer-urls"));
        let weak = without_last(3).change(1, |pod| pod.reserved = true);
        assert!(demanded(&weak, Phase::Add, 2).contains("1 of 2 voters are healthy"), "{weak:?}");
    }

    #[test]
    fn promotes_only_a_learner_that_the_cluster_can_lose_again() {
        let snapshot = with_learner(3);
        let promotion = format!("{:?}", MemberChange::Promote(MemberId(0xbeef)));
        assert_eq!(demanded(&snapshot, Phase::Promote, 2), promotion);
        assert!(demanded(&without_last(3), Phase::Promote, 2).ends_with("add it first"));
        let alarm = Alarm { member_id: MemberId(0xbeef), kind: AlarmKind::Corrupt };
        let corrupt = with_learner(3).restate(0, |status| status.alarms = vec![alarm]);
        assert_eq!(demanded(&corrupt, Phase::Promote, 2), "refuse: the data of learner beef is corrupt");
        let raft_voter = with_learner(3).restate(2, |status| status.suffrage = Some(Suffrage::Voter));
        let wrong = "refuse: the member list is wrong: etcd-2 is listed as a learner and votes";
        assert_eq!(demanded(&raft_voter, Phase::Promote, 2), wrong);
        let silent = with_learner(3).refuse(2);
        assert_eq!(demanded(&silent, Phase::Promote, 2), "wait: learner beef in etcd-2 does not answer");
        let leaving = with_learner(3).change(2, |pod| pod.reserved = true);
        assert_eq!(demanded(&leaving, Phase::Promote, 2), promotion, "the others have the new quorum");
        // Three voters have a quorum of two. With a fourth one, three are needed.
        assert!(
            demanded(&with_learner(4).crash(2), Phase::Promote, 3)
                .contains("2 of 3 voters are healthy and stay, and 3")
        );
        assert_eq!(demanded(&with_learner(5).crash(3), Phase::Promote, 4), promotion);
        let even = demanded(&with_learner(4), Phase::Promote, 3);
        assert_eq!(even, "refuse: 4 voters tolerate no more failures than 3: first scale in or out by one");
        assert_eq!(demanded(&cluster(4), Phase::Remove, 3), even);
        let mut voter = with_learner(3);
        let list = [listed(0), listed(1), ListedMember { id: MemberId(0xbeef), ..listed(2) }];
        set_list(&mut voter, &list);
        let complete = demanded(&voter, Phase::Promote, 2);
        assert_eq!(complete, "complete: etcd-2 is voter beef; the cluster has 3 voters");
    }

    #[test]
    fn corrupt_members_do_not_count() {
        let mut snapshot = cluster(3);
        for pod in &mut snapshot.pods {
            let ProbeResult::Healthy { status, .. } = &mut pod.reply else { panic!("healthy") };
            status.alarms = vec![Alarm { member_id: id(2), kind: AlarmKind::Corrupt }];
        }
        assert_eq!(demanded(&snapshot, Phase::Remove, 2), format!("{:?}", MemberChange::Remove(id(2))));
        assert!(demanded(&snapshot, Phase::Remove, 1).contains("1 of 3 voters"));
    }

    /// Carries out a step with a ledger that was read so many seconds ago, and to which another replica has written since if `is_late`.
    /// Returns the result, or `None` if the step calls etcd.
    async fn act(change: &MemberChange, is_late: bool, seconds: u64) -> Option<Result<Step, String>> {
        let stored = Arc::new(AtomicU32::new(1));
        let version = Arc::clone(&stored);
        let client = fake::api_server_with(move |call, body| {
            let lease = |version: u32| json!({"metadata": {"name": "etcd-guard.ns.prod", "uid": "lease", "resourceVersion": version.to_string()}});
            let current = version.load(Ordering::Relaxed);
            match call.method.as_str() {
                "PUT" if body["metadata"]["resourceVersion"].as_str() == Some(&*current.to_string()) => {
                    (200, lease(version.fetch_add(1, Ordering::Relaxed) + 1))
                }
                "PUT" => (409, fake::status_failure(409, "the object has been modified")),
                _ => (200, lease(current)),
            }
        });
        let services = Services::of_client(&client);
        let mover = Mover {
            reporter: Reporter::new(services.events.clone(), services.observer.metrics.clone()),
            services: Arc::new(services),
            doomed: DoomedNodes::default(),
            nodes: None,
        };
        let text = String::from;
        let request = ActionRequest {
            action: Action::Replace,
            namespace: text("prod"),
            name: text("etcd"),
            uid: text("set"),
            value: text("any"),
            is_pod: false,
        };
        let errand = Errand {
            mover: &mover,
            cluster_key: &ClusterKey::from_stateful_set("prod", text("etcd"), text("set")),
            request: &request,
            kind: REPLACEMENT,
            requester: REQUESTER,
            slots: &Semaphore::new(1),
            report: &|_, _, _| {},
        };
        let replacement = Replacement { errand, replace: &replace(Phase::Remove, 2) };
        let ledger = mover.read_ledger("prod", Deadline::from_timeout(None)).await.unwrap();
        if is_late {
            stored.fetch_add(1, Ordering::Relaxed);
        }
        let member = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", member.local_addr().unwrap());
        let endpoint = Endpoint { url, other_urls: Vec::new(), tls: None, user: None };
        let (mut claim, snapshot) = (Claim::default(), cluster(3));
        let leaving = snapshot.pod("etcd-2").filter(|_| matches!(change, MemberChange::Remove(_)));
        let (of_cluster, read) =
            ((&mut claim, ClusterId(1)), (ledger, Instant::now() - Duration::from_secs(seconds)));
        tokio::select! {
            step = replacement.act(of_cluster, read, leaving, (&endpoint, change)) => Some(step),
            _ = member.accept() => None,
        }
    }

    /// Another replica may have approved a deletion, for which the step does not leave a quorum.
    #[tokio::test]
    async fn changes_no_member_with_a_ledger_that_is_old_or_was_written_since() {
        let learner = MemberChange::AddLearner(vec![String::from("http://etcd-2.etcd.prod.svc:2380")]);
        for change in [MemberChange::Remove(id(2)), learner, MemberChange::Promote(id(2))] {
            assert_eq!(act(&change, true, 0).await, Some(Ok(Step::Busy(PAUSE))), "{change:?}");
            assert_eq!(act(&change, false, 21).await, Some(Ok(Step::Next)), "{change:?}");
            assert_eq!(act(&change, false, 19).await, None, "{change:?}");
        }
    }

    #[test]
    fn pods_of_a_set_have_ordinals() {
        assert!(is_pod_of("etcd", "etcd-1") && is_pod_of("etcd-a", "etcd-a-10"));
        assert!(["etcd", "etcd-", "etcd-a-1", "etcd1", "web-1"].iter().all(|pod| !is_pod_of("etcd", pod)));
    }
}
