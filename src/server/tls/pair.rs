//! A certificate chain with its private key, known to fit before anybody is shown it.

use std::sync::Arc;

use rustls::{
    crypto::CryptoProvider,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    sign::CertifiedKey,
};
use x509_parser::parse_x509_certificate;

/// What a server can show: a chain, and the key of its first certificate.
#[derive(Clone, Debug)]
pub struct Pair {
    pub(super) certified: Arc<CertifiedKey>,
    start: i64,
    expiry: i64,
}

/// Why two texts are no pair. Neither text is repeated: one of them is secret.
#[derive(Debug, thiserror::Error)]
pub enum PairError {
    /// The chain is no PEM, or empty, or its first certificate is unreadable.
    #[error("the certificate: {0}")]
    Certificate(String),
    /// The key is no PEM, or of no kind that TLS knows.
    #[error("the key: {0}")]
    Key(String),
    /// They do not belong together, or the key is of a kind that is not supported.
    #[error("certificate and key do not fit: {0}")]
    Mismatch(rustls::Error),
}

// === impl Pair ===

impl Pair {
    /// Reads PEM. Whether the certificate is valid today is the caller's to judge, and the apiserver's.
    pub fn from_pem(certificate: &[u8], key: &[u8], provider: &CryptoProvider) -> Result<Self, PairError> {
        let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(certificate)
            .collect::<Result<_, _>>()
            .map_err(|error| PairError::Certificate(error.to_string()))?;
        let leaf = chain.first().ok_or_else(|| PairError::Certificate(String::from("there is none")))?;
        let (_, parsed) =
            parse_x509_certificate(leaf).map_err(|error| PairError::Certificate(error.to_string()))?;
        let validity = parsed.validity();
        let (start, expiry) = (validity.not_before.timestamp(), validity.not_after.timestamp());
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| PairError::Key(error.to_string()))?;
        let certified = CertifiedKey::from_der(chain, key, provider).map_err(PairError::Mismatch)?;
        Ok(Self { certified: Arc::new(certified), start, expiry })
    }

    /// From when on the certificate is valid, in seconds since 1970.
    #[must_use]
    pub fn start(&self) -> i64 {
        self.start
    }

    /// When the certificate ends, in seconds since 1970.
    #[must_use]
    pub fn expiry(&self) -> i64 {
        self.expiry
    }
}
