//! What is asked of the guard: the deletion or the eviction of one pod.

use super::intent::Intent;
use crate::k8s::{
    admission::{AdmissionRequest, DeleteOptions, Eviction, clipped},
    pod::{Metadata, Pod},
};

/// The two ways by which the API deletes a pod. An allowed eviction is not asked about again as a deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// DELETE of a pod, or of one pod of a collection.
    Delete,
    /// CREATE of a pod's eviction.
    Evict,
    /// What pods' deletions follow from.
    Intent(Intent),
}

/// One pod's deletion, asked for.
#[derive(Clone, Debug)]
pub struct Request {
    /// By which way.
    pub operation: Operation,
    /// The namespace of what is to be deleted; of a namespace, itself.
    pub namespace: String,
    /// The pod's name, or that of what its deletion follows from.
    pub name: String,
    /// The pod as the apiserver has it at hand, which may be a copy a moment old; an eviction brings none.
    pub pod: Option<Pod>,
    /// Whether a glance at that pod showed that it runs no etcd: then no more of it was read.
    pub(super) bystander: bool,
    /// The uid of the pod that is meant, where an eviction says so: the apiserver evicts no other. Before a deletion it
    /// has compared them itself. Of what a deletion would follow from, its own.
    pub uid: Option<String>,
    /// Whether nothing will happen after a yes.
    pub dry_run: bool,
    /// Seconds between SIGTERM and SIGKILL, where the request says so.
    pub grace_period_seconds: Option<i64>,
    /// Who asks.
    pub user: String,
}

/// A review that the guard has no verdict on.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// The webhook configuration sends more than it should.
    #[error(
        "etcd-guard judges deletions and evictions of pods, and deletions and scaling of what they belong to, and was \
         asked about {operation} of {resource}: correct the rules of the webhook configuration"
    )]
    NotOurs {
        /// CREATE, UPDATE, DELETE or CONNECT.
        operation: String,
        /// Resource and subresource.
        resource: String,
    },
    /// A part of the request is not what its type says.
    #[error("the request's {part} is not readable: {cause}")]
    Unreadable {
        /// Which part.
        part: &'static str,
        /// What is wrong with it.
        cause: String,
    },
    /// Neither the request nor the old object names the pod.
    #[error("the request names no {0}, neither itself nor in its oldObject")]
    Nameless(&'static str),
    /// A name that Kubernetes would not have accepted either.
    #[error("{0:?} is not a valid {1}")]
    BadName(String, &'static str),
}

/// The longest name that Kubernetes accepts for a pod.
const LONGEST_NAME: usize = 253;

// === impl Request ===

impl Request {
    /// Reads the request of a review.
    pub fn read(request: &AdmissionRequest<'_>) -> Result<Self, RequestError> {
        let sub_resource = request.sub_resource.as_deref().unwrap_or_default();
        let resource = request.resource.resource.as_ref();
        let core = request.resource.group.is_empty();
        if let Some(intent) = Intent::read(request)? {
            return Self::of_intent(request, intent);
        }
        let operation = match (request.operation.as_ref(), resource, sub_resource) {
            ("DELETE", "pods", "") if core => Operation::Delete,
            ("CREATE", "pods", "eviction") if core => Operation::Evict,
            (operation, ..) => {
                let separator = if sub_resource.is_empty() { "" } else { "/" };
                return Err(RequestError::NotOurs {
                    operation: clipped(operation).to_owned(),
                    resource: clipped(&format!("{resource}{separator}{sub_resource}")).to_owned(),
                });
            }
        };
        let pod: Option<Pod> = match operation {
            Operation::Delete => parse("oldObject", request.old_object)?,
            Operation::Evict | Operation::Intent(_) => None,
        };
        let options = match operation {
            Operation::Delete => parse("options", request.options)?,
            Operation::Evict | Operation::Intent(_) => {
                parse::<Eviction>("object", request.object)?.and_then(|it| it.delete_options)
            }
        }
        .unwrap_or_else(DeleteOptions::default);

        let (mut name, mut namespace) = (request.name.as_deref(), request.namespace.as_deref());
        if let Some(pod) = &pod {
            // A deletion of a collection sends one request per pod, without its name.
            name = name.filter(|name| !name.is_empty()).or(Some(&pod.metadata.name));
            namespace = namespace.filter(|name| !name.is_empty()).or(Some(&pod.metadata.namespace));
        }
        let (name, namespace) = (checked(name, "pod name")?, checked(namespace, "namespace")?);
        let uid = options.preconditions.and_then(|it| it.uid).filter(|_| operation == Operation::Evict);
        Ok(Self {
            operation,
            name,
            namespace,
            pod,
            bystander: false,
            uid,
            dry_run: request.dry_run.unwrap_or(false) || options.dry_run.is_some_and(|it| !it.is_empty()),
            grace_period_seconds: options.grace_period_seconds,
            user: clipped(&request.user_info.username).to_owned(),
        })
    }
}

impl Request {
    /// Whether a glance at the pod showed that it runs no etcd.
    pub(crate) fn is_bystander(&self) -> bool {
        self.bystander
    }

    /// Seconds between SIGTERM and SIGKILL for this pod: what the request says, or else the pod.
    pub(super) fn grace_period(&self, pod: &Pod) -> Option<i64> {
        self.grace_period_seconds.or(pod.spec.termination_grace_period_seconds)
    }

    /// Whether this pod is the one that is meant.
    pub(super) fn means(&self, pod: &Pod) -> bool {
        pod.metadata.name == self.name && self.uid.as_ref().is_none_or(|uid| *uid == pod.metadata.uid)
    }

    fn of_intent(request: &AdmissionRequest<'_>, intent: Intent) -> Result<Self, RequestError> {
        let old: Option<Named> = parse("oldObject", request.old_object)?;
        let old = old.unwrap_or_default().metadata;
        let or_old =
            |name: Option<&str>, old: String| name.filter(|it| !it.is_empty()).map_or(old, str::to_owned);
        let name = checked(Some(&or_old(request.name.as_deref(), old.name)), "name")?;
        let namespace = match intent {
            Intent::DeleteNamespace => name.clone(),
            _ => checked(Some(&or_old(request.namespace.as_deref(), old.namespace)), "namespace")?,
        };
        Ok(Self {
            operation: Operation::Intent(intent),
            namespace,
            name,
            pod: None,
            bystander: false,
            uid: Some(clipped(&old.uid).to_owned()).filter(|it| !it.is_empty()),
            dry_run: request.dry_run.unwrap_or(false),
            grace_period_seconds: None,
            user: clipped(&request.user_info.username).to_owned(),
        })
    }
}

/// An object of which only name and uid are of interest.
#[derive(Default, serde::Deserialize)]
struct Named {
    #[serde(default)]
    metadata: Metadata,
}

pub(super) fn parse<'a, T: serde::Deserialize<'a>>(
    part: &'static str,
    raw: Option<&'a serde_json::value::RawValue>,
) -> Result<Option<T>, RequestError> {
    let Some(raw) = raw else { return Ok(None) };
    serde_json::from_str(raw.get())
        .map_err(|error| RequestError::Unreadable { part, cause: error.to_string() })
}

/// Names become parts of paths and of texts for a terminal, so they must be what Kubernetes calls a DNS subdomain.
fn checked(name: Option<&str>, what: &'static str) -> Result<String, RequestError> {
    let name = name.filter(|name| !name.is_empty()).ok_or(RequestError::Nameless(what))?;
    let fits = name.len() <= LONGEST_NAME
        && name.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.'))
        && name.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric())
        && name.bytes().last().is_some_and(|byte| byte.is_ascii_alphanumeric());
    if fits { Ok(name.to_owned()) } else { Err(RequestError::BadName(clipped(name).to_owned(), what)) }
}
