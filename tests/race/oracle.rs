//! The test oracle: it knows the actual state, independent of the guard and the API server. It tracks which processes
//! run and serve, and which pods were approved for deletion and have not been replaced. It also injects all faults, so
//! that it knows every fault.

mod claim;
mod faults;

use std::{
    collections::{BTreeMap, BTreeSet},
    io::ErrorKind,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use etcd_client::{Error, GetOptions};
use futures::future::join_all;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use tokio::{
    net::TcpStream,
    sync::{Mutex, MutexGuard},
    time::{Instant, sleep, timeout},
};

pub(crate) use self::claim::{Claim, MemberState};
use crate::environment::HEALTHY_TIMEOUT;
use test_support::{
    etcd::member::{CLIENT_PORT, Member, leads},
    kubernetes::pods::{is_ready, uid},
    process_node::ProcessNode,
};

/// The longest time for a member's read. A starting member refuses connections at once; a serving member answers in
/// milliseconds, on a busy machine in seconds.
const READ_TIMEOUT: Duration = Duration::from_secs(5);

/// The pause before a read that an election interrupted is repeated.
const ELECTION_PAUSE: Duration = Duration::from_millis(50);

/// The longest time for the API server to return after a restart, and the pause between attempts.
const POD_TIMEOUT: Duration = HEALTHY_TIMEOUT;
const POD_PAUSE: Duration = Duration::from_millis(100);

/// A process that has run for less than this may not serve yet, and its status may not be reported yet.
const STARTUP_TIME: Duration = Duration::from_secs(2);

/// The time after which an unused approval is never used; the guard's reservations last as long.
const APPROVAL_TTL: Duration = Duration::from_secs(60);

/// The actual state of the cluster.
pub(crate) struct Oracle {
    pub(crate) names: Vec<String>,
    namespace: String,
    node: Arc<ProcessNode>,
    pods: Api<Pod>,
    state: Mutex<State>,
    has_violations: AtomicBool,
}

/// The faults and approvals so far.
#[derive(Default)]
struct State {
    /// Pods whose deletion or restart was approved and that have not been replaced or restarted.
    departures: BTreeMap<String, Departure>,
    /// Frozen pods with their uids.
    frozen: BTreeMap<String, String>,
    /// The last fault of each member.
    faults: BTreeMap<String, Fault>,
    /// StatefulSets whose deletion the test itself permits by a break-glass.
    permitted: BTreeSet<String>,
    violations: Vec<String>,
    checked: u32,
    /// Approvals for pods whose state is unknown. A stress test with any of them proves nothing.
    unchecked: u32,
}

/// An approval.
pub(crate) struct Approval<'a> {
    pub(crate) name: &'a str,
    /// The uid of the pod at the time of the request.
    pub(crate) uid: &'a str,
    /// Whether the request had no uid, so that it may apply to a successor.
    pub(crate) is_by_name: bool,
    /// Whether the request restarts the container, and the pod remains.
    pub(crate) is_restart: bool,
    pub(crate) requested_at: Instant,
    pub(crate) claim: Claim,
    /// The audit annotations or another note for the report.
    pub(crate) note: &'a str,
}

/// The API server did not answer in time.
struct Unknown;

struct Departure {
    uid: String,
    /// The time of the last approved request; the guard's own reservation starts a moment later.
    requested_at: Instant,
    /// Whether its owner was deleted, so that the garbage collector deletes the pod at any later time.
    is_cascade: bool,
    /// Whether the pod remains, and only its container restarts.
    is_restart: bool,
}

struct Fault {
    at: Instant,
    /// Whether the member served before the fault.
    served: bool,
}

impl Oracle {
    pub(crate) fn new(names: Vec<String>, namespace: String, node: Arc<ProcessNode>, pods: Api<Pod>) -> Self {
        Self { names, namespace, node, pods, state: Mutex::default(), has_violations: AtomicBool::new(false) }
    }

    /// Returns the uid of a member's pod, if the pod exists.
    pub(crate) async fn uid(&self, name: &str) -> Option<String> {
        if !self.names.iter().any(|member| member == name) {
            return None;
        }
        self.pod(name).await.ok()??.metadata.uid
    }

    /// Returns a pod, if it exists. An unreachable API server is retried, because it is always restarted.
    async fn pod(&self, name: &str) -> Result<Option<Pod>, Unknown> {
        let end = Instant::now() + POD_TIMEOUT;
        loop {
            match self.pods.get_opt(name).await {
                Ok(pod) => return Ok(pod),
                Err(_) if Instant::now() > end => return Err(Unknown),
                Err(_) => sleep(POD_PAUSE).await,
            }
        }
    }

    /// Checks an approval before the API server receives it.
    pub(crate) async fn check(&self, yes: &Approval<'_>) {
        if !self.names.iter().any(|member| member == yes.name) {
            return;
        }
        let mut state = self.state.lock().await;
        let pod = match self.pod(yes.name).await {
            Ok(Some(pod)) => pod,
            Ok(None) => return,
            Err(Unknown) => {
                state.unchecked += 1;
                return;
            }
        };
        let is_target = yes.uid == uid(&pod) || (yes.is_by_name && yes.claim == Claim::Quorum);
        if !is_target || pod.metadata.deletion_timestamp.is_some() {
            // The pod is already terminating, or has been deleted.
            return;
        }
        let serving = self.serving(&mut state).await;
        let ran = self.ran_before(yes.name, yes.requested_at);
        let serves = serving.iter().any(|member| member == yes.name);
        let state_before = MemberState { ran, listens: serves || self.listens(yes.name).await, serves };
        self.evaluate(&mut state, yes, uid(&pod), &serving, state_before).await;
    }

    /// Checks an approval that has taken effect already, given the member's state before the request.
    pub(crate) async fn check_completed(&self, yes: &Approval<'_>, state_before: MemberState) {
        let mut state = self.state.lock().await;
        let serving = self.serving(&mut state).await;
        self.evaluate(&mut state, yes, yes.uid, &serving, state_before).await;
    }

    /// Returns the uid of a member's pod and the state of the member.
    pub(crate) async fn state_before(&self, name: &str) -> Option<(String, MemberState)> {
        let uid = self.pods.get_opt(name).await.ok()??.metadata.uid?;
        let ran = self.ran_before(name, Instant::now());
        let (listens, serves) = tokio::join!(self.listens(name), self.reads(name));
        Some((uid, MemberState { ran, listens, serves }))
    }

    async fn evaluate(
        &self,
        state: &mut MutexGuard<'_, State>,
        yes: &Approval<'_>,
        uid: &str,
        serving: &[String],
        state_before: MemberState,
    ) {
        let Approval { name, requested_at, note, .. } = *yes;
        if let Some(departures) = state.departures.get_mut(name).filter(|departures| departures.uid == uid) {
            departures.requested_at = requested_at;
            departures.is_restart &= yes.is_restart;
            return;
        }
        // A fault after the request was received is not the guard's responsibility.
        let excused = |member: &String| {
            state.faults.get(member).is_some_and(|fault| fault.at > requested_at && fault.served)
        };
        let counts = |member: &&String| serving.contains(member) || excused(member);
        let left: Vec<&String> = self.names.iter().filter(counts).collect();
        let terminating = self.terminating().await;
        let leaves = |member: &String| {
            member == name || state.departures.contains_key(member) || terminating.contains(member)
        };
        let left: Vec<&String> = left.into_iter().filter(|member| !leaves(member)).collect();
        let quorum = self.names.len() / 2 + 1;
        let is_violation = left.len() < quorum && yes.claim.requires_quorum(state_before);
        let since = |(name, departures): (&String, &Departure)| {
            format!("{name} since {:?}", departures.requested_at.elapsed())
        };
        let departures: Vec<String> = state.departures.iter().map(since).collect();
        state.checked += 1;
        if is_violation {
            let fault = |(name, fault): (&String, &Fault)| {
                format!("{name} {:?} ago, served: {}", fault.at.elapsed(), fault.served)
            };
            let faults: Vec<String> = state.faults.iter().map(fault).collect();
            let pods: Vec<String> = join_all(self.names.iter().map(|member| self.state(member))).await;
            let violation = format!(
                "{name} was approved with {left:?} left, quorum {quorum}; serving: {serving:?}; approved before: {departures:?}; \
                 terminating: {terminating:?}; frozen: {:?}; requested {:?} ago, {note}; last faults: {faults:?}; pods: {pods:?}",
                state.frozen.keys(),
                requested_at.elapsed()
            );
            eprintln!("stress test: loss: {violation}");
            state.violations.push(violation);
            self.has_violations.store(true, Ordering::Relaxed);
        }
        let departure =
            Departure { uid: uid.to_owned(), requested_at, is_cascade: false, is_restart: yes.is_restart };
        state.departures.insert(name.to_owned(), departure);
    }

    /// Returns the members whose pod is terminating, also if no approval is known.
    async fn terminating(&self) -> Vec<String> {
        let is_terminating = async |name: &String| {
            let pod = self.pods.get_opt(name).await.ok().flatten()?;
            pod.metadata.deletion_timestamp.is_some().then(|| name.clone())
        };
        join_all(self.names.iter().map(is_terminating)).await.into_iter().flatten().collect()
    }

    /// Permits the deletion of a StatefulSet, whose member counts as departed from the approval until its successor serves.
    pub(crate) async fn permit_deletion(&self, set: &str) {
        self.state.lock().await.permitted.insert(set.to_owned());
    }

    /// Ends [`Self::permit_deletion`], when the StatefulSet is gone.
    pub(crate) async fn forbid_deletion(&self, set: &str) {
        self.state.lock().await.permitted.remove(set);
    }

    /// Checks the approved deletion of a StatefulSet, which must have no member that ran at the time of the request, unless
    /// the test permits the deletion.
    pub(crate) async fn check_owner(&self, name: &str, requested_at: Instant, note: &str) {
        let mut state = self.state.lock().await;
        let is_own = |member: &&String| member.rsplit_once('-').is_some_and(|(set, _)| set == name);
        if state.permitted.contains(name) {
            for member in self.names.iter().filter(is_own) {
                let Some(uid) = self.uid(member).await else { continue };
                state.departures.insert(
                    member.clone(),
                    Departure { uid, requested_at, is_cascade: true, is_restart: false },
                );
            }
            return;
        }
        let runs = |member: &String| self.ran_before(member, requested_at);
        if !self.names.iter().filter(is_own).any(runs) {
            return;
        }
        let violation = format!("the deletion of StatefulSet {name} was approved: {note}");
        eprintln!("stress test: loss: {violation}");
        state.violations.push(violation);
        self.has_violations.store(true, Ordering::Relaxed);
    }

    /// Whether every member serves in a pod that is ready and not terminating.
    pub(crate) async fn is_healthy(&self) -> bool {
        let mut state = self.state.lock().await;
        if self.serving(&mut state).await.len() < self.names.len() {
            return false;
        }
        drop(state);
        let stays = async |name: &String| {
            let Ok(Some(pod)) = self.pods.get_opt(name).await else { return false };
            let runs = self.running_uid(name);
            pod.metadata.deletion_timestamp.is_none()
                && is_ready(&pod)
                && runs.as_deref() == pod.metadata.uid.as_deref()
        };
        join_all(self.names.iter().map(stays)).await.into_iter().all(|stays| stays)
    }

    pub(crate) fn has_violations(&self) -> bool {
        self.has_violations.load(Ordering::Relaxed)
    }

    /// Returns the violations, the number of checked approvals, and the number of approvals for pods in an unknown
    /// state.
    pub(crate) async fn violations(&self) -> (Vec<String>, u32, u32) {
        let state = self.state.lock().await;
        (state.violations.clone(), state.checked, state.unchecked)
    }

    /// Whether this member is the leader.
    pub(crate) async fn leads(&self, name: &str) -> bool {
        self.member(name).status().await.is_some_and(|status| leads(&status))
    }

    pub(crate) fn member(&self, name: &str) -> Member {
        Member::at(self.node.address(&self.namespace, name))
    }

    /// Returns the members that serve now, and removes replaced pods and restarted members from the departures.
    async fn serving(&self, state: &mut MutexGuard<'_, State>) -> Vec<String> {
        let frozen = &state.frozen;
        let serves = async |name: &String| {
            let (uid, since) = self.node.running_since(&self.namespace, name)?;
            let is_frozen = frozen.get(name) == Some(&uid);
            (!is_frozen && self.reads(name).await).then(|| (name.clone(), uid, since))
        };
        let serving: Vec<(String, String, Instant)> =
            join_all(self.names.iter().map(serves)).await.into_iter().flatten().collect();
        state.departures.retain(|name, departures| {
            !serving.iter().any(|(member, uid, since)| member == name && departures.is_over(uid, *since))
        });
        let old = state
            .departures
            .iter()
            .filter(|(_, departures)| departures.requested_at.elapsed() >= APPROVAL_TTL);
        let old: Vec<String> = old.map(|(name, _)| name.clone()).collect();
        for name in old {
            let Ok(pod) = self.pods.get_opt(&name).await else { continue };
            state
                .departures
                .retain(|member, departures| *member != name || !departures.is_unused(pod.as_ref()));
        }
        serving.into_iter().map(|(name, ..)| name).collect()
    }

    /// Describes a pod and its process for the report.
    async fn state(&self, name: &str) -> String {
        let running = self.node.running_since(&self.namespace, name);
        let process = running.map(|(uid, since)| format!("{uid} since {:?}", since.elapsed()));
        let Ok(Some(pod)) = self.pods.get_opt(name).await else {
            return format!("{name} does not exist, runs {process:?}");
        };
        let metadata = &pod.metadata;
        let (uid, created, deleted) = (uid(&pod), &metadata.creation_timestamp, &metadata.deletion_timestamp);
        format!("{name} {uid} of {created:?}, deleted {deleted:?}, runs {process:?}")
    }

    /// Whether the process had run long enough at that time to serve.
    fn ran_before(&self, name: &str, requested_at: Instant) -> bool {
        let running = self.node.running_since(&self.namespace, name);
        running.is_some_and(|(_, since)| since + STARTUP_TIME < requested_at)
    }

    fn running_uid(&self, name: &str) -> Option<String> {
        self.node.running_since(&self.namespace, name).map(|(uid, _)| uid)
    }

    /// Whether the member does not refuse connections.
    async fn listens(&self, name: &str) -> bool {
        let address = (self.node.address(&self.namespace, name), CLIENT_PORT);
        let connected = timeout(READ_TIMEOUT, TcpStream::connect(address)).await;
        !matches!(connected, Ok(Err(error)) if error.kind() == ErrorKind::ConnectionRefused)
    }

    /// Whether a linearizable read at the member succeeds. A read that an election interrupted is repeated, because the
    /// member serves as soon as there is a leader. A starting member refuses connections.
    async fn reads(&self, name: &str) -> bool {
        let read = async {
            let mut client = self.member(name).client().await?;
            loop {
                match client.get("health", Some(GetOptions::new().with_count_only())).await {
                    Err(Error::GRpcStatus(status)) if status.message().contains("leader") => {
                        sleep(ELECTION_PAUSE).await;
                    }
                    result => return result,
                }
            }
        };
        matches!(timeout(READ_TIMEOUT, read).await, Ok(Ok(_)))
    }
}

impl Departure {
    /// Whether the member has returned: it serves in the pod with this uid, and its process started at this time.
    fn is_over(&self, uid: &str, since: Instant) -> bool {
        uid != self.uid || (self.is_restart && since > self.requested_at)
    }

    /// Whether the pod shows that an expired approval was never used. A terminating or deleted pod counts as departed
    /// until its successor serves.
    fn is_unused(&self, pod: Option<&Pod>) -> bool {
        let is_unchanged = |pod: &Pod| uid(pod) == self.uid && pod.metadata.deletion_timestamp.is_none();
        !self.is_cascade && pod.is_some_and(is_unchanged)
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};

    use super::*;

    #[test]
    fn expired_approval_of_unchanged_pod_is_unused() {
        let mut departures = Departure {
            uid: String::from("a"),
            requested_at: Instant::now(),
            is_cascade: false,
            is_restart: false,
        };
        let pod = |uid: &str, is_terminating: bool| {
            let mut pod = Pod::default();
            pod.metadata.uid = Some(uid.to_owned());
            pod.metadata.deletion_timestamp = is_terminating.then_some(Time(Timestamp::UNIX_EPOCH));
            pod
        };
        assert!(departures.is_unused(Some(&pod("a", false))));
        assert!(!departures.is_unused(Some(&pod("a", true))), "the pod may use its grace period");
        assert!(!departures.is_unused(Some(&pod("b", false))), "its successor has not served yet");
        assert!(!departures.is_unused(None), "its successor does not exist yet");
        departures.is_cascade = true;
        assert!(!departures.is_unused(Some(&pod("a", false))), "the garbage collector deletes the pod");
    }
}
