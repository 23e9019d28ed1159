//! Probe rounds: reads the pods of a cluster, probes its members, and returns a snapshot.

pub(in crate::guard) mod error;
pub mod external;
pub(in crate::guard) mod member_pod_cache;
pub(in crate::guard) mod observer;
pub(in crate::guard) mod other_pods;
mod probe_round;
mod related;
pub(in crate::guard) mod siblings;
pub(in crate::guard) mod voter_history;
