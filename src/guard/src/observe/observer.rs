//! Reads the pods of a cluster from the API server, probes each member at its pod's own address, and returns a snapshot.
//!
//! The cluster of the target is not always in the pods of one owner. Pods of other owners run its voters if each member has a
//! StatefulSet or a Deployment of its own, without an owner, or after a StatefulSet has released its pods. Etcd pods of any
//! owner and any labels are candidates. Pods that match a voter by a peer URL, a hostname or a name are probed first. If a
//! voter is still without a pod, all other etcd pods of the namespace are probed. The guard never probes only a part of them:
//! a voter that it does not see may be terminating. Voters without any pod are probed at the client URLs that they advertise.
//!
//! Pods of a deleted owner are leaving for as long as they exist, however long ago the deletion was approved: the garbage
//! collector may delete them at any time.

use std::{
    borrow::Borrow,
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
    time::Duration,
};

use tokio::time::{Instant, timeout_at};

use crate::{
    LiveConfig, claim_storage,
    credentials::CredentialReader,
    deadline::{ANSWER_RESERVE, Deadline},
    metrics::Metrics,
    observe::{
        answered_addresses::AnsweredAddresses,
        error::{EvaluationError, MAX_UNMATCHED_PODS},
        external,
        external::{ClusterAccess, ExternalProbe, ProbeGate, voters_without_pod},
        member_pod_cache::MemberPodNames,
        namespace_pods::{NamespacePods, member_pod},
        node_storage::with_template,
        other_namespaces,
        other_namespaces::{Places, find_pods, inherits_membership},
        related::add_related,
    },
    ownership::{
        leaving::{Link, OwnerScan},
        record::OwnershipRecord,
        store::OwnershipStore,
    },
};
use etcd_guard_core::{
    annotations::MEMBER,
    cluster_key::ClusterKey,
    discovery::{etcd_pod, etcd_pod::EtcdPod},
    etcd::{
        error::MemberError,
        member::{ListedMember, MemberId, Scheme},
        probe_result::ProbeResult,
    },
    membership::{identity, identity::may_run, scheme::reject_unadvertised_schemes},
    objects::{pod::Pod, pod_references::PodReferences, stateful_set::StatefulSet},
    policy::Mode,
    request::Request,
    reservation::Reservation,
    snapshot::{MemberPod, Snapshot, Storage},
};
use etcd_guard_etcd as etcd;
use etcd_guard_etcd::{Connections, detect_schemes};
use etcd_guard_kubernetes::{AnnotationCache, ApiReader, ClaimReader, Existence, LookupError};

/// Minimum time for a probe round. A healthy cluster replies within milliseconds, on a busy machine within tens of
/// milliseconds.
const MIN_PROBE_TIME: Duration = Duration::from_millis(600);

/// Takes snapshots of clusters. Clones share all caches and connections.
#[derive(Clone)]
pub(crate) struct ClusterObserver {
    /// Reads pods.
    pub(crate) pods: ApiReader,
    /// Reads the claims that hold the data of members.
    pub(crate) claims: ClaimReader,
    /// Annotations of the pods' owners.
    pub(crate) annotations: AnnotationCache,
    /// The configuration with the floor for annotations.
    pub(crate) config: LiveConfig,
    /// Credentials that members require from clients.
    pub(crate) credentials: CredentialReader,
    /// Owners of members, recorded while both existed.
    pub(crate) ownership: Arc<OwnershipStore>,
    /// Selects the addresses of member lists that are probed.
    pub(crate) gate: ProbeGate,
    /// The addresses at which members have answered this replica.
    pub(crate) answers: AnsweredAddresses,
    /// Connections to members, reused by later rounds.
    pub(crate) connections: Connections,
    /// Durations and failures of probe rounds.
    pub(crate) metrics: Metrics,
}

/// The result of a probe round for one request.
pub(crate) struct Observation {
    /// The cluster.
    pub(crate) snapshot: Snapshot,
    /// The reason why the claim of the request's pod could not be read.
    pub(crate) claim_error: Option<LookupError>,
}

/// Maximum number of pods whose owners one evaluation reads. It exceeds the members of any cluster, together with the
/// other pods that one evaluation probes.
const MAX_PODS_WITH_OWNERS: usize = 128;

/// A pod of another owner that may run a voter.
type Candidate = (Pod, EtcdPod);

/// The uids of the pods of deleted owners.
#[derive(Debug, Default)]
struct DepartedPods(BTreeSet<String>);

// === impl ClusterObserver ===

impl ClusterObserver {
    // --- pods of the API server, with the annotations of their owners ---

    /// Reads the live pod of a request, without the annotations of its owners. Returns `None` if it does not exist.
    pub(crate) async fn live_pod(
        &self,
        request: &Request,
        deadline: Deadline,
    ) -> Result<Option<Pod>, EvaluationError> {
        let read = self.pods.get_pod(&request.namespace, &request.name);
        match deadline.within("reading the pod from the API server", read).await? {
            Ok(pod) if request.matches(&pod) => Ok(Some(pod)),
            Ok(_) | Err(LookupError::NotFound { .. }) => Ok(None),
            Err(error) => Err(EvaluationError::Lookup(error)),
        }
    }

    /// Returns the revision to which a rollout of their StatefulSet updates these pods. Returns `None` without a rollout, and if the
    /// StatefulSet cannot be read: the choice of the next leader then does without it.
    pub(crate) async fn rollout_revision(&self, pods: &NamespacePods, deadline: Deadline) -> Option<String> {
        let owner = pods.stateful_set()?;
        let read = self.pods.get_stateful_set(pods.namespace(), &owner.name);
        let set = deadline.within("reading the StatefulSet from the API server", read).await.ok()?.ok()?;
        set.rollout_revision().filter(|_| set.metadata.uid == owner.uid).map(str::to_owned)
    }

    /// Lists the pods of a namespace, with the annotations of their owners.
    pub(crate) async fn list_pods(
        &self,
        namespace: &str,
        deadline: Deadline,
    ) -> Result<Vec<Pod>, EvaluationError> {
        let list = self.pods.list_pods(namespace);
        let pods = deadline.within("listing the pods from the API server", list).await?;
        let mut pods = pods.map_err(EvaluationError::Lookup)?;
        self.add_inherited(namespace, &mut pods, deadline).await?;
        Ok(pods)
    }

    /// Lists the pods of a namespace, with the annotations of their owners and with their references to other objects.
    pub(crate) async fn list_pods_with_references(
        &self,
        namespace: &str,
        deadline: Deadline,
    ) -> Result<Vec<(Pod, PodReferences)>, EvaluationError> {
        let list = self.pods.list_pods_with_references(namespace);
        let pods = deadline.within("listing the pods from the API server", list).await?;
        let mut pods = pods.map_err(EvaluationError::Lookup)?;
        for (pod, _) in &mut pods {
            self.add_inherited(namespace, std::slice::from_mut(pod), deadline).await?;
        }
        Ok(pods)
    }

    /// Reads the known member pods of a cluster by their names. Returns `None` if the request's pod is not among them, or if
    /// one of them does not exist.
    pub(crate) async fn read_by_name(
        &self,
        names: &MemberPodNames,
        request: &Request,
        deadline: Deadline,
    ) -> Result<Option<Vec<Pod>>, EvaluationError> {
        if !names.contains(&request.name) {
            return Ok(None);
        }
        let read = names.read(&self.pods, &request.namespace);
        let pods = deadline.within("reading the pods from the API server", read).await?;
        let Some(mut pods) = pods.map_err(EvaluationError::Lookup)? else { return Ok(None) };
        self.add_inherited(&request.namespace, &mut pods, deadline).await?;
        Ok(Some(pods))
    }

    /// Waits until the annotations of the owners in this namespace are known.
    pub(crate) async fn wait_for_annotations(
        &self,
        namespace: &str,
        deadline: Deadline,
    ) -> Result<(), EvaluationError> {
        // An earlier state can be known, and be listed again.
        self.annotations.hurry(namespace);
        // Most calls find them known. Only the others need a span of the traces.
        if !self.annotations.is_known(namespace) {
            let known = self.annotations.wait_until_known(namespace);
            let known =
                deadline.within("listing namespaces and StatefulSets from the API server", known).await?;
            known.map_err(EvaluationError::Lookup)?;
        }
        Ok(())
    }

    /// Waits until the annotations of the pods' owners are known, and adds them to the pods.
    pub(crate) async fn add_inherited(
        &self,
        namespace: &str,
        pods: &mut [Pod],
        deadline: Deadline,
    ) -> Result<(), EvaluationError> {
        self.wait_for_annotations(namespace, deadline).await?;
        self.apply_inherited(namespace, pods);
        Ok(())
    }

    /// Whether the annotation of this pod could exclude it from the guard. The floor of the configuration can forbid the
    /// exclusion of pods that evidently run etcd.
    pub(crate) fn accepts_exclusion(&self, pod: &Pod) -> bool {
        !self.includes_evident_members() || !etcd_pod::is_evident_member(pod)
    }

    fn includes_evident_members(&self) -> bool {
        self.config.borrow().floor.mode == Mode::Enforce
    }

    /// Returns a pod of this StatefulSet as the controller would create it, with the annotations of its owners.
    pub(crate) fn pod_of_set(&self, namespace: &str, set: &StatefulSet) -> Pod {
        self.with_inherited(namespace, set.template(namespace))
    }

    /// Returns a pod with the annotations of its owners.
    pub(crate) fn with_inherited(&self, namespace: &str, mut pod: Pod) -> Pod {
        self.apply_inherited(namespace, std::slice::from_mut(&mut pod));
        pod
    }

    /// Adds the annotations of the pods' owners, and removes annotations that the floor of the configuration forbids.
    pub(crate) fn apply_inherited(&self, namespace: &str, pods: &mut [Pod]) {
        self.annotations.apply_inherited(
            namespace,
            pods,
            &etcd_pod::MEMBER_ANNOTATIONS,
            etcd_pod::inherits_from_namespace,
        );
        if self.includes_evident_members() {
            for pod in pods {
                etcd_pod::include_evident_member(pod);
            }
        }
    }

    /// Returns whether [`Self::apply_inherited`] may change this pod.
    pub(crate) fn may_inherit(&self, namespace: &str, pod: &Pod) -> bool {
        self.annotations.has_any(namespace, pod.stateful_set(), &etcd_pod::MEMBER_ANNOTATIONS)
            || etcd_pod::is_excluded(pod)
    }

    // --- what the specifications do not show: settings in files, schemes and credentials ---

    /// Completes the members of the cluster's pods, as far as their specifications do not show them.
    pub(crate) async fn add_access(&self, pods: &mut NamespacePods, deadline: Deadline) {
        let until = deadline.minus(ANSWER_RESERVE);
        self.complete_members(&pods.namespace, &mut pods.pods, until).await;
    }

    /// Completes the members of these pods. A file, Secret or `ConfigMap` that several pods share is read once.
    async fn complete_members<P: Borrow<Pod>>(
        &self,
        namespace: &str,
        pods: &mut [(P, EtcdPod)],
        until: Instant,
    ) {
        self.read_config_files(namespace, pods, until).await;
        for (pod, member) in &mut *pods {
            self.credentials.read_stop_scripts(namespace, (*pod).borrow(), member, until).await;
        }
        set_schemes(pods, until).await;
        self.credentials.add_to(namespace, pods, until).await;
    }

    async fn read_config_files<P: Borrow<Pod>>(
        &self,
        namespace: &str,
        pods: &mut [(P, EtcdPod)],
        until: Instant,
    ) {
        for (pod, member) in pods {
            let Some(file) = &member.config_file else { continue };
            let is_optional = member.is_config_file_optional;
            let content = self.credentials.config_file(namespace, file, is_optional, until).await;
            let pod: &Pod = (*pod).borrow();
            let complete = |text: String| member.with_config_file(pod, &pod.metadata.annotations, &text);
            match content.and_then(|text| text.map(complete).transpose()) {
                Ok(Some(complete)) => *member = complete,
                // The settings remain unknown, and the scheme is probed.
                Err(problem) if member.endpoint.is_some() => {
                    let problem = format!("the settings of etcd are unknown: {problem}");
                    member.unread_settings = Some(problem.clone());
                    member.problem = Some(problem);
                }
                Ok(None) | Err(_) => {}
            }
        }
    }

    /// Adds credentials to the endpoints of pods of other owners, within the limits of the cluster's access. The pods may
    /// run these voters.
    async fn with_credentials<'a>(
        &self,
        namespace: &str,
        candidates: &'a [impl Borrow<Candidate>],
        access: &ClusterAccess,
        voters: &[ListedMember],
        until: Instant,
    ) -> Vec<(&'a Pod, EtcdPod)> {
        let pods = candidates.iter().map(|candidate| {
            let (pod, etcd_pod) = candidate.borrow();
            (pod, etcd_pod.clone())
        });
        let mut pods: Vec<(&Pod, EtcdPod)> = pods.collect();
        self.complete_members(namespace, &mut pods, until).await;
        access.limit(&mut pods, voters);
        pods
    }

    // --- snapshots ---

    /// Probes the members for a request, and reads the claim of its pod. The caller reads `reserved` before this call:
    /// a reservation that another replica adds later causes a write conflict.
    ///
    /// # Errors
    ///
    /// Fails if too little time remains. Healthy members could not reply in time and would not count as serving.
    pub(crate) async fn observe(
        &self,
        request: &Request,
        listed: &NamespacePods,
        reserved: &[Reservation],
        deadline: Deadline,
    ) -> Result<Observation, EvaluationError> {
        deadline.ensure_remaining(MIN_PROBE_TIME, ANSWER_RESERVE, "to probe the members")?;
        let until = deadline.minus(ANSWER_RESERVE);
        let taken_at = Instant::now();
        let (mut snapshot, storage, departed) = tokio::join!(
            self.probe_cluster(listed, reserved, taken_at, until),
            self.target_storage(request, listed, until),
            self.departed_pods(listed, until)
        );
        let departed = departed.map_err(EvaluationError::Lookup)?;
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
        self.find_other_members(&mut snapshot, listed, reserved, Some(&request.name), until).await?;
        departed.mark(&mut snapshot);
        Ok(Observation { snapshot, claim_error })
    }

    /// Takes a snapshot of a cluster from pods that were already listed, without claims. The caller reads `reserved` before
    /// this call.
    pub(crate) async fn observe_listed(
        &self,
        cluster_key: &ClusterKey,
        pods: &[Pod],
        reserved: &[Reservation],
        deadline: Deadline,
    ) -> Snapshot {
        self.observe_cluster(cluster_key, pods, reserved, deadline).await.1
    }

    /// Takes a snapshot of a cluster from pods that were already listed, with the storage of each pod.
    pub(crate) async fn observe_with_storage(
        &self,
        cluster_key: &ClusterKey,
        pods: &[Pod],
        reserved: &[Reservation],
        deadline: Deadline,
    ) -> Snapshot {
        let (listed, mut snapshot) = self.observe_cluster(cluster_key, pods, reserved, deadline).await;
        for (pod, etcd_pod) in &listed.pods {
            let read = claim_storage::read_storage(&self.claims, cluster_key.namespace(), "", pod, etcd_pod);
            // If the claim cannot be read, the storage derived from the pod's volumes remains.
            let Ok(Ok(storage)) = deadline.within("reading a claim", read).await else { continue };
            let read = with_template(&self.pods, cluster_key.namespace(), pod, etcd_pod, storage);
            let Ok(storage) = deadline.within("reading an owner", read).await else { continue };
            for member in snapshot.pods.iter_mut().filter(|member| member.uid == pod.metadata.uid) {
                member.storage = storage;
            }
        }
        snapshot
    }

    /// Takes a snapshot of a cluster from pods that were already listed, and returns the pods with the endpoints of their
    /// members as well.
    pub(crate) async fn observe_cluster(
        &self,
        cluster_key: &ClusterKey,
        pods: &[Pod],
        reserved: &[Reservation],
        deadline: Deadline,
    ) -> (NamespacePods, Snapshot) {
        let mut listed = NamespacePods::new(cluster_key, pods.to_vec());
        self.add_access(&mut listed, deadline).await;
        let until = deadline.minus(ANSWER_RESERVE);
        let taken_at = Instant::now();
        let (mut snapshot, departed) = tokio::join!(
            self.probe_cluster(&listed, reserved, taken_at, until),
            self.departed_pods(&listed, until)
        );
        if let Err(error) = self.find_other_members(&mut snapshot, &listed, reserved, None, until).await {
            // The voters without a pod count as not healthy.
            tracing::warn!(cluster = listed.cluster, %error, "incomplete snapshot");
        }
        let departed = departed.unwrap_or_else(|error| {
            tracing::warn!(cluster = listed.cluster, %error, "incomplete snapshot");
            self.possibly_departed_pods(&listed)
        });
        departed.mark(&mut snapshot);
        (listed, snapshot)
    }

    /// Probes the pods of the cluster and, if the pods were read by name, the pods of other owners that run its voters.
    async fn probe_cluster(
        &self,
        listed: &NamespacePods,
        reserved: &[Reservation],
        taken_at: Instant,
        until: Instant,
    ) -> Snapshot {
        let namespace = &listed.namespace;
        let others: &[_] = if listed.are_read_by_name() { &listed.other_pods } else { &[] };
        let mut pods: Vec<(&Pod, EtcdPod)> =
            listed.pods.iter().map(|(pod, etcd_pod)| (pod, etcd_pod.clone())).collect();
        let access = ClusterAccess::new(listed.endpoints());
        pods.extend(self.with_credentials(namespace, others, &access, &[], until).await);
        let replies = self.probe(namespace, &pods, until).await;
        let lacks_role = pods.iter().filter(|(_, etcd_pod)| etcd_pod.lacks_role);
        let without_role = lacks_role.map(|(pod, _)| pod.metadata.name.clone()).collect();
        let pods = pods
            .iter()
            .zip(replies)
            .map(|((pod, etcd_pod), reply)| self.answers.with_path(pod, etcd_pod, reply, reserved));
        let mut pods: Vec<MemberPod> = pods.collect();
        let others = pods.split_off(listed.pods.len().min(pods.len()));
        let mut snapshot = Snapshot {
            cluster: listed.cluster.clone(),
            namespace: namespace.clone(),
            taken_at,
            pods,
            external_members: Vec::new(),
            denied_members: Vec::new(),
            other_namespaces: BTreeSet::new(),
            reserved_until: BTreeMap::new(),
            without_role,
        };
        reject_unadvertised_schemes(&mut snapshot);
        add_related(&mut snapshot, others.into_iter().map(MemberPod::with_foreign_owner).collect());
        snapshot
    }

    /// Probes the members of these pods in parallel, each at its pod's own address. Returns one result per pod, in the order
    /// of the pods.
    async fn probe<P>(&self, namespace: &str, pods: &[(P, EtcdPod)], until: Instant) -> Vec<ProbeResult> {
        let endpoints: Vec<_> = pods.iter().filter_map(|(_, etcd_pod)| etcd_pod.endpoint.clone()).collect();
        let started = Instant::now();
        let results = etcd::probe(&self.connections, &endpoints, until).await;
        self.metrics.record_probe_round(started.elapsed(), &results);
        let mut results = results.into_iter();
        let result_of = |pod: &EtcdPod| match pod.endpoint.as_ref().and_then(|_| results.next()) {
            Some(result) => pod.with_problem(result),
            None => {
                let cause = pod.problem.clone().unwrap_or_else(|| String::from("the member was not probed"));
                ProbeResult::NoStatus { cause: MemberError::Unreachable(cause) }
            }
        };
        let results: Vec<ProbeResult> = pods.iter().map(|(_, pod)| pod).map(result_of).collect();
        for ((_, pod), result) in pods.iter().zip(&results) {
            if let Some(MemberError::CredentialsRejected(_) | MemberError::Tls(_)) = result.cause() {
                self.credentials.invalidate(namespace, pod);
            }
        }
        results
    }

    /// Returns the effect of a deletion on the data of the request's pod, or `None` if the pod is not in the cluster.
    async fn target_storage(
        &self,
        request: &Request,
        listed: &NamespacePods,
        until: Instant,
    ) -> Option<Result<Storage, LookupError>> {
        let (pod, etcd_pod) = listed.pods.iter().find(|(pod, _)| pod.metadata.name == request.name)?;
        let started = Instant::now();
        let namespace = &request.namespace;
        let read = async {
            let read = claim_storage::read_storage(&self.claims, namespace, &request.user, pod, etcd_pod);
            let storage = read.await?;
            Ok(with_template(&self.pods, namespace, pod, etcd_pod, storage).await)
        };
        Some(timeout_at(until, read).await.unwrap_or_else(|_| {
            Err(LookupError::TimedOut {
                subject: format!("the claim of pod {}/{}", request.namespace, request.name),
                limit: until.duration_since(started),
            })
        }))
    }

    // --- voters in pods of other owners, and outside of the namespace ---

    /// Finds the voters that run in no pod of the snapshot: in pods of other owners and, if no pod can run them, at the
    /// client URLs that they advertise.
    async fn find_other_members(
        &self,
        snapshot: &mut Snapshot,
        listed: &NamespacePods,
        reserved: &[Reservation],
        target: Option<&str>,
        until: Instant,
    ) -> Result<(), EvaluationError> {
        // If a voter has no pod, the caller lists the pods and probes again.
        if listed.are_read_by_name() {
            return Ok(());
        }
        self.find_other_pods(snapshot, listed, reserved, target, until).await?;
        self.probe_external_members(snapshot, listed, reserved, until).await
    }

    /// Adds the pods of other owners that run voters of the cluster to the snapshot of the target's own pods.
    ///
    /// # Errors
    ///
    /// Returns [`EvaluationError::TooManyPods`] if a voter is in no pod that matches it, and the namespace has more than
    /// [`MAX_UNMATCHED_PODS`] other etcd pods.
    async fn find_other_pods(
        &self,
        snapshot: &mut Snapshot,
        listed: &NamespacePods,
        reserved: &[Reservation],
        target: Option<&str>,
        until: Instant,
    ) -> Result<(), EvaluationError> {
        let (mut pods, mut excluded): (Vec<&Candidate>, Vec<&Candidate>) =
            (listed.other_pods.iter().collect(), listed.excluded.iter().collect());
        let access = ClusterAccess::new(listed.endpoints());
        self.add_matching(snapshot, [&mut pods, &mut excluded], &access, reserved, until).await;
        if is_complete(snapshot) || pods.is_empty() {
            return Ok(());
        }
        if pods.len() > MAX_UNMATCHED_PODS {
            // A stopped container takes part in nothing, so that its deletion does not depend on other pods.
            let is_stopped = target
                .and_then(|name| snapshot.pod(name))
                .is_some_and(|target| !target.is_running() && target.reply.status().is_none());
            return if is_stopped { Ok(()) } else { Err(EvaluationError::TooManyPods { count: pods.len() }) };
        }
        let voters = voters_without_pod(snapshot);
        let pods = self.with_credentials(&listed.namespace, &pods, &access, &voters, until).await;
        let found = self.probe_other_pods(&listed.namespace, &pods, reserved, until).await;
        add_related(snapshot, found);
        // These pods may have returned the first member list.
        self.add_matching(snapshot, [&mut Vec::new(), &mut excluded], &access, reserved, until).await;
        Ok(())
    }

    /// Probes the pods that match a voter without a pod, and removes them from the candidates.
    async fn add_matching(
        &self,
        snapshot: &mut Snapshot,
        candidates: [&mut Vec<&Candidate>; 2],
        access: &ClusterAccess,
        reserved: &[Reservation],
        until: Instant,
    ) {
        let voters = voters_without_pod(snapshot);
        let mut matching = Vec::new();
        for candidates in candidates {
            candidates.retain(|candidate| {
                let is_match = matches_any(candidate, &snapshot.namespace, &voters);
                if is_match {
                    matching.push(*candidate);
                }
                !is_match
            });
        }
        if !matching.is_empty() {
            let pods = self.with_credentials(&snapshot.namespace, &matching, access, &voters, until).await;
            let found = self.probe_other_pods(&snapshot.namespace, &pods, reserved, until).await;
            add_related(snapshot, found);
        }
    }

    /// Probes pods of other owners.
    async fn probe_other_pods(
        &self,
        namespace: &str,
        pods: &[(&Pod, EtcdPod)],
        reserved: &[Reservation],
        until: Instant,
    ) -> Vec<MemberPod> {
        let replies = self.probe(namespace, pods, until).await;
        let found = pods
            .iter()
            .zip(replies)
            .map(|((pod, etcd_pod), reply)| self.answers.with_path(pod, etcd_pod, reply, reserved));
        let found = found.map(MemberPod::with_foreign_owner);
        found.collect()
    }

    /// Probes voters without a pod at their client URLs. Those whose pods in other namespaces are leaving do not become
    /// part of the snapshot.
    async fn probe_external_members(
        &self,
        snapshot: &mut Snapshot,
        listed: &NamespacePods,
        reserved: &[Reservation],
        until: Instant,
    ) -> Result<(), EvaluationError> {
        let without_pod = external::voters_without_pod(snapshot);
        if without_pod.is_empty() {
            return Ok(());
        }
        let access = ClusterAccess::new(listed.endpoints());
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
            |member: &ListedMember| listed.other_terminating.iter().any(|pod| has_peer_at(member, pod));
        let mut leaving: Vec<MemberId> =
            replying.iter().filter(|member| is_terminating(member)).map(|member| member.id).collect();
        // Boxed, because its size would add to every evaluation, and few clusters need it.
        let elsewhere =
            Box::pin(self.leaving_elsewhere(&listed.namespace, &replying, &addresses, reserved, until));
        let elsewhere = elsewhere.await.map(|(leaving, namespaces)| {
            snapshot.other_namespaces = namespaces;
            leaving
        });
        // Without a list of their pods, none of them counts.
        leaving.extend(
            elsewhere
                .as_ref()
                .map_or_else(|_| replying.iter().map(|member| member.id).collect(), Clone::clone),
        );
        snapshot.external_members.retain(|external| !leaving.contains(&external.id));
        let namespace = &listed.namespace;
        let (pods, cluster) = (&snapshot.pods, snapshot.cluster_id());
        // Beside a pod that replied as another member, the member of the same name runs elsewhere.
        let has_replied = |pod: &str| pods.iter().any(|own| own.name == pod && own.reply.status().is_some());
        let has_set = |pod: &str| {
            self.annotations.stateful_set_by_pod_name(namespace, pod).is_some() && !has_replied(pod)
        };
        for external in &mut snapshot.external_members {
            let member = without_pod.iter().find(|member| member.id == external.id);
            external.reserved = member
                .is_some_and(|member| external::is_leaving(member, namespace, cluster, reserved, has_set));
        }
        reject_unadvertised_schemes(snapshot);
        elsewhere.map(|_| ())
    }

    /// Returns those of these members whose pods in other namespaces are leaving, and the guarded namespaces of the etcd pods at
    /// `addresses`, at which the members replied. Costs one read per address and namespace, in parallel.
    ///
    /// # Errors
    ///
    /// Fails if the pods cannot be read: the members might be terminating.
    async fn leaving_elsewhere(
        &self,
        namespace: &str,
        members: &[&ListedMember],
        addresses: &[(MemberId, IpAddr)],
        reserved: &[Reservation],
        until: Instant,
    ) -> Result<(Vec<MemberId>, BTreeSet<String>), EvaluationError> {
        let places: Vec<(&ListedMember, Places)> =
            members.iter().map(|member| (*member, Places::new(member, namespace, addresses))).collect();
        let mut pods = find_pods(&self.pods, &places, until).await.map_err(EvaluationError::Lookup)?;
        pods.for_each_unrecognized(|namespace, pod| {
            let pod = std::slice::from_mut(pod);
            self.annotations.apply_inherited(namespace, pod, &[MEMBER], inherits_membership);
        });
        let has_set =
            |namespace: &str, pod: &str| self.annotations.may_have_stateful_set_of_pod(namespace, pod);
        let is_leaving = |(member, places): &&(&ListedMember, Places)| {
            other_namespaces::is_leaving(member, places, &pods, reserved, has_set)
        };
        let leaving = places.iter().filter(is_leaving).map(|(member, _)| member.id).collect();
        let mut namespaces = pods.namespaces(addresses);
        namespaces.retain(|name| name != namespace && self.annotations.is_guarded(name));
        Ok((leaving, namespaces))
    }

    // --- pods of deleted owners ---

    /// Returns the etcd pods of the namespace with deleted owners. Costs no call while the watch shows the StatefulSets
    /// of these pods, and the recorder of owners reads those of other kinds.
    ///
    /// # Errors
    ///
    /// Fails if an owner cannot be read that may have been deleted.
    async fn departed_pods(
        &self,
        listed: &NamespacePods,
        until: Instant,
    ) -> Result<DepartedPods, LookupError> {
        let started = Instant::now();
        let (mut departed, unknown) = self.departed_without_reads(listed);
        if !unknown.is_empty() {
            let read = Box::pin(self.read_departed(&listed.namespace, &unknown));
            departed.extend(timeout_at(until, read).await.unwrap_or_else(|_| {
                Err(LookupError::TimedOut {
                    subject: format!("the owners of the pods in namespace {}", listed.namespace),
                    limit: until.duration_since(started),
                })
            })?);
        }
        Ok(DepartedPods(departed))
    }

    /// Returns the etcd pods of the namespace whose owner was or may have been deleted. Without its owners, no other pod
    /// counts on them.
    fn possibly_departed_pods(&self, listed: &NamespacePods) -> DepartedPods {
        let (mut departed, unknown) = self.departed_without_reads(listed);
        departed.extend(unknown.into_iter().map(|pod| pod.metadata.uid.clone()));
        DepartedPods(departed)
    }

    /// Returns the uids of the pods whose owner was deleted, and the pods whose owners have to be read.
    fn departed_without_reads<'a>(&self, listed: &'a NamespacePods) -> (BTreeSet<String>, Vec<&'a Pod>) {
        let namespace = &listed.namespace;
        let recent = self.ownership.leaving.recent(namespace);
        let is_scanned = recent.is_some();
        let mut departed = recent.unwrap_or_default();
        let mut unknown = Vec::new();
        for pod in listed.etcd_pods() {
            let Some(owner) = pod.controller() else { continue };
            if !owner.is_stateful_set() {
                if !is_scanned {
                    unknown.push(pod);
                }
                continue;
            }
            match self.annotations.stateful_set_state(namespace, &owner.name, &owner.uid) {
                Some(Existence::Terminating) => {
                    departed.insert(pod.metadata.uid.clone());
                }
                Some(_) if is_scanned || !self.annotations.has_controller(namespace, &owner.name) => {}
                Some(_) | None => unknown.push(pod),
            }
        }
        (departed, unknown)
    }

    /// Reads the owners of these pods. Their absence alone proves nothing: the references may be dangling.
    async fn read_departed(&self, namespace: &str, pods: &[&Pod]) -> Result<BTreeSet<String>, LookupError> {
        if pods.len() > MAX_PODS_WITH_OWNERS {
            let subject = format!("the owners of the pods in namespace {namespace}");
            let cause =
                format!("more than {MAX_PODS_WITH_OWNERS} etcd pods have an owner that does not exist");
            return Err(LookupError::Failed { subject, cause });
        }
        let mut scan = OwnerScan::new(&self.pods, namespace);
        let mut chains = Vec::new();
        for pod in pods {
            chains.push((pod, scan.links(pod).await?));
        }
        let mut links = chains.iter().flat_map(|(_, links)| links);
        let record = if links.any(Link::needs_record) {
            self.ownership.read(namespace).await?.record
        } else {
            OwnershipRecord::default()
        };
        let departed =
            chains.iter().filter(|(_, links)| links.iter().any(|link| link.shows_deletion(&record)));
        Ok(departed.map(|(pod, _)| pod.metadata.uid.clone()).collect())
    }
}

// === impl DepartedPods ===

impl DepartedPods {
    /// Marks these pods in a snapshot.
    fn mark(&self, snapshot: &mut Snapshot) {
        for pod in &mut snapshot.pods {
            pod.owner.is_deleted = self.0.contains(&pod.uid);
        }
    }
}

/// Determines the schemes that the specifications do not show.
async fn set_schemes<P>(pods: &mut [(P, EtcdPod)], until: Instant) {
    let mut unknown: Vec<&mut EtcdPod> =
        pods.iter_mut().map(|(_, member)| member).filter(|member| member.possible_tls.is_some()).collect();
    if unknown.is_empty() {
        return;
    }
    let endpoints: Vec<_> = unknown.iter().filter_map(|member| member.endpoint.as_ref()).collect();
    let schemes = detect_schemes(&endpoints, until).await;
    // A member that does not reply must not make a cluster with TLS look like one that also uses plain HTTP.
    let default = schemes.iter().flatten().find(|scheme| **scheme == Scheme::Https).copied();
    let mut schemes = schemes.into_iter();
    for member in unknown.iter_mut().filter(|member| member.endpoint.is_some()) {
        member.set_scheme(schemes.next().flatten().or(default));
    }
}

/// Whether a member list is proven and each of its voters has a pod, or the pods cannot be matched at all.
fn is_complete(snapshot: &Snapshot) -> bool {
    snapshot.pods.iter().any(|pod| pod.reply.is_healthy()) && voters_without_pod(snapshot).is_empty()
}

fn matches_any((pod, etcd_pod): &Candidate, namespace: &str, voters: &[ListedMember]) -> bool {
    let unprobed = ProbeResult::NoStatus { cause: MemberError::Other(String::from("not probed")) };
    let pod = member_pod(pod, etcd_pod, unprobed, &[]);
    voters.iter().any(|voter| may_run(&pod, namespace, voter))
}

fn has_peer_at(member: &ListedMember, pod: &Pod) -> bool {
    identity::has_peer_at(member, &pod.metadata.name, &pod.status.pod_ip)
}
