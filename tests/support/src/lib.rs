//! Test support for etcd-guard: real programs, control planes and etcd clusters, proxies between them, and clients.

// A failed expectation ends the test or the bench by a panic, here as in a test function.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::missing_panics_doc, clippy::must_use_candidate)]

pub mod bench_table;
pub mod breakpoint;
pub mod deadline;
pub mod documentation;
pub mod etcd;
pub mod guard;
pub mod guarded_cluster;
pub mod http_client;
pub mod kubernetes;
pub mod layout;
pub mod plot_data;
pub mod process_node;
pub mod processes;
pub mod project;
pub mod protocol_trace;
pub mod telemetry;
pub mod wait;
