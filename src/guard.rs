//! The validating path: may this pod of an etcd cluster be deleted now?
//!
//! Request -> pods and members as they are -> [`assess`] (pure) -> reservation -> verdict. The cache says no, never
//! yes: a look at the cluster that is up to a second old may deny, but every yes rests on a round of its own.

pub mod assess;
mod deadline;
mod etcd_pod;
mod explain;
mod family;
mod identity;
mod ledger;
mod metrics;
mod request;
pub mod snapshot;
mod verdict;

use std::{sync::Arc, time::Duration};

use moka::sync::Cache;
use tokio::{sync::Mutex, time::Instant};

pub use self::{
    deadline::Deadline,
    metrics::Metrics,
    request::{Operation, Request, RequestError},
    verdict::{Reason, Refusal, Verdict},
};
use self::{
    deadline::TooLate,
    etcd_pod::EtcdPod,
    family::Family,
    ledger::Ledger,
    snapshot::{MemberPod, Snapshot},
};
use crate::{
    etcd::{self, Cause, Connections, Reply},
    k8s::{LookupError, Pods, pod::Pod},
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
    /// A guard that reads pods through `pods`.
    #[must_use]
    pub fn new(pods: Pods, metrics: Metrics) -> Self {
        let turns = Cache::builder().max_capacity(MOST_CLUSTERS).time_to_idle(CLUSTER_LIFE).build();
        let looks = Cache::builder().max_capacity(MOST_CLUSTERS).time_to_live(SNAPSHOT_LIFE).build();
        Self { pods, connections: Connections::new(), turns, looks, metrics }
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
        if etcd_pod::read(pod).is_none() {
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
        let siblings: Vec<(&Pod, EtcdPod)> = pods
            .iter()
            .filter(|pod| family.has(&request.namespace, pod) && !pod.is_finished())
            .filter_map(|pod| etcd_pod::read(pod).map(|etcd_pod| (pod, etcd_pod)))
            .collect();
        let now = Instant::now();
        let living: Vec<&str> = siblings.iter().map(|(pod, _)| pod.metadata.uid.as_str()).collect();
        ledger.keep_only(&living, now);
        let replies = self.probe(&siblings, deadline).await;
        let members = siblings.into_iter().zip(replies).map(|((pod, etcd_pod), reply)| MemberPod {
            name: pod.metadata.name.clone(),
            uid: pod.metadata.uid.clone(),
            ip: pod.status.pod_ip.clone(),
            terminating: pod.is_terminating(),
            reserved: ledger.holds(&pod.metadata.uid, now),
            running: pod.runs(&etcd_pod.container),
            container: etcd_pod.container,
            member_name: etcd_pod.member_name,
            storage: etcd_pod.storage,
            reply,
        });
        Ok(Snapshot {
            cluster: format!("{}/{}", request.namespace, family.name()),
            namespace: request.namespace.clone(),
            taken_at: now,
            pods: members.collect(),
        })
    }

    /// One reply per pod, in their order; a pod without an address cannot be asked.
    async fn probe(&self, siblings: &[(&Pod, EtcdPod)], deadline: Deadline) -> Vec<Reply> {
        let endpoints: Vec<_> = siblings.iter().filter_map(|(_, it)| it.endpoint.clone()).collect();
        let started = Instant::now();
        let replies = etcd::probe(&self.connections, &endpoints, deadline.earlier(ANSWER_SHARE)).await;
        self.metrics.record_round(started.elapsed(), &replies);
        let mut replies = replies.into_iter();
        let no_address =
            || Reply::Silent { cause: Cause::Unreachable(String::from("the pod has no address")) };
        siblings
            .iter()
            .map(|(_, it)| it.endpoint.as_ref().and_then(|_| replies.next()).unwrap_or_else(no_address))
            .collect()
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
