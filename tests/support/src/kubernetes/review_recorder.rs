//! A proxy between the API server and the guard that records the reviews.

use std::{
    convert::Infallible,
    net::SocketAddr,
    path::Path,
    sync::{Arc, Mutex},
};

use http::{Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Collected, Full};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use rustls::{
    ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};
use serde_json::Value;
use tokio::{net::TcpListener, task::JoinSet};
use tokio_rustls::TlsAcceptor;

use crate::{
    guard::process::{GuardProcess, make_certificate},
    http_client::Connection,
};

/// A running recorder. It ends when this is dropped.
pub struct ReviewRecorder {
    /// The address of the recorder.
    pub address: SocketAddr,
    /// The CA of the recorder's certificate.
    pub ca_pem: String,
    requests: Requests,
    _tasks: JoinSet<()>,
}

type Requests = Arc<Mutex<Vec<Value>>>;

/// The address of the guard and the CA of its certificate.
struct Upstream {
    address: SocketAddr,
    ca_pem: String,
}

impl ReviewRecorder {
    /// Starts a recorder with a certificate of its own in this folder.
    pub async fn start(guard: &GuardProcess, files: &Path) -> Self {
        std::fs::create_dir_all(files).expect("a directory");
        let ca_pem = make_certificate(files);
        let certificate = CertificateDer::from_pem_file(files.join("tls.crt")).expect("a certificate");
        let key = PrivateKeyDer::from_pem_file(files.join("tls.key")).expect("a key");
        let config = ServerConfig::builder().with_no_client_auth().with_single_cert(vec![certificate], key);
        let acceptor = TlsAcceptor::from(Arc::new(config.expect("a certificate and its key")));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let requests = Requests::default();
        let upstream = Arc::new(Upstream { address: guard.https(), ca_pem: guard.ca_pem.clone() });
        let mut tasks = JoinSet::new();
        tasks.spawn(serve(listener, acceptor, upstream, Arc::clone(&requests)));
        Self { address, ca_pem, requests, _tasks: tasks }
    }

    /// Returns the requests of the reviews since the last time.
    pub fn take_requests(&self) -> Vec<Value> {
        std::mem::take(&mut *self.requests.lock().expect("the lock is not poisoned"))
    }
}

async fn serve(listener: TcpListener, acceptor: TlsAcceptor, upstream: Arc<Upstream>, requests: Requests) {
    let mut connections = JoinSet::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        let (acceptor, upstream, requests) = (acceptor.clone(), Arc::clone(&upstream), Arc::clone(&requests));
        connections.spawn(async move {
            let Ok(stream) = acceptor.accept(stream).await else { return };
            let service = service_fn(|request| {
                let (upstream, requests) = (Arc::clone(&upstream), Arc::clone(&requests));
                async move { Ok::<_, Infallible>(pass_on(request, &upstream, &requests).await) }
            });
            // The client reports a broken connection.
            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

async fn pass_on(
    request: Request<Incoming>,
    upstream: &Upstream,
    requests: &Requests,
) -> Response<Full<bytes::Bytes>> {
    let path = request.uri().path_and_query().map(ToString::to_string).unwrap_or_default();
    let body = request.into_body().collect().await.map(Collected::to_bytes).unwrap_or_default();
    let review: Value = serde_json::from_slice(&body).unwrap_or_default();
    // The guard evaluates an eviction after it has added the uid.
    if path.starts_with("/validate") {
        requests.lock().expect("the lock is not poisoned").push(review["request"].clone());
    }
    let answer = async {
        let mut connection = Connection::tls(upstream.address, &upstream.ca_pem).await.ok()?;
        connection.post(&path, String::from_utf8_lossy(&body).into_owned()).await.ok()
    };
    let (status, body) = match answer.await {
        Some(answer) => (answer.status, answer.body),
        None => (StatusCode::BAD_GATEWAY, String::new()),
    };
    let response = Response::builder().status(status).header(header::CONTENT_TYPE, "application/json");
    response.body(Full::from(body)).expect("a response")
}
