//! A TLS handshake that reads the certificate chain of a server without a decision about it.

use std::{sync::Arc, time::Duration};

use anyhow::Context;
use rustls::{
    ClientConfig, DigitallySignedStruct, Error, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{
        WebPkiSupportedAlgorithms, ring::default_provider, verify_tls12_signature, verify_tls13_signature,
    },
    pki_types::{CertificateDer, ServerName, UnixTime},
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::timeout,
};
use tokio_rustls::TlsConnector;

/// Timeout of a connection or of a handshake, which complete within milliseconds.
pub(super) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Accepts every certificate whose key the server has, because the chain is evaluated afterwards.
#[derive(Debug)]
struct AnyCertificate(WebPkiSupportedAlgorithms);

/// Returns the certificate chain that a server sends for this name. No data is sent over the connection.
pub(super) async fn read_chain(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    server_name: &str,
) -> anyhow::Result<Vec<CertificateDer<'static>>> {
    let provider = default_provider();
    let algorithms = provider.signature_verification_algorithms;
    let config = ClientConfig::builder_with_provider(Arc::new(provider))
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyCertificate(algorithms)))
        .with_no_client_auth();
    let name = ServerName::try_from(server_name.to_owned())?;
    let handshake = TlsConnector::from(Arc::new(config)).connect(name, stream);
    let connection = timeout(HANDSHAKE_TIMEOUT, handshake)
        .await
        .with_context(|| format!("no TLS handshake within {}", crate::durations::text(HANDSHAKE_TIMEOUT)))?
        .context("the TLS handshake failed")?;
    let (_, session) = connection.get_ref();
    let chain = session.peer_certificates().context("the server sent no certificate")?;
    Ok(chain.iter().cloned().map(CertificateDer::into_owned).collect())
}

// === impl AnyCertificate ===

impl ServerCertVerifier for AnyCertificate {
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
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signature, &self.0)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.0)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_schemes()
    }
}
