//! Moves of leadership on request and before disruptions, behind a real kube-apiserver: etcd members run as processes on
//! nodes that the tests cordon and taint.
//!
//! Every guard of this process is a replica for all clusters of this process, so that the tests run one after the other.

// A test fails by a panic.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod cluster;
mod defragmentation;
mod drains;
mod faults;
mod interrupted;
mod nodes;
mod replacement;
mod requests;
mod rollouts;
mod voters;
mod write_gap;
