//! A certificate chain and its private key, verified to match before the server uses them.

use std::sync::Arc;

use rustls::{
    crypto::CryptoProvider,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    sign::CertifiedKey,
};
use x509_parser::parse_x509_certificate;

/// A certificate chain and the private key of its first certificate.
#[derive(Clone, Debug)]
pub struct CertificatePair {
    pub(super) certified: Arc<CertifiedKey>,
    start: i64,
    expiry: i64,
}

/// Invalid PEM input. The messages do not repeat the input, because the key is secret.
#[derive(Debug, thiserror::Error)]
pub enum CertificatePairError {
    /// The chain is not PEM or is empty, or its first certificate is malformed.
    #[error("invalid certificate: {0}")]
    Certificate(String),
    /// The key is not PEM, or its type is unknown.
    #[error("invalid private key: {0}")]
    Key(String),
    /// The key does not belong to the certificate, or its type is not supported.
    #[error("certificate and private key do not match: {0}")]
    Mismatch(rustls::Error),
}

// === impl CertificatePair ===

impl CertificatePair {
    /// Parses PEM. Does not check the validity period; callers and the API server do.
    pub fn from_pem(
        certificate: &[u8],
        key: &[u8],
        provider: &CryptoProvider,
    ) -> Result<Self, CertificatePairError> {
        let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(certificate)
            .collect::<Result<_, _>>()
            .map_err(|error| CertificatePairError::Certificate(error.to_string()))?;
        let leaf = chain.first().ok_or_else(|| {
            CertificatePairError::Certificate(String::from("the PEM input contains no certificate"))
        })?;
        let (_, parsed) = parse_x509_certificate(leaf)
            .map_err(|error| CertificatePairError::Certificate(error.to_string()))?;
        let validity = parsed.validity();
        let (start, expiry) = (validity.not_before.timestamp(), validity.not_after.timestamp());
        let key = PrivateKeyDer::from_pem_slice(key)
            .map_err(|error| CertificatePairError::Key(error.to_string()))?;
        let certified =
            CertifiedKey::from_der(chain, key, provider).map_err(CertificatePairError::Mismatch)?;
        Ok(Self { certified: Arc::new(certified), start, expiry })
    }

    /// Start of the validity period, in seconds since 1970.
    pub fn start(&self) -> i64 {
        self.start
    }

    /// End of the validity period, in seconds since 1970.
    pub fn expiry(&self) -> i64 {
        self.expiry
    }
}
