//! A client for the members of an etcd cluster, each at its own address, through the etcd v3 API.
//!
//! This module does not depend on Kubernetes: callers pass addresses and credentials and receive the members'
//! responses. The module reads, and moves leadership on request. It never writes keys. It reads alarms from
//! `Status.errors`, because `Maintenance.Alarm` is a raft proposal.

mod any_certificate;
mod connection;
mod limits;
mod probe;
mod response;
mod scheme;
mod transfer;
mod unverified;

pub use connection::{Connections, Transport, early::EarlyConnections};
pub use limits::{MAX_LISTED_MEMBERS, MAX_LISTED_URLS};
pub use probe::{PROBE_TIMEOUT, probe};
pub use response::member_error;
pub use scheme::{SCHEME_TIMEOUT, detect_schemes};
pub use transfer::move_leader;
