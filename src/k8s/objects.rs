//! Partial types of Kubernetes objects.

pub mod admission;
pub mod annotations;
pub(super) mod api_server_version;
pub(super) mod claim;
pub(super) mod data_object;
pub(super) mod heap_size;
pub(super) mod namespace_limits;
mod nullable;
pub(super) mod owner_reference;
pub mod pod;
mod pod_heap_size;
pub(super) mod pod_references;
pub(super) mod pod_template;
mod pod_volumes;
pub mod quantity;
pub(super) mod stateful_set;
