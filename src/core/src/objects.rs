//! Partial types of Kubernetes objects.

pub mod admission;
pub mod affinity;
pub mod annotations;
pub mod api_server_version;
pub mod claim;
pub mod data_object;
pub mod disruption_budget;
pub mod heap_size;
pub mod namespace_limits;
mod nullable;
pub mod owner_reference;
pub mod pod;
mod pod_heap_size;
pub mod pod_references;
pub mod pod_template;
pub mod pod_volumes;
pub mod quantity;
pub mod stateful_set;
