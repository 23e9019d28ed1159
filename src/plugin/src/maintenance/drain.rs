//! Drains of nodes with etcd members: a plan across clusters, and its execution.

pub(crate) mod placement;
pub(crate) mod plan;
pub(crate) mod pods;
pub(crate) mod read;
pub(crate) mod report;
pub(crate) mod run;
