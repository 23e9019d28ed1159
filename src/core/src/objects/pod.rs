//! The parts of a pod (`v1`) that identify its etcd member and its state.
//!
//! Source: `k8s.io/api/core/v1/types.go`. Absent fields are empty, as in Go.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::annotations::{MEMBER, deserialize_kept};
pub use super::{
    affinity::Affinity,
    annotations::MIRROR as MIRROR_ANNOTATION,
    nullable::null_as_default,
    owner_reference::OwnerReference,
    pod_volumes::{DataVolume, KeyToPath, ProjectedVolume, Projection, Volume, VolumeClaim},
};

/// Label of a pod with the revision of its StatefulSet.
pub const REVISION_LABEL: &str = "controller-revision-hash";

/// Restart policy of an init container that runs as long as its pod, as a native sidecar.
pub const ALWAYS: &str = "Always";

/// A pod, in part.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Pod {
    /// Name, namespace, uid, owners.
    #[serde(default)]
    pub metadata: Metadata,
    /// Containers and volumes.
    #[serde(default)]
    pub spec: PodSpec,
    /// Phase, address, containers.
    #[serde(default)]
    pub status: PodStatus,
}

/// `ObjectMeta`, in part.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Metadata {
    /// The pod's name.
    #[serde(default)]
    pub name: String,
    /// The pod's namespace.
    #[serde(default)]
    pub namespace: String,
    /// Distinguishes a pod from its successor of the same name.
    #[serde(default)]
    pub uid: String,
    /// Labels.
    #[serde(default, deserialize_with = "null_as_default")]
    pub labels: BTreeMap<String, String>,
    /// Those annotations that this program reads.
    #[serde(default, deserialize_with = "deserialize_kept")]
    pub annotations: BTreeMap<String, String>,
    /// Owners, of which at most one is the controller.
    #[serde(default, deserialize_with = "null_as_default")]
    pub owner_references: Vec<OwnerReference>,
    /// Tasks that must end before a deleted object disappears.
    #[serde(default, deserialize_with = "null_as_default")]
    pub finalizers: Vec<String>,
    /// Set as soon as the deletion is accepted (RFC 3339).
    #[serde(default)]
    pub deletion_timestamp: Option<String>,
    /// Whether the annotation [`MEMBER`] was added by [`Pod::inherit`].
    #[serde(skip)]
    pub inherits_member: bool,
}

/// `PodSpec`, in part.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodSpec {
    /// Containers without init containers.
    #[serde(default, deserialize_with = "null_as_default")]
    pub containers: Vec<Container>,
    /// Init containers. Those with the restart policy `Always` are native sidecars.
    #[serde(default, deserialize_with = "null_as_default")]
    pub init_containers: Vec<Container>,
    /// Volumes.
    #[serde(default, deserialize_with = "null_as_default")]
    pub volumes: Vec<Volume>,
    /// The first label of the pod's DNS name, if it differs from the pod's name.
    #[serde(default)]
    pub hostname: String,
    /// The headless Service that gives the pod its DNS name.
    #[serde(default)]
    pub subdomain: String,
    /// The pod's node; empty until the pod is scheduled.
    #[serde(default, rename = "nodeName")]
    pub node_name: String,
    /// Labels that the pod's node must have.
    #[serde(default, rename = "nodeSelector", deserialize_with = "null_as_default")]
    pub node_selector: BTreeMap<String, String>,
    /// Rules for the choice of the node.
    #[serde(default)]
    pub affinity: Option<Affinity>,
    /// The priority of the pod's class; 0 if it is absent.
    #[serde(default)]
    pub priority: Option<i32>,
    /// The name of that class.
    #[serde(default)]
    pub priority_class_name: Option<String>,
}

/// `Container`, in part.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Container {
    /// The container's name, by which its status refers to it.
    #[serde(default)]
    pub name: String,
    /// The image reference.
    #[serde(default)]
    pub image: String,
    /// Overrides the image's entrypoint.
    #[serde(default, deserialize_with = "null_as_default")]
    pub command: Vec<String>,
    /// Overrides the image's arguments.
    #[serde(default, deserialize_with = "null_as_default")]
    pub args: Vec<String>,
    /// Environment variables in order: later ones may refer to earlier ones as `$(NAME)`.
    #[serde(default, deserialize_with = "null_as_default")]
    pub env: Vec<EnvVar>,
    /// Mounts of volumes.
    #[serde(default, deserialize_with = "null_as_default")]
    pub volume_mounts: Vec<VolumeMount>,
    /// Declared ports.
    #[serde(default, deserialize_with = "null_as_default")]
    pub ports: Vec<ContainerPort>,
    /// Lifecycle hooks.
    #[serde(default)]
    pub lifecycle: Option<Lifecycle>,
    /// The restart policy of an init container: [`ALWAYS`] makes it a native sidecar.
    #[serde(default)]
    pub restart_policy: String,
}

/// `ContainerPort`, in part.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerPort {
    /// The port's name; may be empty.
    #[serde(default)]
    pub name: String,
    /// The port's number.
    #[serde(default)]
    pub container_port: u16,
}

/// `Lifecycle`, in part.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Lifecycle {
    /// Runs before a running container receives its stop signal.
    #[serde(default)]
    pub pre_stop: Option<Hook>,
}

/// `LifecycleHandler`, in part.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Hook {
    /// A command in the container.
    #[serde(default)]
    pub exec: Option<ExecAction>,
}

/// `ExecAction`.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct ExecAction {
    /// The program and its arguments.
    #[serde(default, deserialize_with = "null_as_default")]
    pub command: Vec<String>,
}

/// An environment variable.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EnvVar {
    /// The variable's name.
    #[serde(default)]
    pub name: String,
    /// A literal value.
    #[serde(default)]
    pub value: Option<String>,
    /// The source of the value, instead of a literal one.
    #[serde(default)]
    pub value_from: Option<EnvVarSource>,
}

/// The source of a variable's value. Only values of the pod's own fields can be derived from the pod.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EnvVarSource {
    /// A field of the pod.
    #[serde(default)]
    pub field_ref: Option<FieldRef>,
    /// A key of a Secret.
    #[serde(default)]
    pub secret_key_ref: Option<SecretKeyRef>,
}

/// A key of a Secret in the pod's namespace.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct SecretKeyRef {
    /// The Secret's name.
    #[serde(default)]
    pub name: String,
    /// The key in the Secret.
    #[serde(default)]
    pub key: String,
}

/// A field of the pod itself.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FieldRef {
    /// For instance `metadata.name`.
    #[serde(default)]
    pub field_path: String,
}

/// A mount of a volume in a container.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VolumeMount {
    /// The volume's name.
    #[serde(default)]
    pub name: String,
    /// The path in the container.
    #[serde(default)]
    pub mount_path: String,
    /// The path in the volume, if only a part of the volume is mounted.
    #[serde(default)]
    pub sub_path: String,
}

/// `PodStatus`, in part.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodStatus {
    /// Pending, Running, Succeeded, Failed or Unknown.
    #[serde(default)]
    pub phase: String,
    /// The pod's address; empty until the pod has one.
    #[serde(default, rename = "podIP")]
    pub pod_ip: String,
    /// All addresses of the pod, one per address family. The first one is `pod_ip`.
    #[serde(default, rename = "podIPs", deserialize_with = "null_as_default")]
    pub pod_ips: Vec<PodIp>,
    /// Observations about the pod, such as `Ready`.
    #[serde(default, deserialize_with = "null_as_default")]
    pub conditions: Vec<Condition>,
    /// Status of each container, reported by the kubelet.
    #[serde(default, deserialize_with = "null_as_default")]
    pub container_statuses: Vec<ContainerStatus>,
    /// Status of each init container, reported by the kubelet.
    #[serde(default, deserialize_with = "null_as_default")]
    pub init_container_statuses: Vec<ContainerStatus>,
}

/// A condition of a pod or a node, in part.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Condition {
    /// The type, for instance `Ready`.
    #[serde(default, rename = "type")]
    pub kind: String,
    /// `True`, `False` or `Unknown`.
    #[serde(default)]
    pub status: String,
    /// The last change of the status (RFC 3339).
    #[serde(default, rename = "lastTransitionTime", deserialize_with = "null_as_default")]
    pub last_transition_time: String,
}

/// `PodIP`.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct PodIp {
    /// The address.
    #[serde(default)]
    pub ip: String,
}

/// `ContainerStatus`, in part.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerStatus {
    /// The container's name.
    #[serde(default)]
    pub name: String,
    /// Waiting, running or terminated.
    #[serde(default)]
    pub state: ContainerState,
    /// The state of the previous run, if there was one.
    #[serde(default)]
    pub last_state: ContainerState,
    /// Number of restarts.
    #[serde(default)]
    pub restart_count: u32,
    /// The id of the image of the container that was started last; empty before.
    #[serde(default, rename = "imageID")]
    pub image_id: String,
}

/// `ContainerState`, in part.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct ContainerState {
    /// Present while the container runs.
    #[serde(default)]
    pub running: Option<serde::de::IgnoredAny>,
    /// Present after the container has ended.
    #[serde(default)]
    pub terminated: Option<serde::de::IgnoredAny>,
}

// === impl PodSpec ===

/// The node label with the name of the node.
const HOSTNAME_LABEL: &str = "kubernetes.io/hostname";

impl PodSpec {
    /// Returns the only node on which pods with this specification run: its name, or the value of its hostname label. The name of
    /// a node counts only in the template of an owner: the scheduler adds it to every pod.
    pub fn only_node(&self, is_template: bool) -> Option<&str> {
        let by_name = Some(self.node_name.as_str()).filter(|name| is_template && !name.is_empty());
        let by_selector = || self.node_selector.get(HOSTNAME_LABEL).map(String::as_str);
        let by_affinity = || self.affinity.as_ref().and_then(|affinity| affinity.only_node(HOSTNAME_LABEL));
        by_name.or_else(by_selector).or_else(by_affinity)
    }
}

// === impl Condition ===

impl Condition {
    /// Whether the condition is observed.
    pub fn is_true(&self) -> bool {
        self.status == "True"
    }
}

// === impl Pod ===

impl Pod {
    /// Adds those of an owner's annotations that have one of these names and that the pod lacks, if `accepts` returns true for
    /// the pod, the name and the value.
    pub fn inherit(
        &mut self,
        annotations: &BTreeMap<String, String>,
        names: &[&str],
        accepts: impl Fn(&Self, &str, &str) -> bool,
    ) {
        for (name, value) in annotations.iter().filter(|(name, _)| names.contains(&name.as_str())) {
            if !self.metadata.annotations.contains_key(name) && accepts(self, name, value) {
                self.metadata.annotations.insert(name.clone(), value.clone());
                self.metadata.inherits_member |= name == MEMBER;
            }
        }
    }

    /// Whether the deletion of this pod was accepted.
    pub fn is_terminating(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }

    /// Whether all containers terminated and will not restart.
    pub fn is_finished(&self) -> bool {
        matches!(self.status.phase.as_str(), "Succeeded" | "Failed")
    }

    /// Whether the kubelet reports that the pod is ready.
    pub fn is_ready(&self) -> bool {
        self.ready_condition().is_some_and(Condition::is_true)
    }

    /// The kubelet's report whether the pod is ready.
    pub fn ready_condition(&self) -> Option<&Condition> {
        self.status.conditions.iter().find(|condition| condition.kind == "Ready")
    }

    /// Whether this is the mirror of a static pod.
    pub fn is_mirror(&self) -> bool {
        self.metadata.annotations.contains_key(MIRROR_ANNOTATION)
    }

    /// The revision of the StatefulSet from which this pod was created; empty without one.
    pub fn revision(&self) -> &str {
        self.metadata.labels.get(REVISION_LABEL).map_or("", String::as_str)
    }

    /// The owner that manages this pod.
    pub fn controller(&self) -> Option<&OwnerReference> {
        self.metadata.owner_references.iter().find(|owner| owner.controller == Some(true))
    }

    /// Returns the pod with only what tells its identity and its cluster: names, uid, controller, and labels without a controller.
    pub fn into_identity(self) -> Self {
        let controller = self.controller().cloned();
        let Metadata { name, namespace, uid, labels, .. } = self.metadata;
        let labels = if controller.is_some() { BTreeMap::new() } else { labels };
        let owner_references = controller.into_iter().collect();
        let metadata = Metadata { name, namespace, uid, labels, owner_references, ..Metadata::default() };
        Self { metadata, ..Self::default() }
    }

    /// The name of the StatefulSet that manages this pod.
    pub fn stateful_set(&self) -> Option<&str> {
        self.controller().filter(|owner| owner.kind == "StatefulSet").map(|owner| owner.name.as_str())
    }

    /// The containers that run as long as the pod: the containers, followed by the native sidecars.
    pub fn lasting_containers(&self) -> impl Iterator<Item = &Container> {
        let sidecars =
            self.spec.init_containers.iter().filter(|container| container.restart_policy == ALWAYS);
        self.spec.containers.iter().chain(sidecars)
    }

    /// The addresses of the pod, the primary one first; empty until the pod has one.
    pub fn addresses(&self) -> impl Iterator<Item = &str> {
        let status = &self.status;
        let others = status.pod_ips.iter().map(|address| address.ip.as_str());
        let others = others.filter(|ip| !ip.is_empty() && *ip != status.pod_ip);
        [status.pod_ip.as_str()].into_iter().chain(others).filter(|_| !status.pod_ip.is_empty())
    }

    /// Number of containers other than `container` that the kubelet reports as running, sidecars included.
    pub fn count_other_running_containers(&self, container: &str) -> usize {
        let statuses = self.status.container_statuses.iter().chain(&self.status.init_container_statuses);
        let running = statuses.filter(|status| status.state.running.is_some());
        running.filter(|status| status.name != container).count()
    }

    /// Whether the kubelet reports that `container` is running. A container without a status has not started.
    pub fn is_container_running(&self, container: &str) -> bool {
        self.status_of(container).any(|status| status.state.running.is_some())
    }

    /// Returns the id of the image of `container`; empty if the kubelet reports none.
    pub fn image_id(&self, container: &str) -> &str {
        let PodStatus { container_statuses, init_container_statuses, .. } = &self.status;
        let mut statuses = container_statuses.iter().chain(init_container_statuses);
        statuses.find(|status| status.name == container).map_or("", |status| &status.image_id)
    }

    /// Whether `container` has ever run in this pod, as far as the kubelet reports.
    pub fn has_started(&self, container: &str) -> bool {
        self.is_container_running(container)
            || self.status_of(container).any(|status| {
                let has_ended = status.state.terminated.is_some() || status.last_state.terminated.is_some();
                has_ended || status.restart_count > 0
            })
    }

    /// The status of `container`. The names of containers and init containers are distinct.
    fn status_of<'a>(&'a self, container: &'a str) -> impl Iterator<Item = &'a ContainerStatus> {
        let statuses = self.status.container_statuses.iter().chain(&self.status.init_container_statuses);
        statuses.filter(move |status| status.name == container)
    }
}
