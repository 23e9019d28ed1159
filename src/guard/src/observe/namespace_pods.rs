//! The etcd pods of a namespace: those of the cluster of a request, and those of other owners.

use etcd_guard_core::{
    cluster_key::ClusterKey,
    discovery::{etcd_pod, etcd_pod::EtcdPod},
    escape::{MAX_NAME_CHARS, into_bounded_line},
    etcd::{endpoint::Endpoint, member::Scheme, probe_result::ProbeResult},
    membership::single_member::SingleMemberEvidence,
    objects::{owner_reference::OwnerReference, pod::Pod},
    reservation::{LivePod, Reservation},
    snapshot::{MemberPod, OwnerState, Snapshot},
};

/// The etcd pods of a namespace, read before the probe round.
pub(crate) struct NamespacePods {
    /// The cluster's display name: `NAMESPACE/OWNER`.
    pub(super) cluster: String,
    /// The namespace of all these pods.
    pub(super) namespace: String,
    /// The pods of the cluster.
    pub(crate) pods: Vec<(Pod, EtcdPod)>,
    /// Etcd pods of other owners.
    pub(super) other_pods: Vec<(Pod, EtcdPod)>,
    /// Pods that an annotation excludes from the guard. Their members can still be in the member list.
    pub(super) excluded: Vec<(Pod, EtcdPod)>,
    /// Terminating pods that are not recognized as etcd pods. A member that replies at a client URL may run in one.
    pub(super) other_terminating: Vec<Pod>,
    /// Whether the pods were read by their names. Other pods of the namespace are then unknown.
    pub(crate) are_read_by_name: bool,
}

// === impl NamespacePods ===

impl NamespacePods {
    /// Groups the pods of a namespace. Finished pods are omitted.
    pub(crate) fn new(cluster_key: &ClusterKey, pods: Vec<Pod>) -> Self {
        let (mut etcd_pods, mut excluded, mut other_terminating) = (Vec::new(), Vec::new(), Vec::new());
        for pod in pods.into_iter().filter(|pod| !pod.is_finished()) {
            if let Some(etcd_pod) = etcd_pod::read(&pod, &pod.metadata.annotations) {
                etcd_pods.push((pod, etcd_pod));
            } else if etcd_pod::is_excluded(&pod)
                && let Some(etcd_pod) = etcd_pod::read_excluded(&pod)
            {
                excluded.push((pod, etcd_pod));
            } else if pod.is_terminating() {
                other_terminating.push(pod);
            }
        }
        let namespace = cluster_key.namespace().to_owned();
        let is_in_cluster = |(pod, _): &(Pod, EtcdPod)| cluster_key.contains(&namespace, pod);
        let (pods, other_pods) = etcd_pods.into_iter().partition(is_in_cluster);
        let cluster = format!("{namespace}/{}", cluster_key.name());
        Self { cluster, namespace, pods, other_pods, excluded, other_terminating, are_read_by_name: false }
    }

    /// Whether this pod of the namespace runs a member, of any owner.
    pub(crate) fn runs_member(&self, pod: &Pod) -> bool {
        let mut members = self.pods.iter().chain(&self.other_pods);
        members.any(|(member, _)| member.metadata.name == pod.metadata.name)
    }

    /// Returns the address of the member in the pod with this name.
    pub(crate) fn endpoint(&self, name: &str) -> Option<&Endpoint> {
        let (_, etcd_pod) = self.pods.iter().find(|(pod, _)| pod.metadata.name == name)?;
        etcd_pod.endpoint.as_ref()
    }

    /// Returns the endpoints of the cluster's pods.
    pub(super) fn endpoints(&self) -> impl Iterator<Item = &Endpoint> {
        self.pods.iter().filter_map(|(_, etcd_pod)| etcd_pod.endpoint.as_ref())
    }

    /// Returns the endpoints of the cluster's pods whose members replied in this snapshot.
    pub(super) fn endpoints_of_replies(&self, snapshot: &Snapshot) -> impl Iterator<Item = &Endpoint> {
        let has_replied = |pod: &Pod| {
            let known = snapshot.pod(&pod.metadata.name);
            known.is_some_and(|known| known.uid == pod.metadata.uid && known.reply.status().is_some())
        };
        let replied = self.pods.iter().filter(move |(pod, _)| has_replied(pod));
        replied.filter_map(|(_, etcd_pod)| etcd_pod.endpoint.as_ref())
    }

    /// Returns the pods that run members, also those that an annotation excludes.
    pub(super) fn etcd_pods(&self) -> impl Iterator<Item = &Pod> {
        [&self.pods, &self.other_pods, &self.excluded].into_iter().flatten().map(|(pod, _)| pod)
    }

    /// Returns the uid of the pod with this name.
    pub(crate) fn uid(&self, name: &str) -> Option<&str> {
        let mut metadata = self.pods.iter().map(|(pod, _)| &pod.metadata);
        metadata.find(|metadata| metadata.name == name).map(|metadata| metadata.uid.as_str())
    }

    /// Returns the controller of the pod with this name.
    pub(crate) fn controller(&self, name: &str) -> Option<&OwnerReference> {
        self.pods.iter().find(|(pod, _)| pod.metadata.name == name)?.0.controller()
    }

    /// Returns what the specifications of these pods show about the size of the cluster of the pod with this name.
    pub(crate) fn single_member_evidence(
        &self,
        cluster_key: &ClusterKey,
        name: &str,
    ) -> SingleMemberEvidence {
        let Some((_, etcd_pod)) = self.pods.iter().find(|(pod, _)| pod.metadata.name == name) else {
            return SingleMemberEvidence::default();
        };
        let initial_members = &etcd_pod.initial_members;
        // A member that joined later lists all members that it found.
        let names_member = |(_, other): &(Pod, EtcdPod)| {
            other.initial_members.iter().any(|name| initial_members.contains(name))
        };
        let is_excluded_member = |(pod, _): &(Pod, EtcdPod)| cluster_key.contains(&self.namespace, pod);
        SingleMemberEvidence {
            initial_members: initial_members.len(),
            has_peer_pod: self.are_read_by_name
                || self.pods.len() > 1
                || self.excluded.iter().any(is_excluded_member)
                || self.other_pods.iter().any(names_member),
            ..SingleMemberEvidence::default()
        }
    }

    /// Returns all pods that exist and may run members.
    pub(crate) fn live_pods(&self) -> Vec<LivePod<'_>> {
        let pods = self.pods.iter().chain(&self.other_pods);
        pods.map(|(pod, _)| LivePod::from(pod)).collect()
    }
}

/// Combines a pod with the result of probing its member.
pub(super) fn member_pod(
    pod: &Pod,
    etcd_pod: &EtcdPod,
    reply: ProbeResult,
    reserved: &[Reservation],
) -> MemberPod {
    let user = etcd_pod.endpoint.as_ref().and_then(|endpoint| endpoint.user.as_ref());
    let user = user.map(|user| user.name.as_str());
    let running = etcd_pod.is_running(pod);
    let live = LivePod { serves: running && reply.is_healthy(), ..LivePod::from(pod) };
    MemberPod {
        name: pod.metadata.name.clone(),
        uid: pod.metadata.uid.clone(),
        container: etcd_pod.container.clone(),
        etcdctl: etcd_pod.etcdctl.with_user(user),
        ip: pod.status.pod_ip.clone(),
        member_name: etcd_pod.member_name.clone(),
        hostname: pod.spec.hostname.clone(),
        peer_urls: etcd_pod.peer_urls.clone(),
        owner: OwnerState::OF_TARGET,
        owner_kind: pod.controller().map(kind_of).unwrap_or_default(),
        terminating: pod.is_terminating(),
        reserved: reserved.iter().any(|reservation| reservation.takes(&live)),
        running,
        other_containers: etcd_pod.count_other_running_containers(pod),
        storage: etcd_pod.storage,
        scheme: etcd_pod.endpoint.as_ref().map_or(Scheme::Http, Endpoint::scheme),
        reply,
    }
}

/// Returns the kind of an owner, escaped and cut: the API server does not validate the kind in an ownerReference.
fn kind_of(owner: &OwnerReference) -> String {
    into_bounded_line(owner.kind.clone(), MAX_NAME_CHARS)
}
