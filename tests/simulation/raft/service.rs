//! The gRPC interface of the members: the calls that the guard makes. Source: etcd `api/etcdserverpb/rpc.proto`.

use std::{convert::Infallible, io, sync::Arc, time::Duration};

use bytes::{BufMut, Bytes, BytesMut};
use etcd_client::Channel;
use etcd_guard_etcd::Transport;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::{BodyExt, Full};
use prost::Message;
use tokio::time::{Instant, sleep};
use tonic::body::Body;
use tower::{BoxError, util::BoxCloneSyncService};

use super::{Cluster, Role};
use crate::world::Sim;

/// Interval at which a member checks whether a read is confirmed.
const READ_INTERVAL: Duration = Duration::from_millis(20);

/// The time for which a transfer of leadership may take: the election timeout.
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Clone, PartialEq, Message)]
struct Header {
    #[prost(uint64, tag = "1")]
    cluster_id: u64,
    #[prost(uint64, tag = "2")]
    member_id: u64,
    #[prost(int64, tag = "3")]
    revision: i64,
    #[prost(uint64, tag = "4")]
    raft_term: u64,
}

#[derive(Clone, PartialEq, Message)]
struct OnlyHeader {
    #[prost(message, optional, tag = "1")]
    header: Option<Header>,
}

#[derive(Clone, PartialEq, Message)]
struct StatusResponse {
    #[prost(message, optional, tag = "1")]
    header: Option<Header>,
    #[prost(string, tag = "2")]
    version: String,
    #[prost(uint64, tag = "4")]
    leader: u64,
    #[prost(uint64, tag = "5")]
    raft_index: u64,
    #[prost(uint64, tag = "6")]
    raft_term: u64,
    #[prost(uint64, tag = "7")]
    raft_applied_index: u64,
    #[prost(bool, tag = "10")]
    is_learner: bool,
}

#[derive(Clone, PartialEq, Message)]
struct Listed {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(string, tag = "2")]
    name: String,
    #[prost(string, repeated, tag = "3")]
    peer_urls: Vec<String>,
    #[prost(string, repeated, tag = "4")]
    client_urls: Vec<String>,
    #[prost(bool, tag = "5")]
    is_learner: bool,
}

#[derive(Clone, PartialEq, Message)]
struct MemberList {
    #[prost(message, optional, tag = "1")]
    header: Option<Header>,
    #[prost(message, repeated, tag = "2")]
    members: Vec<Listed>,
}

#[derive(Clone, PartialEq, Message)]
struct MoveLeader {
    #[prost(uint64, tag = "1")]
    target: u64,
}

/// A response, or the gRPC status code and the message of a failure.
type Reply = Result<Vec<u8>, (&'static str, &'static str)>;

/// Returns the transport of a replica.
pub(crate) fn transport(sim: &Sim, replica: usize) -> Transport {
    let sim = sim.clone();
    Arc::new(move |url: &str| {
        let sim = sim.clone();
        let address = url.trim_start_matches("http://").trim_end_matches(":2379").to_owned();
        let service = tower::service_fn(move |request: Request<Body>| {
            let (sim, address) = (sim.clone(), address.clone());
            async move { call(&sim, replica, &address, request).await }
        });
        Channel::Custom(BoxCloneSyncService::new(service))
    })
}

async fn call(
    sim: &Sim,
    replica: usize,
    address: &str,
    request: Request<Body>,
) -> Result<Response<Body>, BoxError> {
    let (parts, body) = request.into_parts();
    let call_name = format!("{replica} {address} {}", parts.uri.path());
    sim.pause_call(replica, &call_name, 1..=4).await;
    let body = body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    let member = {
        let world = sim.world();
        let member = world.addresses.get(address).copied();
        let listens = member.is_some_and(|member| {
            let member = &world.cluster.members[member];
            member.is_up && member.address == address
        });
        match member {
            Some(member) if !world.faults.unreachable.contains(&(replica, member)) => {
                if !listens {
                    return Err(io::Error::from(io::ErrorKind::ConnectionRefused).into());
                }
                Some(member)
            }
            // Packets to an address without a host are lost.
            _ => None,
        }
    };
    let Some(member) = member else { return std::future::pending().await };
    wait_while_paused(sim, member).await;
    let page = page(&sim.world().cluster, member, parts.uri.path());
    let reply = match parts.uri.path() {
        _ if page.is_some() => Ok(Vec::new()),
        "/etcdserverpb.KV/Range" => read(sim, member).await,
        "/etcdserverpb.Maintenance/Status" => Ok(status(&sim.world().cluster, member)),
        "/etcdserverpb.Cluster/MemberList" => Ok(member_list(&sim.world().cluster, member)),
        "/etcdserverpb.Maintenance/MoveLeader" => {
            let target = MoveLeader::decode(body.get(5..).unwrap_or_default())?.target;
            move_leader(sim, member, target).await
        }
        _ => Err(("12", "not simulated")),
    };
    sim.pause_call(replica, &call_name, 1..=4).await;
    wait_while_paused(sim, member).await;
    if !sim.world().cluster.members[member].is_up {
        return Err(io::Error::from(io::ErrorKind::ConnectionReset).into());
    }
    Ok(match page {
        Some(text) => Response::new(Body::new(Full::from(text))),
        None => response(reply),
    })
}

/// Returns a page of the client port that tells whether raft counts the member's vote. The metric of a member is right as long as
/// the member replays its log at each start.
fn page(cluster: &Cluster, member: usize, path: &str) -> Option<String> {
    let state = &cluster.members[member];
    let id = state.id;
    match path {
        "/debug/vars" => {
            let vote = u8::from(state.voted_in == state.term);
            Some(format!(
                "\"raft.status\": {{\"id\":\"{id:x}\",\"vote\":\"{vote}\",\"raftState\":\"StateFollower\"}}\n"
            ))
        }
        "/metrics" => {
            let learner = u8::from(state.is_learner);
            Some(format!("\netcd_server_id{{server_id=\"{id:x}\"}} 1\netcd_server_is_learner {learner}\n"))
        }
        _ => None,
    }
}

async fn wait_while_paused(sim: &Sim, member: usize) {
    loop {
        let is_paused = sim.world().cluster.members[member].is_paused;
        if !is_paused {
            return;
        }
        sleep(READ_INTERVAL).await;
    }
}

async fn read(sim: &Sim, member: usize) -> Reply {
    if sim.world().cluster.members[member].is_listed_learner() {
        return Err(("14", "etcdserver: rpc not supported for learner"));
    }
    loop {
        {
            let mut world = sim.world();
            world.advance();
            if world.cluster.confirms_read(member, Instant::now()) {
                return Ok(OnlyHeader { header: Some(header(&world.cluster, member)) }.encode_to_vec());
            }
        }
        sleep(READ_INTERVAL).await;
    }
}

async fn move_leader(sim: &Sim, leader: usize, target: u64) -> Reply {
    let started = Instant::now();
    let moved = {
        let mut world = sim.world();
        world.advance();
        if world.cluster.members[leader].role != Role::Leader {
            return Err(("9", "etcdserver: not leader"));
        }
        let Some(transferee) = world.cluster.index_of_id(target) else {
            return Err(("9", "etcdserver: bad leader transferee"));
        };
        if world.cluster.members[transferee].is_listed_learner() {
            return Err(("9", "etcdserver: bad leader transferee"));
        }
        let moved = world.cluster.transfer(leader, transferee, Instant::now());
        let name = world.cluster.members[transferee].name.clone();
        world.note(&format!("raft: transfer to {name}: {moved}"));
        moved
    };
    if moved {
        sim.pause("transfer", 20..=120).await;
        return Ok(OnlyHeader { header: Some(header(&sim.world().cluster, leader)) }.encode_to_vec());
    }
    sleep(TRANSFER_TIMEOUT.saturating_sub(started.elapsed())).await;
    Err(("14", "etcdserver: request timed out, leader transfer took too long"))
}

fn header(cluster: &Cluster, member: usize) -> Header {
    let state = &cluster.members[member];
    Header { cluster_id: cluster.id, member_id: state.id, revision: 1, raft_term: state.term }
}

fn status(cluster: &Cluster, member: usize) -> Vec<u8> {
    let state = &cluster.members[member];
    StatusResponse {
        header: Some(header(cluster, member)),
        version: cluster.version.to_owned(),
        leader: state.leader.map_or(0, |leader| cluster.members[leader].id),
        raft_index: state.log,
        // etcd reports the term of the last applied entry.
        raft_term: state.applied.1,
        raft_applied_index: state.applied.0,
        is_learner: state.is_listed_learner(),
    }
    .encode_to_vec()
}

fn member_list(cluster: &Cluster, member: usize) -> Vec<u8> {
    let listed = cluster.members.iter().filter(|member| !member.is_removed).map(|member| Listed {
        id: member.id,
        name: member.name.clone(),
        peer_urls: vec![format!("http://{}.etcd.prod.svc:2380", member.name)],
        // A member publishes its client URLs when it has joined.
        client_urls: (!member.address.is_empty())
            .then(|| format!("http://{}:2379", member.address))
            .into_iter()
            .collect(),
        is_learner: member.is_listed_learner(),
    });
    MemberList { header: Some(header(cluster, member)), members: listed.collect() }.encode_to_vec()
}

fn response(reply: Reply) -> Response<Body> {
    let (code, message, body) = match reply {
        Ok(body) => ("0", None, frame(&body)),
        Err((code, message)) => (code, Some(message), Bytes::new()),
    };
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static(code));
    if let Some(message) = message {
        trailers.insert("grpc-message", HeaderValue::from_static(message));
    }
    let body = Full::from(body).with_trailers(std::future::ready(Some(Ok::<_, Infallible>(trailers))));
    Response::builder().header("content-type", "application/grpc").body(Body::new(body)).unwrap()
}

/// A gRPC frame: a compression flag, the length and the message.
fn frame(message: &[u8]) -> Bytes {
    let mut frame = BytesMut::with_capacity(5 + message.len());
    frame.put_u8(0);
    frame.put_u32(u32::try_from(message.len()).unwrap());
    frame.put_slice(message);
    frame.freeze()
}
