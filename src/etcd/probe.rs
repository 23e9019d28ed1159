//! The probe round: every member at its own address, all in parallel, each under a deadline.
//!
//! Per member and on one connection: a linearizable read, then `Status`, then the member list. The read passes only if
//! the member reaches a leader that has a quorum and has itself applied all that was committed when the read began:
//! quorum, liveness and catching up in one call. `Status` and the list are local, so they come after it.

use std::time::Duration;

use etcd_client::{Client, Error, GetOptions};
use futures::future::join_all;
use tokio::time::{Instant, timeout_at};
use tracing::{Instrument, Span, field::Empty, info_span};

use super::{Connections, Endpoint, ListedMember, Status};
use crate::traces::SPANS;

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
    /// Nobody listens there.
    #[error("{0}")]
    Refused(String),
    /// No connection.
    #[error("{0}")]
    Unreachable(String),
    /// Somebody took the connection and ended it.
    #[error("{0}")]
    Closed(String),
    /// Somebody listens there, and TLS failed: neither side has to say why it does not trust the other.
    #[error("TLS: {0}")]
    Tls(String),
    /// The member answers, but the login, which is a raft proposal, did not pass in time.
    #[error("the login, which needs a quorum, did not pass within {}", humantime::format_duration(*.0))]
    LoginTimedOut(Duration),
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
    let round = info_span!(target: SPANS, "asking the members", members = endpoints.len().to_string());
    join_all(endpoints.iter().map(|endpoint| {
        let span = info_span!(
            target: SPANS, parent: &round, "asking a member", address = endpoint.url, answer = Empty, leads = Empty
        );
        async {
            let reply = probe_member(connections, endpoint, deadline).await;
            note(&reply);
            reply
        }
        .instrument(span)
    }))
    .instrument(round.clone())
    .await
}

/// The words of an answer for whoever collects spans: of the closed set of [`Cause::LABELS`], where it is none.
fn note(reply: &Reply) {
    let span = Span::current();
    span.record("answer", reply.cause().map_or("serving", Cause::label));
    if let Some(status) = reply.status() {
        span.record("leads", status.leader == Some(status.member_id));
    }
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
    let (reply, reused) = ask_once(connections, endpoint, deadline).await;
    // A member that restarted since the last round left a dead connection behind, and a token expires: neither says
    // anything of the member today.
    let of_connection = |cause: &Cause| {
        matches!(
            cause,
            Cause::Refused(_)
                | Cause::Unreachable(_)
                | Cause::Closed(_)
                | Cause::Tls(_)
                | Cause::CredentialsRejected(_)
        )
    };
    if reused && reply.cause().is_some_and(of_connection) {
        connections.forget(endpoint);
        return ask_once(connections, endpoint, deadline).await.0;
    }
    reply
}

/// What the member answers on a new or on a kept connection, and whether it was a kept one.
async fn ask_once(connections: &Connections, endpoint: &Endpoint, deadline: Instant) -> (Reply, bool) {
    let started = Instant::now();
    let limit = deadline.checked_sub(STATUS_SHARE).unwrap_or(deadline);
    match timeout_at(limit, connections.get(endpoint)).await {
        Ok(Ok((client, reused))) => (ask_client(client, endpoint, limit).await, reused),
        Ok(Err(error)) => match Cause::of(&error) {
            cause @ (Cause::CredentialsRejected(_)
            | Cause::Refused(_)
            | Cause::Unreachable(_)
            | Cause::Closed(_)
            | Cause::Tls(_)) => (Reply::Silent { cause: hinted(cause, endpoint) }, false),
            cause => (ask_without_login(connections, endpoint, cause).await, false),
        },
        Err(_) => {
            let cause = Cause::LoginTimedOut(rounded(started.elapsed()));
            (ask_without_login(connections, endpoint, cause).await, false)
        }
    }
}

async fn ask_client(mut client: Client, endpoint: &Endpoint, limit: Instant) -> Reply {
    let read = linearizable_read(&mut client, limit).await;
    if let Err(cause @ (Cause::Refused(_) | Cause::Unreachable(_) | Cause::Closed(_) | Cause::Tls(_))) = read
    {
        return Reply::Silent { cause: hinted(cause, endpoint) };
    }
    let status = match client.status().await {
        Ok(response) => Status::read(&response),
        Err(error) => {
            let cause = read.err().unwrap_or_else(|| refused_status(Cause::of(&error), endpoint));
            return Reply::Silent { cause: hinted(cause, endpoint) };
        }
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

/// A login did not come through, as happens without a quorum. Some releases tell their status to anybody.
async fn ask_without_login(connections: &Connections, endpoint: &Endpoint, cause: Cause) -> Reply {
    let anybody = Endpoint { user: None, ..endpoint.clone() };
    let status = match connections.get(&anybody).await {
        Ok((mut client, _)) => client.status().await,
        Err(error) => Err(error),
    };
    match status.as_ref().map(Status::read) {
        Ok(Some(status)) => Reply::Answering { status, cause },
        Ok(None) => Reply::Silent { cause },
        Err(error) => match Cause::of(error) {
            // It answers, and no more.
            Cause::CredentialsRejected(_) => Reply::Silent { cause },
            worse => Reply::Silent { cause: hinted(worse, endpoint) },
        },
    }
}

/// The read passed, so that this member is healthy; but who it is and who leads, it tells others only.
fn refused_status(cause: Cause, endpoint: &Endpoint) -> Cause {
    let Cause::CredentialsRejected(text) = cause else { return cause };
    Cause::CredentialsRejected(format!(
        "{text}: it serves reads, but does not tell its status to {} (3.4.42 and later, 3.5.28 to 3.5.31 and 3.6.0 to \
         3.6.11 tell it to root alone, later releases to any user)",
        endpoint.who()
    ))
}

/// A member that does not like a client's certificate ends the connection after the handshake, and says little about it.
fn hinted(cause: Cause, endpoint: &Endpoint) -> Cause {
    let Some(tls) = &endpoint.tls else { return cause };
    match (cause, tls.identity.is_some()) {
        (Cause::Closed(why), true) => {
            Cause::Tls(format!("{why} (after the handshake, with a client certificate)"))
        }
        (Cause::Closed(why), false) => Cause::Tls(format!("{why} (over TLS, without a client certificate)")),
        (cause, _) => cause,
    }
}

async fn linearizable_read(client: &mut Client, limit: Instant) -> Result<(), Cause> {
    let started = Instant::now();
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

    /// Whether the linearizable read passed.
    #[must_use]
    pub fn is_serving(&self) -> bool {
        matches!(self, Self::Serving { .. })
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
    /// All words of [`Self::label`].
    pub const LABELS: [&'static str; 10] = [
        "timed_out",
        "refused",
        "unreachable",
        "closed",
        "tls",
        "login_timed_out",
        "no_leader",
        "learner",
        "credentials_rejected",
        "other",
    ];

    /// One word for a metric's label, from a closed set.
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
            Self::Other(_) => "other",
        }
    }

    /// Whether nobody was heard at the address. Any answer, a refusal too, means that somebody lives there.
    #[must_use]
    pub fn is_silence(&self) -> bool {
        matches!(self, Self::TimedOut(_) | Self::Refused(_) | Self::Unreachable(_))
    }

    pub(super) fn of(error: &Error) -> Self {
        let Error::GRpcStatus(status) = error else {
            return Self::no_connection(error);
        };
        // Only what this side made up carries a source: the connection failed, and no member answered.
        if std::error::Error::source(status).is_some() {
            return Self::no_connection(status);
        }
        let text = status.message();
        match i32::from(status.code()) {
            _ if text.contains("not supported for learner") => Self::Learner,
            _ if text.contains("etcdserver: no leader") => Self::NoLeader,
            code::UNAUTHENTICATED | code::PERMISSION_DENIED => Self::CredentialsRejected(text.to_owned()),
            code::INVALID_ARGUMENT if text.contains("auth") || text.contains("user name is empty") => {
                Self::CredentialsRejected(text.to_owned())
            }
            code::UNAVAILABLE if !text.starts_with("etcdserver:") => Self::no_connection(status),
            _ => Self::Other(text.to_owned()),
        }
    }

    fn no_connection(error: &(dyn std::error::Error + 'static)) -> Self {
        match tls_error(error) {
            Some(rustls::Error::AlertReceived(alert)) => {
                Self::CredentialsRejected(format!("the member refused this client's certificate ({alert:?})"))
            }
            Some(error) => Self::Tls(error.to_string()),
            None if was_refused(error) => Self::Refused(innermost(error)),
            None if was_taken(error) => Self::Closed(innermost(error)),
            None => Self::Unreachable(innermost(error)),
        }
    }
}

fn causes<'a>(
    error: &'a (dyn std::error::Error + 'static),
) -> impl Iterator<Item = &'a (dyn std::error::Error + 'static)> {
    std::iter::successors(Some(error), |error| error.source())
}

/// The TLS error among an error's causes. One that came over a socket hides in an I/O error.
fn tls_error<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a rustls::Error> {
    causes(error).find_map(|cause| {
        let hidden = || cause.downcast_ref::<std::io::Error>()?.get_ref()?.downcast_ref();
        cause.downcast_ref().or_else(hidden)
    })
}

/// Whether the address's own system answered that nobody listens there.
fn was_refused(error: &(dyn std::error::Error + 'static)) -> bool {
    let refused = |cause: &(dyn std::error::Error + 'static)| {
        cause
            .downcast_ref::<std::io::Error>()
            .is_some_and(|it| it.kind() == std::io::ErrorKind::ConnectionRefused)
    };
    causes(error).any(refused)
}

/// Whether there was a connection, so that somebody lives at the address.
fn was_taken(error: &(dyn std::error::Error + 'static)) -> bool {
    use std::io::ErrorKind as Kind;
    let never = |cause: &(dyn std::error::Error + 'static)| match cause.downcast_ref::<std::io::Error>() {
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
    !causes(error).any(never)
}

/// The last cause of an error, which is the one that a person can act on: "Connection refused (os error 111)".
fn innermost(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}
