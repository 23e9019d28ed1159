//! A TLS handshake that reads the certificate chain of a server without a decision about it.

use std::{sync::Arc, time::Duration};

use anyhow::Context;
use rustls::{
    ClientConfig, DigitallySignedStruct, Error, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{CryptoProvider, ring::default_provider, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, ServerName, UnixTime},
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::timeout,
};
use tokio_rustls::TlsConnector;

/// Timeout of a handshake: through a port-forward it completes within milliseconds.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Accepts every certificate, because the caller evaluates the chain. No data is sent over the connection.
#[derive(Debug)]
struct AcceptAll(CryptoProvider);

/// Returns the certificate chain that a server sends for this name.
pub(super) async fn read_chain(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    server_name: &str,
) -> anyhow::Result<Vec<CertificateDer<'static>>> {
    let provider = default_provider();
    let config = ClientConfig::builder_with_provider(Arc::new(provider.clone()))
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AcceptAll(provider)))
        .with_no_client_auth();
    let name = ServerName::try_from(server_name.to_owned())?;
    let handshake = TlsConnector::from(Arc::new(config)).connect(name, stream);
    let connection = timeout(HANDSHAKE_TIMEOUT, handshake)
        .await
        .with_context(|| {
            format!("no TLS handshake within {}", humantime::format_duration(HANDSHAKE_TIMEOUT))
        })?
        .context("the TLS handshake failed")?;
    let (_, session) = connection.get_ref();
    let chain = session.peer_certificates().context("the server sent no certificate")?;
    Ok(chain.iter().cloned().map(CertificateDer::into_owned).collect())
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
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
