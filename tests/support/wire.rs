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

use super::gate::{Gates, Held};

/// Where members listen.
const MEMBER_PORT: u16 = 2379;

/// The protocol of gRPC, as TLS names it.
const HTTP2: &[u8] = b"h2";

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

/// A member behind a proxy.
pub struct Behind {
    pub address: Ipv4Addr,
    /// Of a member that speaks TLS.
    pub tls: Option<Box<BehindTls>>,
}

/// What a proxy shows in the member's place, and what it shows the member in a client's place.
pub struct BehindTls {
    server: TlsAcceptor,
    client: TlsConnector,
}

/// A stream, with or without TLS.
trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

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

/// The field of etcd's `AuthenticateRequest` that may be shown.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Login {
    #[prost(string, tag = "1")]
    pub name: String,
}

/// etcd's `MoveLeaderRequest`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Transfer {
    #[prost(uint64, tag = "1")]
    pub target: u64,
}

impl Wire {
    /// In front of members that speak no TLS.
    pub async fn before(members: &[Ipv4Addr], port: u16) -> Self {
        Self::before_all(members.iter().map(|it| Behind { address: *it, tls: None }), port).await
    }

    pub async fn before_all(members: impl IntoIterator<Item = Behind>, port: u16) -> Self {
        let shared = Shared::default();
        let mut tasks = JoinSet::new();
        for member in members {
            let listener =
                TcpListener::bind((member.address, port)).await.expect("a port at the member's address");
            tasks.spawn(serve(listener, Arc::new(member), shared.clone()));
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

async fn serve(listener: TcpListener, member: Arc<Behind>, shared: Shared) {
    let mut connections = JoinSet::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        connections.spawn(serve_connection(stream, Arc::clone(&member), shared.clone()));
    }
}

/// A connection is as good as that to the member: it ends with it.
async fn serve_connection(stream: TcpStream, member: Arc<Behind>, shared: Shared) {
    let Ok((stream, to_member)) = connect(stream, &member).await else { return };
    let builder = client::conn::http2::Builder::new(TokioExecutor::new());
    let Ok((sender, connection)) = builder.handshake::<_, Full<Bytes>>(TokioIo::new(to_member)).await else {
        return;
    };
    let address = member.address;
    let service = service_fn(move |request| pass_on(request, address, shared.clone(), sender.clone()));
    let served = server::conn::http2::Builder::new(TokioExecutor::new())
        .serve_connection(TokioIo::new(stream), service);
    // Whichever ends first ends the other; why is of no interest here.
    tokio::select! { _ = served => {}, _ = connection => {} }
}

async fn connect(stream: TcpStream, member: &Behind) -> std::io::Result<(Box<dyn Stream>, Box<dyn Stream>)> {
    let to_member = TcpStream::connect(SocketAddr::from((member.address, MEMBER_PORT))).await?;
    let Some(tls) = &member.tls else { return Ok((Box::new(stream), Box::new(to_member))) };
    let name = ServerName::IpAddress(member.address.into());
    let (stream, to_member) =
        tokio::try_join!(tls.server.accept(stream), tls.client.connect(name, to_member))?;
    Ok((Box::new(stream), Box::new(to_member)))
}

impl BehindTls {
    /// With the member's own certificate and key, and a client's, all of this CA. The proxy asks for a client's certificate
    /// as the member does.
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
