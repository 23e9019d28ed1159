//! Between the guard and a member: every gRPC call is written down, and held up where a test wants it.
//!
//! The guard's calls are all of one message each way; what else came would be passed on and written down just so.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex},
};

use bytes::Bytes;
use http::{Request, Response, Uri};
use http_body_util::{BodyExt, Full};
use hyper::{body::Incoming, client, server, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

use super::gate::{Gates, Held};

/// Where members listen.
const MEMBER_PORT: u16 = 2379;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// A gRPC call of a member.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Call {
    /// The member's address.
    pub member: Ipv4Addr,
    /// For instance `/etcdserverpb.KV/Range`.
    pub method: String,
    /// The first message, without its frame.
    pub message: Vec<u8>,
}

/// Proxies in front of members, each at its member's address and the same other port; they end with this.
pub struct Wire {
    shared: Shared,
    _tasks: JoinSet<()>,
}

#[derive(Clone, Default)]
struct Shared {
    calls: Arc<Mutex<Vec<Call>>>,
    gates: Gates<Call>,
}

/// The fields of etcd's `RangeRequest` that say how it is served.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Range {
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    #[prost(bool, tag = "7")]
    pub serializable: bool,
}

/// etcd's `MoveLeaderRequest`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Transfer {
    #[prost(uint64, tag = "1")]
    pub target: u64,
}

impl Wire {
    pub async fn before(members: &[Ipv4Addr], port: u16) -> Self {
        let shared = Shared::default();
        let mut tasks = JoinSet::new();
        for member in members {
            let listener = TcpListener::bind((*member, port)).await.expect("a port at the member's address");
            tasks.spawn(serve(listener, *member, shared.clone()));
        }
        Self { shared, _tasks: tasks }
    }

    /// The calls since the last time that somebody asked.
    pub fn news(&self) -> Vec<Call> {
        std::mem::take(&mut *self.shared.calls.lock().expect("nobody panics here"))
    }

    /// Holds up the calls that this says yes to. They are written down when they come.
    pub fn hold(&self, stops: impl Fn(&Call) -> bool + Send + 'static) -> Held {
        self.shared.gates.hold(stops)
    }
}

async fn serve(listener: TcpListener, member: Ipv4Addr, shared: Shared) {
    let mut connections = JoinSet::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        connections.spawn(serve_connection(stream, member, shared.clone()));
    }
}

/// A connection is as good as that to the member: it ends with it.
async fn serve_connection(stream: TcpStream, member: Ipv4Addr, shared: Shared) {
    let address = SocketAddr::from((member, MEMBER_PORT));
    let Ok(to_member) = TcpStream::connect(address).await else { return };
    let builder = client::conn::http2::Builder::new(TokioExecutor::new());
    let Ok((sender, connection)) = builder.handshake::<_, Full<Bytes>>(TokioIo::new(to_member)).await else {
        return;
    };
    let service = service_fn(move |request| pass_on(request, member, shared.clone(), sender.clone()));
    let served = server::conn::http2::Builder::new(TokioExecutor::new())
        .serve_connection(TokioIo::new(stream), service);
    // Whichever ends first ends the other; why is of no interest here.
    tokio::select! { _ = served => {}, _ = connection => {} }
}

async fn pass_on(
    request: Request<Incoming>,
    member: Ipv4Addr,
    shared: Shared,
    mut sender: client::conn::http2::SendRequest<Full<Bytes>>,
) -> Result<Response<Incoming>, Failure> {
    let (mut parts, body) = request.into_parts();
    let method = parts.uri.path().to_owned();
    let body = body.collect().await?.to_bytes();
    // One byte for compression and four for the length go before each message.
    let call = Call { member, method: method.clone(), message: body.get(5..).unwrap_or_default().to_vec() };
    shared.calls.lock().expect("nobody panics here").push(call.clone());
    shared.gates.pass(&call).await;
    parts.uri = Uri::builder()
        .scheme("http")
        .authority(format!("{member}:{MEMBER_PORT}"))
        .path_and_query(method)
        .build()?;
    Ok(sender.send_request(Request::from_parts(parts, Full::new(body))).await?)
}
