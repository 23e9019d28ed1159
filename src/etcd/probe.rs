//! The probe round: every member at its own address, all in parallel, each under a deadline.
//!
//! Per member and on one connection: a linearizable read, then `Status`, then the member list. The read passes only if
//! the member reaches a leader that has a quorum and has itself applied all that was committed when the read began:
//! quorum, liveness and catching up in one call. `Status` and the list are local, so they come after it.

use std::time::Duration;

use etcd_client::{Client, Error, GetOptions};
use futures::future::join_all;
use tokio::time::{Instant, timeout_at};

use super::{Connections, Endpoint, ListedMember, Status};

/// Longest that one member is waited for. The whole round takes 3 ms on a healthy cluster and 14 with new TLS
/// connections; a member that needs a second is of no use to its clients either.
pub const MEMBER_LIMIT: Duration = Duration::from_secs(1);

/// What is kept of a member's time for its `Status`, when its read hangs because there is no quorum.
const STATUS_SHARE: Duration = Duration::from_millis(250);

/// A key that need not exist, and that `etcdctl endpoint health` reads too.
const HEALTH_KEY: &str = "health";

/// What came back from one member's address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The linearizable read passed: this member is healthy, has a leader and is caught up.
    Serving {
        /// What it says of itself, right after the read.
        status: Status,
        /// The members it lists, right after the read and so no older than it.
        members: Vec<ListedMember>,
    },
    /// It answers, but the read did not pass: a learner, or a member that has no quorum or lags behind.
    Answering {
        /// What it says of itself.
        status: Status,
        /// Why the read did not pass.
        cause: Cause,
    },
    /// It said nothing of itself.
    Silent {
        /// Why not.
        cause: Cause,
    },
}

/// Why a call to a member brought nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Cause {
    /// No answer in time: frozen, cut off, or without a quorum.
    #[error("no answer within {}", humantime::format_duration(*.0))]
    TimedOut(Duration),
    /// No connection.
    #[error("{0}")]
    Unreachable(String),
    /// The member has no leader at the moment.
    #[error("it has no leader")]
    NoLeader,
    /// The member is a learner, which serves no linearizable reads.
    #[error("it is a learner")]
    Learner,
    /// The member did not accept who we are.
    #[error("credentials rejected: {0}")]
    CredentialsRejected(String),
    /// Any other answer that is none.
    #[error("{0}")]
    Other(String),
}

/// Asks all these members at once and waits for each until the deadline, at most [`MEMBER_LIMIT`].
/// The replies come in the order of the endpoints.
pub async fn probe(connections: &Connections, endpoints: &[Endpoint], deadline: Instant) -> Vec<Reply> {
    let deadline = deadline.min(Instant::now() + MEMBER_LIMIT);
    join_all(endpoints.iter().map(|endpoint| probe_member(connections, endpoint, deadline))).await
}

async fn probe_member(connections: &Connections, endpoint: &Endpoint, deadline: Instant) -> Reply {
    let started = Instant::now();
    let reply = match timeout_at(deadline, ask(connections, endpoint, deadline)).await {
        Ok(reply) => reply,
        Err(_) => Reply::Silent { cause: Cause::TimedOut(rounded(started.elapsed())) },
    };
    if let Reply::Silent { .. } = reply {
        connections.forget(endpoint);
    }
    reply
}

async fn ask(connections: &Connections, endpoint: &Endpoint, deadline: Instant) -> Reply {
    let (mut client, reused) = match connections.get(endpoint).await {
        Ok(found) => found,
        Err(error) => return Reply::Silent { cause: Cause::of(&error) },
    };
    let mut read = linearizable_read(&mut client, deadline).await;
    // A member that restarted since the last round left a dead connection behind: that says nothing of it today.
    if reused && matches!(read, Err(Cause::Unreachable(_))) {
        connections.forget(endpoint);
        client = match connections.get(endpoint).await {
            Ok((client, _)) => client,
            Err(error) => return Reply::Silent { cause: Cause::of(&error) },
        };
        read = linearizable_read(&mut client, deadline).await;
    }
    if let Err(Cause::Unreachable(why)) = read {
        // A member that asks for a certificate ends the connection after the handshake, and says little about it.
        let stranger = endpoint.tls.as_ref().is_some_and(|tls| tls.identity.is_none());
        let hint = if stranger { " (over TLS, without a client certificate)" } else { "" };
        return Reply::Silent { cause: Cause::Unreachable(why + hint) };
    }
    let status = match client.status().await {
        Ok(response) => Status::read(&response),
        Err(error) => return Reply::Silent { cause: read.err().unwrap_or_else(|| Cause::of(&error)) },
    };
    let Some(status) = status else {
        return Reply::Silent { cause: Cause::Other(String::from("a status without a header")) };
    };
    if let Err(cause) = read {
        return Reply::Answering { status, cause };
    }
    match client.member_list().await {
        Ok(response) => {
            Reply::Serving { status, members: response.members().iter().map(ListedMember::read).collect() }
        }
        Err(error) => Reply::Answering { status, cause: Cause::of(&error) },
    }
}

async fn linearizable_read(client: &mut Client, deadline: Instant) -> Result<(), Cause> {
    let started = Instant::now();
    let limit = deadline.checked_sub(STATUS_SHARE).unwrap_or(deadline);
    let read = client.get(HEALTH_KEY, Some(GetOptions::new().with_count_only()));
    match timeout_at(limit, read).await {
        Err(_) => Err(Cause::TimedOut(rounded(started.elapsed()))),
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) if is_refused_after_read_index(&error) => Ok(()),
        Ok(Err(error)) => Err(Cause::of(&error)),
    }
}

/// etcd looks at permissions only after the read index was served, so that these two refusals prove what a value would.
fn is_refused_after_read_index(error: &Error) -> bool {
    match error {
        Error::GRpcStatus(status) => match i32::from(status.code()) {
            code::PERMISSION_DENIED => true,
            code::INVALID_ARGUMENT => status.message().contains("user name is empty"),
            _ => false,
        },
        _ => false,
    }
}

/// To the millisecond, for people.
fn rounded(duration: Duration) -> Duration {
    Duration::from_millis(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
}

/// Codes of gRPC, by number: the crate that names them is not ours to depend on.
mod code {
    pub(super) const INVALID_ARGUMENT: i32 = 3;
    pub(super) const PERMISSION_DENIED: i32 = 7;
    pub(super) const UNAVAILABLE: i32 = 14;
    pub(super) const UNAUTHENTICATED: i32 = 16;
}

// === impl Reply ===

impl Reply {
    /// What the member says of itself, if it said anything.
    #[must_use]
    pub fn status(&self) -> Option<&Status> {
        match self {
            Self::Serving { status, .. } | Self::Answering { status, .. } => Some(status),
            Self::Silent { .. } => None,
        }
    }

    /// Why the member is not serving, if it is not.
    #[must_use]
    pub fn cause(&self) -> Option<&Cause> {
        match self {
            Self::Serving { .. } => None,
            Self::Answering { cause, .. } | Self::Silent { cause } => Some(cause),
        }
    }
}

// === impl Cause ===

impl Cause {
    /// One word for a metric's label, from a closed set.
    #[must_use]
    pub fn label(&self) -> &'static str {
        match self {
            Self::TimedOut(_) => "timed_out",
            Self::Unreachable(_) => "unreachable",
            Self::NoLeader => "no_leader",
            Self::Learner => "learner",
            Self::CredentialsRejected(_) => "credentials_rejected",
            Self::Other(_) => "other",
        }
    }

    pub(super) fn of(error: &Error) -> Self {
        let Error::GRpcStatus(status) = error else {
            return Self::Unreachable(innermost(error));
        };
        // Only what this side made up carries a source: the connection failed, and no member answered.
        if std::error::Error::source(status).is_some() {
            return Self::Unreachable(innermost(status));
        }
        let text = status.message();
        match i32::from(status.code()) {
            _ if text.contains("not supported for learner") => Self::Learner,
            _ if text.contains("etcdserver: no leader") => Self::NoLeader,
            code::UNAUTHENTICATED => Self::CredentialsRejected(text.to_owned()),
            code::INVALID_ARGUMENT if text.contains("auth") => Self::CredentialsRejected(text.to_owned()),
            code::UNAVAILABLE if !text.starts_with("etcdserver:") => Self::Unreachable(innermost(status)),
            _ => Self::Other(text.to_owned()),
        }
    }
}

/// The last cause of an error, which is the one that a person can act on: "Connection refused (os error 111)".
fn innermost(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}
