//! A certificate and key in two files, which are read periodically.
//!
//! Changes are detected by content, not by file events: a mounted Secret changes by a symlink two directories up, which
//! file watches miss, and comparing a few kilobytes costs little.

use std::{io, path::PathBuf, sync::Arc, time::Duration};

use rustls::crypto::CryptoProvider;
use tokio::time::sleep;

use super::{
    certificate_pair::{CertificatePair, CertificatePairError},
    served_certificate::ServedCertificate,
};

/// Paths of a certificate and its key.
#[derive(Clone, Debug)]
pub struct CertificateFiles {
    /// The certificate chain, PEM.
    pub certificate: PathBuf,
    /// The private key, PEM.
    pub key: PathBuf,
}

/// Files without a usable certificate and key. Each message names the flag to correct.
#[derive(Debug, thiserror::Error)]
pub enum CertificateFilesError {
    /// A file cannot be read.
    #[error("{flag} {}: {cause}", path.display())]
    Read {
        /// The flag that names the file.
        flag: &'static str,
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        cause: io::Error,
    },
    /// The content is invalid.
    #[error("--tls-cert {} and --tls-key {}: {cause}", files.certificate.display(), files.key.display())]
    Pair {
        /// Both files.
        files: CertificateFiles,
        /// The cause.
        cause: CertificatePairError,
    },
}

/// The result of the last read: the content of both files, or an error message.
type LastRead = Result<(Vec<u8>, Vec<u8>), String>;

/// Serves the certificate of two files and replaces it when they change.
pub struct CertificateFileWatcher {
    files: CertificateFiles,
    provider: Arc<CryptoProvider>,
    served: ServedCertificate,
    last_read: LastRead,
}

// === impl CertificateFileWatcher ===

impl CertificateFileWatcher {
    /// Serves the certificate that the files contain now. Fails if it is unusable.
    pub fn start(
        files: CertificateFiles,
        provider: Arc<CryptoProvider>,
        served: ServedCertificate,
    ) -> Result<Self, CertificateFilesError> {
        let content = files.read()?;
        served.replace(files.pair(&content, &provider)?);
        Ok(Self { files, provider, served, last_read: Ok(content) })
    }

    /// Reads the files every `interval`. Never returns.
    pub async fn watch(mut self, interval: Duration) {
        loop {
            sleep(interval).await;
            self.reload_if_changed();
        }
    }

    /// Serves a changed certificate. Logs an unusable one once and continues with the old one.
    fn reload_if_changed(&mut self) {
        let read = self.files.read();
        let current = read.as_ref().map(Clone::clone).map_err(ToString::to_string);
        if current == self.last_read {
            return;
        }
        self.last_read = current;
        match read.and_then(|content| self.files.pair(&content, &self.provider)) {
            Ok(pair) => {
                tracing::info!(expiry = pair.expiry(), "serving a new certificate");
                self.served.replace(pair);
            }
            Err(error) => {
                tracing::warn!(%error, "the new certificate is not usable, still serving the old one");
                self.served.count_failure();
            }
        }
    }
}

// === impl CertificateFiles ===

impl CertificateFiles {
    fn read(&self) -> Result<(Vec<u8>, Vec<u8>), CertificateFilesError> {
        let read = |flag, path: &PathBuf| {
            std::fs::read(path).map_err(|cause| CertificateFilesError::Read {
                flag,
                path: path.clone(),
                cause,
            })
        };
        Ok((read("--tls-cert", &self.certificate)?, read("--tls-key", &self.key)?))
    }

    fn pair(
        &self,
        content: &(Vec<u8>, Vec<u8>),
        provider: &CryptoProvider,
    ) -> Result<CertificatePair, CertificateFilesError> {
        CertificatePair::from_pem(&content.0, &content.1, provider)
            .map_err(|cause| CertificateFilesError::Pair { files: self.clone(), cause })
    }
}
