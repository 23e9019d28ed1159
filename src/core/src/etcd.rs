//! What etcd members report: identities, status, errors. The client that asks them is the crate `etcd`.

pub mod endpoint;
pub mod error;
pub mod member;
pub mod probe_result;
pub mod release;
