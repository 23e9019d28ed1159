//! Which pods belong to one etcd cluster, as far as Kubernetes can tell.

use std::collections::BTreeMap;

use crate::k8s::pod::Pod;

/// Labels that differ between the pods of one StatefulSet, or between its revisions.
const LABELS_OF_ONE_POD: [&str; 3] =
    ["statefulset.kubernetes.io/pod-name", "apps.kubernetes.io/pod-index", "controller-revision-hash"];

/// The pods of one namespace that one controller manages; of pods without a controller, those with the same labels.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Family {
    namespace: String,
    bond: Bond,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Bond {
    Controller { uid: String, name: String },
    Labels(BTreeMap<String, String>),
}

// === impl Family ===

impl Family {
    /// The family of a pod.
    pub(super) fn of(namespace: &str, pod: &Pod) -> Self {
        let bond = match pod.controller() {
            Some(owner) => Bond::Controller { uid: owner.uid.clone(), name: owner.name.clone() },
            None => {
                let mut labels = pod.metadata.labels.clone();
                labels.retain(|name, _| !LABELS_OF_ONE_POD.contains(&name.as_str()));
                Bond::Labels(labels)
            }
        };
        Self { namespace: namespace.to_owned(), bond }
    }

    /// The family of the pods that this StatefulSet controls.
    pub(super) fn of_stateful_set(namespace: &str, name: String, uid: String) -> Self {
        Self { namespace: namespace.to_owned(), bond: Bond::Controller { uid, name } }
    }

    /// Whether this pod is of the family.
    pub(super) fn has(&self, namespace: &str, pod: &Pod) -> bool {
        *self == Self::of(namespace, pod)
    }

    /// The namespace of its pods.
    pub(super) fn namespace(&self) -> &str {
        &self.namespace
    }

    /// What people call it: its controller's name, or its labels.
    pub(super) fn name(&self) -> String {
        match &self.bond {
            Bond::Controller { name, .. } => name.clone(),
            Bond::Labels(labels) if labels.is_empty() => String::from("(pods without labels)"),
            Bond::Labels(labels) => {
                labels.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(",")
            }
        }
    }
}
