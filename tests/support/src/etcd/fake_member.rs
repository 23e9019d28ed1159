//! A process that answers the guard's probes like a member of etcd, with responses that the test chooses: what a pod can
//! do that knows the public ids of a cluster.

use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
    net::{IpAddr, SocketAddr},
    sync::{
        Arc, Mutex, PoisonError, RwLock,
        atomic::{AtomicUsize, Ordering},
    },
};

use bytes::{BufMut, Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::{BodyExt, Full, combinators::WithTrailers};
use hyper::{body::Incoming, server::conn::http2, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
};
use tokio_rustls::TlsAcceptor;

/// The responses of a fake member.
#[derive(Clone, Debug)]
pub struct FakeReplies {
    /// The cluster id in every header.
    pub cluster_id: u64,
    /// The member id in every header.
    pub member_id: u64,
    /// The leader in the status.
    pub leader: u64,
    /// The raft term.
    pub term: u64,
    /// The member list.
    pub members: Vec<FakeListed>,
}

/// An entry of the member list (etcd's `Member`).
#[derive(Clone, PartialEq, prost::Message)]
pub struct FakeListed {
    /// The id.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// The name.
    #[prost(string, tag = "2")]
    pub name: String,
    /// The addresses for peers.
    #[prost(string, repeated, tag = "3")]
    pub peer_urls: Vec<String>,
    /// The addresses for clients.
    #[prost(string, repeated, tag = "4")]
    pub client_urls: Vec<String>,
}

/// The texts of a fake member.
#[derive(Clone, Debug)]
pub struct FakeTexts {
    /// The version in the status.
    pub version: String,
    /// The message with which reads fail; `None` if they pass.
    pub refusal: Option<String>,
}

/// A listening fake member, which ends when this is dropped.
pub struct FakeMember {
    address: SocketAddr,
    accepted: Arc<AtomicUsize>,
    _tasks: JoinSet<()>,
}

/// Fake members at many loopback addresses and one port: a listener of their own would need a task and a file for each of them.
pub struct FakeFleet {
    port: u16,
    members: Members,
    _tasks: JoinSet<()>,
}

/// The responses and the TLS settings by address.
type Members = Arc<RwLock<BTreeMap<IpAddr, (Arc<Responses>, Option<TlsAcceptor>)>>>;

/// The encoded responses. A list of several megabytes is encoded once, because probes have a deadline.
struct Responses {
    range: Bytes,
    status: Bytes,
    members: Bytes,
    refusal: Option<HeaderValue>,
}

/// Listens on one port of all loopback addresses, and counts the connections to each of them.
pub struct DialCounter {
    port: u16,
    dialled: Arc<Mutex<Vec<IpAddr>>>,
    _tasks: JoinSet<()>,
}

/// The wire format of responses. Source: etcd `api/etcdserverpb/rpc.proto`.
mod wire {
    use super::FakeListed;

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Header {
        #[prost(uint64, tag = "1")]
        pub cluster_id: u64,
        #[prost(uint64, tag = "2")]
        pub member_id: u64,
        #[prost(int64, tag = "3")]
        pub revision: i64,
        #[prost(uint64, tag = "4")]
        pub raft_term: u64,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Range {
        #[prost(message, optional, tag = "1")]
        pub header: Option<Header>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Status {
        #[prost(message, optional, tag = "1")]
        pub header: Option<Header>,
        #[prost(string, tag = "2")]
        pub version: String,
        #[prost(uint64, tag = "4")]
        pub leader: u64,
        #[prost(uint64, tag = "5")]
        pub raft_index: u64,
        #[prost(uint64, tag = "6")]
        pub raft_term: u64,
        #[prost(uint64, tag = "7")]
        pub raft_applied_index: u64,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct MemberList {
        #[prost(message, optional, tag = "1")]
        pub header: Option<Header>,
        #[prost(message, repeated, tag = "2")]
        pub members: Vec<FakeListed>,
    }
}

type Ended = std::future::Ready<Option<Result<HeaderMap, Infallible>>>;

impl FakeMember {
    /// Starts a member without TLS at this address.
    pub async fn start(address: SocketAddr, replies: FakeReplies) -> Self {
        Self::start_with(address, replies, None).await
    }

    /// Starts a member that may require TLS.
    pub async fn start_with(address: SocketAddr, replies: FakeReplies, tls: Option<TlsAcceptor>) -> Self {
        Self::listen(address, Responses::new(replies, FakeTexts::default()), tls).await
    }

    /// Starts a member without TLS that returns these texts.
    pub async fn start_with_texts(address: SocketAddr, replies: FakeReplies, texts: FakeTexts) -> Self {
        Self::listen(address, Responses::new(replies, texts), None).await
    }

    async fn listen(address: SocketAddr, responses: Responses, tls: Option<TlsAcceptor>) -> Self {
        let listener = TcpListener::bind(address).await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let mut tasks = JoinSet::new();
        let accepted = Arc::<AtomicUsize>::default();
        tasks.spawn(serve(listener, Arc::new(responses), tls, Arc::clone(&accepted)));
        Self { address, accepted, _tasks: tasks }
    }

    /// Returns the number of connections that it has accepted.
    pub fn connections(&self) -> usize {
        self.accepted.load(Ordering::SeqCst)
    }

    /// Returns the address at which it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl FakeFleet {
    /// Listens on a free port of all addresses. Connections to addresses without a member are closed.
    pub async fn start() -> Self {
        let listener = TcpListener::bind("0.0.0.0:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let members = Members::default();
        let mut tasks = JoinSet::new();
        let known = Arc::clone(&members);
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let Ok((stream, _)) = listener.accept().await else { continue };
                while connections.try_join_next().is_some() {}
                let Ok(local) = stream.local_addr() else { continue };
                let member = known.read().unwrap_or_else(PoisonError::into_inner).get(&local.ip()).cloned();
                if let Some((responses, tls)) = member {
                    connections.spawn(serve_connection(stream, responses, tls));
                }
            }
        });
        Self { port, members, _tasks: tasks }
    }

    /// Returns the port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Adds a member at this address. With `tls`, it accepts only TLS connections.
    pub fn add(&self, address: IpAddr, replies: FakeReplies, tls: Option<TlsAcceptor>) {
        let responses = Arc::new(Responses::new(replies, FakeTexts::default()));
        self.members.write().unwrap_or_else(PoisonError::into_inner).insert(address, (responses, tls));
    }
}

impl FakeListed {
    /// Returns the size of the entry in an encoded list, in bytes.
    pub fn encoded_len_in_list(&self) -> usize {
        prost::encoding::message::encoded_len(1, self)
    }
}

impl Default for FakeTexts {
    fn default() -> Self {
        Self { version: String::from("3.6.16"), refusal: None }
    }
}

impl DialCounter {
    /// Starts to count.
    pub async fn start() -> Self {
        let listener = TcpListener::bind("0.0.0.0:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let dialled = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = JoinSet::new();
        let accepted = Arc::clone(&dialled);
        tasks.spawn(async move {
            loop {
                let Ok((stream, _)) = listener.accept().await else { continue };
                let Ok(local) = stream.local_addr() else { continue };
                accepted.lock().expect("the lock is not poisoned").push(local.ip());
            }
        });
        Self { port, dialled, _tasks: tasks }
    }

    /// Returns the port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the number of connections and the number of addresses since the last call.
    pub fn take(&self) -> (usize, usize) {
        let dialled = std::mem::take(&mut *self.dialled.lock().expect("the lock is not poisoned"));
        (dialled.len(), dialled.iter().collect::<BTreeSet<_>>().len())
    }
}

async fn serve(
    listener: TcpListener,
    responses: Arc<Responses>,
    tls: Option<TlsAcceptor>,
    accepted: Arc<AtomicUsize>,
) {
    let mut connections = JoinSet::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        accepted.fetch_add(1, Ordering::SeqCst);
        let (responses, tls) = (Arc::clone(&responses), tls.clone());
        connections.spawn(serve_connection(stream, responses, tls));
    }
}

async fn serve_connection(stream: TcpStream, responses: Arc<Responses>, tls: Option<TlsAcceptor>) {
    // As etcd does: otherwise the kernel delays the first response of a connection by 40 ms.
    let _ = stream.set_nodelay(true);
    let service =
        service_fn(move |request| std::future::ready(Ok::<_, Infallible>(answer(&request, &responses))));
    let builder = http2::Builder::new(TokioExecutor::new());
    // The end of a connection is no failure of the test.
    match tls {
        Some(tls) => {
            if let Ok(stream) = tls.accept(stream).await {
                let _ = builder.serve_connection(TokioIo::new(stream), service).await;
            }
        }
        None => {
            let _ = builder.serve_connection(TokioIo::new(stream), service).await;
        }
    }
}

fn answer(request: &Request<Incoming>, responses: &Responses) -> Response<WithTrailers<Full<Bytes>, Ended>> {
    let message = match request.uri().path() {
        "/etcdserverpb.KV/Range" if responses.refusal.is_some() => None,
        "/etcdserverpb.KV/Range" => Some(responses.range.clone()),
        "/etcdserverpb.Maintenance/Status" => Some(responses.status.clone()),
        "/etcdserverpb.Cluster/MemberList" => Some(responses.members.clone()),
        _ => None,
    };
    let status = HeaderValue::from_static(if message.is_some() { "0" } else { "12" });
    let mut trailers = HeaderMap::from_iter([("grpc-status".parse().expect("a name"), status)]);
    if let Some(refusal) = responses.refusal.clone().filter(|_| message.is_none()) {
        trailers.insert("grpc-message", refusal);
    }
    let body = Full::from(message.unwrap_or_default()).with_trailers(std::future::ready(Some(Ok(trailers))));
    let response = Response::builder().header("content-type", "application/grpc").body(body);
    response.expect("a response")
}

impl Responses {
    fn new(replies: FakeReplies, texts: FakeTexts) -> Self {
        let header = Some(wire::Header {
            cluster_id: replies.cluster_id,
            member_id: replies.member_id,
            revision: 1,
            raft_term: replies.term,
        });
        let status = wire::Status {
            header: header.clone(),
            version: texts.version,
            leader: replies.leader,
            raft_index: 100,
            raft_term: replies.term,
            raft_applied_index: 100,
        };
        Self {
            range: frame(&wire::Range { header: header.clone() }.encode_to_vec()),
            status: frame(&status.encode_to_vec()),
            members: frame(&wire::MemberList { header, members: replies.members }.encode_to_vec()),
            refusal: texts.refusal.map(|text| percent_encoded(&text)),
        }
    }
}

/// Encodes a message for the trailer `grpc-message`.
fn percent_encoded(text: &str) -> HeaderValue {
    let encoded: Vec<String> = text.bytes().map(|byte| format!("%{byte:02X}")).collect();
    encoded.concat().parse().expect("a header value")
}

/// A gRPC frame: a compression flag, the length and the message.
fn frame(message: &[u8]) -> Bytes {
    let mut frame = BytesMut::with_capacity(5 + message.len());
    frame.put_u8(0);
    frame.put_u32(u32::try_from(message.len()).expect("a message below 4 GiB"));
    frame.put_slice(message);
    frame.freeze()
}
