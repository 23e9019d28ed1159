//! What is true, whatever the guard or the apiserver think: which processes run and serve, and which pods were allowed to
//! go and are not back. Faults are injected here, so that none happens unknown.

#[path = "truth/faults.rs"]
mod faults;
#[path = "truth/grounds.rs"]
mod grounds;

use std::{
    collections::BTreeMap,
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

pub(crate) use self::grounds::{Before, Grounds};
use crate::{
    scene::WHOLE_LIMIT,
    support::{
        member::{CLIENT_PORT, Member, leads},
        pods::{is_ready, uid},
        process_node::ProcessNode,
    },
};

/// Longest that a member's read may take. One that starts refuses connections at once; one that serves answers in
/// milliseconds, on a busy machine in seconds.
const READ_LIMIT: Duration = Duration::from_secs(5);

/// Pause before a read that an election cut short is begun again.
const ELECTION_PAUSE: Duration = Duration::from_millis(50);

/// Longest that an apiserver may take to be back, as long as whoever killed it waits, and the pause between two tries.
const POD_LIMIT: Duration = WHOLE_LIMIT;
const POD_PAUSE: Duration = Duration::from_millis(100);

/// A process that runs for less than this may not serve yet, and its kubelet may not have said that it runs.
const STARTING: Duration = Duration::from_secs(2);

/// How long a yes may take to become visible, after which it will not (the guard's own promise).
const YES_LIFE: Duration = Duration::from_secs(60);

/// The cluster as it is.
pub(crate) struct Truth {
    pub(crate) names: Vec<String>,
    namespace: String,
    node: Arc<ProcessNode>,
    pods: Api<Pod>,
    known: Mutex<Known>,
    has_losses: AtomicBool,
}

/// What was done and allowed so far.
#[derive(Default)]
struct Known {
    /// Pods that were allowed to go and are not back.
    out: BTreeMap<String, Out>,
    /// Frozen pods with their uids.
    frozen: BTreeMap<String, String>,
    /// Members to which something was done last.
    faults: BTreeMap<String, Fault>,
    losses: Vec<String>,
    judged: u32,
    /// Yeses for pods of which nothing could be found out. A storm that has any proves nothing.
    unjudged: u32,
}

/// A yes, as it was given.
pub(crate) struct Yes<'a> {
    pub(crate) name: &'a str,
    /// Of the pod that was there when it was asked for.
    pub(crate) uid: &'a str,
    /// Whether the question named no uid, so that it may have been about the successor.
    pub(crate) is_by_name: bool,
    pub(crate) asked: Instant,
    pub(crate) grounds: Grounds,
    /// What was told with it, for people.
    pub(crate) told: &'a str,
}

/// The apiserver did not tell.
struct Unknown;

struct Out {
    uid: String,
    /// When the last yes for it was asked for; the guard counts from a moment later.
    asked: Instant,
}

struct Fault {
    at: Instant,
    /// Whether the member served until then.
    served: bool,
}

impl Truth {
    pub(crate) fn new(names: Vec<String>, namespace: String, node: Arc<ProcessNode>, pods: Api<Pod>) -> Self {
        Self { names, namespace, node, pods, known: Mutex::default(), has_losses: AtomicBool::new(false) }
    }

    /// The uid of the member's pod of this name, if there is one.
    pub(crate) async fn uid(&self, name: &str) -> Option<String> {
        if !self.names.iter().any(|it| it == name) {
            return None;
        }
        self.pod(name).await.ok()??.metadata.uid
    }

    /// The pod of this name, if there is one: whatever happens to the apiserver, it comes back.
    async fn pod(&self, name: &str) -> Result<Option<Pod>, Unknown> {
        let end = Instant::now() + POD_LIMIT;
        loop {
            match self.pods.get_opt(name).await {
                Ok(pod) => return Ok(pod),
                Err(_) if Instant::now() > end => return Err(Unknown),
                Err(_) => sleep(POD_PAUSE).await,
            }
        }
    }

    /// Judges a yes before anybody hears of it.
    pub(crate) async fn judge(&self, yes: &Yes<'_>) {
        if !self.names.iter().any(|it| it == yes.name) {
            return;
        }
        let mut known = self.known.lock().await;
        let pod = match self.pod(yes.name).await {
            Ok(Some(pod)) => pod,
            Ok(None) => return,
            Err(Unknown) => {
                known.unjudged += 1;
                return;
            }
        };
        let is_meant = yes.uid == uid(&pod) || (yes.is_by_name && yes.grounds == Grounds::Quorum);
        if !is_meant || pod.metadata.deletion_timestamp.is_some() {
            // It goes already, or went.
            return;
        }
        let serving = self.serving(&mut known).await;
        let ran = self.ran_before(yes.name, yes.asked);
        let serves = serving.iter().any(|it| it == yes.name);
        let before = Before { ran, listens: serves || self.listens(yes.name).await, serves };
        self.weigh(&mut known, yes, uid(&pod), &serving, before).await;
    }

    /// Judges a yes that was carried out already, where nobody could be asked in between. What the member was like before
    /// has to be told.
    pub(crate) async fn judge_done(&self, yes: &Yes<'_>, before: Before) {
        let mut known = self.known.lock().await;
        let serving = self.serving(&mut known).await;
        self.weigh(&mut known, yes, yes.uid, &serving, before).await;
    }

    /// The uid of the member's pod, and what that member is like.
    pub(crate) async fn before(&self, name: &str) -> Option<(String, Before)> {
        let uid = self.pods.get_opt(name).await.ok()??.metadata.uid?;
        let ran = self.ran_before(name, Instant::now());
        let (listens, serves) = tokio::join!(self.listens(name), self.reads(name));
        Some((uid, Before { ran, listens, serves }))
    }

    async fn weigh(
        &self,
        known: &mut MutexGuard<'_, Known>,
        yes: &Yes<'_>,
        uid: &str,
        serving: &[String],
        before: Before,
    ) {
        let Yes { name, asked, told, .. } = *yes;
        if let Some(out) = known.out.get_mut(name).filter(|out| out.uid == uid) {
            out.asked = asked;
            return;
        }
        // What was done to a member while the guard looked is not charged to the guard.
        let excused =
            |it: &String| known.faults.get(it).is_some_and(|fault| fault.at > asked && fault.served);
        let counts = |it: &&String| serving.contains(it) || excused(it);
        let left: Vec<&String> = self.names.iter().filter(counts).collect();
        let left: Vec<&String> =
            left.into_iter().filter(|it| *it != name && !known.out.contains_key(*it)).collect();
        let quorum = self.names.len() / 2 + 1;
        let is_loss = left.len() < quorum && yes.grounds.need_a_quorum(before);
        let since = |(name, out): (&String, &Out)| format!("{name} since {:?}", out.asked.elapsed());
        let out: Vec<String> = known.out.iter().map(since).collect();
        known.judged += 1;
        if is_loss {
            let fault = |(name, it): (&String, &Fault)| {
                format!("{name} {:?} ago, served: {}", it.at.elapsed(), it.served)
            };
            let faults: Vec<String> = known.faults.iter().map(fault).collect();
            let pods: Vec<String> = join_all(self.names.iter().map(|it| self.state(it))).await;
            let loss = format!(
                "{name} was allowed to go with {left:?} left, quorum {quorum}; serving: {serving:?}; on the way: {out:?}; \
                 frozen: {:?}; asked {:?} ago, told: {told}; last faults: {faults:?}; pods: {pods:?}",
                known.frozen.keys(),
                asked.elapsed()
            );
            eprintln!("storm: loss: {loss}");
            known.losses.push(loss);
            self.has_losses.store(true, Ordering::Relaxed);
        }
        known.out.insert(name.to_owned(), Out { uid: uid.to_owned(), asked });
    }

    /// Whether every member serves, in a pod that stays.
    pub(crate) async fn is_whole(&self) -> bool {
        let mut known = self.known.lock().await;
        if self.serving(&mut known).await.len() < self.names.len() {
            return false;
        }
        drop(known);
        let stays = async |name: &String| {
            let Ok(Some(pod)) = self.pods.get_opt(name).await else { return false };
            let runs = self.running_uid(name);
            pod.metadata.deletion_timestamp.is_none()
                && is_ready(&pod)
                && runs.as_deref() == pod.metadata.uid.as_deref()
        };
        join_all(self.names.iter().map(stays)).await.into_iter().all(|stays| stays)
    }

    pub(crate) fn has_losses(&self) -> bool {
        self.has_losses.load(Ordering::Relaxed)
    }

    /// What was lost, how many yeses were judged, and of how many too little could be found out.
    pub(crate) async fn losses(&self) -> (Vec<String>, u32, u32) {
        let known = self.known.lock().await;
        (known.losses.clone(), known.judged, known.unjudged)
    }

    /// Whether the member of this name leads.
    pub(crate) async fn leads(&self, name: &str) -> bool {
        self.member(name).status().await.is_some_and(|it| leads(&it))
    }

    pub(crate) fn member(&self, name: &str) -> Member {
        Member::at(self.node.address(&self.namespace, name))
    }

    /// The members that serve now. Takes note of those that are back.
    async fn serving(&self, known: &mut MutexGuard<'_, Known>) -> Vec<String> {
        let frozen = &known.frozen;
        let serves = async |name: &String| {
            let uid = self.running_uid(name)?;
            let is_frozen = frozen.get(name) == Some(&uid);
            (!is_frozen && self.reads(name).await).then(|| (name.clone(), uid))
        };
        let serving: Vec<(String, String)> =
            join_all(self.names.iter().map(serves)).await.into_iter().flatten().collect();
        known.out.retain(|name, out| !serving.iter().any(|(it, uid)| it == name && *uid != out.uid));
        let old = known.out.iter().filter(|(_, out)| out.asked.elapsed() >= YES_LIFE);
        let old: Vec<String> = old.map(|(name, _)| name.clone()).collect();
        for name in old {
            let Ok(pod) = self.pods.get_opt(&name).await else { continue };
            known.out.retain(|it, out| *it != name || !out.was_not_used(pod.as_ref()));
        }
        serving.into_iter().map(|(name, _)| name).collect()
    }

    /// A pod and its process, for people.
    async fn state(&self, name: &str) -> String {
        let running = self.node.running_since(&self.namespace, name);
        let process = running.map(|(uid, since)| format!("{uid} since {:?}", since.elapsed()));
        let Ok(Some(pod)) = self.pods.get_opt(name).await else {
            return format!("{name} is gone, runs {process:?}");
        };
        let metadata = &pod.metadata;
        let (uid, created, deleted) = (uid(&pod), &metadata.creation_timestamp, &metadata.deletion_timestamp);
        format!("{name} {uid} of {created:?}, deleted {deleted:?}, runs {process:?}")
    }

    /// Whether its process may have served at that time.
    fn ran_before(&self, name: &str, asked: Instant) -> bool {
        let running = self.node.running_since(&self.namespace, name);
        running.is_some_and(|(_, since)| since + STARTING < asked)
    }

    fn running_uid(&self, name: &str) -> Option<String> {
        self.node.running_since(&self.namespace, name).map(|(uid, _)| uid)
    }

    /// Whether it refuses no connections.
    async fn listens(&self, name: &str) -> bool {
        let address = (self.node.address(&self.namespace, name), CLIENT_PORT);
        let connected = timeout(READ_LIMIT, TcpStream::connect(address)).await;
        !matches!(connected, Ok(Err(error)) if error.kind() == ErrorKind::ConnectionRefused)
    }

    /// A linearizable read at the member itself. One that an election cuts short is begun again: the member serves as
    /// soon as there is a leader. One that starts refuses connections.
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
        matches!(timeout(READ_LIMIT, read).await, Ok(Ok(_)))
    }
}

impl Out {
    /// Of a yes that is too old to be carried out any more: whether it never was. A pod that is on its way, or gone, is out
    /// until its successor serves.
    fn was_not_used(&self, pod: Option<&Pod>) -> bool {
        pod.is_some_and(|pod| uid(pod) == self.uid && pod.metadata.deletion_timestamp.is_none())
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};

    use super::*;

    #[test]
    fn only_a_pod_that_stayed_is_no_longer_out_when_its_yes_is_old() {
        let out = Out { uid: String::from("a"), asked: Instant::now() };
        let pod = |uid: &str, is_going: bool| {
            let mut pod = Pod::default();
            pod.metadata.uid = Some(uid.to_owned());
            pod.metadata.deletion_timestamp = is_going.then_some(Time(Timestamp::UNIX_EPOCH));
            pod
        };
        assert!(out.was_not_used(Some(&pod("a", false))));
        assert!(!out.was_not_used(Some(&pod("a", true))), "it may take its grace period");
        assert!(!out.was_not_used(Some(&pod("b", false))), "its successor has not served yet");
        assert!(!out.was_not_used(None), "its successor is not there yet");
    }
}
