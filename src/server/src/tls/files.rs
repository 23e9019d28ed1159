//! A certificate and key in two files, which are read periodically. Of several such pairs, the newest one is served.
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

/// The content of both files.
type Content = (Vec<u8>, Vec<u8>);

/// Serves the newest certificate of one or several pairs of files, and replaces it when they change.
pub struct CertificateFileWatcher {
    sources: Vec<Source>,
    provider: Arc<CryptoProvider>,
    served: ServedCertificate,
    /// The pair that is served.
    current: Option<CertificatePair>,
}

/// A pair of files.
struct Source {
    files: CertificateFiles,
    /// The result of the last read: the content, or an error message.
    last_read: Option<Result<Content, String>>,
    /// The last usable content.
    pair: Option<CertificatePair>,
}

// === impl CertificateFileWatcher ===

impl CertificateFileWatcher {
    /// Serves the newest certificate that the files contain now. Fails if none is usable.
    pub fn start(
        files: Vec<CertificateFiles>,
        provider: Arc<CryptoProvider>,
        served: ServedCertificate,
    ) -> Result<Self, CertificateFilesError> {
        let new_source = |files| Source { files, last_read: None, pair: None };
        let sources = files.into_iter().map(new_source).collect();
        let mut watcher = Self { sources, provider, served, current: None };
        let mut errors = watcher.read_changes();
        watcher.serve_newest();
        if watcher.current.is_none() && !errors.is_empty() {
            return Err(errors.swap_remove(0));
        }
        for error in errors.iter().filter(|error| !error.is_missing_file()) {
            tracing::warn!(%error, "a certificate is not usable, another one is served");
        }
        Ok(watcher)
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
        for error in self.read_changes() {
            tracing::warn!(%error, "the new certificate is not usable, still serving the old one");
            self.served.count_failure();
        }
        if let Some(expiry) = self.serve_newest() {
            tracing::info!(expiry, "serving a new certificate");
        }
    }

    /// Reads all files. Returns the errors of those that changed, except missing files of a pair that was never usable
    /// while another pair is.
    fn read_changes(&mut self) -> Vec<CertificateFilesError> {
        let provider = &self.provider;
        let is_serving = self.current.is_some();
        let errors = self.sources.iter_mut().filter_map(|source| {
            let error = source.read_change(provider).err()?;
            (!(is_serving && source.pair.is_none() && error.is_missing_file())).then_some(error)
        });
        errors.collect()
    }

    /// Serves the certificate that starts last. Returns its expiry if it was not served before.
    fn serve_newest(&mut self) -> Option<i64> {
        let newest = self.sources.iter().filter_map(|source| source.pair.as_ref());
        let newest = newest.max_by_key(|pair| pair.start())?;
        if self.current.as_ref().is_some_and(|current| Arc::ptr_eq(&current.certified, &newest.certified)) {
            return None;
        }
        self.current = Some(newest.clone());
        self.served.replace(newest.clone());
        Some(newest.expiry())
    }
}

// === impl Source ===

impl Source {
    /// Reads the files. The pair is replaced if they changed and are usable.
    fn read_change(&mut self, provider: &CryptoProvider) -> Result<(), CertificateFilesError> {
        let read = self.files.read();
        let current = Some(read.as_ref().map(Clone::clone).map_err(ToString::to_string));
        if current == self.last_read {
            return Ok(());
        }
        self.last_read = current;
        self.pair = Some(self.files.pair(&read?, provider)?);
        Ok(())
    }
}

// === impl CertificateFilesError ===

impl CertificateFilesError {
    fn is_missing_file(&self) -> bool {
        matches!(self, Self::Read { cause, .. } if cause.kind() == io::ErrorKind::NotFound)
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
