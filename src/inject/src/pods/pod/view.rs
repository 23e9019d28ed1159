//! Read-only views of an untyped pod and its containers. Absent, null and empty fields are equal, as in Go.

use std::borrow::Cow;

use serde_json::Value;

use super::paths::normalized;
use crate::pods::record::{INJECTED, hashes_of};
use etcd_guard_core::{config::selector::Labels, objects::annotations::MIRROR as MIRROR_ANNOTATION};

/// A view of a pod.
#[derive(Clone, Copy)]
pub(crate) struct PodView<'a>(&'a Value);

/// A view of a container, with its position.
#[derive(Clone, Copy)]
pub(crate) struct ContainerView<'a> {
    /// `containers` or `initContainers`.
    pub(crate) list: &'static str,
    pub(crate) index: usize,
    pub(crate) value: &'a Value,
}

/// The lists of containers that templates are compared with.
const CONTAINER_LISTS: [&str; 2] = ["initContainers", "containers"];

/// The operating systems of pods and nodes.
const LINUX: &str = "linux";
const WINDOWS: &str = "windows";

/// The labels of nodes with their operating system. The second one is deprecated, and kubelets still set it.
const OS_LABELS: [&str; 2] = ["kubernetes.io/os", "beta.kubernetes.io/os"];

/// The label of Windows nodes with their release. Nodes of other systems do not have it.
const WINDOWS_BUILD: &str = "node.kubernetes.io/windows-build";

// === impl PodView ===

impl<'a> PodView<'a> {
    pub(crate) fn new(pod: &'a Value) -> Self {
        Self(pod)
    }

    pub(crate) fn annotation(self, key: &str) -> Option<&'a str> {
        self.0.get("metadata")?.get("annotations")?.get(key)?.as_str()
    }

    /// All annotations with a text as value.
    pub(crate) fn annotations(self) -> impl Iterator<Item = (&'a str, &'a str)> {
        let annotations = self.0.get("metadata").and_then(|metadata| metadata.get("annotations"));
        let annotations = annotations.and_then(Value::as_object).into_iter().flatten();
        annotations.filter_map(|(key, value)| Some((key.as_str(), value.as_str()?)))
    }

    pub(crate) fn label(self, key: &str) -> Option<&'a str> {
        self.0.get("metadata")?.get("labels")?.get(key)?.as_str()
    }

    pub(crate) fn labels(self) -> Labels {
        let labels =
            self.0.get("metadata").and_then(|metadata| metadata.get("labels")).and_then(Value::as_object);
        let labels = labels.into_iter().flatten();
        labels.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect()
    }

    /// Whether the pod's record lists a template with this hash, alone or in a mixture.
    pub(crate) fn is_recorded(self, hash: &str) -> bool {
        let record: Option<Value> =
            self.annotation(INJECTED).and_then(|text| serde_json::from_str(text).ok());
        let templates = record.as_ref().and_then(|record| record.get("templates")).and_then(Value::as_object);
        templates.is_some_and(|hashes| {
            hashes
                .values()
                .filter_map(Value::as_str)
                .any(|value| hashes_of(value).any(|recorded| recorded == hash))
        })
    }

    /// The kind of the pod's controller.
    pub(crate) fn owner_kind(self) -> Option<&'a str> {
        let owners = self.0.get("metadata")?.get("ownerReferences")?.as_array()?;
        let controller =
            owners.iter().find(|owner| owner.get("controller").is_some_and(|value| *value == true))?;
        controller.get("kind")?.as_str()
    }

    pub(crate) fn is_mirror(self) -> bool {
        self.annotation(MIRROR_ANNOTATION).is_some()
    }

    /// Whether the pod is for Windows. The field `os` decides if it is set, because the kubelet rejects a pod of another
    /// system. Otherwise the nodes decide that the pod admits. A runtime class is no sign.
    pub(crate) fn is_windows(self) -> bool {
        match self.spec("os").and_then(|os| os.get("name")).and_then(Value::as_str) {
            Some(os) => os == WINDOWS,
            None => {
                self.admits_only_nodes_with(WINDOWS)
                    // Linux ignores these options, so that charts can set them for both systems.
                    || self.has_windows_options() && !self.admits_only_nodes_with(LINUX)
            }
        }
    }

    /// Whether the node selector, or every term of the required node affinity, selects only nodes with this system.
    fn admits_only_nodes_with(self, system: &str) -> bool {
        let labels = self.spec("nodeSelector").and_then(Value::as_object);
        let mut labels = labels.into_iter().flatten();
        let required = self.spec("affinity").and_then(|affinity| {
            affinity
                .get("nodeAffinity")?
                .get("requiredDuringSchedulingIgnoredDuringExecution")?
                .get("nodeSelectorTerms")
        });
        let terms = items(required);
        labels.any(|(label, value)| selects_only(system, label, "In", std::slice::from_ref(value)))
            || !terms.is_empty()
                && terms.iter().all(|term| {
                    items(term.get("matchExpressions")).iter().any(|condition| {
                        let text = |key: &str| condition.get(key).and_then(Value::as_str).unwrap_or_default();
                        selects_only(system, text("key"), text("operator"), items(condition.get("values")))
                    })
                })
    }

    /// Whether the pod or one of its containers has settings that only Windows has, `hostProcess` among them.
    fn has_windows_options(self) -> bool {
        let contexts = CONTAINER_LISTS
            .into_iter()
            .flat_map(|list| self.containers(list))
            .filter_map(|container| container.value.get("securityContext"));
        let mut options =
            contexts.chain(self.spec("securityContext")).filter_map(|context| context.get("windowsOptions"));
        options.any(|options| options.as_object().is_some_and(|options| !options.is_empty()))
    }

    /// Whether the pod as a whole has a limit of CPU or memory.
    pub(crate) fn has_limits(self) -> bool {
        self.spec("resources").is_some_and(has_limits)
    }

    /// Whether the pod ends after its containers have ended, as the pods of Jobs do.
    pub(crate) fn ends(self) -> bool {
        self.spec("restartPolicy").is_some_and(|policy| *policy == "Never" || *policy == "OnFailure")
    }

    /// Whether a boolean field of the spec is true.
    pub(crate) fn is_set(self, field: &str) -> bool {
        self.spec(field).is_some_and(|value| *value == true)
    }

    /// Whether the users of the pod are mapped to other users of the node: `hostUsers` is false, not absent.
    pub(crate) fn has_own_user_namespace(self) -> bool {
        self.spec("hostUsers").is_some_and(|value| *value == false)
    }

    pub(crate) fn runtime_class(self) -> Option<&'a str> {
        self.spec("runtimeClassName")?.as_str()
    }

    /// A field of the spec.
    pub(crate) fn spec(self, field: &str) -> Option<&'a Value> {
        self.0.get("spec")?.get(field).filter(|value| !value.is_null())
    }

    /// The items of a list of the spec.
    pub(crate) fn items(self, list: &str) -> &'a [Value] {
        items(self.spec(list))
    }

    /// The containers of a list.
    pub(crate) fn containers(self, list: &'static str) -> impl Iterator<Item = ContainerView<'a>> {
        self.items(list).iter().enumerate().map(move |(index, value)| ContainerView { list, index, value })
    }

    /// The container with this name, in either list.
    pub(crate) fn container(self, name: &str) -> Option<ContainerView<'a>> {
        CONTAINER_LISTS
            .into_iter()
            .flat_map(move |list| self.containers(list))
            .find(|container| container.name() == name)
    }

    /// The volume with this name.
    pub(crate) fn volume(self, name: &str) -> Option<&'a Value> {
        self.items("volumes").iter().find(|volume| volume.get("name").is_some_and(|present| present == name))
    }
}

// === impl ContainerView ===

impl<'a> ContainerView<'a> {
    pub(crate) fn name(self) -> &'a str {
        self.text("name")
    }

    pub(crate) fn image(self) -> &'a str {
        self.text("image")
    }

    /// Whether this is an init container that runs beside the other containers.
    pub(crate) fn is_native_sidecar(self) -> bool {
        self.list == "initContainers" && self.text("restartPolicy") == "Always"
    }

    /// Whether the container has a limit of CPU or memory.
    pub(crate) fn has_limits(self) -> bool {
        self.value.get("resources").is_some_and(has_limits)
    }

    /// The volumes' names and the normalized paths of the container's mounts.
    pub(crate) fn mounts(self) -> impl Iterator<Item = (&'a str, Cow<'a, str>)> {
        self.items("volumeMounts").iter().map(|mount| {
            let name = mount.get("name").and_then(Value::as_str).unwrap_or_default();
            (name, mount_path(mount))
        })
    }

    pub(crate) fn items(self, list: &str) -> &'a [Value] {
        items(self.value.get(list))
    }

    fn text(self, key: &str) -> &'a str {
        self.value.get(key).and_then(Value::as_str).unwrap_or_default()
    }
}

/// Whether resources have a limit of CPU or memory.
fn has_limits(resources: &Value) -> bool {
    let limits = resources.get("limits");
    limits.is_some_and(|limits| ["cpu", "memory"].iter().any(|key| limits.get(key).is_some()))
}

/// The items of a list; empty for all other values.
pub(crate) fn items(value: Option<&Value>) -> &[Value] {
    value.and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// Sets a member of a map. Values other than maps are returned unchanged.
pub(crate) fn with_member(mut map: Value, key: &str, value: impl Into<Value>) -> Value {
    if let Some(members) = map.as_object_mut() {
        members.insert(key.to_owned(), value.into());
    }
    map
}

/// Whether a condition on a label admits only nodes with this system.
fn selects_only(system: &str, label: &str, operator: &str, values: &[Value]) -> bool {
    if label == WINDOWS_BUILD {
        return match operator {
            "DoesNotExist" => system == LINUX,
            "In" | "Exists" | "Gt" | "Lt" => system == WINDOWS,
            _ => false,
        };
    }
    OS_LABELS.contains(&label)
        && match operator {
            "In" => !values.is_empty() && values.iter().all(|value| *value == system),
            // There are two systems.
            "NotIn" => [LINUX, WINDOWS]
                .iter()
                .all(|other| *other == system || values.iter().any(|value| value == other)),
            _ => false,
        }
}

/// The normalized path of a mount.
pub(crate) fn mount_path(mount: &Value) -> Cow<'_, str> {
    normalized(mount.get("mountPath").and_then(Value::as_str).unwrap_or_default())
}
