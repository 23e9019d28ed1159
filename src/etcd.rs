//! A client for the members of an etcd cluster, each at its own address, through the etcd v3 API.
//!
//! This module does not depend on Kubernetes: callers pass addresses and credentials and receive the members'
//! responses. The module reads, and moves leadership on request. It never writes keys. It reads alarms from
//! `Status.errors`, because `Maintenance.Alarm` is a raft proposal.

mod any_certificate;
mod connection;
mod endpoint;
mod error;
mod limits;
mod member;
mod probe;
mod probe_result;
mod release;
mod response;
mod scheme;
mod transfer;
mod unverified;

pub(crate) use connection::early::EarlyConnections;
pub use connection::{Connections, Transport};
pub use endpoint::{ClientIdentity, Endpoint, Tls, User, url_host};
pub use error::MemberError;
pub use limits::{MAX_LISTED_MEMBERS, MAX_LISTED_URLS};
#[cfg(test)]
pub(crate) use member::displayed_version;
pub use member::{Alarm, AlarmKind, ClusterId, ListedMember, MemberId, Scheme, Status, displayed_name};
pub use probe::{PROBE_TIMEOUT, probe};
pub use probe_result::ProbeResult;
pub use release::stale_read_fix;
pub use response::member_error;
pub use scheme::{SCHEME_TIMEOUT, detect_schemes};
pub use transfer::move_leader;
