//! Snapshots of a cluster: its pods from the API server, and the results of probing each member at its pod's address.

use std::{borrow::Cow, sync::Arc, time::Duration};

use tokio::time::{Instant, timeout_at};

use crate::guard::{
    discovery::{
        claim_storage,
        credentials::CredentialReader,
        etcd_pod::EtcdPod,
        settled::{pod_gone, settled_verdict},
    },
    metrics::Metrics,
    model::{
        cluster_key::ClusterKey,
        deadline::{ANSWER_RESERVE, Deadline},
        membership::{identity, scheme::reject_unadvertised_schemes},
        request::Request,
        reservation::Reservation,
        snapshot::{MemberPod, Snapshot, Storage},
    },
    observe::{
        error::ObserveError,
        external::{self, ClusterAccess, ExternalProbe, ProbeGate},
        member_pod_cache::MemberPodNames,
        probe_round::probe_pods,
        related::add_related,
        siblings::{Siblings, member_pod},
    },
    ownership::store::OwnershipStore,
};
use crate::{
    config::LiveConfig,
    etcd::{Connections, ListedMember, MemberId, ProbeResult},
    k8s::{AnnotationCache, ApiReader, ClaimReader, LookupError, PodReferences, pod::Pod},
};

/// Minimum time for a probe round. A healthy cluster replies within milliseconds, on a busy machine within tens of
/// milliseconds.
const MIN_PROBE_TIME: Duration = Duration::from_millis(600);

/// Takes snapshots of clusters. Clones share all caches and connections.
#[derive(Clone)]
pub(in crate::guard) struct ClusterObserver {
    /// Reads pods.
    pub(in crate::guard) pods: ApiReader,
    /// Reads the claims that hold the data of members.
    pub(in crate::guard) claims: ClaimReader,
    /// Annotations of the pods' owners.
    pub(in crate::guard) annotations: AnnotationCache,
    /// The configuration with the floor for annotations.
    pub(in crate::guard) config: LiveConfig,
    /// Credentials that members require from clients.
    pub(in crate::guard) credentials: CredentialReader,
    /// Owners of members, recorded while both existed.
    pub(in crate::guard) ownership: Arc<OwnershipStore>,
    /// Selects the addresses of member lists that are probed.
    pub(in crate::guard) gate: ProbeGate,
    /// Connections to members, reused by later rounds.
    pub(in crate::guard) connections: Connections,
    /// Durations and failures of probe rounds.
    pub(in crate::guard) metrics: Metrics,
}

/// The result of a probe round for one request.
pub(in crate::guard) struct Observation {
    /// The cluster.
    pub(in crate::guard) snapshot: Snapshot,
    /// The reason why the claim of the request's pod could not be read.
    pub(in crate::guard) claim_error: Option<LookupError>,
}

// === impl ClusterObserver ===

impl ClusterObserver {
    /// Returns the copy of the pod in a review, with the annotations of its owners. An eviction contains no copy.
    pub(in crate::guard) async fn copied_pod<'a>(
        &self,
        request: &'a Request,
        deadline: Deadline,
    ) -> Result<Option<Cow<'a, Pod>>, ObserveError> {
        let Some(pod) = &request.pod else { return Ok(None) };
        let mut pod = Cow::Borrowed(pod);
        if settled_verdict(&pod).is_none() {
            self.wait_for_annotations(&request.namespace, deadline).await?;
        }
        // The pod is cloned only if annotations can change it, which is rare.
        if self.may_inherit(&request.namespace, &pod) {
            self.apply_inherited(&request.namespace, std::slice::from_mut(pod.to_mut()));
        }
        Ok(Some(pod))
    }

    /// Reads the live pod of a request, with the annotations of its owners.
    pub(in crate::guard) async fn live_pod(
        &self,
        request: &Request,
        deadline: Deadline,
    ) -> Result<Pod, ObserveError> {
        let mut pod = self.live_pod_alone(request, deadline).await?;
        if settled_verdict(&pod).is_none() {
            self.add_inherited(&request.namespace, std::slice::from_mut(&mut pod), deadline).await?;
        }
        Ok(pod)
    }

    /// Reads the live pod of a request, without the annotations of its owners.
    pub(in crate::guard) async fn live_pod_alone(
        &self,
        request: &Request,
        deadline: Deadline,
    ) -> Result<Pod, ObserveError> {
        let read = self.pods.get_pod(&request.namespace, &request.name);
        match deadline.within("reading the pod from the API server", read).await? {
            Ok(pod) if request.matches(&pod) => Ok(pod),
            Ok(_) | Err(LookupError::NotFound { .. }) => Err(ObserveError::Settled(pod_gone(request))),
            Err(error) => Err(ObserveError::Lookup(error)),
        }
    }

    /// Lists the pods of a namespace, with the annotations of their owners.
    pub(in crate::guard) async fn list_pods(
        &self,
        namespace: &str,
        deadline: Deadline,
    ) -> Result<Vec<Pod>, ObserveError> {
        let list = self.pods.list_pods(namespace);
        let pods = deadline.within("listing the pods from the API server", list).await?;
        let mut pods = pods.map_err(ObserveError::Lookup)?;
        self.add_inherited(namespace, &mut pods, deadline).await?;
        Ok(pods)
    }

    /// Lists the pods of a namespace, with the annotations of their owners and with their references to other objects.
    pub(in crate::guard) async fn list_pods_with_references(
        &self,
        namespace: &str,
        deadline: Deadline,
    ) -> Result<Vec<(Pod, PodReferences)>, ObserveError> {
        let list = self.pods.list_pods_with_references(namespace);
        let pods = deadline.within("listing the pods from the API server", list).await?;
        let mut pods = pods.map_err(ObserveError::Lookup)?;
        for (pod, _) in &mut pods {
            self.add_inherited(namespace, std::slice::from_mut(pod), deadline).await?;
        }
        Ok(pods)
    }

    /// Reads the known member pods of a cluster by their names. Returns `None` if the request's pod is not among
    /// them, or if one of them does not exist, has another owner, or no longer runs etcd.
    pub(in crate::guard) async fn read_by_name(
        &self,
        names: &MemberPodNames,
        request: &Request,
        deadline: Deadline,
    ) -> Result<Option<Vec<Pod>>, ObserveError> {
        if !names.contains(&request.name) {
            return Ok(None);
        }
        let read = names.read(&self.pods, &request.namespace);
        let pods = deadline.within("reading the pods from the API server", read).await?;
        let Some(mut pods) = pods.map_err(ObserveError::Lookup)? else { return Ok(None) };
        self.add_inherited(&request.namespace, &mut pods, deadline).await?;
        Ok(pods.iter().all(|pod| names.is_current(pod)).then_some(pods))
    }

    /// Lists the pods of the request's namespace and groups them by cluster.
    ///
    /// # Errors
    ///
    /// Returns [`ObserveError::Settled`] if the list shows that the request requires no snapshot.
    pub(in crate::guard) async fn siblings(
        &self,
        cluster_key: &ClusterKey,
        request: &Request,
        deadline: Deadline,
    ) -> Result<Siblings, ObserveError> {
        let pods = self.list_pods(&request.namespace, deadline).await?;
        self.group_siblings(pods, cluster_key, request, deadline).await
    }

    /// Groups pods that the caller has just read, with the errors of [`Self::siblings`].
    pub(in crate::guard) async fn group_siblings(
        &self,
        pods: Vec<Pod>,
        cluster_key: &ClusterKey,
        request: &Request,
        deadline: Deadline,
    ) -> Result<Siblings, ObserveError> {
        // The copy of the pod in the review may be older than these pods, or forged.
        let Some(pod) = pods.iter().find(|pod| request.matches(pod)) else {
            return Err(ObserveError::Settled(pod_gone(request)));
        };
        if let Some(verdict) = settled_verdict(pod) {
            return Err(ObserveError::Settled(verdict));
        }
        Ok(self.siblings_with_credentials(cluster_key, pods, deadline).await)
    }

    /// Probes the members for a request, and reads the claim of its pod. The caller reads `reserved` before this call:
    /// a reservation that another replica adds later causes a write conflict.
    ///
    /// # Errors
    ///
    /// Fails if too little time remains. Healthy members could not reply in time and would not count as serving.
    pub(in crate::guard) async fn observe(
        &self,
        request: &Request,
        siblings: &Siblings,
        reserved: &[Reservation],
        deadline: Deadline,
    ) -> Result<Observation, ObserveError> {
        deadline.ensure_remaining(MIN_PROBE_TIME, ANSWER_RESERVE, "to probe the members")?;
        let until = deadline.minus(ANSWER_RESERVE);
        let taken_at = Instant::now();
        let (mut snapshot, storage, departed) = tokio::join!(
            self.probe_siblings(siblings, reserved, taken_at, until),
            self.target_storage(request, siblings, until),
            self.departed_pods(siblings, until)
        );
        let departed = departed.map_err(ObserveError::Lookup)?;
        let claim_error = match storage {
            Some(Ok(storage)) => {
                for target in snapshot.pods.iter_mut().filter(|pod| pod.name == request.name) {
                    target.storage = storage;
                }
                None
            }
            Some(Err(error)) => Some(error),
            None => None,
        };
        self.find_other_members(&mut snapshot, siblings, reserved, Some(&request.name), until).await?;
        departed.mark(&mut snapshot);
        Ok(Observation { snapshot, claim_error })
    }

    /// Takes a snapshot of a cluster from pods that were already listed, without claims.
    pub(in crate::guard) async fn observe_listed(
        &self,
        cluster_key: &ClusterKey,
        pods: &[Pod],
        reserved: &[Reservation],
        deadline: Deadline,
    ) -> Snapshot {
        let siblings = self.siblings_with_credentials(cluster_key, pods.to_vec(), deadline).await;
        self.observe_siblings(&siblings, reserved, deadline).await
    }

    /// Takes a snapshot of a cluster from pods that were already listed, with the storage of each pod.
    pub(in crate::guard) async fn observe_with_storage(
        &self,
        cluster_key: &ClusterKey,
        pods: &[Pod],
        reserved: &[Reservation],
        deadline: Deadline,
    ) -> Snapshot {
        let siblings = self.siblings_with_credentials(cluster_key, pods.to_vec(), deadline).await;
        let mut snapshot = self.observe_siblings(&siblings, reserved, deadline).await;
        for (pod, etcd_pod) in &siblings.pods {
            let read = claim_storage::read_storage(&self.claims, cluster_key.namespace(), "", pod, etcd_pod);
            // If the claim cannot be read, the storage derived from the pod's volumes remains.
            let Ok(Ok(storage)) = deadline.within("reading a claim", read).await else { continue };
            for member in snapshot.pods.iter_mut().filter(|member| member.uid == pod.metadata.uid) {
                member.storage = storage;
            }
        }
        snapshot
    }

    pub(super) async fn observe_siblings(
        &self,
        siblings: &Siblings,
        reserved: &[Reservation],
        deadline: Deadline,
    ) -> Snapshot {
        let until = deadline.minus(ANSWER_RESERVE);
        let taken_at = Instant::now();
        let (mut snapshot, departed) = tokio::join!(
            self.probe_siblings(siblings, reserved, taken_at, until),
            self.departed_pods(siblings, until)
        );
        if let Err(error) = self.find_other_members(&mut snapshot, siblings, reserved, None, until).await {
            // The voters without a pod count as not healthy.
            tracing::warn!(cluster = siblings.cluster, %error, "incomplete snapshot");
        }
        let departed = departed.unwrap_or_else(|error| {
            tracing::warn!(cluster = siblings.cluster, %error, "incomplete snapshot");
            self.possibly_departed_pods(siblings)
        });
        departed.mark(&mut snapshot);
        snapshot
    }

    /// Probes the pods of the cluster and, if the pods were read by name, the pods of other owners that run its voters.
    async fn probe_siblings(
        &self,
        siblings: &Siblings,
        reserved: &[Reservation],
        taken_at: Instant,
        until: Instant,
    ) -> Snapshot {
        let namespace = &siblings.namespace;
        let others: &[_] = if siblings.are_read_by_name { &siblings.other_pods } else { &[] };
        let mut pods: Vec<(&Pod, EtcdPod)> =
            siblings.pods.iter().map(|(pod, etcd_pod)| (pod, etcd_pod.clone())).collect();
        let access = ClusterAccess::new(siblings.endpoints());
        pods.extend(self.with_credentials(namespace, others, &access, &[], until).await);
        let replies = self.probe(namespace, &pods, until).await;
        let pods = pods
            .iter()
            .zip(replies)
            .map(|((pod, etcd_pod), reply)| member_pod(pod, etcd_pod, reply, reserved));
        let mut pods: Vec<MemberPod> = pods.collect();
        let others = pods.split_off(siblings.pods.len().min(pods.len()));
        let mut snapshot = Snapshot {
            cluster: siblings.cluster.clone(),
            namespace: namespace.clone(),
            taken_at,
            pods,
            external_members: Vec::new(),
            denied_members: Vec::new(),
        };
        reject_unadvertised_schemes(&mut snapshot);
        add_related(&mut snapshot, others.into_iter().map(MemberPod::of_other_owner).collect());
        snapshot
    }

    /// Finds the voters that run in no pod of the snapshot: in pods of other owners and, if no pod can run them, at the
    /// client URLs that they advertise.
    async fn find_other_members(
        &self,
        snapshot: &mut Snapshot,
        siblings: &Siblings,
        reserved: &[Reservation],
        target: Option<&str>,
        until: Instant,
    ) -> Result<(), ObserveError> {
        // If a voter has no pod, the caller lists the pods and probes again.
        if siblings.are_read_by_name {
            return Ok(());
        }
        self.find_other_pods(snapshot, siblings, reserved, target, until).await?;
        self.probe_external_members(snapshot, siblings, reserved, until).await
    }

    /// Probes voters without a pod at their client URLs. Those whose pods in other namespaces are leaving do not become
    /// part of the snapshot.
    async fn probe_external_members(
        &self,
        snapshot: &mut Snapshot,
        siblings: &Siblings,
        reserved: &[Reservation],
        until: Instant,
    ) -> Result<(), ObserveError> {
        let without_pod = external::voters_without_pod(snapshot);
        if without_pod.is_empty() {
            return Ok(());
        }
        let access = ClusterAccess::new(siblings.endpoints());
        let ExternalProbe { members, addresses, denied } = external::probe_external_members(
            &self.connections,
            &self.gate,
            &access,
            snapshot,
            &without_pod,
            until,
        )
        .await;
        (snapshot.external_members, snapshot.denied_members) = (members, denied);
        let has_replied = |member: &&ListedMember| {
            snapshot.external_members.iter().any(|external| external.id == member.id)
        };
        let replying: Vec<&ListedMember> = without_pod.iter().filter(has_replied).collect();
        let is_terminating =
            |member: &ListedMember| siblings.other_terminating.iter().any(|pod| has_peer_at(member, pod));
        let mut leaving: Vec<MemberId> =
            replying.iter().filter(|member| is_terminating(member)).map(|member| member.id).collect();
        // Boxed, because its size would add to every evaluation, and few clusters need it.
        let elsewhere =
            Box::pin(self.leaving_elsewhere(&siblings.namespace, &replying, &addresses, reserved, until));
        let elsewhere = elsewhere.await;
        // Without a list of their pods, none of them counts.
        leaving.extend(
            elsewhere
                .as_ref()
                .map_or_else(|_| replying.iter().map(|member| member.id).collect(), Clone::clone),
        );
        snapshot.external_members.retain(|external| !leaving.contains(&external.id));
        let namespace = &siblings.namespace;
        let pods = &snapshot.pods;
        // Beside a pod that replied as another member, the member of the same name runs elsewhere.
        let has_replied = |pod: &str| pods.iter().any(|own| own.name == pod && own.reply.status().is_some());
        let has_set = |pod: &str| {
            self.annotations.stateful_set_by_pod_name(namespace, pod).is_some() && !has_replied(pod)
        };
        for external in &mut snapshot.external_members {
            let member = without_pod.iter().find(|member| member.id == external.id);
            external.reserved =
                member.is_some_and(|member| external::is_leaving(member, namespace, reserved, has_set));
        }
        reject_unadvertised_schemes(snapshot);
        elsewhere.map(|_| ())
    }

    pub(super) async fn probe<P>(
        &self,
        namespace: &str,
        pods: &[(P, EtcdPod)],
        until: Instant,
    ) -> Vec<ProbeResult> {
        probe_pods(&self.connections, &self.credentials, &self.metrics, namespace, pods, until).await
    }

    /// Returns the effect of a deletion on the data of the request's pod, or `None` if the pod is not in the cluster.
    async fn target_storage(
        &self,
        request: &Request,
        siblings: &Siblings,
        until: Instant,
    ) -> Option<Result<Storage, LookupError>> {
        let (pod, etcd_pod) = siblings.pods.iter().find(|(pod, _)| pod.metadata.name == request.name)?;
        let started = Instant::now();
        let read =
            claim_storage::read_storage(&self.claims, &request.namespace, &request.user, pod, etcd_pod);
        Some(timeout_at(until, read).await.unwrap_or_else(|_| {
            Err(LookupError::TimedOut {
                subject: format!("the claim of pod {}/{}", request.namespace, request.name),
                limit: until.duration_since(started),
            })
        }))
    }

    pub(super) async fn siblings_with_credentials(
        &self,
        cluster_key: &ClusterKey,
        pods: Vec<Pod>,
        deadline: Deadline,
    ) -> Siblings {
        let mut siblings = Siblings::new(cluster_key, pods);
        let until = deadline.minus(ANSWER_RESERVE);
        self.complete(&siblings.namespace, &mut siblings.pods, until).await;
        siblings
    }
}

fn has_peer_at(member: &ListedMember, pod: &Pod) -> bool {
    identity::has_peer_at(member, &pod.metadata.name, &pod.status.pod_ip)
}
