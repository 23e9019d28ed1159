//! Requests to the guard: the deletion or the eviction of one pod, or a workload operation.

mod error;
mod requester;
pub mod workload_operation;

use std::collections::BTreeMap;

use serde::Deserialize;

pub use self::{
    error::RequestError,
    requester::Requester,
    workload_operation::{ResourceKind, WorkloadOperation},
};
use self::{error::parse, workload_operation::OwnerTarget};
use crate::{
    escape::{MAX_NAME_CHARS, to_bounded_line},
    mistakes::Mistake,
    objects::{
        admission::{AdmissionRequest, DeleteOptions, Eviction, truncated},
        pod::Pod,
    },
};

/// Operation of a request. The API server sends no second review for the deletion of an evicted pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// DELETE of a pod, or of one pod of a collection.
    Delete,
    /// CREATE of a pod's eviction.
    Evict,
    /// UPDATE of a pod that makes the kubelet restart or end a container. The webhook configuration selects these updates.
    Update(PodUpdate),
    /// An operation that leads to deletions of pods.
    Workload(WorkloadOperation),
}

/// What the kubelet does after an update of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PodUpdate {
    /// It restarts a container, because of its image or its resources.
    Restart,
    /// It ends the pod, because of `activeDeadlineSeconds`.
    End,
    /// Nothing: the member answers nothing for a while, because the guard defragments it. No review has this value.
    Pause,
}

/// One operation to evaluate.
#[derive(Clone, Debug)]
pub struct Request {
    /// The operation.
    pub operation: Operation,
    /// Namespace of the object; the name of the object if that is a namespace.
    pub namespace: String,
    /// Name of the pod, or of the object of a workload operation.
    pub name: String,
    /// The copy of the pod in the review, which may be slightly older than the pod, or forged. An eviction contains no pod.
    pub pod: Option<Pod>,
    /// Uid precondition of an eviction: the API server evicts no other pod. For a workload operation, the uid of the object.
    /// For a deletion, the copy of the pod has the uid.
    pub uid: Option<String>,
    /// Whether the API server changes nothing after an approval.
    pub dry_run: bool,
    /// Seconds between SIGTERM and SIGKILL, if the request contains them.
    pub grace_period_seconds: Option<i64>,
    /// Name of the requesting user, escaped and cut. Authenticators choose any text.
    pub user: String,
    /// The labels of the pods that a deleted Service selects; empty for all other requests.
    pub selector: BTreeMap<String, String>,
    /// The resource of an operation on an owner that is no StatefulSet; `None` for all other requests.
    pub owner: Option<OwnerTarget>,
}

/// Maximum length of a pod's name in Kubernetes.
const MAX_NAME_LENGTH: usize = 253;

// === impl Request ===

impl Request {
    /// Reads the request of a review.
    pub fn from_admission(request: &AdmissionRequest<'_>) -> Result<Self, RequestError> {
        let sub_resource = request.sub_resource.as_deref().unwrap_or_default();
        let resource = request.resource.resource.as_ref();
        let is_core = request.resource.group.is_empty();
        if let Some(operation) = WorkloadOperation::from_admission(request)? {
            return Self::from_workload_operation(request, operation);
        }
        let operation = match (request.operation.as_ref(), resource, sub_resource) {
            ("DELETE", "pods", "") if is_core => Operation::Delete,
            ("CREATE", "pods", "eviction") if is_core => Operation::Evict,
            ("UPDATE", "pods", "" | "resize") if is_core => {
                Operation::Update(PodUpdate::from_admission(request)?)
            }
            (operation, ..) => {
                let separator = if sub_resource.is_empty() { "" } else { "/" };
                return Err(RequestError::UnsupportedOperation {
                    operation: truncated(operation).to_owned(),
                    resource: truncated(&format!("{resource}{separator}{sub_resource}")).to_owned(),
                });
            }
        };
        let pod: Option<Pod> = match operation {
            Operation::Delete | Operation::Update(_) => parse("oldObject", request.old_object)?,
            Operation::Evict | Operation::Workload(_) => None,
        };
        let options = match operation {
            Operation::Delete => parse("options", request.options)?,
            Operation::Update(_) => None,
            Operation::Evict | Operation::Workload(_) => {
                parse::<Eviction>("object", request.object)?.and_then(|eviction| eviction.delete_options)
            }
        }
        .unwrap_or_else(DeleteOptions::default);

        let (mut name, mut namespace) = (request.name.as_deref(), request.namespace.as_deref());
        if let Some(pod) = &pod {
            // The deletion of a collection sends one request per pod, without the pod's name.
            name = name.filter(|name| !name.is_empty()).or(Some(&pod.metadata.name));
            namespace = namespace.filter(|name| !name.is_empty()).or(Some(&pod.metadata.namespace));
        }
        let (name, namespace) = (validated(name, "pod name")?, validated(namespace, "namespace")?);
        let uid = options
            .preconditions
            .and_then(|preconditions| preconditions.uid)
            .filter(|_| operation == Operation::Evict);
        Ok(Self {
            operation,
            name,
            namespace,
            pod,
            uid,
            dry_run: request.dry_run.unwrap_or(false)
                || options.dry_run.is_some_and(|stages| !stages.is_empty()),
            grace_period_seconds: options.grace_period_seconds,
            user: to_bounded_line(&request.user_info.username, MAX_NAME_CHARS),
            selector: BTreeMap::new(),
            owner: None,
        })
    }
}

impl Request {
    /// Returns the uid of the request's object, if the request contains it.
    pub fn object_uid(&self) -> Option<&str> {
        let of_copy = || self.pod.as_ref().map(|pod| pod.metadata.uid.as_str());
        self.uid.as_deref().or_else(of_copy).filter(|uid| !uid.is_empty())
    }

    /// Whether the API server carries out the request on whatever pod has the name then: an eviction without the uid of its
    /// pod. After the review, the API server reads the pod of an eviction by its name. A deletion by name is reviewed again if
    /// the pod has changed.
    pub fn is_by_name(&self) -> bool {
        let is_by_name = self.operation == Operation::Evict && self.object_uid().is_none();
        is_by_name && !Mistake::ReserveNoNames.is_active()
    }

    /// Whether this live pod is the request's target.
    pub fn matches(&self, pod: &Pod) -> bool {
        pod.metadata.name == self.name && self.object_uid().is_none_or(|uid| uid == pod.metadata.uid)
    }

    fn from_workload_operation(
        request: &AdmissionRequest<'_>,
        operation: WorkloadOperation,
    ) -> Result<Self, RequestError> {
        let NamedObject { kind, metadata: old } = parse("oldObject", request.old_object)?.unwrap_or_default();
        let owner = operation.is_on_owner().then(|| OwnerTarget::from_admission(request, &kind));
        let selector = match operation {
            WorkloadOperation::DeleteResource(ResourceKind::Service) => {
                let service: Option<ServiceObject> = parse("oldObject", request.old_object)?;
                service.unwrap_or_default().spec.selector.unwrap_or_default()
            }
            _ => BTreeMap::new(),
        };
        let or_old =
            |name: Option<&str>, old: String| name.filter(|name| !name.is_empty()).map_or(old, str::to_owned);
        let name = validated(Some(&or_old(request.name.as_deref(), old.name)), "name")?;
        let namespace = match operation {
            WorkloadOperation::DeleteNamespace => name.clone(),
            // Nodes have no namespace.
            WorkloadOperation::DeleteNode { .. } => String::new(),
            _ => validated(Some(&or_old(request.namespace.as_deref(), old.namespace)), "namespace")?,
        };
        Ok(Self {
            operation: Operation::Workload(operation),
            namespace,
            name,
            pod: None,
            uid: Some(truncated(&old.uid).to_owned()).filter(|uid| !uid.is_empty()),
            dry_run: request.dry_run.unwrap_or(false),
            grace_period_seconds: None,
            user: to_bounded_line(&request.user_info.username, MAX_NAME_CHARS),
            selector,
            owner,
        })
    }
}

// === impl PodUpdate ===

impl PodUpdate {
    fn from_admission(request: &AdmissionRequest<'_>) -> Result<Self, RequestError> {
        let new: Option<DeadlineObject> = parse("object", request.object)?;
        let old: Option<DeadlineObject> = parse("oldObject", request.old_object)?;
        let deadline =
            |object: Option<DeadlineObject>| object.unwrap_or_default().spec.active_deadline_seconds;
        Ok(if deadline(new) == deadline(old) { Self::Restart } else { Self::End })
    }
}

/// A pod of which only the deadline is read.
#[derive(Default, Deserialize)]
struct DeadlineObject {
    #[serde(default)]
    spec: DeadlineSpec,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct DeadlineSpec {
    #[serde(default)]
    active_deadline_seconds: Option<i64>,
}

/// An object of which only kind, name and uid are read: annotations can contain a copy of a Secret.
#[derive(Default, Deserialize)]
struct NamedObject {
    #[serde(default)]
    kind: String,
    #[serde(default)]
    metadata: ObjectName,
}

#[derive(Default, Deserialize)]
struct ObjectName {
    #[serde(default)]
    name: String,
    #[serde(default)]
    namespace: String,
    #[serde(default)]
    uid: String,
}

/// A Service, in part.
#[derive(Default, Deserialize)]
struct ServiceObject {
    #[serde(default)]
    spec: ServiceSpec,
}

#[derive(Default, Deserialize)]
struct ServiceSpec {
    #[serde(default)]
    selector: Option<BTreeMap<String, String>>,
}

/// Returns the name if it is a DNS subdomain as Kubernetes defines it: names become parts of URL paths and of terminal
/// output.
fn validated(name: Option<&str>, kind: &'static str) -> Result<String, RequestError> {
    let name = name.filter(|name| !name.is_empty()).ok_or(RequestError::MissingName(kind))?;
    let is_valid = name.len() <= MAX_NAME_LENGTH
        && name.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.'))
        && name.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric())
        && name.bytes().last().is_some_and(|byte| byte.is_ascii_alphanumeric());
    if is_valid {
        Ok(name.to_owned())
    } else {
        Err(RequestError::InvalidName(truncated(name).to_owned(), kind))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn operation(sub_resource: &str, old: &Value, new: &Value) -> Operation {
        let pod = |spec: &Value| json!({"metadata": {"name": "etcd-0", "namespace": "prod", "uid": "u"}, "spec": spec});
        let review = json!({
            "uid": "1", "operation": "UPDATE", "name": "etcd-0", "namespace": "prod", "subResource": sub_resource,
            "resource": {"version": "v1", "resource": "pods"}, "object": pod(new), "oldObject": pod(old),
            "options": {"kind": "UpdateOptions", "dryRun": null},
        })
        .to_string();
        let request = Request::from_admission(&serde_json::from_str(&review).unwrap()).unwrap();
        assert_eq!((request.object_uid(), request.dry_run), (Some("u"), false));
        request.operation
    }

    #[test]
    fn updates_restart_a_container_or_end_the_pod() {
        let (restart, end) = (Operation::Update(PodUpdate::Restart), Operation::Update(PodUpdate::End));
        let image = json!({"containers": [{"name": "etcd", "image": "new"}], "activeDeadlineSeconds": 9});
        let deadline = |seconds: u32| json!({"activeDeadlineSeconds": seconds});
        assert_eq!(operation("", &deadline(9), &image), restart);
        assert_eq!(operation("resize", &json!({}), &json!({})), restart);
        assert_eq!(operation("", &json!({}), &deadline(1)), end);
        assert_eq!(operation("", &deadline(9), &deadline(1)), end);
    }
}
