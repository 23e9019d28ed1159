//! What the responses and errors of the etcd client say about a member.

use etcd_client::Error;

use super::limits::{MAX_LISTED_MEMBERS, MAX_LISTED_URLS, MAX_RESPONSE_BYTES};
use etcd_guard_core::{
    escape::{MAX_ERROR_CHARS, to_bounded_line},
    etcd::{
        error::MemberError,
        member::{
            Alarm, ClusterId, DatabaseSize, ListedMember, MemberId, Status, displayed_name, displayed_version,
        },
    },
};

/// The numbers of gRPC status codes. The crate with their names is only an indirect dependency.
mod code {
    pub(super) const INVALID_ARGUMENT: i32 = 3;
    pub(super) const PERMISSION_DENIED: i32 = 7;
    pub(super) const UNAVAILABLE: i32 = 14;
    pub(super) const UNAUTHENTICATED: i32 = 16;
}

/// Returns the entries of a member list, or the error for a list that is too long.
pub(super) fn listed_members(members: &[etcd_client::Member]) -> Result<Vec<ListedMember>, MemberError> {
    let count = members.len();
    if count > MAX_LISTED_MEMBERS {
        let text =
            format!("the member list has {count} members, and at most {MAX_LISTED_MEMBERS} are evaluated");
        return Err(MemberError::Oversized(text));
    }
    let url_counts = members.iter().flat_map(|member| [member.peer_urls().len(), member.client_urls().len()]);
    if let Some(count) = url_counts.max().filter(|count| *count > MAX_LISTED_URLS) {
        let text = format!(
            "a member of the member list has {count} URLs, and at most {MAX_LISTED_URLS} are evaluated"
        );
        return Err(MemberError::Oversized(text));
    }
    Ok(members.iter().map(listed_member).collect())
}

fn listed_member(member: &etcd_client::Member) -> ListedMember {
    ListedMember {
        id: MemberId(member.id()),
        name: displayed_name(member.name()),
        peer_urls: member.peer_urls().to_vec(),
        client_urls: member.client_urls().to_vec(),
        is_learner: member.is_learner(),
    }
}

/// Returns the status of a member from its response. Returns `None` for a response without a header, which no etcd server sends.
pub(super) fn status_of(response: &etcd_client::StatusResponse) -> Option<Status> {
    let header = response.header()?;
    Some(Status {
        member_id: MemberId(header.member_id()),
        cluster_id: ClusterId(header.cluster_id()),
        leader: Some(response.leader()).filter(|leader| *leader != 0).map(MemberId),
        term: response.raft_term(),
        applied_index: response.raft_applied_index(),
        database: DatabaseSize {
            bytes: response.db_size().try_into().unwrap_or_default(),
            // The crate's name for `dbSizeInUse`.
            in_use: response.raft_used_db_size().try_into().unwrap_or_default(),
            quota: response.db_size_quota().try_into().unwrap_or_default(),
        },
        version: displayed_version(response.version()),
        is_learner: response.is_learner(),
        alarms: response.errors().iter().filter_map(|text| Alarm::parse(text)).collect(),
        suffrage: None,
        downgrade: response
            .downgrade_info()
            .filter(|info| info.enabled())
            .map(|info| displayed_version(info.target_version())),
    })
}

/// Classifies the failure of a call by the evidence that it provides.
pub fn member_error(error: &Error) -> MemberError {
    let Error::GRpcStatus(status) = error else {
        return connection_error(error);
    };
    // A status with a source was created by this client: the connection failed, and no member responded.
    if std::error::Error::source(status).is_some() {
        return connection_error(status);
    }
    let text = status.message();
    let shown = || displayed(text);
    match i32::from(status.code()) {
        _ if text.contains("not supported for learner") => MemberError::Learner,
        _ if text.contains("etcdserver: no leader") => MemberError::NoLeader,
        code::UNAUTHENTICATED | code::PERMISSION_DENIED => MemberError::CredentialsRejected(shown()),
        code::INVALID_ARGUMENT if text.contains("auth") || text.contains("user name is empty") => {
            MemberError::CredentialsRejected(shown())
        }
        code::UNAVAILABLE if !text.starts_with("etcdserver:") => connection_error(status),
        _ => MemberError::Other(shown()),
    }
}

/// Classifies an error that prevented a connection.
fn connection_error(error: &(dyn std::error::Error + 'static)) -> MemberError {
    if causes(error).any(<dyn std::error::Error>::is::<http_body_util::LengthLimitError>) {
        let limit = MAX_RESPONSE_BYTES >> 10;
        return MemberError::Oversized(format!("the response is larger than {limit} KiB"));
    }
    match tls_error(error) {
        Some(rustls::Error::AlertReceived(alert)) => MemberError::CredentialsRejected(format!(
            "the member refused this client's certificate ({alert:?})"
        )),
        Some(error) => MemberError::Tls(displayed(&error.to_string())),
        None if is_connection_refused(error) => MemberError::Refused(root_cause(error)),
        None if was_connected(error) => MemberError::Closed(root_cause(error)),
        None => MemberError::Unreachable(root_cause(error)),
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
