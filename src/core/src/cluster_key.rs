//! Key of an etcd cluster: the pods that Kubernetes shows as belonging together.

use std::{collections::BTreeMap, time::Duration};

use crate::{
    escape::{MAX_NAME_CHARS, into_bounded_line},
    objects::pod::{Pod, REVISION_LABEL},
};

/// Maximum number of clusters in each cache. It bounds the memory that requests with made-up names can occupy, and exceeds the
/// number of clusters with deletions within [`CLUSTER_TTL`]. After an eviction, the next evaluation of the
/// cluster lists the pods of the namespace and can require a second probe round. After a restore under another cluster id, it does not
/// read the record of the former id.
pub const MAX_CLUSTERS: u64 = 16_384;

/// The time for which a cluster's lock and ledger stay cached after their last use. It exceeds the time for which a
/// reservation is valid.
pub const CLUSTER_TTL: Duration = Duration::from_secs(600);

/// Labels that differ between the pods of one StatefulSet, or between its revisions.
const LABELS_PER_POD: [&str; 3] =
    ["statefulset.kubernetes.io/pod-name", "apps.kubernetes.io/pod-index", REVISION_LABEL];

/// Identifies the pods of one namespace that share a controller or, for pods without a controller, the same labels.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ClusterKey {
    namespace: String,
    owner: OwnerKey,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum OwnerKey {
    Controller { uid: String, name: String },
    Labels(BTreeMap<String, String>),
}

// === impl ClusterKey ===

impl ClusterKey {
    /// The key of the cluster that this pod belongs to.
    pub fn from_pod(namespace: &str, pod: &Pod) -> Self {
        let owner = match pod.controller() {
            Some(owner) => OwnerKey::Controller { uid: owner.uid.clone(), name: owner.name.clone() },
            None => {
                let mut labels = pod.metadata.labels.clone();
                labels.retain(|name, _| !LABELS_PER_POD.contains(&name.as_str()));
                OwnerKey::Labels(labels)
            }
        };
        Self { namespace: namespace.to_owned(), owner }
    }

    /// The key of the pods that this StatefulSet controls.
    pub fn from_stateful_set(namespace: &str, name: String, uid: String) -> Self {
        Self { namespace: namespace.to_owned(), owner: OwnerKey::Controller { uid, name } }
    }

    /// Whether this pod belongs to the cluster.
    pub fn contains(&self, namespace: &str, pod: &Pod) -> bool {
        *self == Self::from_pod(namespace, pod)
    }

    /// The uid of the pods' controller, if they have one.
    pub fn controller_uid(&self) -> Option<&str> {
        match &self.owner {
            OwnerKey::Controller { uid, .. } => Some(uid),
            OwnerKey::Labels(_) => None,
        }
    }

    /// The namespace of the pods.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The cluster's display name: the name of the controller, or the labels, escaped and cut. The API server does not
    /// validate the name in an ownerReference.
    pub fn name(&self) -> String {
        let name = match &self.owner {
            OwnerKey::Controller { name, .. } => name.clone(),
            OwnerKey::Labels(labels) if labels.is_empty() => String::from("(pods without labels)"),
            OwnerKey::Labels(labels) => {
                labels.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(",")
            }
        };
        into_bounded_line(name, MAX_NAME_CHARS)
    }
}
