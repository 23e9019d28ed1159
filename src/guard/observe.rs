//! Probe rounds: reads the pods of a cluster, probes its members, and returns a snapshot.

mod departed;
pub(in crate::guard) mod error;
pub mod external;
mod inherited;
pub(in crate::guard) mod member_pod_cache;
pub(in crate::guard) mod observer;
mod other_namespaces;
pub(in crate::guard) mod other_pods;
mod probe_round;
mod reach;
mod related;
pub(in crate::guard) mod siblings;
mod whole_cluster;
