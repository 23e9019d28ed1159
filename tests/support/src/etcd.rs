//! Members of etcd clusters, a client that writes continuously, and a proxy in front of members.

pub mod fourth_member;
pub mod grpc_proxy;
pub mod member;
pub mod writer;
