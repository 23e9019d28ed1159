//! The scheme at which a member listens, if its settings do not show it.
//!
//! The probe carries no credentials and proves nothing about the member. It only selects the scheme of the probe that
//! follows, and that one requires a certificate of a known CA over TLS.

use std::{
    io,
    net::{IpAddr, Ipv4Addr},
    sync::Arc,
    time::Duration,
};

use futures::future::join_all;
use rustls::{ClientConfig, RootCertStore, pki_types::ServerName};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
    time::{Instant, timeout_at},
};
use tokio_rustls::TlsConnector;
use tracing::{Instrument, info_span};

use etcd_guard_core::{
    etcd::{endpoint::Endpoint, member::Scheme},
    spans::SPAN_TARGET,
};

/// Timeout for the scheme of one member. A member replies within a few milliseconds over either scheme. A member that does
/// not reply is probed afterwards for the usual time.
pub const SCHEME_TIMEOUT: Duration = Duration::from_millis(400);

/// The bytes with which a client of HTTP/2 begins: the connection preface and an empty SETTINGS frame (RFC 9113,
/// section 3.4). A member with TLS closes the connection at once.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// Length of the header of a frame, and the position and the value of the type of a SETTINGS frame, with which a server of
/// HTTP/2 begins (RFC 9113, sections 4.1 and 6.5).
const FRAME_HEADER_BYTES: usize = 9;
const FRAME_TYPE: usize = 3;
const SETTINGS: u8 = 4;

/// Returns the scheme at which each of these members listens: plain HTTP is tried first, and then TLS. Returns `None` for
/// a member that does not reply, and for one that speaks neither.
pub async fn detect_schemes(endpoints: &[&Endpoint], deadline: Instant) -> Vec<Option<Scheme>> {
    let deadline = deadline.min(Instant::now() + SCHEME_TIMEOUT);
    let Some(connector) = connector() else { return vec![None; endpoints.len()] };
    let span = info_span!(target: SPAN_TARGET, "detecting schemes of members", members = endpoints.len().to_string());
    let detections = endpoints.iter().map(|endpoint| detect_at_any_address(endpoint, &connector, deadline));
    join_all(detections).instrument(span).await
}

async fn detect_at_any_address(
    endpoint: &Endpoint,
    connector: &TlsConnector,
    deadline: Instant,
) -> Option<Scheme> {
    for url in [&endpoint.url].into_iter().chain(&endpoint.other_urls) {
        let address = url.split_once("://").map_or(url.as_str(), |(_, address)| address);
        if let Ok(Some(scheme)) =
            timeout_at(deadline, detect_scheme(|| TcpStream::connect(address), connector)).await
        {
            return Some(scheme);
        }
    }
    None
}

/// Returns the scheme at which the process listens to which this function connects.
pub(super) async fn detect_through<S, F>(open: impl Fn() -> F, deadline: Instant) -> Option<Scheme>
where
    S: AsyncRead + AsyncWrite + Unpin,
    F: Future<Output = io::Result<S>>,
{
    timeout_at(deadline, detect_scheme(open, &connector()?)).await.ok().flatten()
}

async fn detect_scheme<S, F>(open: impl Fn() -> F, connector: &TlsConnector) -> Option<Scheme>
where
    S: AsyncRead + AsyncWrite + Unpin,
    F: Future<Output = io::Result<S>>,
{
    if speaks_plain_http(open().await.ok()?).await {
        return Some(Scheme::Http);
    }
    speaks_tls(open().await.ok()?, connector).await.then_some(Scheme::Https)
}

/// Whether the process replies to the preface of HTTP/2.
async fn speaks_plain_http(mut stream: impl AsyncRead + AsyncWrite + Unpin) -> bool {
    let mut header = [0; FRAME_HEADER_BYTES];
    // The peer may close the connection at any byte.
    let exchange = async {
        stream.write_all(PREFACE).await?;
        stream.read_exact(&mut header).await
    };
    exchange.await.is_ok() && header.get(FRAME_TYPE) == Some(&SETTINGS)
}

/// Whether the process replies to a TLS handshake. The handshake fails, because no CA is trusted.
async fn speaks_tls(stream: impl AsyncRead + AsyncWrite + Unpin, connector: &TlsConnector) -> bool {
    // With an address, the handshake contains no name.
    match connector.connect(ServerName::from(IpAddr::V4(Ipv4Addr::LOCALHOST)), stream).await {
        Ok(_) => true,
        Err(error) => {
            let cause = error.get_ref().and_then(|cause| cause.downcast_ref::<rustls::Error>());
            // A message that is no TLS message came from another protocol; without any message, the peer closed.
            cause.is_some_and(|cause| !matches!(cause, rustls::Error::InvalidMessage(_)))
        }
    }
}

/// Returns a TLS client that trusts no CA.
fn connector() -> Option<TlsConnector> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().ok()?;
    let config = config.with_root_certificates(RootCertStore::empty()).with_no_client_auth();
    Some(TlsConnector::from(Arc::new(config)))
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    /// Returns the scheme of a server that sends these bytes to each connection and closes it.
    async fn scheme_of(reply: &'static [u8]) -> Option<Scheme> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let server = tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                // The client sends each request in one segment. An unread rest would reset the connection.
                let mut request = [0; 4096];
                assert!(stream.read(&mut request).await.unwrap() > 0);
                stream.write_all(reply).await.unwrap();
            }
        });
        let endpoint = Endpoint { url, other_urls: Vec::new(), tls: None, user: None };
        let found = detect_schemes(&[&endpoint], Instant::now() + SCHEME_TIMEOUT).await;
        server.abort();
        found[0]
    }

    #[tokio::test]
    async fn detects_scheme_by_the_first_bytes() {
        assert_eq!(scheme_of(b"\0\0\0\x04\0\0\0\0\0").await, Some(Scheme::Http));
        // An alert: handshake failure.
        assert_eq!(scheme_of(b"\x15\x03\x03\0\x02\x02\x28").await, Some(Scheme::Https));
        assert_eq!(scheme_of(b"HTTP/1.0 400 Bad Request\r\n\r\n").await, None);
        assert_eq!(scheme_of(b"").await, None);
    }

    #[tokio::test]
    async fn silent_process_has_no_scheme() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let endpoint = Endpoint { url, other_urls: Vec::new(), tls: None, user: None };
        let deadline = Instant::now() + Duration::from_millis(50);
        assert_eq!(detect_schemes(&[&endpoint, &endpoint], deadline).await, [None, None]);
    }
}
