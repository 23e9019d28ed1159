//! A glance at the pod that a deletion's review brings. Most run no etcd: of those no more is read, and nothing is copied.
//!
//! It says no more than that a pod names etcd nowhere. Whatever else there is to say of it, and whatever of this is not as
//! expected, is left to who reads the pod as a whole. A mistake in what is not read here goes unnoticed: of such a pod no
//! verdict hangs on it.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, MapAccess, Visitor},
};

use super::{
    Guard,
    etcd_pod::{self, MEMBER_ANNOTATION},
    request::{Operation, Request},
};
use crate::{
    json::Text,
    k8s::{admission::AdmissionRequest, pod::MIRROR_ANNOTATION},
};

/// A pod (`v1`), as far as it takes to pass it by.
#[derive(Deserialize)]
pub struct Glance<'a> {
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
    name: Text<'a>,
    #[serde(borrow)]
    namespace: Text<'a>,
    #[serde(default)]
    annotations: Marks,
    #[serde(borrow, default)]
    owner_references: Vec<Owner<'a>>,
    #[serde(default)]
    deletion_timestamp: Option<IgnoredAny>,
}

/// Whether there is an annotation that takes a look at the whole pod.
#[derive(Default)]
struct Marks {
    are_there: bool,
}

#[derive(Deserialize)]
struct Owner<'a> {
    #[serde(borrow)]
    kind: Text<'a>,
    #[serde(borrow)]
    name: Text<'a>,
    #[serde(default)]
    controller: Option<bool>,
}

#[derive(Deserialize)]
struct Spec<'a> {
    #[serde(borrow)]
    containers: Vec<Container<'a>>,
}

#[derive(Deserialize)]
struct Container<'a> {
    #[serde(borrow, default)]
    image: Text<'a>,
    #[serde(borrow, default)]
    command: Vec<Text<'a>>,
    #[serde(borrow, default)]
    args: Vec<Text<'a>>,
    #[serde(borrow, default)]
    env: Vec<Variable<'a>>,
}

#[derive(Deserialize)]
struct Variable<'a> {
    #[serde(borrow)]
    name: Text<'a>,
}

#[derive(Default, Deserialize)]
struct Status<'a> {
    #[serde(borrow, default)]
    phase: Text<'a>,
}

// === impl Guard ===

impl Guard {
    /// Reads the deletion of a pod that runs no etcd, as a glance at it tells. Nothing where there may be more to it: then the
    /// pod is to be read as a whole.
    #[must_use]
    pub fn pass_by(&self, request: &AdmissionRequest<'_>, pod: &Glance<'_>) -> Option<Request> {
        let request = pod.pass_by(request)?;
        let annotations = &self.looker.annotations;
        let is_said_to_be_member =
            annotations.has(&request.namespace, pod.stateful_set(), &[MEMBER_ANNOTATION]);
        (!is_said_to_be_member).then_some(request)
    }
}

// === impl Glance ===

impl Glance<'_> {
    /// Reads the deletion of this pod, if it names etcd nowhere.
    pub(crate) fn pass_by(&self, request: &AdmissionRequest<'_>) -> Option<Request> {
        let request = Request::read(request).ok()?;
        let is_bystander = request.operation == Operation::Delete && self.is_bystander();
        is_bystander.then_some(Request { bystander: true, ..request })
    }

    /// Whether this pod names etcd nowhere, and is neither on its way out nor a mirror.
    pub(super) fn is_bystander(&self) -> bool {
        let is_settled = self.metadata.deletion_timestamp.is_some()
            || self.metadata.annotations.are_there
            || matches!(&*self.status.phase.0, "Succeeded" | "Failed");
        !is_settled && !self.spec.containers.iter().any(Container::names_etcd)
    }

    /// The pod's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.metadata.name.0
    }

    /// The pod's namespace.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.metadata.namespace.0
    }

    /// The name of the StatefulSet that controls it.
    pub(super) fn stateful_set(&self) -> Option<&str> {
        let controller = self.metadata.owner_references.iter().find(|it| it.controller == Some(true))?;
        (controller.kind.0 == "StatefulSet").then_some(&*controller.name.0)
    }
}

// === impl Container ===

impl Container<'_> {
    fn names_etcd(&self) -> bool {
        let parts = self.command.iter().chain(&self.args).map(|it| &*it.0);
        etcd_pod::names_etcd(&self.image.0, parts, self.env.iter().map(|it| &*it.name.0))
    }
}

// === impl Marks ===

impl<'de> Deserialize<'de> for Marks {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Names;

        impl<'de> Visitor<'de> for Names {
            type Value = Marks;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("annotations")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Marks, A::Error> {
                let mut are_there = false;
                while let Some((Text(name), Text(_))) = map.next_entry()? {
                    are_there |= matches!(&*name, MEMBER_ANNOTATION | MIRROR_ANNOTATION);
                }
                Ok(Marks { are_there })
            }
        }

        deserializer.deserialize_map(Names)
    }
}

#[cfg(test)]
mod tests;
