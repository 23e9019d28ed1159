//! TLS of the webhook port: the served certificate, and the verification of client certificates.
//!
//! The certificate can be replaced at any time. Existing connections keep theirs, new connections get the new one. The
//! certificate comes from [`files`] or from the certificate controller, which uses [`ServedCertificate`].

mod certificate_pair;
pub mod files;
mod served_certificate;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use rustls::{
    RootCertStore, ServerConfig,
    crypto::CryptoProvider,
    pki_types::{CertificateDer, pem::PemObject},
    server::WebPkiClientVerifier,
};

pub use self::{
    certificate_pair::{CertificatePair, CertificatePairError},
    served_certificate::ServedCertificate,
};

/// The TLS configuration of the HTTPS port.
pub struct Tls {
    pub(super) config: ServerConfig,
    pub(super) served: ServedCertificate,
}

/// An invalid TLS setting. Each message names the flag to correct.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The cryptography provider does not support the required TLS versions.
    #[error("failed to configure TLS: {0}")]
    Provider(#[from] rustls::Error),
    /// The file of `--client-ca` contains no usable certificate.
    #[error("--client-ca {}: {cause}", path.display())]
    ClientCa {
        /// The file.
        path: PathBuf,
        /// The cause.
        cause: String,
    },
}

// === impl Tls ===

impl Tls {
    /// Configures TLS 1.2 and 1.3 with the certificate of `served`.
    ///
    /// ALPN offers HTTP/1.1 only: the API server uses HTTP/1.1 with Services, but would select HTTP/2 on loopback if it
    /// were offered.
    ///
    /// With `client_ca`, the handshake fails for callers without a certificate that chains to one of that file.
    pub fn new(
        provider: Arc<CryptoProvider>,
        served: ServedCertificate,
        client_ca: Option<&Path>,
    ) -> Result<Self, TlsError> {
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()?;
        let builder = match client_ca {
            None => builder.with_no_client_auth(),
            Some(path) => {
                let invalid_file = |cause: String| TlsError::ClientCa { path: path.to_owned(), cause };
                let roots = read_roots(path).map_err(invalid_file)?;
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                    .build()
                    .map_err(|error| invalid_file(error.to_string()))?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let mut config = builder.with_cert_resolver(Arc::new(served.clone()));
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self { config, served })
    }
}

/// Reads the CA certificates of a PEM file.
fn read_roots(path: &Path) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(path).map_err(|error| error.to_string())? {
        roots.add(certificate.map_err(|error| error.to_string())?).map_err(|error| error.to_string())?;
    }
    if roots.is_empty() { Err(String::from("the file contains no certificate")) } else { Ok(roots) }
}
