//! Operations on workloads, namespaces, claims and nodes that lead to deletions of pods, and deletions of objects that
//! the pods need.
//!
//! The guard evaluates the operation itself and approves the pod deletions that follow from it.

use serde::{Deserialize, de::IgnoredAny};

use crate::{
    escape::{MAX_NAME_CHARS, to_bounded_line},
    objects::admission::{AdmissionRequest, DeleteOptions, ScaleTarget},
    request::error::{RequestError, parse},
};

/// An operation that leads to deletions of pods, or to pods that cannot start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WorkloadOperation {
    /// DELETE of a StatefulSet and its pods.
    DeleteStatefulSet,
    /// DELETE of a StatefulSet without its pods.
    OrphanStatefulSet,
    /// DELETE of another object that owns pods, for instance a Deployment or a custom resource, and of its dependents.
    DeleteOwner,
    /// DELETE of such an object without its dependents.
    OrphanOwner,
    /// DELETE of a namespace.
    DeleteNamespace,
    /// DELETE of a `PersistentVolumeClaim`.
    DeleteClaim,
    /// DELETE of an object that pods need to start or to find each other.
    DeleteResource(ResourceKind),
    /// DELETE of a Node. Pod garbage collection then deletes the pods of the node.
    DeleteNode {
        /// Whether finalizers delay the deletion: another program then drains the node first.
        has_finalizers: bool,
    },
    /// UPDATE of a StatefulSet or of its scale.
    ScaleDown {
        /// The lowest ordinal that keeps its pod.
        first: u32,
        /// The lowest ordinal above `first` that will have no pod.
        first_to_go: u32,
        /// Whether the StatefulSet's first ordinal must be added to both. A Scale does not contain it.
        relative: bool,
        /// Whether an ordinal loses its pod: there are fewer replicas, or another first ordinal.
        fewer: bool,
    },
    /// UPDATE of a Deployment or a `ReplicaSet`, or of its scale. The controller chooses the pods to delete.
    ScaleOwner {
        /// The number of pods that remain.
        replicas: u32,
        /// Whether the number of replicas decreases.
        fewer: bool,
        /// Whether the Deployment controller changes a `ReplicaSet`, as part of an operation on the Deployment.
        by_deployment: bool,
    },
}

/// The object of an operation on an owner that is no StatefulSet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnerTarget {
    /// The API group.
    pub group: String,
    /// The version of the request.
    pub version: String,
    /// The plural name.
    pub resource: String,
    /// The kind, escaped and cut; the resource if the review does not contain the kind.
    pub kind: String,
}

/// The user of the Deployment controller, and that of all controllers if the controller manager runs without
/// `--use-service-account-credentials`.
const DEPLOYMENT_CONTROLLERS: [&str; 2] =
    ["system:serviceaccount:kube-system:deployment-controller", "system:kube-controller-manager"];

/// The kind of an object that pods need to start or to find each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ResourceKind {
    /// A Service.
    Service,
    /// A Secret.
    Secret,
    /// A `ConfigMap`.
    ConfigMap,
    /// A `ServiceAccount`.
    ServiceAccount,
}

/// The part of an object that the evaluation of a deletion requires. Other parts of a Secret are not read.
#[derive(Default, Deserialize)]
struct DeletedObject {
    #[serde(default)]
    metadata: DeletedMetadata,
}

#[derive(Default, Deserialize)]
struct DeletedMetadata {
    #[serde(default)]
    finalizers: Option<Vec<IgnoredAny>>,
}

// === impl ResourceKind ===

impl ResourceKind {
    /// The kind, as in manifests.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Service => "Service",
            Self::Secret => "Secret",
            Self::ConfigMap => "ConfigMap",
            Self::ServiceAccount => "ServiceAccount",
        }
    }

    /// The kind of a resource of the core group.
    fn from_resource(resource: &str) -> Option<Self> {
        match resource {
            "services" => Some(Self::Service),
            "secrets" => Some(Self::Secret),
            "configmaps" => Some(Self::ConfigMap),
            "serviceaccounts" => Some(Self::ServiceAccount),
            _ => None,
        }
    }
}

// === impl WorkloadOperation ===

impl WorkloadOperation {
    /// Whether the operation deletes a StatefulSet or another owner together with its pods.
    pub fn deletes_owner(self) -> bool {
        matches!(self, Self::DeleteStatefulSet | Self::DeleteOwner)
    }

    /// The StatefulSet with annotations that contribute to the policy, if the operation is on a StatefulSet.
    pub fn stateful_set(self, name: &str) -> Option<&str> {
        match self {
            Self::DeleteStatefulSet | Self::ScaleDown { .. } => Some(name),
            Self::DeleteNamespace
            | Self::DeleteClaim
            | Self::DeleteResource(_)
            | Self::DeleteNode { .. }
            | Self::DeleteOwner
            | Self::OrphanOwner
            | Self::ScaleOwner { .. }
            | Self::OrphanStatefulSet => None,
        }
    }

    /// Whether the object of the operation is an owner that is no StatefulSet.
    pub fn is_on_owner(self) -> bool {
        matches!(self, Self::DeleteOwner | Self::OrphanOwner | Self::ScaleOwner { .. })
    }

    /// Whether the object of the operation is a node, which is in no namespace.
    pub fn is_on_node(self) -> bool {
        matches!(self, Self::DeleteNode { .. })
    }

    /// Whether the operation deletes no pod, so that no policy is needed.
    pub fn is_harmless(self) -> bool {
        matches!(
            self,
            Self::OrphanStatefulSet
                | Self::OrphanOwner
                | Self::ScaleDown { fewer: false, .. }
                | Self::ScaleOwner { fewer: false, .. }
                | Self::ScaleOwner { by_deployment: true, .. }
                | Self::DeleteNode { has_finalizers: true }
        )
    }

    /// Reads the operation from a request. Returns `None` for requests of another kind.
    pub fn from_admission(request: &AdmissionRequest<'_>) -> Result<Option<Self>, RequestError> {
        let resource = (request.resource.group.as_ref(), request.resource.resource.as_ref());
        let sub_resource = request.sub_resource.as_deref().unwrap_or_default();
        Ok(match (request.operation.as_ref(), resource, sub_resource) {
            ("DELETE", ("apps", "statefulsets"), "") => {
                Some(if orphans(request)? { Self::OrphanStatefulSet } else { Self::DeleteStatefulSet })
            }
            ("DELETE", ("", "namespaces"), "") => Some(Self::DeleteNamespace),
            ("DELETE", ("", "persistentvolumeclaims"), "") => Some(Self::DeleteClaim),
            ("DELETE", ("", "nodes"), "") => {
                let node: DeletedObject = parse("oldObject", request.old_object)?.unwrap_or_default();
                let has_finalizers =
                    node.metadata.finalizers.is_some_and(|finalizers| !finalizers.is_empty());
                Some(Self::DeleteNode { has_finalizers })
            }
            ("DELETE", ("", resource), "") => ResourceKind::from_resource(resource).map(Self::DeleteResource),
            // The groups of custom resources contain a dot.
            ("DELETE", (group, resource), "")
                if group.contains('.') || is_deployment_or_replica_set(group, resource) =>
            {
                Some(if orphans(request)? { Self::OrphanOwner } else { Self::DeleteOwner })
            }
            ("UPDATE", ("apps", "statefulsets"), "" | "scale") => {
                let (old, new) = replicas(request, sub_resource)?;
                let [old_first, first] =
                    [("oldObject", request.old_object), ("object", request.object)].map(|(name, object)| {
                        let target: Result<Option<ScaleTarget>, RequestError> = parse(name, object);
                        target.map(|target| {
                            target
                                .and_then(|target| target.spec.ordinals)
                                .map_or(0, |ordinals| ordinals.start)
                        })
                    });
                let (old_first, first) = (old_first?, first?);
                let [old_end, first_to_go] = [old_first.saturating_add(old), first.saturating_add(new)];
                Some(Self::ScaleDown {
                    first,
                    first_to_go,
                    relative: !sub_resource.is_empty(),
                    fewer: old > 0 && (first > old_first || first_to_go < old_end),
                })
            }
            ("UPDATE", (group, resource), "" | "scale") if is_deployment_or_replica_set(group, resource) => {
                let (old, replicas) = replicas(request, sub_resource)?;
                let by_deployment = resource == "replicasets"
                    && DEPLOYMENT_CONTROLLERS.contains(&request.user_info.username.as_str());
                Some(Self::ScaleOwner { replicas, fewer: replicas < old, by_deployment })
            }
            _ => None,
        })
    }

    /// Value of the log field.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::DeleteStatefulSet => "delete-statefulset",
            Self::OrphanStatefulSet => "orphan-statefulset",
            Self::DeleteNamespace => "delete-namespace",
            Self::DeleteClaim => "delete-claim",
            Self::DeleteResource(ResourceKind::Service) => "delete-service",
            Self::DeleteResource(ResourceKind::Secret) => "delete-secret",
            Self::DeleteResource(ResourceKind::ConfigMap) => "delete-configmap",
            Self::DeleteResource(ResourceKind::ServiceAccount) => "delete-serviceaccount",
            Self::DeleteNode { .. } => "delete-node",
            Self::DeleteOwner => "delete-owner",
            Self::OrphanOwner => "orphan-owner",
            Self::ScaleDown { .. } | Self::ScaleOwner { .. } => "scale-down",
        }
    }
}

// === impl OwnerTarget ===

impl OwnerTarget {
    /// Reads the object from a request. `kind` is that of the stored object.
    pub(super) fn from_admission(request: &AdmissionRequest<'_>, kind: &str) -> Self {
        let line = |text: &str| to_bounded_line(text, MAX_NAME_CHARS);
        let resource = line(&request.resource.resource);
        let kind = match (&*request.resource.group, resource.as_str(), kind) {
            ("apps", "deployments", _) => String::from("Deployment"),
            ("apps", "replicasets", _) => String::from("ReplicaSet"),
            (_, _, "") => resource.clone(),
            (_, _, kind) => line(kind),
        };
        Self {
            group: line(&request.resource.group),
            version: line(&request.resource.version),
            resource,
            kind,
        }
    }
}

fn is_deployment_or_replica_set(group: &str, resource: &str) -> bool {
    group == "apps" && matches!(resource, "deployments" | "replicasets")
}

/// Whether the dependents of a deleted object remain.
fn orphans(request: &AdmissionRequest<'_>) -> Result<bool, RequestError> {
    let options: DeleteOptions = parse("options", request.options)?.unwrap_or_default();
    Ok(options.propagation_policy.as_deref() == Some("Orphan") || options.orphan_dependents == Some(true))
}

/// Returns the numbers of replicas before and after an update of a workload or of its Scale.
fn replicas(request: &AdmissionRequest<'_>, sub_resource: &str) -> Result<(u32, u32), RequestError> {
    // Without `replicas`, a workload has one pod and a Scale has 0.
    let default = u32::from(sub_resource.is_empty());
    let old: ScaleTarget = parse("oldObject", request.old_object)?.unwrap_or_default();
    let new: ScaleTarget = parse("object", request.object)?.unwrap_or_default();
    let count = |scaled: &ScaleTarget| scaled.spec.replicas.unwrap_or(default);
    Ok((count(&old), count(&new)))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn operation(review: &Value) -> Option<WorkloadOperation> {
        let review = review.to_string();
        let review: AdmissionRequest<'_> = serde_json::from_str(&review).unwrap();
        WorkloadOperation::from_admission(&review).unwrap()
    }

    fn review(group: &str, resource: &str) -> Value {
        json!({
            "uid": "1", "operation": "DELETE", "name": "ea", "namespace": "prod",
            "resource": {"group": group, "version": "v1", "resource": resource},
        })
    }

    #[test]
    fn deletions_of_custom_resources_concern_owners() {
        for (group, resource) in
            [("apps", "deployments"), ("apps", "replicasets"), ("example.com", "etcdclusters")]
        {
            let mut review = review(group, resource);
            assert_eq!(operation(&review), Some(WorkloadOperation::DeleteOwner), "{resource}");
            review["options"] = json!({"propagationPolicy": "Orphan"});
            assert_eq!(operation(&review), Some(WorkloadOperation::OrphanOwner), "{resource}");
        }
        for (group, resource) in [("batch", "jobs"), ("apps", "daemonsets"), ("", "replicationcontrollers")] {
            assert_eq!(operation(&review(group, resource)), None, "{resource}");
        }
    }

    #[test]
    fn ordinals_that_lose_their_pods_are_a_scale_down() {
        let update = |old: Value, new: Value| {
            let mut review = review("apps", "statefulsets");
            review["operation"] = json!("UPDATE");
            (review["oldObject"], review["object"]) = (json!({"spec": old}), json!({"spec": new}));
            operation(&review).unwrap()
        };
        let spec = |start: u32, replicas: u32| json!({"replicas": replicas, "ordinals": {"start": start}});
        let down = |first, first_to_go, fewer| WorkloadOperation::ScaleDown {
            first,
            first_to_go,
            relative: false,
            fewer,
        };
        assert_eq!(update(spec(0, 3), spec(0, 2)), down(0, 2, true));
        assert_eq!(update(spec(0, 3), spec(3, 3)), down(3, 6, true));
        assert_eq!(update(json!({"replicas": 3}), spec(1, 3)), down(1, 4, true));
        assert_eq!(update(spec(3, 3), spec(0, 3)), down(0, 3, true));
        assert_eq!(update(spec(3, 3), spec(0, 6)), down(0, 6, false));
        assert_eq!(update(spec(0, 3), spec(0, 5)), down(0, 5, false));
        assert_eq!(update(spec(0, 0), spec(3, 3)), down(3, 6, false));
    }

    #[test]
    fn scale_downs_of_deployments_concern_owners() {
        let update = |resource: &str, sub_resource: &str, old: Value, new: Value, user: &str| {
            let mut review = review("apps", resource);
            review["operation"] = json!("UPDATE");
            review["subResource"] = json!(sub_resource);
            (review["oldObject"], review["object"]) = (json!({"spec": old}), json!({"spec": new}));
            review["userInfo"] = json!({"username": user});
            operation(&review).unwrap()
        };
        let (one, none) = (json!({"replicas": 1}), json!({"replicas": 0}));
        let controller = "system:serviceaccount:kube-system:deployment-controller";
        let scale =
            |replicas, fewer, by_deployment| WorkloadOperation::ScaleOwner { replicas, fewer, by_deployment };
        assert_eq!(update("deployments", "", one.clone(), none.clone(), "admin"), scale(0, true, false));
        assert_eq!(update("deployments", "scale", one.clone(), json!({}), "admin"), scale(0, true, false));
        assert_eq!(update("deployments", "", one.clone(), json!({}), "admin"), scale(1, false, false));
        assert_eq!(update("replicasets", "", one.clone(), none.clone(), controller), scale(0, true, true));
        assert!(update("replicasets", "", one.clone(), none.clone(), controller).is_harmless());
        assert!(!update("replicasets", "", one.clone(), none.clone(), "admin").is_harmless());
        assert_eq!(update("deployments", "", one, none, controller), scale(0, true, false));
    }
}
