//! What is true, whatever the guard or the apiserver think: which processes run and serve, and which pods were allowed to
//! go and are not back. Faults are injected here, so that none happens unknown.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use etcd_client::{Error, GetOptions};
use futures::future::join_all;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use tokio::{
    sync::{Mutex, MutexGuard},
    time::{Instant, sleep, timeout},
};

use crate::support::{
    member::Member,
    pods::{is_ready, uid},
    process_node::{Order, ProcessNode},
};

/// Longest that a member's read may take. One that starts refuses connections at once; one that serves answers in
/// milliseconds, on a busy machine in seconds.
const READ_LIMIT: Duration = Duration::from_secs(5);

/// Pause before a read that an election cut short is begun again.
const ELECTION_PAUSE: Duration = Duration::from_millis(50);

/// Reasons of a yes that needs no quorum, because the pod serves nothing or is gone.
const COSTS_NOTHING: [&str; 4] = ["MemberNotServing", "PodGone", "AlreadyTerminating", "PodFinished"];

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
}

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
        Self { names, namespace, node, pods, known: Mutex::default() }
    }

    /// The uid of the member's pod of this name, if there is one.
    pub(crate) async fn uid(&self, name: &str) -> Option<String> {
        if !self.names.iter().any(|it| it == name) {
            return None;
        }
        self.pods.get_opt(name).await.ok()??.metadata.uid
    }

    /// Judges a yes for this pod, which was asked for at that time. What the guard told with it is for people.
    pub(crate) async fn judge(&self, name: &str, asked_uid: &str, asked: Instant, reason: &str, told: &str) {
        if !self.names.iter().any(|it| it == name) {
            return;
        }
        let mut known = self.known.lock().await;
        let Ok(Some(pod)) = self.pods.get_opt(name).await else { return };
        let uid = uid(&pod).to_owned();
        if asked_uid != uid || pod.metadata.deletion_timestamp.is_some() {
            // It goes already, or went.
            return;
        }
        let serving = self.serving(&mut known).await;
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
        // A member that served nothing when the guard looked costs no quorum.
        let served = self
            .node
            .running_since(&self.namespace, name)
            .is_some_and(|(_, since)| since + STARTING < asked && serving.iter().any(|it| it == name));
        let costs_nothing = COSTS_NOTHING.contains(&reason) && !served;
        let is_loss = left.len() < quorum && !costs_nothing;
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
                "{name} was allowed to go ({reason}) with {left:?} left, quorum {quorum}; serving: {serving:?}; on the \
                 way: {out:?}; frozen: {:?}; asked {:?} ago, told: {told}; last faults: {faults:?}; pods: {pods:?}",
                known.frozen.keys(),
                asked.elapsed()
            );
            known.losses.push(loss);
        }
        known.out.insert(name.to_owned(), Out { uid, asked });
    }

    /// Kills or freezes the process of a pod that is not on its way out; whether it did.
    pub(crate) async fn fault(&self, name: &str, order: Order) -> bool {
        let mut known = self.known.lock().await;
        let serving = self.serving(&mut known).await;
        let Some(uid) = self.running_uid(name) else { return false };
        if known.out.contains_key(name) || known.frozen.contains_key(name) {
            return false;
        }
        let served = serving.iter().any(|it| it == name);
        if !self.node.try_order(&self.namespace, name, order).await {
            return false;
        }
        // Until the order was carried out the member may have answered: on a busy machine that takes a while.
        known.faults.insert(name.to_owned(), Fault { at: Instant::now(), served });
        if order == Order::Pause {
            known.frozen.insert(name.to_owned(), uid);
        }
        true
    }

    /// Lets a frozen process go on.
    pub(crate) async fn thaw(&self, name: &str) {
        let mut known = self.known.lock().await;
        if known.frozen.remove(name).is_some() {
            // It may have been replaced meanwhile.
            self.node.try_order(&self.namespace, name, Order::Resume).await;
        }
    }

    /// The pods that are not on their way out, and to which nothing was done that lasts. A yes for a pod that just starts
    /// is often not carried out: its status changes meanwhile, the apiserver asks again, and gets a no.
    pub(crate) async fn present(&self) -> Vec<String> {
        let known = self.known.lock().await;
        let starts = |it: &String| known.faults.get(it).is_some_and(|fault| fault.at.elapsed() < STARTING);
        let is_present =
            |it: &&String| !known.out.contains_key(*it) && !known.frozen.contains_key(*it) && !starts(it);
        self.names.iter().filter(is_present).cloned().collect()
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

    /// What was lost, and how many yeses were judged.
    pub(crate) async fn losses(&self) -> (Vec<String>, u32) {
        let known = self.known.lock().await;
        (known.losses.clone(), known.judged)
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
        known.out.retain(|name, out| {
            let is_back = serving.iter().any(|(it, uid)| it == name && *uid != out.uid);
            !is_back && out.asked.elapsed() < YES_LIFE
        });
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

    fn running_uid(&self, name: &str) -> Option<String> {
        self.node.running_since(&self.namespace, name).map(|(uid, _)| uid)
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
