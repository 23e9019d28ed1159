//! Defragmentation on request: one member after another, the leader last, after leadership has moved.
//!
//! A member answers nothing while it defragments, so that it counts as leaving. The guard evaluates this pause like a deletion, and
//! writes a reservation to the ledger that was read before the probe round. Until the member serves again, the reservation is renewed:
//! other deletions count the member as gone. A handover without a transferee says which replica acts. If it ends, another one that saw
//! the request continues when that entry and the reservation have expired. Learners are left alone: etcd defragments voters only.

use std::{collections::BTreeSet, fmt::Write as _, time::Duration};

use tokio::time::{Instant, sleep};

use crate::{
    deadline::Deadline,
    evaluation::Evaluation,
    handover::{
        errand::{Claim, Errand, MAX_WRITES, PAUSE, STEP_TIMEOUT, Step},
        mover::Task,
        report::Outcome,
    },
    observe::namespace_pods::NamespacePods,
    reserve::store::Ledger,
};
use etcd_guard_core::{
    etcd::{
        endpoint::Endpoint,
        error::MemberError,
        member::{AlarmKind, ClusterId, DatabaseSize, MemberId, Status, mebibytes},
        release::is_unsafe_to_defragment,
    },
    handover::{DEFRAGMENTATION, Signal, Trigger},
    membership::Membership,
    objects::pod::Pod,
    reason::Reason,
    request::{Operation, PodUpdate, Request},
    reservation::Reservation,
    snapshot::{MemberPod, Snapshot},
};
use etcd_guard_etcd as etcd;

/// Time limit for one member. etcd copies about 100 MB per second.
const MEMBER_TIMEOUT: Duration = Duration::from_secs(600);

/// Time for which a cluster that must not lose a member is waited for.
const PATIENCE: Duration = Duration::from_secs(120);

/// Time after which a defragmented member must serve again.
const RETURN_TIMEOUT: Duration = Duration::from_secs(300);

/// Interval between renewals: a fraction of the lifetime of a handover.
const RENEWAL_INTERVAL: Duration = Duration::from_secs(4);

/// The requester of the reservations.
pub(super) const REQUESTER: &str = "etcd-guard (defragmentation)";

/// Reasons of the events about a member before and after its pause, about the end, and about an early end.
const DEFRAGMENTING: &str = "Defragmenting";
const DEFRAGMENTED: &str = "Defragmented";
const COMPLETED: &str = "DefragmentationCompleted";
pub(super) const DEFRAGMENTATION_FAILED: &str = "DefragmentationFailed";

/// A request to defragment the members of a cluster.
pub(super) struct Defragmentation<'a> {
    pub(super) errand: Errand<'a>,
    /// The free share of the file, in percent, from which on a member is defragmented.
    pub(super) min_free_percent: u8,
}

/// What this replica has done.
#[derive(Default)]
struct Work {
    /// Uids of the pods whose members are defragmented.
    done: BTreeSet<String>,
    freed: u64,
    /// Whether another replica was seen at work.
    is_another_active: bool,
    claim: Claim,
}

/// What the state of a cluster demands.
#[derive(Debug)]
enum Demand<'a> {
    /// To defragment the member of this pod.
    Member(&'a MemberPod),
    /// To move leadership away from this pod: the other members are done.
    Move(&'a MemberPod),
    /// To wait. Contains the cause.
    Wait(String),
    /// To give up. Contains the cause.
    Refuse(String),
    Nothing,
}

// === impl Defragmentation ===

impl Defragmentation<'_> {
    /// Defragments the members that need it, and reports each of them and the end.
    pub(super) async fn run(&self) {
        let mut work = Work::default();
        let mut waiting_since: Option<Instant> = None;
        while self.errand.is_requested() {
            let step = match self.errand.slots.acquire().await {
                Ok(_slot) => Box::pin(self.step(&mut work)).await,
                Err(_) => return,
            };
            let cause = match step {
                Ok(Step::Next) => {
                    waiting_since = None;
                    continue;
                }
                Ok(Step::Busy(rest)) => {
                    waiting_since = None;
                    sleep(rest.max(PAUSE)).await;
                    continue;
                }
                Ok(Step::Ended) => return,
                Ok(Step::Refuse(cause)) => return self.fail(&work, &cause).await,
                Ok(Step::Wait(cause)) | Err(cause) => cause,
            };
            if waiting_since.get_or_insert_with(Instant::now).elapsed() >= PATIENCE {
                return self.fail(&work, &cause).await;
            }
            sleep(PAUSE).await;
        }
    }

    async fn step(&self, work: &mut Work) -> Result<Step, String> {
        let (started, deadline) = (Instant::now(), Deadline::from_timeout(Some(STEP_TIMEOUT)));
        let Errand { mover, cluster_key, .. } = self.errand;
        let ledger = mover.read_ledger(cluster_key.namespace(), deadline).await?;
        let (pods, listed, snapshot) = mover.observe(cluster_key, Some(&ledger), deadline).await?;
        let is_of_pods = |held: &&Reservation| pods.iter().any(|pod| pod.metadata.uid == held.uid);
        work.is_another_active |= ledger.active().iter().filter(is_of_pods).any(|held| held.by == REQUESTER);
        let Some(id) = snapshot.cluster_id() else {
            return Ok(Step::Wait(format!("no member of {} reports the cluster ID", snapshot.cluster)));
        };
        work.claim.cluster = Some(id);
        if let Some(step) = self.errand.yields(&work.claim, id, &ledger) {
            return Ok(step);
        }
        let is_own = |pod: &MemberPod| listed.endpoint(&pod.name).is_some();
        match demand(&snapshot, self.min_free_percent, &work.done, &is_own) {
            Demand::Wait(cause) => Ok(Step::Wait(cause)),
            Demand::Refuse(cause) => Ok(Step::Refuse(cause)),
            Demand::Nothing => self.complete(work, id, &listed, &snapshot).await,
            Demand::Move(leader) => Ok(self.move_leadership(&leader.name).await),
            Demand::Member(pod) => {
                let live = pods.iter().find(|live| live.metadata.uid == pod.uid);
                let (Some(live), Some(endpoint)) = (live, listed.endpoint(&pod.name)) else {
                    return Ok(Step::Busy(PAUSE));
                };
                self.defragment(work, (ledger, id, started), (pod, live, endpoint), deadline).await
            }
        }
    }

    /// Moves leadership away from this pod, at most once in ten seconds like any requested move.
    async fn move_leadership(&self, leader: &str) -> Step {
        let Errand { mover, cluster_key, request, .. } = self.errand;
        let value = format!("{DEFRAGMENTATION} {} {}", request.value, self.errand.now());
        let id = format!("{}/{}/{value}", Trigger::Request.as_str(), request.uid);
        let signal = Signal { trigger: Trigger::Request, id, text: value };
        let task = Task {
            cluster_key,
            signal: &signal,
            transferee: None,
            leaves: &|_, name| name == leader,
            node: None,
        };
        let outcome = mover.hand_over(&task).await;
        match &outcome {
            Outcome::Moved(moved) => {
                (self.errand.report)(
                    false,
                    "LeaderMoved",
                    &format!("leadership moved from {} to {}", moved.from, moved.to),
                );
                Step::Next
            }
            Outcome::InProgress(rest) => Step::Busy(*rest),
            Outcome::NotNeeded(_) | Outcome::Handled | Outcome::Withdrawn => Step::Next,
            Outcome::NoTransferee { cause, .. }
            | Outcome::Rejected(cause)
            | Outcome::Failed { cause, .. } => {
                Step::Wait(format!("leadership must leave {leader} first: {cause}"))
            }
        }
    }

    /// Reserves a member, defragments it, and waits until it serves.
    async fn defragment(
        &self,
        work: &mut Work,
        (mut ledger, id, started): (Ledger, ClusterId, Instant),
        (pod, live, endpoint): (&MemberPod, &Pod, &Endpoint),
        deadline: Deadline,
    ) -> Result<Step, String> {
        let errand = &self.errand;
        let services = &errand.mover.services;
        // A dry run, because this task writes the reservation, and ends it.
        let request = Request {
            operation: Operation::Update(PodUpdate::Pause),
            namespace: errand.request.namespace.clone(),
            name: pod.name.clone(),
            pod: Some(live.clone()),
            uid: None,
            dry_run: true,
            grace_period_seconds: None,
            user: REQUESTER.to_owned(),
            selector: std::collections::BTreeMap::new(),
            owner: None,
        };
        let verdict = Box::pin(Evaluation::new(services, &request, deadline).evaluate()).await;
        // A denial that the policy overrules is one here.
        if verdict.reason != Reason::SafeToDelete {
            return Ok(Step::Wait(format!("{} must not stop now: {}", pod.name, verdict.text())));
        }
        let member = verdict.member.map(|member| member.to_string()).unwrap_or_default();
        let mut held = errand.new_reservation(pod, id, member);
        let (claim, new) = ((&mut work.claim, id), Some(held.clone()));
        if let Some(step) = errand.begin(claim, (&mut ledger, started), None, new).await? {
            return Ok(step);
        }
        let before = pod.reply.status().map(|status| status.database).unwrap_or_default();
        let text = format!("{}: {} of {} free", pod.name, mebibytes(before.free()), mebibytes(before.bytes));
        (errand.report)(false, DEFRAGMENTING, &text);
        let started = Instant::now();
        let result = {
            let member = self.defragment_member(pod, endpoint);
            tokio::pin!(member);
            loop {
                tokio::select! {
                    result = &mut member => break result,
                    () = sleep(RENEWAL_INTERVAL) => self.renew(work, id, &mut held).await,
                }
            }
        };
        let after = match result {
            Ok(after) => after,
            Err((is_at_work, cause)) => {
                // A member that may still be at work keeps its reservation until it expires.
                if !is_at_work {
                    self.replace(work, id, &held, None).await;
                }
                self.fail(work, &format!("the defragmentation of {} failed: {cause}", pod.name)).await;
                return Ok(Step::Ended);
            }
        };
        self.replace(work, id, &held, None).await;
        work.done.insert(pod.uid.clone());
        work.freed += before.bytes.saturating_sub(after.bytes);
        let text = format!(
            "{} shrank from {} to {} in {} ms",
            pod.name,
            mebibytes(before.bytes),
            mebibytes(after.bytes),
            started.elapsed().as_millis()
        );
        tracing::info!(namespace = errand.request.namespace, pod = pod.name, text, "defragmented a member");
        (errand.report)(false, DEFRAGMENTED, &text);
        Ok(Step::Next)
    }

    /// Defragments a member. Returns the size of its database once the member serves, or whether it may still be at work, and the
    /// cause.
    async fn defragment_member(
        &self,
        pod: &MemberPod,
        endpoint: &Endpoint,
    ) -> Result<DatabaseSize, (bool, String)> {
        let Errand { mover, cluster_key, .. } = self.errand;
        etcd::defragment(&mover.services.observer.connections, endpoint, MEMBER_TIMEOUT).await.map_err(
            |error| {
                let never_began = matches!(
                    error,
                    MemberError::Refused(_)
                        | MemberError::Unreachable(_)
                        | MemberError::CredentialsRejected(_)
                );
                (!never_began, error.to_string())
            },
        )?;
        let until = Instant::now() + RETURN_TIMEOUT;
        let mut cause = String::from("it did not serve in time");
        while Instant::now() < until {
            let deadline = Deadline::from_timeout(Some(STEP_TIMEOUT));
            match mover.observe(cluster_key, None, deadline).await {
                Ok((_, _, snapshot)) => match snapshot.pod(&pod.name) {
                    Some(now) if now.reply.is_healthy() => {
                        return Ok(now.reply.status().map(|status| status.database).unwrap_or_default());
                    }
                    Some(now) => cause = now.reply.cause().map(ToString::to_string).unwrap_or(cause),
                    None => return Err((false, String::from("the pod is gone"))),
                },
                Err(error) => cause = error,
            }
            sleep(PAUSE).await;
        }
        Err((false, cause))
    }

    /// Renews the reservation, unless another request has replaced it.
    async fn renew(&self, work: &mut Work, id: ClusterId, held: &mut Reservation) {
        let renewed = Reservation { at: self.errand.now(), ..held.clone() };
        if self.replace(work, id, held, Some(renewed.clone())).await {
            *held = renewed;
        }
    }

    /// Replaces this reservation by another one or by none, unless another request has replaced it. What cannot be ended expires.
    async fn replace(
        &self,
        work: &mut Work,
        id: ClusterId,
        held: &Reservation,
        new: Option<Reservation>,
    ) -> bool {
        let Errand { mover, cluster_key, .. } = self.errand;
        let deadline = Deadline::from_timeout(Some(RENEWAL_INTERVAL));
        for _ in 0..MAX_WRITES {
            let Ok(mut ledger) = mover.read_ledger(cluster_key.namespace(), deadline).await else {
                return false;
            };
            let of_pod = |known: &&Reservation| known.uid == held.uid;
            let known = ledger.active().iter().find(of_pod).cloned();
            if known.as_ref().is_some_and(|known| known.by != REQUESTER) {
                return false;
            }
            let claim = self.errand.claim(&mut work.claim, id, &mut ledger, known.as_ref(), new.clone());
            match deadline.within("writing the reservation to the API server", claim).await {
                Ok(Ok(Some(_conflict))) => {}
                written => return matches!(written, Ok(Ok(None))),
            }
        }
        false
    }

    /// Ends the NOSPACE alarms if no file is full any more, and reports the end, unless another replica has.
    async fn complete(
        &self,
        work: &Work,
        id: ClusterId,
        listed: &NamespacePods,
        snapshot: &Snapshot,
    ) -> Result<Step, String> {
        let mut text = match work.done.len() {
            0 => format!("no member of {} has at least {} free", snapshot.cluster, self.threshold()),
            1 => format!("1 member of {}, {} freed", snapshot.cluster, mebibytes(work.freed)),
            members => format!("{members} members of {}, {} freed", snapshot.cluster, mebibytes(work.freed)),
        };
        let alarmed: Vec<_> = snapshot.members_without_space().into_iter().collect();
        if let Some(cause) = full(snapshot, &alarmed, &work.done) {
            let _ = write!(text, "; the alarm NOSPACE remains: {cause}");
        } else if !alarmed.is_empty() {
            let mut healthy = snapshot.pods.iter().filter(|pod| pod.reply.is_healthy());
            let endpoint = healthy.find_map(|pod| listed.endpoint(&pod.name));
            let endpoint = endpoint.ok_or("no member answers")?;
            let connections = &self.errand.mover.services.observer.connections;
            let disarm = etcd::disarm(connections, endpoint, AlarmKind::NoSpace, &alarmed, STEP_TIMEOUT);
            disarm.await.map_err(|error| format!("the alarm NOSPACE could not be disarmed: {error}"))?;
            text.push_str("; alarm NOSPACE disarmed (if it returns, compact the history and repeat)");
        }
        if self.errand.end(id, None).await? {
            tracing::info!(cluster = snapshot.cluster, text, "defragmentation completed");
            (self.errand.report)(false, COMPLETED, &text);
        }
        Ok(Step::Ended)
    }

    fn threshold(&self) -> String {
        match self.min_free_percent {
            0 => mebibytes(DatabaseSize::MIN_FREE),
            percent => format!("{percent} % and {}", mebibytes(DatabaseSize::MIN_FREE)),
        }
    }

    async fn fail(&self, work: &Work, cause: &str) {
        let is_answered = match work.claim.cluster {
            Some(id) => matches!(self.errand.end(id, None).await, Ok(false)),
            // This replica reached no member. Another one acts.
            None => work.is_another_active,
        };
        if is_answered {
            return;
        }
        let (namespace, object) = (&self.errand.request.namespace, &self.errand.request.name);
        tracing::warn!(namespace, object, cause, "defragmentation failed");
        (self.errand.report)(true, DEFRAGMENTATION_FAILED, cause);
    }
}

/// Returns what the cluster demands: all voters must be healthy and visible, because each step stops one of them. `is_own` selects
/// the pods of the annotated object.
fn demand<'a>(
    snapshot: &'a Snapshot,
    min_free_percent: u8,
    done: &BTreeSet<String>,
    is_own: &dyn Fn(&MemberPod) -> bool,
) -> Demand<'a> {
    let Ok(membership) = Membership::new(snapshot) else {
        return Demand::Wait(format!("the members of {} are not known", snapshot.cluster));
    };
    let count = membership.voters().count();
    if count < 3 {
        return Demand::Refuse(format!(
            "{} has {count} voters and cannot spare one: use etcdctl while nobody needs it",
            snapshot.cluster
        ));
    }
    let is_unsafe = |status: &&Status| is_unsafe_to_defragment(&status.version);
    if let Some(status) = snapshot.statuses().find(is_unsafe) {
        return Demand::Refuse(format!(
            "etcd {} can corrupt its data if it crashes while it defragments: upgrade to 3.5.6 or later",
            status.version
        ));
    }
    for voter in membership.voters() {
        let name = voter.name();
        let cause = match (voter.pod, voter.departure()) {
            (None, _) => Some(format!("{name} runs in no pod of namespace {}", snapshot.namespace)),
            (Some(_), Some(departure)) => Some(format!("{name} is leaving ({})", departure.as_str())),
            (Some(_), None) if !voter.is_healthy() => Some(format!("{name} is not healthy")),
            (Some(_), None) => None,
        };
        if let Some(cause) = cause {
            return Demand::Wait(cause);
        }
    }
    let leader = membership.leadership().leader;
    let fragmented = membership.voters().filter_map(|member| {
        let pod = member.pod.filter(|pod| is_own(pod) && !done.contains(&pod.uid))?;
        let database = pod.reply.status()?.database;
        database.is_fragmented(min_free_percent).then_some((leader == Some(member.id()), &pod.name, pod))
    });
    match fragmented.min_by_key(|(leads, name, _)| (*leads, *name)) {
        Some((true, _, pod)) => Demand::Move(pod),
        Some((false, _, pod)) => Demand::Member(pod),
        None => Demand::Nothing,
    }
}

/// Returns why the alarm of these members must stay: a file is full, or was left alone.
fn full(snapshot: &Snapshot, alarmed: &[MemberId], done: &BTreeSet<String>) -> Option<String> {
    let mut with_alarm = snapshot.pods.iter().filter_map(|pod| {
        let status = pod.reply.status().filter(|status| alarmed.contains(&status.member_id))?;
        Some((pod, status.database))
    });
    with_alarm.find_map(|(pod, database)| {
        if !done.contains(&pod.uid) && database.is_fragmented(0) {
            return Some(format!("{} was left alone, repeat without a share", pod.name));
        }
        // A member that does not report its quota raises the alarm again if its file is still full.
        let is_full = database.quota > 0 && database.bytes >= database.quota;
        is_full.then(|| format!("{} is full, compact the history and repeat", pod.name))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use etcd_guard_core::{etcd::probe_result::ProbeResult, snapshot::fixture::cluster};

    const MIB: u64 = 1 << 20;

    /// Returns a cluster of three, in which each member has a file of 100 MiB with this much free space.
    fn fragmented(free: [u64; 3]) -> Snapshot {
        let mut snapshot = cluster(3);
        for (pod, free) in snapshot.pods.iter_mut().zip(free) {
            let ProbeResult::Healthy { status, .. } = &mut pod.reply else { panic!("healthy") };
            status.database = DatabaseSize { bytes: 100 * MIB, in_use: 100 * MIB - free, quota: 0 };
        }
        snapshot
    }

    fn demanded(snapshot: &Snapshot, percent: u8, done: &[&str]) -> String {
        let uid = |name: &&str| snapshot.pod(name).unwrap().uid.clone();
        match demand(snapshot, percent, &done.iter().map(uid).collect(), &|_| true) {
            Demand::Member(pod) => format!("defragment {}", pod.name),
            Demand::Move(pod) => format!("move from {}", pod.name),
            Demand::Wait(cause) | Demand::Refuse(cause) => cause,
            Demand::Nothing => String::from("nothing"),
        }
    }

    #[test]
    fn leader_is_last() {
        let snapshot = fragmented([50 * MIB; 3]);
        let leader = snapshot
            .pods
            .iter()
            .find(|pod| pod.reply.status().is_some_and(|status| status.leader == Some(status.member_id)));
        let leader = leader.unwrap().name.clone();
        let others: Vec<&str> =
            snapshot.pods.iter().map(|pod| pod.name.as_str()).filter(|name| *name != leader).collect();
        assert_eq!(demanded(&snapshot, 0, &[]), format!("defragment {}", others[0]));
        assert_eq!(demanded(&snapshot, 0, &others[..1]), format!("defragment {}", others[1]));
        assert_eq!(demanded(&snapshot, 0, &others), format!("move from {leader}"));
        assert_eq!(demanded(&snapshot, 51, &[]), "nothing");
        assert_eq!(demanded(&snapshot, 50, &others), format!("move from {leader}"));
    }

    #[test]
    fn alarm_stays_while_a_file_is_full() {
        let with_quota = |quota: u64, free: u64| {
            let mut snapshot = fragmented([free; 3]);
            for pod in &mut snapshot.pods {
                let ProbeResult::Healthy { status, .. } = &mut pod.reply else { panic!("healthy") };
                status.database.quota = quota;
            }
            snapshot
        };
        let alarmed = |snapshot: &Snapshot| vec![snapshot.pods[1].reply.status().unwrap().member_id];
        let cause = |snapshot: &Snapshot| full(snapshot, &alarmed(snapshot), &BTreeSet::new());
        let is_full = "etcd-1 is full, compact the history and repeat";
        assert_eq!(cause(&with_quota(100 * MIB, 0)).as_deref(), Some(is_full));
        assert_eq!(cause(&with_quota(101 * MIB, 0)), None);
        assert_eq!(cause(&with_quota(0, 0)), None, "no quota is known");
        assert_eq!(full(&with_quota(MIB, 0), &[], &BTreeSet::new()), None, "no alarm");
        let is_left = "etcd-1 was left alone, repeat without a share";
        assert_eq!(cause(&with_quota(0, 50 * MIB)).as_deref(), Some(is_left));
    }

    #[test]
    fn small_gain_is_no_reason() {
        assert_eq!(demanded(&fragmented([MIB - 1; 3]), 0, &[]), "nothing");
        assert!(demanded(&fragmented([MIB; 3]), 0, &[]).starts_with("defragment "));
    }

    #[test]
    fn waits_for_all_voters() {
        let mut snapshot = fragmented([50 * MIB; 3]);
        let [first, second, third] = snapshot.pods.as_mut_slice() else { panic!("three pods") };
        let leads = |pod: &MemberPod| {
            pod.reply.status().is_some_and(|status| status.leader == Some(status.member_id))
        };
        let pod = [first, second, third].into_iter().find(|pod| !leads(pod)).unwrap();
        pod.reserved = true;
        let name = pod.name.clone();
        assert_eq!(demanded(&snapshot, 0, &[]), format!("{name} is leaving (reserved)"));
        snapshot.pods.retain(|pod| pod.name != name);
        assert!(
            demanded(&snapshot, 0, &[]).contains("runs in no pod of namespace"),
            "{}",
            demanded(&snapshot, 0, &[])
        );
    }

    #[test]
    fn refuses_small_clusters_and_unsafe_releases() {
        let mut snapshot = fragmented([50 * MIB; 3]);
        let ProbeResult::Healthy { status, .. } = &mut snapshot.pods[2].reply else { panic!("healthy") };
        status.version = String::from("3.5.4");
        assert!(demanded(&snapshot, 0, &[]).starts_with("etcd 3.5.4 can corrupt its data"));
        let two = demanded(&cluster(2), 0, &[]);
        assert!(
            two.ends_with("has 2 voters and cannot spare one: use etcdctl while nobody needs it"),
            "{two}"
        );
    }
}
