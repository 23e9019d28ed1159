//! A TLS verifier that accepts every certificate.

use rustls::{
    DigitallySignedStruct, Error, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{
        WebPkiSupportedAlgorithms, ring::default_provider, verify_tls12_signature, verify_tls13_signature,
    },
    pki_types::{CertificateDer, ServerName, UnixTime},
};

/// Accepts every certificate, because the caller evaluates the chain or has no CA for it.
#[derive(Debug)]
pub(crate) struct AnyCertificate {
    algorithms: WebPkiSupportedAlgorithms,
    requires_key: bool,
}

// === impl AnyCertificate ===

impl AnyCertificate {
    /// Returns a verifier that requires a proof that the server has the key of its certificate.
    pub(crate) fn with_key() -> Self {
        Self { algorithms: default_provider().signature_verification_algorithms, requires_key: true }
    }

    /// Returns a verifier that requires no proof, and also accepts keys that the TLS provider cannot verify.
    pub(super) fn without_key() -> Self {
        Self { algorithms: default_provider().signature_verification_algorithms, requires_key: false }
    }
}

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
        if self.requires_key {
            return verify_tls12_signature(message, certificate, signature, &self.algorithms);
        }
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        if self.requires_key {
            return verify_tls13_signature(message, certificate, signature, &self.algorithms);
        }
        Ok(HandshakeSignatureValid::assertion())
    }

    /// The schemes of the provider. Without a proof, also the scheme of the certificates that etcd issues.
    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        let mut schemes = self.algorithms.supported_schemes();
        if !self.requires_key {
            schemes.push(SignatureScheme::ECDSA_NISTP521_SHA512);
        }
        schemes
    }
}
