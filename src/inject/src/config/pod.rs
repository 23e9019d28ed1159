//! The frequent rules of an API server for the parts of a pod that a template contains
//! (`pkg/apis/core/validation/validation.go` of Kubernetes 1.34): those that `tests/data/templates` violates. `kubectl etcd-guard
//! config check --server` evaluates all others, and those that depend on the pod itself.
//!
//! Values of a wrong type are left to the type check. Every rule ignores them.

mod container;
mod environment;
mod fields;
mod mounts;
mod probes;
mod resources;
mod scheduling;
mod security;
pub(crate) mod security_level;
mod volumes;

pub(crate) use self::{
    container::{Container, ContainerKind, check_containers},
    environment::check_variables,
    mounts::check_mounts,
    scheduling::{check_affinity, check_name_resolution},
    security::check_pod_security_context,
    security_level::RestrictedParts,
    volumes::check_volumes,
};
