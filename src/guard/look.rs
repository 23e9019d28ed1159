//! A look at a cluster: its pods from the apiserver, and what each member answers at its pod's address.

use std::{borrow::Cow, time::Duration};

use tokio::time::{Instant, timeout_at};

use super::{
    ANSWER_SHARE, Case, NoLook,
    credentials::Credentials,
    deadline::Deadline,
    doubt::Doubt,
    elsewhere,
    etcd_pod::{self, EtcdPod},
    family::Family,
    gone, identity,
    ledger::{Living, Reservation},
    metrics::Metrics,
    policy::Mode,
    request::Request,
    round, settled,
    snapshot::{Elsewhere, MemberPod, Snapshot, Storage},
    storage,
};
use crate::{
    config::Live,
    etcd::{Connections, Endpoint, ListedMember, Reply},
    k8s::{Annotations, Claims, LookupError, Pods, pod::Pod},
};

/// Less time than this is none: a healthy cluster answers in some milliseconds, on a busy machine in some tens.
const LEAST_ROUND: Duration = Duration::from_millis(600);

/// The most pods of other owners that are asked whether they are peers.
const MOST_STRANGERS: usize = 16;

/// What a look needs.
pub(super) struct Looker {
    pub(super) pods: Pods,
    pub(super) claims: Claims,
    pub(super) annotations: Annotations,
    pub(super) config: Live,
    pub(super) credentials: Credentials,
    pub(super) connections: Connections,
    pub(super) metrics: Metrics,
}

/// A look at a cluster, and what it could not see.
pub(super) struct Look {
    pub(super) snapshot: Snapshot,
    pub(super) doubt: Doubt,
}

/// The etcd pods of a namespace, read before the round.
pub(super) struct Siblings {
    cluster: String,
    namespace: String,
    /// Of the cluster in question, with all that it takes to ask their members.
    pub(super) pods: Vec<(Pod, EtcdPod)>,
    /// Of other owners.
    strangers: Vec<(Pod, EtcdPod)>,
    /// Said to be no members. Their members may be listed all the same, and found by name.
    disowned: Vec<Pod>,
    /// These were read by their names. What else there is in the namespace is not known.
    pub(super) by_name: bool,
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
        let pods = self.pods_beside(request, deadline).await?;
        self.siblings_among(pods, family, request, deadline).await
    }

    /// Gives pods the annotations of their owners, and takes from them what the server's floor forbids.
    pub(super) fn inherit(&self, namespace: &str, pods: &mut [Pod]) {
        self.annotations.inherit(namespace, pods, &etcd_pod::ANNOTATIONS);
        if self.config.borrow().guard.floor.mode == Mode::Enforce {
            for pod in pods {
                etcd_pod::own_up(pod);
            }
        }
    }

    /// Whether [`Self::inherit`] may change this pod: its owners say something, or it says of itself what the floor may
    /// forbid.
    fn would_change(&self, namespace: &str, pod: &Pod) -> bool {
        self.annotations.has(namespace, pod.stateful_set(), &etcd_pod::ANNOTATIONS)
            || etcd_pod::is_disowned(pod)
    }

    /// The pods of the request's namespace as they are now.
    pub(super) async fn pods_beside(
        &self,
        request: &Request,
        deadline: Deadline,
    ) -> Result<Vec<Pod>, NoLook> {
        let list = self.pods.list(&request.namespace);
        let pods = deadline.within("listing the pods from the apiserver", list).await?;
        let mut pods = pods.map_err(NoLook::Lookup)?;
        self.inherit(&request.namespace, &mut pods);
        Ok(pods)
    }

    /// The same of pods that were listed just now.
    pub(super) async fn siblings_among(
        &self,
        pods: Vec<Pod>,
        family: &Family,
        request: &Request,
        deadline: Deadline,
    ) -> Result<Siblings, NoLook> {
        // The request's copy of the pod may be older than this list.
        match pods.iter().find(|pod| request.means(pod)) {
            None => return Err(NoLook::Settled(gone(request))),
            Some(pod) => {
                if let Some(verdict) = settled(pod) {
                    return Err(NoLook::Settled(verdict));
                }
            }
        }
        Ok(self.complete(Siblings::of(family, pods), deadline).await)
    }

    pub(super) async fn complete(&self, mut siblings: Siblings, deadline: Deadline) -> Siblings {
        let until = deadline.earlier(ANSWER_SHARE);
        self.credentials.complete(&siblings.namespace, &mut siblings.pods, until).await;
        siblings
    }

    /// A look at the family's pods of a list that was read already, without reservations.
    pub(super) async fn look_at_list(
        &self,
        family: &Family,
        pods: &[Pod],
        deadline: Deadline,
    ) -> Result<Snapshot, NoLook> {
        let siblings = self.complete(Siblings::of(family, pods.to_vec()), deadline).await;
        Ok(self.look_from(&siblings, None, &[], deadline).await.snapshot)
    }

    /// The probe round. What is reserved was read before it.
    pub(super) async fn look(
        &self,
        case: &Case<'_>,
        siblings: &Siblings,
        reserved: &[Reservation],
    ) -> Result<Look, NoLook> {
        // Members that nobody waited for would look like members that are silent.
        case.deadline.leaves(LEAST_ROUND, ANSWER_SHARE, "what came before the look at the members")?;
        Ok(self.look_from(siblings, Some(case.request), reserved, case.deadline).await)
    }

    pub(super) async fn look_from(
        &self,
        siblings: &Siblings,
        request: Option<&Request>,
        reserved: &[Reservation],
        deadline: Deadline,
    ) -> Look {
        let taken_at = Instant::now();
        let until = deadline.earlier(ANSWER_SHARE);
        let (replies, storage) = tokio::join!(
            self.ask(&siblings.namespace, &siblings.pods, until),
            self.storage_of_target(request, siblings, until)
        );
        let members = siblings.pods.iter().zip(replies);
        let mut snapshot = Snapshot {
            cluster: siblings.cluster.clone(),
            namespace: siblings.namespace.clone(),
            taken_at,
            pods: members.map(|((pod, it), reply)| member_pod(pod, it, reply, reserved)).collect(),
            elsewhere: Vec::new(),
        };
        let doubt = match storage {
            Some((name, Ok(storage))) => {
                for target in snapshot.pods.iter_mut().filter(|pod| pod.name == name) {
                    target.storage = storage;
                }
                None
            }
            Some((_, Err(error))) => Some(error),
            None => None,
        };
        self.look_further(&mut snapshot, siblings, reserved, until).await;
        Look { snapshot, doubt: Doubt::of(doubt) }
    }

    /// Looks for listed members that run in none of these pods: in other pods of the namespace, and by name.
    async fn look_further(
        &self,
        snapshot: &mut Snapshot,
        siblings: &Siblings,
        reserved: &[Reservation],
        until: Instant,
    ) {
        if siblings.by_name {
            return;
        }
        if !siblings.strangers.is_empty() && !snapshot.pods.iter().any(|pod| pod.reply.is_serving()) {
            self.look_at_peers(snapshot, siblings, reserved, until).await;
        }
        let unseen = elsewhere::unseen(snapshot);
        let Some(known) = siblings.pods.iter().find_map(|(_, it)| it.endpoint.as_ref()) else { return };
        if unseen.is_empty() {
            return;
        }
        let is_akin = |pod: &Pod| {
            unseen.iter().any(|it| identity::has_peer_at(it, &pod.metadata.name, &pod.status.pod_ip))
        };
        let mut akin: Vec<(&Pod, EtcdPod)> = siblings
            .strangers
            .iter()
            .filter(|(pod, _)| is_akin(pod))
            .map(|(pod, etcd_pod)| (pod, etcd_pod.clone()))
            .collect();
        self.credentials.complete(&snapshot.namespace, &mut akin, until).await;
        let (replies, elsewhere) = tokio::join!(
            self.ask(&snapshot.namespace, &akin, until),
            elsewhere::ask(&self.connections, known, snapshot, &unseen, until)
        );
        let leaves = |it: &Elsewhere| {
            let member = unseen.iter().find(|member| member.id == it.id);
            akin.iter().map(|(pod, _)| *pod).chain(&siblings.disowned).any(|pod| {
                let is_it = |member| identity::has_peer_at(member, &pod.metadata.name, &pod.status.pod_ip);
                pod.is_terminating() && member.is_some_and(is_it)
            })
        };
        snapshot.elsewhere = elsewhere;
        snapshot.elsewhere.retain(|it| !leaves(it));
        for it in &mut snapshot.elsewhere {
            // Of a pod in another namespace nothing is known but the member that it was allowed for.
            it.reserved = reserved.iter().any(|reservation| reservation.member == it.id.to_string());
        }
        for ((pod, etcd_pod), reply) in akin.iter().zip(replies) {
            let is_listed = reply.status().is_some_and(|status| {
                snapshot.cluster_id() == Some(status.cluster_id)
                    && unseen.iter().any(|it| it.id == status.member_id)
            });
            if is_listed {
                snapshot.pods.push(member_pod(pod, etcd_pod, reply, reserved));
            }
        }
    }

    /// Where none of these pods serves, there may be peers that do under other owners: one StatefulSet per member.
    async fn look_at_peers(
        &self,
        snapshot: &mut Snapshot,
        siblings: &Siblings,
        reserved: &[Reservation],
        until: Instant,
    ) {
        let mut strangers: Vec<_> = siblings.strangers.iter().take(MOST_STRANGERS).cloned().collect();
        self.credentials.complete(&snapshot.namespace, &mut strangers, until).await;
        let replies = self.ask(&snapshot.namespace, &strangers, until).await;
        for ((pod, etcd_pod), reply) in strangers.iter().zip(replies) {
            let Reply::Serving { members, .. } = &reply else { continue };
            let is_ours = |member: &ListedMember| {
                siblings
                    .pods
                    .iter()
                    .any(|(pod, _)| identity::has_peer_at(member, &pod.metadata.name, &pod.status.pod_ip))
            };
            if members.iter().any(is_ours) {
                snapshot.pods.push(member_pod(pod, etcd_pod, reply, reserved));
            }
        }
    }

    async fn ask<P>(&self, namespace: &str, pods: &[(P, EtcdPod)], until: Instant) -> Vec<Reply> {
        round::ask(&self.connections, &self.credentials, &self.metrics, namespace, pods, until).await
    }

    /// What becomes of the target's data, by its name; `None` if the target is none of these pods.
    async fn storage_of_target<'a>(
        &self,
        request: Option<&'a Request>,
        siblings: &Siblings,
        until: Instant,
    ) -> Option<(&'a str, Result<Storage, LookupError>)> {
        let request = request?;
        let (pod, etcd_pod) = siblings.pods.iter().find(|(pod, _)| pod.metadata.name == request.name)?;
        let began = Instant::now();
        let storage = storage::of_pod(&self.claims, &request.namespace, &request.user, pod, etcd_pod);
        let storage = match timeout_at(until, storage).await {
            Ok(storage) => storage,
            Err(_) => Err(LookupError::TimedOut {
                what: format!("the claim of pod {}/{}", request.namespace, request.name),
                limit: until.duration_since(began),
            }),
        };
        Some((request.name.as_str(), storage))
    }

    /// The pod that is asked about: the apiserver's copy, or for an eviction, which brings none, a live one.
    pub(super) async fn pod_of<'a>(
        &self,
        request: &'a Request,
        deadline: Deadline,
    ) -> Result<Cow<'a, Pod>, NoLook> {
        let mut pod = match &request.pod {
            Some(pod) => Cow::Borrowed(pod),
            None => Cow::Owned(self.live_pod(request, deadline).await?),
        };
        // A copy costs, and few pods would be another one then.
        if self.would_change(&request.namespace, &pod) {
            self.inherit(&request.namespace, std::slice::from_mut(pod.to_mut()));
        }
        Ok(pod)
    }

    async fn live_pod(&self, request: &Request, deadline: Deadline) -> Result<Pod, NoLook> {
        let get = self.pods.get(&request.namespace, &request.name);
        match deadline.within("reading the pod from the apiserver", get).await? {
            Ok(pod) if request.means(&pod) => Ok(pod),
            Ok(_) | Err(LookupError::NotFound { .. }) => Err(NoLook::Settled(gone(request))),
            Err(error) => Err(NoLook::Lookup(error)),
        }
    }
}

// === impl Siblings ===

impl Siblings {
    pub(super) fn of(family: &Family, pods: Vec<Pod>) -> Self {
        let (mut etcd_pods, mut disowned) = (Vec::new(), Vec::new());
        for pod in pods.into_iter().filter(|pod| !pod.is_finished()) {
            match etcd_pod::read(&pod, &pod.metadata.annotations) {
                Some(etcd_pod) => etcd_pods.push((pod, etcd_pod)),
                None if etcd_pod::is_disowned(&pod) => disowned.push(pod),
                None => {}
            }
        }
        let is_of_family = |(pod, _): &(Pod, EtcdPod)| family.has(family.namespace(), pod);
        let (pods, strangers) = etcd_pods.into_iter().partition(is_of_family);
        let cluster = format!("{}/{}", family.namespace(), family.name());
        Self { cluster, namespace: family.namespace().to_owned(), pods, strangers, disowned, by_name: false }
    }

    /// Where the member of this pod listens.
    pub(super) fn endpoint(&self, name: &str) -> Option<&Endpoint> {
        let (_, etcd_pod) = self.pods.iter().find(|(pod, _)| pod.metadata.name == name)?;
        etcd_pod.endpoint.as_ref()
    }

    /// The uid of the pod of this name.
    pub(super) fn uid(&self, name: &str) -> Option<&str> {
        self.pods.iter().map(|(pod, _)| &pod.metadata).find(|it| it.name == name).map(|it| it.uid.as_str())
    }

    /// All pods that exist and may run members.
    pub(super) fn living(&self) -> Vec<Living<'_>> {
        let pods = self.pods.iter().chain(&self.strangers).map(|(pod, _)| &pod.metadata);
        pods.map(|it| Living { name: &it.name, uid: &it.uid }).collect()
    }
}

fn member_pod(pod: &Pod, etcd_pod: &EtcdPod, reply: Reply, reserved: &[Reservation]) -> MemberPod {
    MemberPod {
        name: pod.metadata.name.clone(),
        uid: pod.metadata.uid.clone(),
        container: etcd_pod.container.clone(),
        ip: pod.status.pod_ip.clone(),
        member_name: etcd_pod.member_name.clone(),
        terminating: pod.is_terminating(),
        reserved: reserved.iter().any(|reservation| reservation.uid == pod.metadata.uid),
        running: pod.runs(&etcd_pod.container),
        storage: etcd_pod.storage,
        reply,
    }
}
