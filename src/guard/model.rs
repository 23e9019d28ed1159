//! Pure data of the guard: cluster keys, requests, snapshots, reasons and verdicts. Imports no other module of the guard.

pub(in crate::guard) mod annotations;
pub(in crate::guard) mod cluster_key;
pub(in crate::guard) mod cluster_state;
pub(in crate::guard) mod deadline;
pub(in crate::guard) mod handover;
pub(in crate::guard) mod membership;
pub(in crate::guard) mod reason;
pub(in crate::guard) mod request;
pub(in crate::guard) mod reservation;
pub mod snapshot;
pub(in crate::guard) mod tally;
pub(in crate::guard) mod verdict;
pub(in crate::guard) mod wall_clock;
