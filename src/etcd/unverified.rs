//! TLS connections to members that issue their own certificates (`--auto-tls`).
//!
//! No CA signs these certificates, they name the address on which etcd listens, and their keys are on the curve P-521, which
//! the TLS provider cannot verify. Such a connection is encrypted, and proves as much as one over plain HTTP.

use std::{io, sync::Arc};

use etcd_client::{BalancedChannelBuilder, Channel};
use http::Uri;
use hyper_util::rt::TokioIo;
use rustls::{
    ClientConfig, DigitallySignedStruct, Error, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::ring::default_provider,
    pki_types::{CertificateDer, ServerName, UnixTime},
};
use tokio::{
    net::TcpStream,
    sync::mpsc::{self, Sender},
};
use tokio_rustls::{TlsConnector, client::TlsStream};
use tonic::transport::{self, Endpoint, channel::Change};

use super::limits::limited;

/// The protocol that a server of gRPC requires in the handshake (ALPN).
const HTTP2: &[u8] = b"h2";

/// Creates channels over TLS that accept every certificate.
pub(super) struct UnverifiedChannel<'a> {
    /// The URL of the member, with the scheme `https`.
    pub(super) url: &'a str,
}

/// Accepts every certificate, without a proof that the server has its key.
#[derive(Debug)]
struct AcceptAll;

// === impl UnverifiedChannel ===

impl BalancedChannelBuilder for UnverifiedChannel<'_> {
    type Error = transport::Error;

    fn balanced_channel(
        self,
        buffer_size: usize,
    ) -> Result<(Channel, Sender<Change<Uri, Endpoint>>), transport::Error> {
        // tonic has no TLS settings that accept such a certificate: for tonic, this is a connection of plain HTTP.
        let address = self.url.replacen("https://", "http://", 1);
        let endpoint = Endpoint::from_shared(address)?;
        // The client sends its only endpoint to this receiver, which must exist as long as the channel.
        let (endpoints, received) = mpsc::channel(buffer_size);
        let connect = tower::service_fn(move |url: Uri| {
            let _held = &received;
            async move { open(&url).await.map(TokioIo::new) }
        });
        Ok((limited(endpoint.connect_with_connector_lazy(connect)), endpoints))
    }
}

/// Opens a connection. Every caller sets a timeout.
async fn open(url: &Uri) -> io::Result<TlsStream<TcpStream>> {
    let authority = url.authority().ok_or_else(|| io::Error::other("the URL has no address"))?;
    let stream = TcpStream::connect(authority.as_str()).await?;
    let mut config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AcceptAll))
        .with_no_client_auth();
    config.alpn_protocols = vec![HTTP2.to_vec()];
    let address = stream.peer_addr()?.ip();
    TlsConnector::from(Arc::new(config)).connect(ServerName::from(address), stream).await
}

// === impl AcceptAll ===

impl ServerCertVerifier for AcceptAll {
    fn verify_server_cert(
        &self,
        _leaf: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    /// The schemes of the provider, and that of the certificates which etcd issues.
    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        let mut schemes = default_provider().signature_verification_algorithms.supported_schemes();
        schemes.push(SignatureScheme::ECDSA_NISTP521_SHA512);
        schemes
    }
}
