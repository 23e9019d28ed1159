//! Drains of nodes with etcd members: a plan across clusters.

mod placement;
mod plan;
mod pods;
mod read;
pub(crate) mod report;
