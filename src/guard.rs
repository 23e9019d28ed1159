//! The validating path: may this pod of an etcd cluster be deleted now?
//!
//! Request -> pods and members as they are -> [`assess`] (pure) -> reservation -> verdict. The cache says no, never
//! yes: a look at the cluster that is up to a second old may deny, but every yes rests on a round of its own.

pub mod assess;
mod credentials;
mod deadline;
pub mod elsewhere;
mod etcd_pod;
mod explain;
mod family;
mod identity;
mod ledger;
mod metrics;
mod request;
mod round;
pub mod snapshot;
mod storage;
mod verdict;

use std::{sync::Arc, time::Duration};

use moka::sync::Cache;
use tokio::{sync::Mutex, time::Instant};

use self::{
    credentials::Credentials,
    deadline::TooLate,
    etcd_pod::EtcdPod,
    family::Family,
    ledger::Ledger,
    snapshot::{Elsewhere, MemberPod, Snapshot, Storage},
};
pub use self::{
    deadline::Deadline,
    metrics::Metrics,
    request::{Operation, Request, RequestError},
    verdict::{Reason, Refusal, Verdict},
};
use crate::{
    etcd::{Connections, Reply},
    k8s::{LookupError, Pods, Secrets, pod::Pod},
};

/// How long a look at a cluster may deny. A burst of deletions is answered from one round; whoever follows the advice
/// of a denial is judged by a new one.
const SNAPSHOT_LIFE: Duration = Duration::from_millis(500);

/// How long a cluster's turn and ledger are kept after their last use; longer than any reservation lives.
const CLUSTER_LIFE: Duration = Duration::from_secs(600);

/// More clusters than any guard looks after; a bound against made-up ones.
const MOST_CLUSTERS: u64 = 4096;

/// What is kept of the time that the apiserver gives, to put an answer together.
const ANSWER_SHARE: Duration = Duration::from_millis(100);

/// Judges deletions of pods.
pub struct Guard {
    pods: Pods,
    credentials: Credentials,
    connections: Connections,
    /// One decision at a time per cluster, with what the earlier ones allowed.
    turns: Cache<Family, Arc<Mutex<Ledger>>>,
    /// The last look at each cluster.
    looks: Cache<Family, Arc<Snapshot>>,
    metrics: Metrics,
}

/// Why there is no look at a cluster.
enum NoLook {
    Lookup(LookupError),
    TooLate(TooLate),
    /// The pod changed while it was judged: it is gone, or its deletion was accepted.
    Settled(Verdict),
}

// === impl Guard ===

impl Guard {
    /// A guard that reads pods through `pods`, and what their members ask of clients through `secrets`.
    #[must_use]
    pub fn new(pods: Pods, secrets: Secrets, metrics: Metrics) -> Self {
        let turns = Cache::builder().max_capacity(MOST_CLUSTERS).time_to_idle(CLUSTER_LIFE).build();
        let looks = Cache::builder().max_capacity(MOST_CLUSTERS).time_to_live(SNAPSHOT_LIFE).build();
        let (credentials, connections) = (Credentials::new(secrets), Connections::new());
        Self { pods, credentials, connections, turns, looks, metrics }
    }

    /// The verdict on a request, in any case before the deadline.
    pub async fn judge(&self, request: &Request, deadline: Deadline) -> Verdict {
        let verdict = match self.pod_of(request, deadline).await {
            Ok(pod) => match settled(&pod) {
                Some(verdict) => Ok(verdict),
                None => self.judge_pod(request, &pod, deadline).await,
            },
            Err(no_look) => Err(no_look),
        };
        verdict.unwrap_or_else(|no_look| no_look.verdict(request))
    }

    async fn judge_pod(&self, request: &Request, pod: &Pod, deadline: Deadline) -> Result<Verdict, NoLook> {
        if etcd_pod::read(pod, &pod.metadata.annotations).is_none() {
            return Ok(Verdict::new(Reason::NotEtcd, format!("pod {} runs no etcd", pod.metadata.name)));
        }
        let family = Family::of(&request.namespace, pod);
        if let Some(denial) = self.denial_from_last_look(&family, &request.name) {
            return Ok(denial);
        }
        let turn = self.turns.get_with_by_ref(&family, Arc::default);
        let mut ledger = deadline.within("waiting for other deletions of this cluster", turn.lock()).await?;
        // Whoever had the turn before may have looked just now.
        if let Some(denial) = self.denial_from_last_look(&family, &request.name) {
            return Ok(denial);
        }
        let mut snapshot = self.look(&family, request, &mut ledger, deadline).await?;
        let Some(target) = snapshot.pod(&request.name) else {
            let text = format!(
                "pod {} changed its owner or its labels while it was judged. Try again",
                request.name
            );
            return Ok(Verdict::new(Reason::LookupFailed, text));
        };
        let assessment = assess::assess(&snapshot, target);
        let verdict = explain::explain(&snapshot, target, &assessment, Instant::now());
        if verdict.reason.allows() && !request.dry_run {
            let uid = target.uid.clone();
            ledger.reserve(&uid, Instant::now());
            for pod in &mut snapshot.pods {
                pod.reserved |= pod.uid == uid;
            }
        }
        self.looks.insert(family, Arc::new(snapshot));
        Ok(verdict)
    }

    /// The pod that is asked about: the apiserver's copy, or for an eviction, which brings none, a live one.
    async fn pod_of(&self, request: &Request, deadline: Deadline) -> Result<Pod, NoLook> {
        match &request.pod {
            Some(pod) => Ok(pod.clone()),
            None => {
                let get = self.pods.get(&request.namespace, &request.name);
                match deadline.within("reading the pod from the apiserver", get).await? {
                    Ok(pod) => Ok(pod),
                    Err(LookupError::NotFound { .. }) => Err(NoLook::Settled(gone(request))),
                    Err(error) => Err(NoLook::Lookup(error)),
                }
            }
        }
    }

    /// What the last look says, if it says no.
    fn denial_from_last_look(&self, family: &Family, name: &str) -> Option<Verdict> {
        let snapshot = self.looks.get(family)?;
        let target = snapshot.pod(name)?;
        let assessment = assess::assess(&snapshot, target);
        let denies = !assessment.reason.allows();
        denies.then(|| explain::explain(&snapshot, target, &assessment, Instant::now()))
    }

    /// A look at the cluster: its pods from the apiserver, then the probe round. The ledger is read before the round.
    async fn look(
        &self,
        family: &Family,
        request: &Request,
        ledger: &mut Ledger,
        deadline: Deadline,
    ) -> Result<Snapshot, NoLook> {
        let list = self.pods.list(&request.namespace);
        let pods =
            deadline.within("listing the pods from the apiserver", list).await?.map_err(NoLook::Lookup)?;
        // The request's copy of the pod may be older than this list.
        match pods.iter().find(|pod| pod.metadata.name == request.name) {
            None => return Err(NoLook::Settled(gone(request))),
            Some(pod) => {
                if let Some(verdict) = settled(pod) {
                    return Err(NoLook::Settled(verdict));
                }
            }
        }
        let etcd_pods = pods.iter().filter(|pod| !pod.is_finished());
        let etcd_pods = etcd_pods
            .filter_map(|pod| etcd_pod::read(pod, &pod.metadata.annotations).map(|etcd_pod| (pod, etcd_pod)));
        let (mut siblings, strangers): (Vec<_>, Vec<_>) =
            etcd_pods.partition(|(pod, _)| family.has(&request.namespace, pod));
        let now = Instant::now();
        let living: Vec<&str> = siblings.iter().map(|(pod, _)| pod.metadata.uid.as_str()).collect();
        ledger.keep_only(&living, now);
        let until = deadline.earlier(ANSWER_SHARE);
        self.credentials.complete(&request.namespace, &mut siblings, until).await;
        let (replies, storage) = tokio::join!(
            self.ask(request, &siblings, until),
            self.storage_of_target(request, &siblings, deadline)
        );
        let storage = storage?;
        let members = siblings.iter().zip(replies).map(|(it, reply)| member_pod(it, reply, ledger, now));
        let mut snapshot = Snapshot {
            cluster: format!("{}/{}", request.namespace, family.name()),
            namespace: request.namespace.clone(),
            taken_at: now,
            pods: members.collect(),
            elsewhere: Vec::new(),
        };
        if let Some(target) = snapshot.pods.iter_mut().find(|pod| pod.name == request.name) {
            target.storage = storage.unwrap_or(target.storage);
        }
        self.look_further(&mut snapshot, &siblings, strangers, ledger, until).await;
        Ok(snapshot)
    }

    /// Looks for listed members that run in none of these pods: in other pods of the namespace, and by name.
    async fn look_further(
        &self,
        snapshot: &mut Snapshot,
        siblings: &[(&Pod, EtcdPod)],
        strangers: Vec<(&Pod, EtcdPod)>,
        ledger: &Ledger,
        until: Instant,
    ) {
        let unseen = elsewhere::unseen(snapshot);
        let Some(known) = siblings.iter().find_map(|(_, it)| it.endpoint.as_ref()) else { return };
        if unseen.is_empty() {
            return;
        }
        let is_akin = |pod: &Pod| {
            unseen.iter().any(|it| identity::has_peer_at(it, &pod.metadata.name, &pod.status.pod_ip))
        };
        let mut akin: Vec<_> = strangers.into_iter().filter(|(pod, _)| is_akin(pod)).collect();
        self.credentials.complete(&snapshot.namespace, &mut akin, until).await;
        let (replies, elsewhere) = tokio::join!(
            round::ask(
                &self.connections,
                &self.credentials,
                &self.metrics,
                &snapshot.namespace,
                &akin,
                until
            ),
            elsewhere::ask(&self.connections, known, snapshot, &unseen, until)
        );
        let leaves = |it: &Elsewhere| {
            let member = unseen.iter().find(|member| member.id == it.id);
            akin.iter().any(|(pod, _)| {
                let is_it = |member| identity::has_peer_at(member, &pod.metadata.name, &pod.status.pod_ip);
                pod.is_terminating() && member.is_some_and(is_it)
            })
        };
        snapshot.elsewhere = elsewhere;
        snapshot.elsewhere.retain(|it| !leaves(it));
        for (it, reply) in akin.iter().zip(replies) {
            let is_listed = reply.status().is_some_and(|status| {
                snapshot.cluster_id() == Some(status.cluster_id)
                    && unseen.iter().any(|it| it.id == status.member_id)
            });
            if is_listed {
                snapshot.pods.push(member_pod(it, reply, ledger, snapshot.taken_at));
            }
        }
    }

    async fn ask(&self, request: &Request, pods: &[(&Pod, EtcdPod)], until: Instant) -> Vec<Reply> {
        round::ask(&self.connections, &self.credentials, &self.metrics, &request.namespace, pods, until).await
    }

    /// What becomes of the target's data; `None` if the target is none of these pods.
    async fn storage_of_target(
        &self,
        request: &Request,
        pods: &[(&Pod, EtcdPod)],
        deadline: Deadline,
    ) -> Result<Option<Storage>, NoLook> {
        let Some((pod, etcd_pod)) = pods.iter().find(|(pod, _)| pod.metadata.name == request.name) else {
            return Ok(None);
        };
        let read = storage::of_pod(&self.pods, &request.namespace, pod, etcd_pod);
        let read = deadline.within("reading the pod's claim from the apiserver", read).await?;
        read.map(Some).map_err(NoLook::Lookup)
    }
}

fn member_pod((pod, etcd_pod): &(&Pod, EtcdPod), reply: Reply, ledger: &Ledger, now: Instant) -> MemberPod {
    MemberPod {
        name: pod.metadata.name.clone(),
        uid: pod.metadata.uid.clone(),
        container: etcd_pod.container.clone(),
        ip: pod.status.pod_ip.clone(),
        member_name: etcd_pod.member_name.clone(),
        terminating: pod.is_terminating(),
        reserved: ledger.holds(&pod.metadata.uid, now),
        running: pod.runs(&etcd_pod.container),
        storage: etcd_pod.storage,
        reply,
    }
}

/// What needs no look at the cluster.
fn settled(pod: &Pod) -> Option<Verdict> {
    let name = &pod.metadata.name;
    if pod.is_terminating() {
        Some(Verdict::new(
            Reason::AlreadyTerminating,
            format!("the deletion of pod {name} was accepted before"),
        ))
    } else if pod.is_finished() {
        Some(Verdict::new(Reason::PodFinished, format!("pod {name} has ended ({})", pod.status.phase)))
    } else if pod.is_mirror() {
        Some(Verdict::new(
            Reason::MirrorPod,
            format!("pod {name} mirrors a static pod, which goes on running"),
        ))
    } else {
        None
    }
}

fn gone(request: &Request) -> Verdict {
    Verdict::new(Reason::PodGone, format!("pod {}/{} does not exist", request.namespace, request.name))
}

// === impl NoLook ===

impl NoLook {
    fn verdict(self, request: &Request) -> Verdict {
        let pod = &request.name;
        match self {
            Self::Settled(verdict) => verdict,
            Self::Lookup(error) => Verdict::new(
                Reason::LookupFailed,
                format!("whether pod {pod} may go is unknown: {error}. Try again when the apiserver answers"),
            ),
            Self::TooLate(TooLate { what, limit }) => Verdict::new(
                Reason::DeadlineExceeded,
                format!(
                    "whether pod {pod} may go could not be found out within {}: {what} took too long. Try again",
                    humantime::format_duration(limit)
                ),
            ),
        }
    }
}

impl From<TooLate> for NoLook {
    fn from(too_late: TooLate) -> Self {
        Self::TooLate(too_late)
    }
}
