//! The result of probing one member.

use super::{
    error::MemberError,
    member::{ListedMember, Status},
};

/// The evidence of a probe about one member. A linearizable read is the only proof of health.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProbeResult {
    /// The linearizable read passed: the member has a leader with a quorum and is caught up.
    Healthy {
        /// The member's status, requested after the read passed.
        status: Status,
        /// The member list, requested after the read passed and therefore not older than the read.
        members: Vec<ListedMember>,
    },
    /// The member returned its status, but the login, the read or the member list failed: a learner, or a member that
    /// has no quorum or lags behind.
    StatusOnly {
        /// The member's status.
        status: Status,
        /// The failure of the login, the read or the member list.
        cause: MemberError,
    },
    /// The member returned no status.
    NoStatus {
        /// The failure of the call that determined the result.
        cause: MemberError,
    },
}

// === impl ProbeResult ===

impl ProbeResult {
    /// The member's status, if the member returned one.
    pub fn status(&self) -> Option<&Status> {
        match self {
            Self::Healthy { status, .. } | Self::StatusOnly { status, .. } => Some(status),
            Self::NoStatus { .. } => None,
        }
    }

    /// Whether the linearizable read passed.
    pub fn is_healthy(&self) -> bool {
        matches!(self, Self::Healthy { .. })
    }

    /// Returns the cause of the failure; `None` if the member is healthy.
    pub fn cause(&self) -> Option<&MemberError> {
        match self {
            Self::Healthy { .. } => None,
            Self::StatusOnly { cause, .. } | Self::NoStatus { cause } => Some(cause),
        }
    }
}
