//! Between the apiserver and the guard: passes reviews on, and writes down what they ask.

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

use super::{
    guard_process::{GuardProcess, make_certificate},
    http_client::Connection,
};

/// A running recorder; it ends with this.
pub struct Recorder {
    pub address: SocketAddr,
    pub ca_pem: String,
    requests: Requests,
    _tasks: JoinSet<()>,
}

type Requests = Arc<Mutex<Vec<Value>>>;

/// Where the guard listens, and what its certificate leads to.
struct Behind {
    address: SocketAddr,
    ca_pem: String,
}

impl Recorder {
    /// With a certificate of its own among these files.
    pub async fn before(guard: &GuardProcess, files: &Path) -> Self {
        std::fs::create_dir_all(files).expect("a directory");
        let ca_pem = make_certificate(files);
        let certificate = CertificateDer::from_pem_file(files.join("tls.crt")).expect("a certificate");
        let key = PrivateKeyDer::from_pem_file(files.join("tls.key")).expect("a key");
        let config = ServerConfig::builder().with_no_client_auth().with_single_cert(vec![certificate], key);
        let acceptor = TlsAcceptor::from(Arc::new(config.expect("a certificate and its key")));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let requests = Requests::default();
        let behind = Arc::new(Behind { address: guard.https(), ca_pem: guard.ca_pem.clone() });
        let mut tasks = JoinSet::new();
        tasks.spawn(serve(listener, acceptor, behind, Arc::clone(&requests)));
        Self { address, ca_pem, requests, _tasks: tasks }
    }

    /// The requests of the reviews since the last time that somebody asked.
    pub fn news(&self) -> Vec<Value> {
        std::mem::take(&mut *self.requests.lock().expect("nobody panics here"))
    }
}

async fn serve(listener: TcpListener, acceptor: TlsAcceptor, behind: Arc<Behind>, requests: Requests) {
    let mut connections = JoinSet::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        let (acceptor, behind, requests) = (acceptor.clone(), Arc::clone(&behind), Arc::clone(&requests));
        connections.spawn(async move {
            let Ok(stream) = acceptor.accept(stream).await else { return };
            let service = service_fn(|request| {
                let (behind, requests) = (Arc::clone(&behind), Arc::clone(&requests));
                async move { Ok::<_, Infallible>(pass_on(request, &behind, &requests).await) }
            });
            // A connection that breaks concerns its other end.
            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

async fn pass_on(
    request: Request<Incoming>,
    behind: &Behind,
    requests: &Requests,
) -> Response<Full<bytes::Bytes>> {
    let path = request.uri().path_and_query().map(ToString::to_string).unwrap_or_default();
    let body = request.into_body().collect().await.map(Collected::to_bytes).unwrap_or_default();
    let review: Value = serde_json::from_slice(&body).unwrap_or_default();
    requests.lock().expect("nobody panics here").push(review["request"].clone());
    let answer = async {
        let mut connection = Connection::tls(behind.address, &behind.ca_pem).await.ok()?;
        connection.post(&path, String::from_utf8_lossy(&body).into_owned()).await.ok()
    };
    let (status, body) = match answer.await {
        Some(answer) => (answer.status, answer.body),
        None => (StatusCode::BAD_GATEWAY, String::new()),
    };
    let response = Response::builder().status(status).header(header::CONTENT_TYPE, "application/json");
    response.body(Full::from(body)).expect("a response")
}
