//! The etcd pods of a namespace: those of the cluster of a request, and those of other owners.

use etcd_guard_core::{
    cluster_key::ClusterKey,
    discovery::{etcd_pod, etcd_pod::EtcdPod},
    escape::{MAX_NAME_CHARS, into_bounded_line},
    etcd::{
        endpoint::Endpoint,
        member::{ClusterId, Scheme},
        probe_result::ProbeResult,
    },
    membership::single_member::SingleMemberEvidence,
    objects::{owner_reference::OwnerReference, pod::Pod},
    reservation::{LivePod, Reservation},
    snapshot::{ContainerState, MemberPod, OwnerState, Path, Snapshot},
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
    /// The id of the cluster, if the pods were read by the names of its known members. Other pods of the namespace are then
    /// unknown.
    pub(crate) read_as: Option<ClusterId>,
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
        Self { cluster, namespace, pods, other_pods, excluded, other_terminating, read_as: None }
    }

    /// Whether the pods were read by their names.
    pub(super) fn are_read_by_name(&self) -> bool {
        self.read_as.is_some()
    }

    /// Whether a reservation can concern the cluster, as far as this is known before the probe round. Pods of other clusters are
    /// not read by name.
    pub(crate) fn may_concern(&self, reservation: &Reservation) -> bool {
        let Some(id) = self.read_as else { return true };
        let is_other = reservation.cluster.as_ref().is_some_and(|cluster| *cluster != id.to_string());
        let mut pods = self.etcd_pods();
        !is_other || pods.any(|pod| pod.metadata.name == reservation.pod)
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

    /// Returns the controller of the pod with this name.
    pub(crate) fn controller(&self, name: &str) -> Option<&OwnerReference> {
        self.pods.iter().find(|(pod, _)| pod.metadata.name == name)?.0.controller()
    }

    /// Returns the namespace of all these pods.
    pub(crate) fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Returns the StatefulSet of the cluster's pods, if they have one.
    pub(crate) fn stateful_set(&self) -> Option<&OwnerReference> {
        let mut owners = self.pods.iter().filter_map(|(pod, _)| pod.controller());
        owners.find(|owner| owner.kind == "StatefulSet")
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
            has_peer_pod: self.are_read_by_name()
                || self.pods.len() > 1
                || self.excluded.iter().any(is_excluded_member)
                || self.other_pods.iter().any(names_member),
            ..SingleMemberEvidence::default()
        }
    }

    /// Returns all pods that exist and may run members.
    pub(crate) fn live_pods(&self) -> Vec<LivePod<'_>> {
        let pods = self.pods.iter().chain(&self.other_pods);
        pods.map(|(pod, etcd_pod)| LivePod::new(pod, etcd_pod.image_id(pod))).collect()
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
    let report = etcd_pod.report(pod);
    let is_running = report.container == ContainerState::Running;
    let live =
        LivePod { serves: is_running && reply.is_healthy(), ..LivePod::new(pod, etcd_pod.image_id(pod)) };
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
        revision: pod.revision().to_owned(),
        terminating: pod.is_terminating(),
        reserved: reserved.iter().any(|reservation| reservation.takes(&live)),
        report,
        path: Path { listener: etcd_pod.listener(), has_answered: false },
        silent_since: None,
        other_containers: etcd_pod.count_other_running_containers(pod),
        storage: etcd_pod.storage,
        stop_script: etcd_pod.stop_scripts.first().cloned(),
        scheme: etcd_pod.endpoint.as_ref().map_or(Scheme::Http, Endpoint::scheme),
        reply,
    }
}

/// Returns the kind of an owner, escaped and cut: the API server does not validate the kind in an ownerReference.
fn kind_of(owner: &OwnerReference) -> String {
    into_bounded_line(owner.kind.clone(), MAX_NAME_CHARS)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn reservation_of_another_cluster_concerns_no_pods_that_were_read_by_name() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "etcd-0", "namespace": "prod", "uid": "a"},
            "spec": {"containers": [{"name": "etcd", "image": "quay.io/coreos/etcd:v3.6.16"}]},
            "status": {"phase": "Running"},
        }))
        .unwrap();
        let mut pods = NamespacePods::new(&ClusterKey::from_pod("prod", &pod), vec![pod]);
        let reservation = |pod: &str, cluster: Option<ClusterId>| -> Reservation {
            let cluster = cluster.map(|id| id.to_string());
            serde_json::from_value(
                json!({"uid": "b", "namespace": "prod", "pod": pod, "at": "", "cluster": cluster}),
            )
            .unwrap()
        };
        let (ours, other) = (Some(ClusterId(0xc1)), Some(ClusterId(0xc2)));
        assert!(pods.may_concern(&reservation("other-0", other)), "the namespace was listed");
        pods.read_as = ours;
        assert!(!pods.may_concern(&reservation("other-0", other)));
        for reservation in [reservation("new", ours), reservation("new", None), reservation("etcd-0", other)]
        {
            assert!(pods.may_concern(&reservation), "{reservation:?}");
        }
    }
}
