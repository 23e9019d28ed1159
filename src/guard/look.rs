//! A look at a cluster: its pods from the apiserver, and what each member answers at its pod's address.

use tokio::time::Instant;

use super::{
    ANSWER_SHARE, NoLook,
    deadline::Deadline,
    etcd_pod::{self, EtcdPod},
    family::Family,
    gone,
    metrics::Metrics,
    request::Request,
    reservations::Record,
    settled,
    snapshot::{MemberPod, Snapshot},
};
use crate::{
    etcd::{self, Cause, Connections, Endpoint, Reply},
    k8s::{LookupError, Pods, pod::Pod},
};

/// What a look needs.
pub(super) struct Looker {
    pub(super) pods: Pods,
    pub(super) connections: Connections,
    pub(super) metrics: Metrics,
}

/// The pods of a cluster, listed before the round.
pub(super) struct Siblings {
    pods: Vec<(Pod, EtcdPod)>,
}

// === impl Looker ===

impl Looker {
    /// The pods of the request's family as they are now, unless the request's own needs no further look.
    pub(super) async fn siblings(
        &self,
        family: &Family,
        request: &Request,
        deadline: Deadline,
    ) -> Result<Siblings, NoLook> {
        let list = self.pods.list(&request.namespace);
        let pods = deadline.within("listing the pods from the apiserver", list).await?;
        let pods = pods.map_err(NoLook::Lookup)?;
        // The request's copy of the pod may be older than this list.
        match pods.iter().find(|pod| pod.metadata.name == request.name) {
            None => return Err(NoLook::Settled(gone(request))),
            Some(pod) => {
                if let Some(verdict) = settled(pod) {
                    return Err(NoLook::Settled(verdict));
                }
            }
        }
        Ok(Siblings::of(family, pods))
    }

    /// A look at the family's pods of a list that was read already, without reservations.
    pub(super) async fn look_at_list(&self, family: &Family, pods: &[Pod], deadline: Deadline) -> Snapshot {
        let siblings = Siblings::of(family, pods.to_vec());
        self.look(family, &siblings, None, deadline).await
    }

    /// The probe round. The record of reservations was read before it.
    pub(super) async fn look(
        &self,
        family: &Family,
        siblings: &Siblings,
        record: Option<&Record>,
        deadline: Deadline,
    ) -> Snapshot {
        let taken_at = Instant::now();
        let replies = self.probe(&siblings.pods, deadline).await;
        let mut pods = Vec::with_capacity(siblings.pods.len());
        for ((pod, etcd_pod), reply) in siblings.pods.iter().zip(replies) {
            pods.push(MemberPod {
                name: pod.metadata.name.clone(),
                uid: pod.metadata.uid.clone(),
                container: etcd_pod.container.clone(),
                ip: pod.status.pod_ip.clone(),
                member_name: etcd_pod.member_name.clone(),
                terminating: pod.is_terminating(),
                reserved: match record {
                    Some(record) => record.holds(&pod.metadata.uid).await,
                    None => false,
                },
                running: pod.runs(&etcd_pod.container),
                storage: etcd_pod.storage,
                reply,
            });
        }
        Snapshot {
            cluster: format!("{}/{}", family.namespace(), family.name()),
            namespace: family.namespace().to_owned(),
            taken_at,
            pods,
        }
    }

    /// One reply per pod, in their order; a pod without an address cannot be asked.
    async fn probe(&self, siblings: &[(Pod, EtcdPod)], deadline: Deadline) -> Vec<Reply> {
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

    /// The pod that is asked about: the apiserver's copy, or for an eviction, which brings none, a live one.
    pub(super) async fn pod_of(&self, request: &Request, deadline: Deadline) -> Result<Pod, NoLook> {
        if let Some(pod) = &request.pod {
            return Ok(pod.clone());
        }
        let get = self.pods.get(&request.namespace, &request.name);
        match deadline.within("reading the pod from the apiserver", get).await? {
            Ok(pod) => Ok(pod),
            Err(LookupError::NotFound { .. }) => Err(NoLook::Settled(gone(request))),
            Err(error) => Err(NoLook::Lookup(error)),
        }
    }
}

// === impl Siblings ===

impl Siblings {
    fn of(family: &Family, pods: Vec<Pod>) -> Self {
        let pods = pods
            .into_iter()
            .filter(|pod| family.has(family.namespace(), pod) && !pod.is_finished())
            .filter_map(|pod| etcd_pod::read(&pod).map(|etcd_pod| (pod, etcd_pod)))
            .collect();
        Self { pods }
    }

    /// Where the member of this pod listens.
    pub(super) fn endpoint(&self, name: &str) -> Option<&Endpoint> {
        let (_, etcd_pod) = self.pods.iter().find(|(pod, _)| pod.metadata.name == name)?;
        etcd_pod.endpoint.as_ref()
    }

    /// The uids of all pods that exist.
    pub(super) fn uids(&self) -> Vec<&str> {
        self.pods.iter().map(|(pod, _)| pod.metadata.uid.as_str()).collect()
    }
}
