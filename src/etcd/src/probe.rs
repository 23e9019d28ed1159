//! Probe rounds: every member at its own address, all in parallel, each with a deadline.
//!
//! Each member is probed on one connection with three calls: a linearizable read, then `Status`, then the member list.
//! The read passes only if the member reaches a leader that has a quorum, and if the member itself has applied
//! everything that was committed when the read began. One call therefore proves quorum, liveness and catch-up. `Status`
//! and the member list are served locally. They are requested after the read, so that they are not older than the read.

use std::time::Duration;

use etcd_client::{Client, GetOptions};
use futures::{StreamExt, future::join_all, stream::FuturesUnordered};
use tokio::{
    sync::Semaphore,
    time::{Instant, sleep, timeout_at},
};
use tracing::{Instrument, Span, field::Empty, info_span};

use super::{
    connection::Connections,
    limits::MAX_CONCURRENT_PROBES,
    response::{is_refused_after_read_index, listed_members, member_error, status_of},
    suffrage::add_suffrage,
};
use etcd_guard_core::{
    etcd::{endpoint::Endpoint, error::MemberError, probe_result::ProbeResult},
    spans::SPAN_TARGET,
};

/// Timeout of the probe of one member. A whole round takes 3 ms on a healthy cluster and 14 ms with new TLS
/// connections. A member that does not respond within a second does not serve its clients either.
pub const PROBE_TIMEOUT: Duration = Duration::from_secs(1);

/// The part of a probe's time that is reserved for `Status`, because the read does not return without a quorum.
const STATUS_RESERVE: Duration = Duration::from_millis(250);

/// Time for the question whether raft counts the member's vote, which is asked for a few releases. It takes milliseconds, and an
/// answer is evidence that a verdict can do without.
const SUFFRAGE_TIMEOUT: Duration = Duration::from_millis(250);

/// Time after which the next address of a member is probed while the earlier ones have not answered.
const NEXT_ADDRESS_DELAY: Duration = Duration::from_millis(150);

/// The key of the linearizable read. It need not exist; `etcdctl endpoint health` reads the same key.
const HEALTH_KEY: &str = "health";

/// Probes all members in parallel, each until the deadline and at most for [`PROBE_TIMEOUT`].
/// The results are in the order of the endpoints.
pub async fn probe(connections: &Connections, endpoints: &[Endpoint], deadline: Instant) -> Vec<ProbeResult> {
    let deadline = deadline.min(Instant::now() + PROBE_TIMEOUT);
    let round = info_span!(target: SPAN_TARGET, "probing the members", members = endpoints.len().to_string());
    let permits = Semaphore::new(MAX_CONCURRENT_PROBES);
    join_all(endpoints.iter().map(|endpoint| {
        let span = info_span!(
            target: SPAN_TARGET, parent: &round, "probing a member", address = endpoint.url, answer = Empty, leads = Empty
        );
        async {
            // The semaphore is never closed, so that an error means that the deadline passed.
            let permit = timeout_at(deadline, permits.acquire()).await;
            let result = match permit {
                Ok(_permit) => probe_member(connections, endpoint, deadline).await,
                Err(_) => ProbeResult::NoStatus { cause: MemberError::TimedOut(PROBE_TIMEOUT) },
            };
            record_in_span(&result);
            result
        }
        .instrument(span)
    }))
    .instrument(round.clone())
    .await
}

/// Records the result in the current span: `serving`, or one of [`MemberError::LABELS`].
fn record_in_span(result: &ProbeResult) {
    let span = Span::current();
    span.record("answer", result.cause().map_or("serving", MemberError::label));
    if let Some(status) = result.status() {
        span.record("leads", status.leader == Some(status.member_id));
    }
}

/// Probes a member at each of its addresses until one of them answers.
async fn probe_member(connections: &Connections, endpoint: &Endpoint, deadline: Instant) -> ProbeResult {
    if endpoint.other_urls.is_empty() {
        return probe_address(connections, endpoint, deadline).await;
    }
    let addresses = connections.addresses(endpoint);
    let probe = async |address| (address, probe_address(connections, address, deadline).await);
    let mut waiting = addresses.iter();
    let mut in_flight: FuturesUnordered<_> = waiting.next().map(probe).into_iter().collect();
    let mut failure: Option<ProbeResult> = None;
    loop {
        tokio::select! {
            biased;
            result = in_flight.next() => match result {
                Some((address, result)) if result.status().is_some() => {
                    connections.record_answer(endpoint, address);
                    return result;
                }
                Some((_, result)) => {
                    failure = Some(failure.map_or(result.clone(), |earlier| stronger_failure(earlier, result)));
                    in_flight.extend(waiting.next().map(probe));
                }
                None => break,
            },
            () = sleep(NEXT_ADDRESS_DELAY), if waiting.len() > 0 => {
                in_flight.extend(waiting.next().map(probe));
            }
        }
    }
    failure.unwrap_or(ProbeResult::NoStatus { cause: MemberError::TimedOut(PROBE_TIMEOUT) })
}

/// Returns the failure of the address that provides more evidence of a running member. A host that refuses connections
/// is reached, so that an address family that this process cannot use provides less evidence.
fn stronger_failure(a: ProbeResult, b: ProbeResult) -> ProbeResult {
    let strength = |result: &ProbeResult| match result.cause() {
        None | Some(MemberError::Unreachable(_)) => 0,
        Some(MemberError::Refused(_)) => 1,
        Some(MemberError::TimedOut(_)) => 2,
        Some(_) => 3,
    };
    if strength(&b) > strength(&a) { b } else { a }
}

async fn probe_address(connections: &Connections, endpoint: &Endpoint, deadline: Instant) -> ProbeResult {
    let started = Instant::now();
    let mut result = match timeout_at(deadline, probe_with_retry(connections, endpoint, deadline)).await {
        Ok(result) => result,
        Err(_) => ProbeResult::NoStatus { cause: MemberError::TimedOut(to_millis(started.elapsed())) },
    };
    if let ProbeResult::NoStatus { .. } = result {
        connections.remove(endpoint);
    }
    add_suffrage(connections, endpoint, &mut result, deadline.min(Instant::now() + SUFFRAGE_TIMEOUT)).await;
    result
}

/// Probes a member, and probes it again on a new connection if a pooled connection or its token was no longer valid.
async fn probe_with_retry(connections: &Connections, endpoint: &Endpoint, deadline: Instant) -> ProbeResult {
    let (result, reused) = probe_once(connections, endpoint, deadline).await;
    // The pooled connection of a restarted member is dead, and tokens expire. Both failures prove nothing about the
    // current state of the member. A connection that was opened during the reads counts as a pooled one.
    let is_connection_error = |cause: &MemberError| {
        matches!(
            cause,
            MemberError::Refused(_)
                | MemberError::Unreachable(_)
                | MemberError::Closed(_)
                | MemberError::Tls(_)
                | MemberError::CredentialsRejected(_)
        )
    };
    if reused && result.cause().is_some_and(is_connection_error) {
        connections.remove(endpoint);
        return probe_once(connections, endpoint, deadline).await.0;
    }
    result
}

/// Probes a member once. Returns the result and whether the connection was a pooled one.
async fn probe_once(
    connections: &Connections,
    endpoint: &Endpoint,
    deadline: Instant,
) -> (ProbeResult, bool) {
    let started = Instant::now();
    let read_deadline = deadline.checked_sub(STATUS_RESERVE).unwrap_or(deadline);
    match timeout_at(read_deadline, connections.get(endpoint)).await {
        Ok(Ok((client, reused))) => (probe_client(client, endpoint, read_deadline).await, reused),
        Ok(Err(error)) => match member_error(&error) {
            cause @ (MemberError::CredentialsRejected(_)
            | MemberError::Refused(_)
            | MemberError::Unreachable(_)
            | MemberError::Closed(_)
            | MemberError::Tls(_)) => {
                (ProbeResult::NoStatus { cause: with_tls_hint(cause, endpoint) }, false)
            }
            cause => (probe_without_login(connections, endpoint, cause).await, false),
        },
        Err(_) => {
            let cause = MemberError::LoginTimedOut(to_millis(started.elapsed()));
            (probe_without_login(connections, endpoint, cause).await, false)
        }
    }
}

async fn probe_client(mut client: Client, endpoint: &Endpoint, read_deadline: Instant) -> ProbeResult {
    let read = linearizable_read(&mut client, read_deadline).await;
    if let Err(
        cause @ (MemberError::Refused(_)
        | MemberError::Unreachable(_)
        | MemberError::Closed(_)
        | MemberError::Tls(_)),
    ) = read
    {
        return ProbeResult::NoStatus { cause: with_tls_hint(cause, endpoint) };
    }
    let status = match client.status().await {
        Ok(response) => status_of(&response),
        Err(error) => {
            let cause = read.err().unwrap_or_else(|| with_status_hint(member_error(&error), endpoint));
            return ProbeResult::NoStatus { cause: with_tls_hint(cause, endpoint) };
        }
    };
    let Some(status) = status else {
        return ProbeResult::NoStatus {
            cause: MemberError::Other(String::from("the status response has no header")),
        };
    };
    if let Err(cause) = read {
        return ProbeResult::StatusOnly { status, cause };
    }
    match client.member_list().await {
        Ok(response) => match listed_members(response.members()) {
            Ok(members) => ProbeResult::Healthy { status, members },
            Err(cause) => ProbeResult::StatusOnly { status, cause },
        },
        Err(error) => ProbeResult::StatusOnly { status, cause: member_error(&error) },
    }
}

/// Requests the status without a login, after the login failed with `cause`. A login requires a quorum, but some
/// releases return their status to unauthenticated clients.
async fn probe_without_login(
    connections: &Connections,
    endpoint: &Endpoint,
    cause: MemberError,
) -> ProbeResult {
    let unauthenticated = Endpoint { user: None, ..endpoint.clone() };
    let status = match connections.get(&unauthenticated).await {
        Ok((mut client, _)) => client.status().await,
        Err(error) => Err(error),
    };
    match status.as_ref().map(status_of) {
        Ok(Some(status)) => ProbeResult::StatusOnly { status, cause },
        Ok(None) => ProbeResult::NoStatus { cause },
        Err(error) => match member_error(error) {
            // The member responds and requires a login for its status: the failed login remains the cause.
            MemberError::CredentialsRejected(_) => ProbeResult::NoStatus { cause },
            status_error => ProbeResult::NoStatus { cause: with_tls_hint(status_error, endpoint) },
        },
    }
}

/// Explains a rejected status request after a passed read: the member is healthy, but its id and its leader are
/// unknown.
fn with_status_hint(cause: MemberError, endpoint: &Endpoint) -> MemberError {
    let MemberError::CredentialsRejected(text) = cause else { return cause };
    MemberError::CredentialsRejected(format!(
        "{text}: the member serves reads, but does not return its status to {} (3.4.42 and later, 3.5.28 to 3.5.31 and \
         3.6.0 to 3.6.11 return it to root only, later releases to any user)",
        endpoint.identity_description()
    ))
}

/// Explains a connection that the member closed. A member that rejects a client certificate closes the connection after
/// the handshake, without a reason.
fn with_tls_hint(cause: MemberError, endpoint: &Endpoint) -> MemberError {
    let Some(tls) = &endpoint.tls else { return cause };
    if cause.is_closed_in_handshake() {
        return cause;
    }
    match (cause, tls.identity.is_some()) {
        (MemberError::Closed(text), true) => {
            MemberError::Tls(format!("{text} (after the handshake, with a client certificate)"))
        }
        (MemberError::Closed(text), false) => {
            MemberError::Tls(format!("{text} (over TLS, without a client certificate)"))
        }
        (cause, _) => cause,
    }
}

async fn linearizable_read(client: &mut Client, deadline: Instant) -> Result<(), MemberError> {
    let started = Instant::now();
    let read = client.get(HEALTH_KEY, Some(GetOptions::new().with_count_only()));
    match timeout_at(deadline, read).await {
        Err(_) => Err(MemberError::TimedOut(to_millis(started.elapsed()))),
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) if is_refused_after_read_index(&error) => Ok(()),
        Ok(Err(error)) => Err(member_error(&error)),
    }
}

/// Truncates a duration to milliseconds, for messages.
fn to_millis(duration: Duration) -> Duration {
    Duration::from_millis(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
}
