//! The mutating path behind a real kube-apiserver: registered by the shipped configurations, asked by real `kubectl`.
//!
//! Every test asserts what the guard was asked, so that none passes unasked.

// A test says by a panic what is not as it should be.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

#[path = "mutate/config.rs"]
mod config;
#[path = "mutate/lxcfs.rs"]
mod lxcfs;
#[path = "mutate/mutated_cluster.rs"]
mod mutated_cluster;
#[path = "mutate/nodes.rs"]
mod nodes;
#[path = "mutate/offline.rs"]
mod offline;
#[path = "mutate/order.rs"]
mod order;
#[path = "mutate/rules.rs"]
mod rules;
#[path = "mutate/sidecars.rs"]
mod sidecars;

#[allow(dead_code, unreachable_pub, reason = "shared with other tests, which use other parts of it")]
#[path = "support"]
mod support {
    pub mod child;
    pub mod guard_process;
    pub mod http_client;
    pub mod kubectl;
    pub mod testbed;
    pub mod wait;
}
