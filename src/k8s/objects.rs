//! Partial types of Kubernetes objects.

pub mod admission;
pub(super) mod claim;
mod nullable;
mod owner_reference;
pub mod pod;
pub(super) mod pod_references;
pub mod quantity;
pub(super) mod stateful_set;
