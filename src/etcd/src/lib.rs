//! A client for the members of an etcd cluster, each at its own address, through the etcd v3 API.
//!
//! The usual clients of etcd ask any member of a cluster and hide which one answered. The guard needs the opposite: the answer of
//! one process at one address, or the reason why there is none.
//!
//! - [`probe`]: a linearizable read, the status and the member list of one member, as a `ProbeResult` of the crate `core`.
//! - [`move_leader`], [`defragment`], [`disarm`] and [`change_members`]: the only changes. This crate never writes keys, and reads alarms from
//!   `Status.errors`, because `Maintenance.Alarm` is a raft proposal.
//! - [`BackupSource`]: the database of a member as a stream, for the kubectl plugin, over a connection of its own.
//! - [`detect_schemes`]: whether a member speaks TLS, where its settings do not say so.
//! - [`Connections`]: open connections by address and credentials. [`Transport`] opens them: TCP, or the network of a simulation.
//! - `limits` and `response`: a member is not trusted. Sizes are bounded, and errors become text that is safe to print.
//!
//! This crate must not know Kubernetes: callers pass addresses and credentials, and judge the answers.

mod any_certificate;
mod backup;
mod connection;
mod defragmentation;
mod limits;
mod member_change;
mod probe;
mod response;
mod scheme;
mod suffrage;
mod transfer;
mod unverified;

pub use backup::{BackupSource, Database, Dial, MemberStream, Piece, detect_scheme};
pub use connection::{Connections, Transport, early::EarlyConnections};
pub use defragmentation::{defragment, disarm};
pub use limits::{MAX_LISTED_MEMBERS, MAX_LISTED_URLS};
pub use member_change::{MemberChange, change_members};
pub use probe::{PROBE_TIMEOUT, probe};
pub use response::member_error;
pub use scheme::{SCHEME_TIMEOUT, detect_schemes};
pub use transfer::move_leader;
