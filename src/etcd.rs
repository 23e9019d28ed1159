//! Asks members of an etcd cluster, each at its own address, through the etcd v3 API.
//!
//! This room never knows of Kubernetes: it gets addresses and returns what answered there. It reads, and moves leadership
//! where it is told to; it never writes. Above all it never asks for alarms, which is a raft proposal (`Status.errors` carries them for nothing).

mod connection;
mod member;
mod probe;
mod transfer;

pub use connection::{ClientIdentity, Connections, Endpoint, Tls, User};
pub use member::{Alarm, AlarmKind, ClusterId, ListedMember, MemberId, Status};
pub use probe::{Cause, MEMBER_LIMIT, Reply, probe};
pub use transfer::move_leader;
