//! TLS connections to members that issue their own certificates (`--auto-tls`).
//!
//! No CA signs these certificates, they name the address on which etcd listens, and their keys are on the curve P-521, which
//! the TLS provider cannot verify. Such a connection is encrypted, and proves as much as one over plain HTTP.

use std::{io, net::IpAddr, sync::Arc};

use etcd_client::Channel;
use http::Uri;
use hyper_util::rt::TokioIo;
use rustls::{ClientConfig, crypto::ring::default_provider, pki_types::ServerName};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};
use tokio_rustls::{TlsConnector, client::TlsStream};
use tonic::transport::{Endpoint, Error};

use super::{any_certificate::AnyCertificate, limits::limited};

/// The protocol that a server of gRPC requires in the handshake (ALPN).
const HTTP2: &[u8] = b"h2";

/// Creates the channel to the member at a URL with the scheme `https`. It accepts every certificate.
pub(super) fn unverified_channel(url: &str) -> Result<Channel, Error> {
    let connect = tower::service_fn(|url: Uri| async move { open(&url).await.map(TokioIo::new) });
    Ok(limited(unverified_builder(url)?.connect_with_connector_lazy(connect)))
}

/// Returns the settings of such a connection. tonic has no TLS settings that accept such a certificate: for tonic, it is a connection of
/// plain HTTP.
pub(super) fn unverified_builder(url: &str) -> Result<Endpoint, Error> {
    Endpoint::from_shared(url.replacen("https://", "http://", 1))
}

/// Opens a connection. Every caller sets a timeout.
async fn open(url: &Uri) -> io::Result<TlsStream<TcpStream>> {
    let authority = url.authority().ok_or_else(|| io::Error::other("the URL has no address"))?;
    let stream = TcpStream::connect(authority.as_str()).await?;
    // Without TCP_NODELAY, the first frames wait until the member has acknowledged the end of the handshake. tonic sets it for its own
    // connections. If it cannot be set, the connection is slower, but usable.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::warn!(member = %authority, %error, "setting TCP_NODELAY failed");
    }
    handshake(stream.peer_addr()?.ip(), stream).await
}

/// Starts TLS over a connection to the member at this address. Every caller sets a timeout.
pub(super) async fn handshake<S: AsyncRead + AsyncWrite + Unpin>(
    address: IpAddr,
    stream: S,
) -> io::Result<TlsStream<S>> {
    let mut config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyCertificate))
        .with_no_client_auth();
    config.alpn_protocols = vec![HTTP2.to_vec()];
    TlsConnector::from(Arc::new(config)).connect(ServerName::from(address), stream).await
}
