//! TLS as the apiserver sees it: which pair of certificate and key is served, and whose certificates are asked for.
//!
//! The pair can be exchanged at any moment. A connection keeps what it was opened with; a new one gets the new pair. Where
//! pairs come from is not known here but for [`files`].

pub mod files;
mod pair;
mod serving;

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
    pair::{Pair, PairError},
    serving::Serving,
};

/// What the HTTPS port speaks.
pub struct Tls {
    pub(super) config: ServerConfig,
    pub(super) serving: Serving,
}

/// What is wrong with TLS' settings; each text names the flag to look at.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The provider of cryptography lacks what TLS needs.
    #[error("TLS cannot be set up: {0}")]
    Provider(#[from] rustls::Error),
    /// The file of `--client-ca` holds no usable certificate.
    #[error("--client-ca {}: {cause}", path.display())]
    ClientCa {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        cause: String,
    },
}

// === impl Tls ===

impl Tls {
    /// TLS 1.2 and 1.3 with whatever pair is served, HTTP/1.1 alone: all that the apiserver speaks to a Service, and it
    /// would take HTTP/2 on loopback if it were offered.
    ///
    /// With `client_ca`, only callers whose certificate leads to one of that file's get through the handshake.
    pub fn new(
        provider: Arc<CryptoProvider>,
        serving: Serving,
        client_ca: Option<&Path>,
    ) -> Result<Self, TlsError> {
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()?;
        let builder = match client_ca {
            None => builder.with_no_client_auth(),
            Some(path) => {
                let in_file = |cause: String| TlsError::ClientCa { path: path.to_owned(), cause };
                let roots = roots(path).map_err(in_file)?;
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                    .build()
                    .map_err(|error| in_file(error.to_string()))?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let mut config = builder.with_cert_resolver(Arc::new(serving.clone()));
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self { config, serving })
    }
}

fn roots(path: &Path) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(path).map_err(|error| error.to_string())? {
        roots.add(certificate.map_err(|error| error.to_string())?).map_err(|error| error.to_string())?;
    }
    if roots.is_empty() { Err(String::from("it holds no certificate")) } else { Ok(roots) }
}
