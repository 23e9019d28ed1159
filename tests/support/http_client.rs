//! Plain HTTP and HTTPS by hand, one connection at a time: a pooling client would hide by a second try what tests are
//! about.

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

/// Longest that one request may take; longer than the guard's longest answer.
const REQUEST_LIMIT: Duration = Duration::from_secs(30);

const NO_ANSWER_IN_TIME: &str = "no answer in time";

/// A connection that is kept for many requests.
pub struct Connection {
    requests: SendRequest<Full<Bytes>>,
}

/// What came back.
#[derive(Debug)]
pub struct Response {
    pub status: StatusCode,
    pub body: String,
    /// Whether the server wants no further request on this connection.
    pub closes: bool,
}

/// No answer.
#[derive(Debug)]
pub struct NoAnswer(pub String);

/// GETs a page.
pub async fn get(address: SocketAddr, path: &str) -> Result<Response, NoAnswer> {
    let mut connection = Connection::plain(address).await?;
    let request = Request::get(path).header(header::HOST, address.to_string()).body(Full::default());
    connection.send(request.map_err(NoAnswer::because)?).await
}

/// As an apiserver connects, which sends at once what it has: a question's second part would wait up to 40 ms for an acknowledgement
/// of the first.
async fn connect(address: SocketAddr) -> Result<TcpStream, NoAnswer> {
    let stream = TcpStream::connect(address).await.map_err(NoAnswer::because)?;
    stream.set_nodelay(true).map_err(NoAnswer::because)?;
    Ok(stream)
}

/// A TLS connection to a server whose certificate leads to one of these CAs, as an apiserver makes it with a `caBundle`:
/// it would rather speak HTTP/2.
pub async fn tls(address: SocketAddr, ca_pem: &str) -> Result<TlsStream<TcpStream>, NoAnswer> {
    tls_as(None, address, ca_pem).await
}

/// Who a caller is: a certificate and its key, both PEM.
#[derive(Clone, Copy)]
pub struct Identity<'a> {
    pub certificate: &'a str,
    pub key: &'a str,
}

/// The same by a caller that says who it is.
async fn tls_as(
    identity: Option<Identity<'_>>,
    address: SocketAddr,
    ca_pem: &str,
) -> Result<TlsStream<TcpStream>, NoAnswer> {
    let mut roots = RootCertStore::empty();
    for ca in CertificateDer::pem_slice_iter(ca_pem.as_bytes()) {
        roots.add(ca.map_err(NoAnswer::because)?).map_err(NoAnswer::because)?;
    }
    let builder = ClientConfig::builder().with_root_certificates(roots);
    let mut config = match identity {
        None => builder.with_no_client_auth(),
        Some(Identity { certificate, key }) => {
            let certificate = CertificateDer::from_pem_slice(certificate.as_bytes());
            let key = PrivateKeyDer::from_pem_slice(key.as_bytes());
            let chain = vec![certificate.map_err(NoAnswer::because)?];
            builder
                .with_client_auth_cert(chain, key.map_err(NoAnswer::because)?)
                .map_err(NoAnswer::because)?
        }
    };
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let stream = connect(address).await?;
    let name = ServerName::from(address.ip());
    TlsConnector::from(Arc::new(config)).connect(name, stream).await.map_err(NoAnswer::because)
}

impl Connection {
    pub async fn plain(address: SocketAddr) -> Result<Self, NoAnswer> {
        Self::over(connect(address).await?).await
    }

    /// HTTP over [`tls`].
    pub async fn tls(address: SocketAddr, ca_pem: &str) -> Result<Self, NoAnswer> {
        Self::over(tls(address, ca_pem).await?).await
    }

    /// The same by a caller that says who it is.
    pub async fn tls_as(identity: Identity<'_>, address: SocketAddr, ca_pem: &str) -> Result<Self, NoAnswer> {
        Self::over(tls_as(Some(identity), address, ca_pem).await?).await
    }

    async fn over(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> Result<Self, NoAnswer> {
        let (requests, connection) = handshake(TokioIo::new(stream)).await.map_err(NoAnswer::because)?;
        tokio::spawn(connection);
        Ok(Self { requests })
    }

    /// POSTs JSON.
    pub async fn post(&mut self, path: &str, body: String) -> Result<Response, NoAnswer> {
        let request = Request::post(path)
            .header(header::HOST, "localhost")
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::from(body));
        self.send(request.map_err(NoAnswer::because)?).await
    }

    pub async fn send(&mut self, request: Request<Full<Bytes>>) -> Result<Response, NoAnswer> {
        let exchange = async {
            self.requests.ready().await?;
            let response = self.requests.send_request(request).await?;
            let (head, body) = response.into_parts();
            let body = body.collect().await?.to_bytes();
            Ok::<_, hyper::Error>((head, body))
        };
        let (head, body) = timeout(REQUEST_LIMIT, exchange)
            .await
            .map_err(|_| NoAnswer::because(NO_ANSWER_IN_TIME))?
            .map_err(NoAnswer::because)?;
        let closes = head.headers.get(header::CONNECTION).is_some_and(|it| it.as_bytes() == b"close");
        Ok(Response { status: head.status, body: String::from_utf8_lossy(&body).into_owned(), closes })
    }
}

impl NoAnswer {
    /// Whether the server took the request and never answered.
    pub fn is_timeout(&self) -> bool {
        self.0 == NO_ANSWER_IN_TIME
    }

    #[allow(clippy::needless_pass_by_value, reason = "the signature that map_err wants")]
    fn because(error: impl std::fmt::Display) -> Self {
        Self(error.to_string())
    }
}
