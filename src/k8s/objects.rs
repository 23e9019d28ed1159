//! Partial types of Kubernetes objects.

pub mod admission;
pub(super) mod claim;
pub mod pod;
pub mod quantity;
