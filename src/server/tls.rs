//! The certificate that the apiserver sees.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use rustls::{
    ServerConfig,
    crypto::CryptoProvider,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};

/// What is wrong with the certificate or its key; each text names the flag to look at.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The file of `--tls-cert` cannot be read as PEM.
    #[error("--tls-cert {}: {cause}", path.display())]
    Certificate {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        cause: String,
    },
    /// The file of `--tls-key` cannot be read as PEM.
    #[error("--tls-key {}: {cause}", path.display())]
    Key {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        cause: String,
    },
    /// They do not belong together, or the key is of a kind that is not supported.
    #[error("--tls-cert {} and --tls-key {} do not fit: {cause}", certificate.display(), key.display())]
    Pair {
        /// The certificate's file.
        certificate: PathBuf,
        /// The key's file.
        key: PathBuf,
        /// What does not fit.
        cause: rustls::Error,
    },
}

/// TLS 1.2 and 1.3 with this certificate, HTTP/1.1 alone: all that the apiserver speaks to a Service, and it would take
/// HTTP/2 on loopback if it were offered.
pub fn configure(
    provider: Arc<CryptoProvider>,
    certificate: &Path,
    key: &Path,
) -> Result<ServerConfig, TlsError> {
    let in_certificate = |cause: &dyn std::fmt::Display| TlsError::Certificate {
        path: certificate.to_owned(),
        cause: cause.to_string(),
    };
    let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_file_iter(certificate)
        .and_then(Iterator::collect)
        .map_err(|error| in_certificate(&error))?;
    if chain.is_empty() {
        return Err(in_certificate(&"it holds no certificate"));
    }
    let private_key = PrivateKeyDer::from_pem_file(key)
        .map_err(|error| TlsError::Key { path: key.to_owned(), cause: error.to_string() })?;
    let in_pair = |cause| TlsError::Pair { certificate: certificate.to_owned(), key: key.to_owned(), cause };
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(in_pair)?
        .with_no_client_auth()
        .with_single_cert(chain, private_key)
        .map_err(in_pair)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}
