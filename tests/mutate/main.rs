//! The mutating webhooks behind a real kube-apiserver, registered by the shipped configurations and used with real
//! `kubectl`.
//!
//! Each test asserts that the guard was called.

// A test fails by a panic.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod config;
mod limits;
mod lxcfs;
mod mutated_cluster;
mod native_sidecars;
mod node_status;
mod over_commit;
mod pod_rules;
mod pod_security;
mod sidecars;
mod templates;
mod webhook_order;
