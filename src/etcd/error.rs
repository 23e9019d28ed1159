//! Failures of calls to a member, classified by the evidence that they provide.

use std::time::Duration;

use etcd_client::Error;

use super::limits::MAX_RESPONSE_BYTES;
use crate::escape::{MAX_ERROR_CHARS, to_bounded_line};

/// The numbers of gRPC status codes. The crate with their names is only an indirect dependency.
mod code {
    pub(super) const INVALID_ARGUMENT: i32 = 3;
    pub(super) const PERMISSION_DENIED: i32 = 7;
    pub(super) const UNAVAILABLE: i32 = 14;
    pub(super) const UNAUTHENTICATED: i32 = 16;
}

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
    #[must_use]
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
    #[must_use]
    pub fn is_unanswered(&self) -> bool {
        matches!(self, Self::TimedOut(_) | Self::Refused(_) | Self::Unreachable(_))
    }

    /// Whether the peer closed the connection before the TLS handshake was complete. A member completes the handshake,
    /// also with a client certificate that it rejects.
    pub(super) fn is_closed_in_handshake(&self) -> bool {
        matches!(self, Self::Closed(text) if text == HANDSHAKE_EOF)
    }

    /// Classifies an error that prevented a connection.
    fn from_connection_error(error: &(dyn std::error::Error + 'static)) -> Self {
        if causes(error).any(<dyn std::error::Error>::is::<http_body_util::LengthLimitError>) {
            let limit = MAX_RESPONSE_BYTES >> 10;
            return Self::Oversized(format!("the response is larger than {limit} KiB"));
        }
        match tls_error(error) {
            Some(rustls::Error::AlertReceived(alert)) => {
                Self::CredentialsRejected(format!("the member refused this client's certificate ({alert:?})"))
            }
            Some(error) => Self::Tls(displayed(&error.to_string())),
            None if is_connection_refused(error) => Self::Refused(root_cause(error)),
            None if was_connected(error) => Self::Closed(root_cause(error)),
            None => Self::Unreachable(root_cause(error)),
        }
    }
}

impl From<&Error> for MemberError {
    fn from(error: &Error) -> Self {
        let Error::GRpcStatus(status) = error else {
            return Self::from_connection_error(error);
        };
        // A status with a source was created by this client: the connection failed, and no member responded.
        if std::error::Error::source(status).is_some() {
            return Self::from_connection_error(status);
        }
        let text = status.message();
        let shown = || displayed(text);
        match i32::from(status.code()) {
            _ if text.contains("not supported for learner") => Self::Learner,
            _ if text.contains("etcdserver: no leader") => Self::NoLeader,
            code::UNAUTHENTICATED | code::PERMISSION_DENIED => Self::CredentialsRejected(shown()),
            code::INVALID_ARGUMENT if text.contains("auth") || text.contains("user name is empty") => {
                Self::CredentialsRejected(shown())
            }
            code::UNAVAILABLE if !text.starts_with("etcdserver:") => Self::from_connection_error(status),
            _ => Self::Other(shown()),
        }
    }
}

/// Whether a failed linearizable read proves a quorum like a passed one. etcd checks permissions after it has served
/// the read index, so these two errors occur only with a quorum.
pub(super) fn is_refused_after_read_index(error: &Error) -> bool {
    match error {
        Error::GRpcStatus(status) => match i32::from(status.code()) {
            code::PERMISSION_DENIED => true,
            code::INVALID_ARGUMENT => status.message().contains("user name is empty"),
            _ => false,
        },
        _ => false,
    }
}

fn causes<'a>(
    error: &'a (dyn std::error::Error + 'static),
) -> impl Iterator<Item = &'a (dyn std::error::Error + 'static)> {
    std::iter::successors(Some(error), |error| error.source())
}

/// Returns the TLS error among an error's causes. An I/O error can contain the TLS error.
fn tls_error<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a rustls::Error> {
    causes(error).find_map(|cause| {
        let wrapped = || cause.downcast_ref::<std::io::Error>()?.get_ref()?.downcast_ref();
        cause.downcast_ref().or_else(wrapped)
    })
}

/// Whether the host at the address reported that no process listens on the port.
fn is_connection_refused(error: &(dyn std::error::Error + 'static)) -> bool {
    let refused = |cause: &(dyn std::error::Error + 'static)| {
        cause
            .downcast_ref::<std::io::Error>()
            .is_some_and(|error| error.kind() == std::io::ErrorKind::ConnectionRefused)
    };
    causes(error).any(refused)
}

/// Whether a connection was established, which proves that a process listens at the address.
fn was_connected(error: &(dyn std::error::Error + 'static)) -> bool {
    use std::io::ErrorKind as Kind;
    let prevents_connection =
        |cause: &(dyn std::error::Error + 'static)| match cause.downcast_ref::<std::io::Error>() {
            Some(error) => matches!(
                error.kind(),
                Kind::HostUnreachable
                    | Kind::NetworkUnreachable
                    | Kind::NetworkDown
                    | Kind::AddrNotAvailable
                    | Kind::TimedOut
            ),
            None => cause.to_string() == "dns error",
        };
    !causes(error).any(prevents_connection)
}

/// Returns the last error of the chain, which is the useful part for operators: "Connection refused (os error 111)".
fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    displayed(&cause.to_string())
}

/// Returns the text of a member or a library, escaped and cut.
fn displayed(text: &str) -> String {
    to_bounded_line(text, MAX_ERROR_CHARS)
}
