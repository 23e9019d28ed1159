//! Failures of calls to a member, classified by the evidence that they provide.

use std::time::Duration;

/// The text of the error with which rustls reports that the peer closed the connection during the handshake.
const HANDSHAKE_EOF: &str = "tls handshake eof";

/// The failure of a call to a member. Texts of the member are escaped and cut.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemberError {
    /// The member did not respond in time: the process is frozen, the network is partitioned, or there is no quorum.
    #[error("no answer within {}", humantime::format_duration(*.0))]
    TimedOut(Duration),
    /// No process listens at the address.
    #[error("{0}")]
    Refused(String),
    /// The connection could not be established.
    #[error("{0}")]
    Unreachable(String),
    /// The peer accepted the connection and closed it.
    #[error("{0}")]
    Closed(String),
    /// The peer accepted the connection and TLS failed. Neither side is obliged to send the reason.
    #[error("TLS: {0}")]
    Tls(String),
    /// The member responds, but the login, which is a raft proposal, did not pass in time.
    #[error("the login, which needs a quorum, did not pass within {}", humantime::format_duration(*.0))]
    LoginTimedOut(Duration),
    /// The member has no leader at the moment.
    #[error("the member has no leader")]
    NoLeader,
    /// The member is a learner. Learners serve no linearizable reads.
    #[error("the member is a learner")]
    Learner,
    /// The member rejected this client's certificate, user or password.
    #[error("credentials rejected: {0}")]
    CredentialsRejected(String),
    /// The response exceeds the limits for responses of members.
    #[error("{0}")]
    Oversized(String),
    /// The reply came over a scheme that the member does not advertise. Another process may have sent it.
    #[error("it replies over {0}, but advertises no client URL with this scheme")]
    UnadvertisedScheme(&'static str),
    /// Any other failure.
    #[error("{0}")]
    Other(String),
}

// === impl MemberError ===

impl MemberError {
    /// All values of [`Self::label`].
    pub const LABELS: [&'static str; 12] = [
        "timed_out",
        "refused",
        "unreachable",
        "closed",
        "tls",
        "login_timed_out",
        "no_leader",
        "learner",
        "credentials_rejected",
        "oversized",
        "unadvertised_scheme",
        "other",
    ];

    /// Returns the value of a metric's label, from a closed set.
    pub fn label(&self) -> &'static str {
        match self {
            Self::TimedOut(_) => "timed_out",
            Self::Refused(_) => "refused",
            Self::Unreachable(_) => "unreachable",
            Self::Closed(_) => "closed",
            Self::Tls(_) => "tls",
            Self::LoginTimedOut(_) => "login_timed_out",
            Self::NoLeader => "no_leader",
            Self::Learner => "learner",
            Self::CredentialsRejected(_) => "credentials_rejected",
            Self::Oversized(_) => "oversized",
            Self::UnadvertisedScheme(_) => "unadvertised_scheme",
            Self::Other(_) => "other",
        }
    }

    /// Whether no process responded at the address. Every other failure proves that a process listens there.
    pub fn is_unanswered(&self) -> bool {
        matches!(self, Self::TimedOut(_) | Self::Refused(_) | Self::Unreachable(_))
    }

    /// Whether the peer closed the connection before the TLS handshake was complete. A member completes the handshake,
    /// also with a client certificate that it rejects.
    pub fn is_closed_in_handshake(&self) -> bool {
        matches!(self, Self::Closed(text) if text == HANDSHAKE_EOF)
    }
}
