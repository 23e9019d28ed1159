//! Probe rounds: reads the pods of a cluster, probes its members, and returns a snapshot.

pub(crate) mod answered_addresses;
pub(crate) mod error;
pub mod external;
pub(crate) mod member_pod_cache;
pub(crate) mod namespace_pods;
mod node_storage;
pub(crate) mod observer;
mod other_namespaces;
mod related;
