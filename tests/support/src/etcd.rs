//! Members of etcd clusters, a client that writes continuously, proxies in front of members, a process that answers in place of
//! one, and many clusters of such processes.

pub mod fake_member;
pub mod fleet;
mod fleet_certificates;
pub mod fourth_member;
pub mod grpc_proxy;
pub mod member;
pub mod peer_links;
pub mod raft_scenarios;

pub use etcd_guard_writer as writer;
