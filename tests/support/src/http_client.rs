//! HTTP and HTTPS clients with one connection each. A pooling client would retry and hide the failures that tests check
//! for.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Request, StatusCode, header};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

/// The longest time for one request, and for each step of a connection; longer than the guard's longest response time.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

const NO_RESPONSE_IN_TIME: &str = "no answer in time";

/// A persistent connection.
pub struct Connection {
    requests: SendRequest<Full<Bytes>>,
}

/// A response.
#[derive(Debug)]
pub struct Response {
    /// The status code.
    pub status: StatusCode,
    /// The body.
    pub body: String,
    /// Whether the server closes the connection after this response.
    pub closes: bool,
}

/// The cause of a missing response.
#[derive(Debug)]
pub struct RequestError(pub String);

/// Sends a GET request without TLS.
pub async fn get(address: SocketAddr, path: &str) -> Result<Response, RequestError> {
    let mut connection = Connection::plain(address).await?;
    let request = Request::get(path).header(header::HOST, address.to_string()).body(Full::default());
    connection.send(request.map_err(RequestError::because)?).await
}

/// Connects with `TCP_NODELAY`, as the API server does. With Nagle's algorithm, the second segment of a request would
/// wait up to 40 ms for the acknowledgement of the first.
async fn connect(address: SocketAddr) -> Result<TcpStream, RequestError> {
    let stream = in_time(TcpStream::connect(address)).await?;
    stream.set_nodelay(true).map_err(RequestError::because)?;
    Ok(stream)
}

/// Connects by TLS to a server whose certificate is signed by one of these CAs, as the API server does with a
/// `caBundle`. The client prefers HTTP/2.
pub async fn tls(address: SocketAddr, ca_pem: &str) -> Result<TlsStream<TcpStream>, RequestError> {
    tls_with_identity(None, address, ca_pem, &[b"h2", HTTP_1_1]).await
}

/// The client certificate of a caller and its key.
#[derive(Clone, Copy)]
pub struct Identity<'a> {
    /// The certificate chain, PEM.
    pub certificate: &'a str,
    /// The private key, PEM.
    pub key: &'a str,
}

/// The protocol of [`Connection`]: a server that also has HTTP/2 must not choose it.
const HTTP_1_1: &[u8] = b"http/1.1";

/// Connects like [`tls`], with an optional client certificate and these protocols.
async fn tls_with_identity(
    identity: Option<Identity<'_>>,
    address: SocketAddr,
    ca_pem: &str,
    protocols: &[&[u8]],
) -> Result<TlsStream<TcpStream>, RequestError> {
    let mut roots = RootCertStore::empty();
    for ca in CertificateDer::pem_slice_iter(ca_pem.as_bytes()) {
        roots.add(ca.map_err(RequestError::because)?).map_err(RequestError::because)?;
    }
    let builder = ClientConfig::builder().with_root_certificates(roots);
    let mut config = match identity {
        None => builder.with_no_client_auth(),
        Some(Identity { certificate, key }) => {
            let certificate = CertificateDer::from_pem_slice(certificate.as_bytes());
            let key = PrivateKeyDer::from_pem_slice(key.as_bytes());
            let chain = vec![certificate.map_err(RequestError::because)?];
            builder
                .with_client_auth_cert(chain, key.map_err(RequestError::because)?)
                .map_err(RequestError::because)?
        }
    };
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    let stream = connect(address).await?;
    let name = ServerName::from(address.ip());
    in_time(TlsConnector::from(Arc::new(config)).connect(name, stream)).await
}

/// Limits the time of a step.
async fn in_time<T, E: std::fmt::Display>(
    step: impl Future<Output = Result<T, E>>,
) -> Result<T, RequestError> {
    timeout(REQUEST_TIMEOUT, Box::pin(step))
        .await
        .map_err(|_| RequestError::because(NO_RESPONSE_IN_TIME))?
        .map_err(RequestError::because)
}

impl Connection {
    /// Connects without TLS.
    pub async fn plain(address: SocketAddr) -> Result<Self, RequestError> {
        Self::over(connect(address).await?).await
    }

    /// Connects with TLS, as [`tls`].
    pub async fn tls(address: SocketAddr, ca_pem: &str) -> Result<Self, RequestError> {
        Self::over(tls_with_identity(None, address, ca_pem, &[HTTP_1_1]).await?).await
    }

    /// Connects with TLS and a client certificate.
    pub async fn tls_with_identity(
        identity: Identity<'_>,
        address: SocketAddr,
        ca_pem: &str,
    ) -> Result<Self, RequestError> {
        Self::over(tls_with_identity(Some(identity), address, ca_pem, &[HTTP_1_1]).await?).await
    }

    async fn over(
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    ) -> Result<Self, RequestError> {
        let (requests, connection) = in_time(handshake(TokioIo::new(stream))).await?;
        tokio::spawn(connection);
        Ok(Self { requests })
    }

    /// Sends a POST request with a JSON body.
    pub async fn post(&mut self, path: &str, body: String) -> Result<Response, RequestError> {
        let request = Request::post(path)
            .header(header::HOST, "localhost")
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::from(body));
        self.send(request.map_err(RequestError::because)?).await
    }

    /// Sends a request and reads the response.
    pub async fn send(&mut self, request: Request<Full<Bytes>>) -> Result<Response, RequestError> {
        let exchange = async {
            self.requests.ready().await?;
            let response = self.requests.send_request(request).await?;
            let (head, body) = response.into_parts();
            let body = body.collect().await?.to_bytes();
            Ok::<_, hyper::Error>((head, body))
        };
        let (head, body) = in_time(exchange).await?;
        let closes = head.headers.get(header::CONNECTION).is_some_and(|value| value.as_bytes() == b"close");
        Ok(Response { status: head.status, body: String::from_utf8_lossy(&body).into_owned(), closes })
    }
}

impl RequestError {
    /// Whether the server accepted the request and did not respond.
    pub fn is_timeout(&self) -> bool {
        self.0 == NO_RESPONSE_IN_TIME
    }

    #[allow(clippy::needless_pass_by_value, reason = "the signature that map_err requires")]
    fn because(error: impl std::fmt::Display) -> Self {
        Self(error.to_string())
    }
}
