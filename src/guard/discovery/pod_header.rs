//! The fast path: the fields of a deleted pod that exclude etcd. Most deleted pods run no etcd. Only their header is
//! parsed, and nothing is copied.
//!
//! The header proves only that a pod mentions etcd nowhere. If the pod mentions etcd, has a special annotation or
//! cannot be parsed as a header, the whole pod is parsed. Errors in other fields of a pod without etcd are ignored,
//! because no verdict depends on these fields.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, MapAccess, Visitor},
};

use crate::guard::{
    discovery::recognition::Evidence,
    model::annotations::MEMBER,
    model::request::{Operation, Request},
};
use crate::{
    json::CowStr,
    k8s::{
        AnnotationCache,
        admission::AdmissionRequest,
        pod::{ALWAYS, MIRROR_ANNOTATION},
    },
};

/// The fields of a pod (`v1`) that determine whether the pod can run etcd.
#[derive(Deserialize)]
pub struct PodHeader<'a> {
    #[serde(borrow)]
    metadata: Metadata<'a>,
    #[serde(borrow)]
    spec: Spec<'a>,
    #[serde(borrow, default)]
    status: Status<'a>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata<'a> {
    #[serde(borrow)]
    name: CowStr<'a>,
    #[serde(borrow)]
    namespace: CowStr<'a>,
    #[serde(default)]
    annotations: SpecialAnnotations,
    #[serde(borrow, default)]
    owner_references: Vec<Owner<'a>>,
    #[serde(default)]
    deletion_timestamp: Option<IgnoredAny>,
}

/// Whether the pod has an annotation that requires the whole pod: the member annotation or the mirror annotation.
#[derive(Default)]
struct SpecialAnnotations {
    is_present: bool,
}

#[derive(Deserialize)]
struct Owner<'a> {
    #[serde(borrow)]
    kind: CowStr<'a>,
    #[serde(borrow)]
    name: CowStr<'a>,
    #[serde(default)]
    controller: Option<bool>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spec<'a> {
    #[serde(borrow)]
    containers: Vec<Container<'a>>,
    #[serde(borrow, default)]
    init_containers: Vec<Container<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Container<'a> {
    #[serde(borrow, default)]
    image: CowStr<'a>,
    #[serde(borrow, default)]
    command: Vec<CowStr<'a>>,
    #[serde(borrow, default)]
    args: Vec<CowStr<'a>>,
    #[serde(borrow, default)]
    env: Vec<Variable<'a>>,
    #[serde(borrow, default)]
    restart_policy: CowStr<'a>,
}

#[derive(Deserialize)]
struct Variable<'a> {
    #[serde(borrow)]
    name: CowStr<'a>,
}

#[derive(Default, Deserialize)]
struct Status<'a> {
    #[serde(borrow, default)]
    phase: CowStr<'a>,
}

// === impl PodHeader ===

impl PodHeader<'_> {
    /// Returns the request to delete this pod if the pod runs no etcd: the pod mentions etcd nowhere, and no annotation
    /// of its StatefulSet or namespace declares it a member.
    pub(in crate::guard) fn fast_path_request(
        &self,
        request: &AdmissionRequest<'_>,
        annotations: &AnnotationCache,
    ) -> Option<Request> {
        let request = self.request_if_unrelated(request)?;
        if !annotations.is_guarded(&request.namespace) || !annotations.is_known(&request.namespace) {
            return None;
        }
        let is_declared = annotations.has_any(&request.namespace, self.stateful_set(), &[MEMBER]);
        (!is_declared).then_some(request)
    }

    /// Returns the request to delete this pod if the pod mentions etcd nowhere. Annotations of its owners are not
    /// checked.
    pub(crate) fn request_if_unrelated(&self, request: &AdmissionRequest<'_>) -> Option<Request> {
        let request = Request::from_admission(request).ok()?;
        let is_unrelated = request.operation == Operation::Delete && self.is_unrelated();
        is_unrelated.then_some(Request { runs_no_etcd: true, ..request })
    }

    /// Returns whether this pod mentions etcd nowhere, and is neither terminating nor finished nor a mirror.
    pub(in crate::guard) fn is_unrelated(&self) -> bool {
        let is_settled = self.metadata.deletion_timestamp.is_some()
            || self.metadata.annotations.is_present
            || matches!(&*self.status.phase.0, "Succeeded" | "Failed");
        let sidecars = self.spec.init_containers.iter().filter(|container| container.is_native_sidecar());
        !is_settled && !self.spec.containers.iter().chain(sidecars).any(Container::may_run_etcd)
    }

    /// Returns the name of the pod.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.metadata.name.0
    }

    /// Returns the namespace of the pod.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.metadata.namespace.0
    }

    /// Returns the name of the StatefulSet that controls the pod.
    pub(in crate::guard) fn stateful_set(&self) -> Option<&str> {
        let controller =
            self.metadata.owner_references.iter().find(|owner| owner.controller == Some(true))?;
        (controller.kind.0 == "StatefulSet").then_some(&*controller.name.0)
    }
}

// === impl Container ===

impl Container<'_> {
    /// Whether this init container runs as long as its pod.
    fn is_native_sidecar(&self) -> bool {
        &*self.restart_policy.0 == ALWAYS
    }

    /// Whether the container runs a member, or could run one depending on fields that the header does not contain.
    fn may_run_etcd(&self) -> bool {
        let evidence = Evidence::new(
            &self.image.0,
            self.command.iter().map(|part| &*part.0),
            self.args.iter().map(|part| &*part.0),
            self.env.iter().map(|variable| &*variable.name.0),
        );
        evidence.may_be_member()
    }
}

// === impl SpecialAnnotations ===

impl<'de> Deserialize<'de> for SpecialAnnotations {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct AnnotationVisitor;

        impl<'de> Visitor<'de> for AnnotationVisitor {
            type Value = SpecialAnnotations;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("annotations")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<SpecialAnnotations, A::Error> {
                let mut is_present = false;
                while let Some((CowStr(name), CowStr(_))) = map.next_entry()? {
                    is_present |= matches!(&*name, MEMBER | MIRROR_ANNOTATION);
                }
                Ok(SpecialAnnotations { is_present })
            }
        }

        deserializer.deserialize_map(AnnotationVisitor)
    }
}

#[cfg(test)]
mod tests;
