//! Rolling restarts of a StatefulSet with etcd members, the leader last.
//!
//! The StatefulSet has the update strategy `OnDelete` during a restart, because under `RollingUpdate` the StatefulSet
//! controller replaces pods itself, from the highest ordinal down. An annotation records the original strategy and the uids
//! of the pods at the start. Strategy and annotation are written together, so that each state can be resumed.
//!
//! A StatefulSet with another manager is not changed: the pods carry the annotation, and a rollout of the controller ends the restart.

pub(crate) mod ownership;
pub(crate) mod plan;
pub(crate) mod record;
pub(crate) mod run;
mod view;
