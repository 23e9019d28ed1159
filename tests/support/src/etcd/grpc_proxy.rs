//! A proxy between the guard and members that records every gRPC call, and delays calls at breakpoints.
//!
//! All calls of the guard are unary. Of a streaming call, only the first message would be recorded.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex},
};

use bytes::Bytes;
use http::{Request, Response, Uri};
use http_body_util::{BodyExt, Full};
use hyper::{body::Incoming, client, server, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::{
    ClientConfig, RootCertStore, ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
    server::WebPkiClientVerifier,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::breakpoint::{ActiveBreakpoint, Breakpoints};

/// The client port of members.
const MEMBER_PORT: u16 = 2379;

/// The ALPN protocol name of gRPC.
const HTTP2: &[u8] = b"h2";

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// A recorded gRPC call.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Call {
    /// The member's address.
    pub member: Ipv4Addr,
    /// The path, for instance `/etcdserverpb.KV/Range`.
    pub method: String,
    /// The first message without its gRPC frame header.
    pub message: Vec<u8>,
}

/// A member behind a proxy.
pub struct ProxiedMember {
    /// The address of the member, where the proxy listens too.
    pub address: Ipv4Addr,
    /// The TLS configuration, if the member uses TLS.
    pub tls: Option<Box<ProxyTls>>,
}

/// The proxy's TLS configuration as a server in the place of the member, and as a client of the member.
pub struct ProxyTls {
    server: TlsAcceptor,
    client: TlsConnector,
}

/// A stream, with or without TLS.
trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// Proxies in front of members, each at the address of its member and on the same other port. They end when this is
/// dropped.
pub struct GrpcProxy {
    shared: Shared,
    _tasks: JoinSet<()>,
}

#[derive(Clone, Default)]
struct Shared {
    calls: Arc<Mutex<Vec<Call>>>,
    breakpoints: Breakpoints<Call>,
}

/// The fields of etcd's `RangeRequest` that determine how it is served.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RangeRequest {
    /// The key that is read.
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    /// Whether the member may answer from its own state without a quorum.
    #[prost(bool, tag = "7")]
    pub serializable: bool,
}

/// The field of etcd's `AuthenticateRequest` that is not secret.
#[derive(Clone, PartialEq, prost::Message)]
pub struct AuthenticateRequest {
    /// The name of the user.
    #[prost(string, tag = "1")]
    pub name: String,
}

/// etcd's `MoveLeaderRequest`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct MoveLeaderRequest {
    /// The id of the member that becomes the leader.
    #[prost(uint64, tag = "1")]
    pub target: u64,
}

impl GrpcProxy {
    /// Starts proxies in front of members without TLS.
    pub async fn start(members: &[Ipv4Addr], port: u16) -> Self {
        Self::start_all(members.iter().map(|address| ProxiedMember { address: *address, tls: None }), port)
            .await
    }

    /// Starts proxies in front of these members.
    pub async fn start_all(members: impl IntoIterator<Item = ProxiedMember>, port: u16) -> Self {
        let shared = Shared::default();
        let mut tasks = JoinSet::new();
        for member in members {
            let listener =
                TcpListener::bind((member.address, port)).await.expect("a port at the member's address");
            tasks.spawn(serve(listener, Arc::new(member), shared.clone()));
        }
        Self { shared, _tasks: tasks }
    }

    /// Returns the calls since the last time.
    pub fn take_calls(&self) -> Vec<Call> {
        std::mem::take(&mut *self.shared.calls.lock().expect("the lock is not poisoned"))
    }

    /// Delays the calls that match. They are recorded on arrival.
    pub fn hold(&self, matches: impl Fn(&Call) -> bool + Send + 'static) -> ActiveBreakpoint {
        self.shared.breakpoints.hold(matches)
    }
}

async fn serve(listener: TcpListener, member: Arc<ProxiedMember>, shared: Shared) {
    let mut connections = JoinSet::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        connections.spawn(serve_connection(stream, Arc::clone(&member), shared.clone()));
    }
}

/// Serves a connection; it ends together with the connection to the member.
async fn serve_connection(stream: TcpStream, member: Arc<ProxiedMember>, shared: Shared) {
    let Ok((stream, to_member)) = connect(stream, &member).await else { return };
    let builder = client::conn::http2::Builder::new(TokioExecutor::new());
    let Ok((sender, connection)) = builder.handshake::<_, Full<Bytes>>(TokioIo::new(to_member)).await else {
        return;
    };
    let address = member.address;
    let service = service_fn(move |request| pass_on(request, address, shared.clone(), sender.clone()));
    let served = server::conn::http2::Builder::new(TokioExecutor::new())
        .serve_connection(TokioIo::new(stream), service);
    // The end of one connection ends the other, for any reason.
    tokio::select! { _ = served => {}, _ = connection => {} }
}

async fn connect(
    stream: TcpStream,
    member: &ProxiedMember,
) -> std::io::Result<(Box<dyn Stream>, Box<dyn Stream>)> {
    let to_member = TcpStream::connect(SocketAddr::from((member.address, MEMBER_PORT))).await?;
    let Some(tls) = &member.tls else { return Ok((Box::new(stream), Box::new(to_member))) };
    let name = ServerName::IpAddress(member.address.into());
    let (stream, to_member) =
        tokio::try_join!(tls.server.accept(stream), tls.client.connect(name, to_member))?;
    Ok((Box::new(stream), Box::new(to_member)))
}

impl ProxyTls {
    /// Uses the member's certificate and key as a server, and a client's as a client, all signed by this CA. The proxy
    /// requires a client certificate, as the member does.
    pub fn new(ca: &[u8], server: (&[u8], &[u8]), client: (&[u8], &[u8])) -> Self {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(ca).expect("a CA")).expect("a CA");
        let roots = Arc::new(roots);
        let chain =
            |pem| CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>().expect("a chain");
        let key = |pem| PrivateKeyDer::from_pem_slice(pem).expect("a key");
        let clients = WebPkiClientVerifier::builder(Arc::clone(&roots)).build().expect("a CA of clients");
        let mut as_member = ServerConfig::builder()
            .with_client_cert_verifier(clients)
            .with_single_cert(chain(server.0), key(server.1))
            .expect("the member's certificate");
        as_member.alpn_protocols = vec![HTTP2.to_vec()];
        let mut as_client = ClientConfig::builder()
            .with_root_certificates(roots)
            .with_client_auth_cert(chain(client.0), key(client.1))
            .expect("a client's certificate");
        as_client.alpn_protocols = vec![HTTP2.to_vec()];
        Self { server: Arc::new(as_member).into(), client: Arc::new(as_client).into() }
    }
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
    // A frame header of five bytes precedes each message: one for compression, four for the length.
    let call = Call { member, method: method.clone(), message: body.get(5..).unwrap_or_default().to_vec() };
    shared.calls.lock().expect("the lock is not poisoned").push(call.clone());
    shared.breakpoints.pass(&call).await;
    parts.uri = Uri::builder()
        .scheme("http")
        .authority(format!("{member}:{MEMBER_PORT}"))
        .path_and_query(method)
        .build()?;
    Ok(sender.send_request(Request::from_parts(parts, Full::new(body))).await?)
}
