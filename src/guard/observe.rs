//! Probe rounds: reads the pods of a cluster, probes its members, and returns a snapshot.

pub(in crate::guard) mod error;
pub mod external;
pub(in crate::guard) mod member_pod_cache;
pub(in crate::guard) mod namespace_pods;
pub(in crate::guard) mod observer;
mod other_namespaces;
mod related;
