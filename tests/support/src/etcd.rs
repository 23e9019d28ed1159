//! Members of etcd clusters, many clusters of fake members, a client that writes continuously, proxies in front of members, and a process that answers
//! in place of one.

pub mod fake_member;
pub mod fleet;
pub mod fourth_member;
pub mod grpc_proxy;
pub mod member;
pub mod peer_links;
pub mod raft_scenarios;

pub use etcd_guard_writer as writer;
