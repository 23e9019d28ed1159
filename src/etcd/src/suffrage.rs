//! Whether raft counts a member's vote, from sources that do not depend on the member list.
//!
//! Two pages of the client port tell it, without other credentials than those of the probe:
//!
//! - `/debug/vars`: raft's own status. Candidates ask only voters for their votes, so that a member that has voted in its current
//!   term is a voter. A voter that joined or restarted without data after the last election has not voted yet.
//! - `/metrics`: `etcd_server_is_learner` is set when a member joins or starts, and when it is promoted. An update of the member
//!   changes the list and not the metric. After a restart the metric repeats the list, and proves nothing.
//!
//! A member with `--listen-client-http-urls` serves both elsewhere: then nothing is known.

use futures::join;
use http::{Request, Response, Uri, header::HOST};
use http_body_util::{BodyExt, Empty};
use hyper::{
    body::{Body as HttpBody, Bytes},
    client::conn::http1,
};
use hyper_util::rt::TokioIo;
use tokio::{
    net::TcpStream,
    time::{Instant, timeout_at},
};
use tonic::body::Body;
use tower::{Service, ServiceExt};

use super::{connection::Connections, limits::MAX_RESPONSE_BYTES};
use etcd_guard_core::etcd::{
    endpoint::Endpoint,
    error::MemberError,
    member::{MemberId, Suffrage},
    probe_result::ProbeResult,
    release::wrong_list_fix,
};

/// The start of raft's status in `/debug/vars`.
const RAFT_STATUS: &str = "\"raft.status\":";

/// The last field of raft's status that is read.
const RAFT_STATE: &str = "\"raftState\":";

/// The metric that says whether a member is a learner, with the blank before its value.
const IS_LEARNER: &str = "\netcd_server_is_learner ";

/// Adds to a probe result whether raft counts the member's vote, if the release of the member can list it wrongly.
pub(super) async fn add_suffrage(
    connections: &Connections,
    endpoint: &Endpoint,
    result: &mut ProbeResult,
    deadline: Instant,
) {
    let (status, is_listed_voter) = match result {
        // The only member has nobody to be confused with.
        ProbeResult::Healthy { status, members } if members.len() > 1 => (status, true),
        ProbeResult::StatusOnly { status, cause: MemberError::Learner } => (status, false),
        _ => return,
    };
    if wrong_list_fix(&status.version).is_none() {
        return;
    }
    let ask = suffrage(connections, endpoint, status.member_id, is_listed_voter);
    status.suffrage = timeout_at(deadline, ask).await.ok().flatten();
}

async fn suffrage(
    connections: &Connections,
    endpoint: &Endpoint,
    member: MemberId,
    is_listed_voter: bool,
) -> Option<Suffrage> {
    let vars = get(connections, endpoint, "/debug/vars", RAFT_STATE).await;
    if vars.is_some_and(|text| has_voted(&text, member)) {
        return Some(Suffrage::Voter);
    }
    // The metric of a listed learner repeats the list.
    if !is_listed_voter {
        return None;
    }
    let metrics = get(connections, endpoint, "/metrics", IS_LEARNER).await?;
    is_learner(&metrics, member).then_some(Suffrage::Learner)
}

/// Whether raft's status of this member shows that it votes or leads.
fn has_voted(vars: &str, member: MemberId) -> bool {
    let Some((_, status)) = vars.split_once(RAFT_STATUS) else { return false };
    let hex = |field: &str| {
        let (_, after) = status.split_once(&format!("\"{field}\":\""))?;
        u64::from_str_radix(after.split('"').next()?, 16).ok()
    };
    hex("id") == Some(member.0) && hex("vote").is_some_and(|vote| vote != 0)
}

/// Whether the metrics of this member say that it is a learner.
fn is_learner(metrics: &str, member: MemberId) -> bool {
    let is_of_member = metrics.contains(&format!("\netcd_server_id{{server_id=\"{member}\"}} 1\n"));
    let value = metrics.split_once(IS_LEARNER).map(|(_, value)| value.trim_start());
    is_of_member && value.is_some_and(|value| value.starts_with('1'))
}

/// Requests a page of the member's client port. Returns its text up to `last` and what was received with it, or all of it.
async fn get(connections: &Connections, endpoint: &Endpoint, path: &str, last: &str) -> Option<String> {
    if connections.opens_plain_tcp(endpoint) {
        return get_over_http1(endpoint, path, last).await;
    }
    // Over TLS, and in a simulation, one port serves gRPC and pages over HTTP/2.
    let mut channel = connections.channel(endpoint).ok()?;
    let request = Request::get(path).body(Body::empty()).ok()?;
    let response = channel.ready().await.ok()?.call(request).await.ok()?;
    read(response, last).await
}

/// Without TLS, the client port serves gRPC over HTTP/2 and pages over HTTP/1.
async fn get_over_http1(endpoint: &Endpoint, path: &str, last: &str) -> Option<String> {
    let url: Uri = endpoint.url.parse().ok()?;
    let authority = url.authority()?;
    let stream = TcpStream::connect(authority.as_str()).await.ok()?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.ok()?;
    let request = Request::get(path).header(HOST, authority.as_str()).body(Empty::<Bytes>::new()).ok()?;
    let exchange = async move {
        let response = sender.send_request(request).await.ok()?;
        read(response, last).await
    };
    // The connection ends with the exchange, which owns its sender.
    let (text, _) = join!(exchange, connection);
    text
}

/// Reads a page until it contains `last`, and at most [`MAX_RESPONSE_BYTES`]. A member chooses what it sends.
async fn read<B: HttpBody<Data = Bytes> + Unpin>(response: Response<B>, last: &str) -> Option<String> {
    if !response.status().is_success() {
        return None;
    }
    let mut body = response.into_body();
    let mut text = String::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.ok()?.into_data() else { continue };
        text.push_str(&String::from_utf8_lossy(&data));
        // The value follows in the same or in the next frame.
        let has_value = text.rfind(last).is_some_and(|start| text.len() > start + last.len() + 1);
        if has_value || text.len() > MAX_RESPONSE_BYTES {
            break;
        }
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMBER: MemberId = MemberId(0x8e9e_05c5_2164_694d);

    fn vars(id: &str, vote: &str) -> String {
        format!(
            "{{\n\"cmdline\": [\"etcd\"],\n\"raft.status\": {{\"id\":\"{id}\",\"term\":3,\"vote\":\"{vote}\",\"commit\":9,\
             \"lead\":\"1\",\"raftState\":\"StateFollower\"}}\n}}\n"
        )
    }

    #[test]
    fn vote_proves_a_voter() {
        assert!(has_voted(&vars("8e9e05c52164694d", "1f"), MEMBER));
        assert!(!has_voted(&vars("8e9e05c52164694d", "0"), MEMBER));
        assert!(!has_voted(&vars("8e9e05c52164694e", "1f"), MEMBER), "another member");
        assert!(!has_voted("404 page not found\n", MEMBER));
    }

    #[test]
    fn metric_proves_a_learner() {
        let metrics = |id: &str, value: u8| {
            format!(
                "# TYPE etcd_server_id gauge\netcd_server_id{{server_id=\"{id}\"}} 1\n# TYPE etcd_server_is_learner gauge\n\
                 etcd_server_is_learner {value}\n"
            )
        };
        assert!(is_learner(&metrics("8e9e05c52164694d", 1), MEMBER));
        assert!(!is_learner(&metrics("8e9e05c52164694d", 0), MEMBER));
        assert!(!is_learner(&metrics("8e9e05c52164694e", 1), MEMBER), "another member");
        assert!(!is_learner("", MEMBER));
    }
}
