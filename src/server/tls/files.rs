//! A pair in two files, read again and again.
//!
//! By content, not by file events: a mounted Secret changes by a symlink two directories up, which watches of the file do
//! not see, and a comparison of a few kilobytes costs nothing.

use std::{io, path::PathBuf, sync::Arc, time::Duration};

use rustls::crypto::CryptoProvider;
use tokio::time::sleep;

use super::{Pair, PairError, Serving};

/// Where the pair is.
#[derive(Clone, Debug)]
pub struct Files {
    /// The certificate chain, PEM.
    pub certificate: PathBuf,
    /// Its key, PEM.
    pub key: PathBuf,
}

/// Why the files hold no pair; each text names the flag to look at.
#[derive(Debug, thiserror::Error)]
pub enum FilesError {
    /// One of them cannot be read.
    #[error("{flag} {}: {cause}", path.display())]
    Read {
        /// The flag that names the file.
        flag: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system says.
        cause: io::Error,
    },
    /// What they hold is no pair.
    #[error("--tls-cert {} and --tls-key {}: {cause}", files.certificate.display(), files.key.display())]
    Pair {
        /// Both files.
        files: Files,
        /// What is wrong.
        cause: PairError,
    },
}

/// What was read last: both contents, or why not.
type Seen = Result<(Vec<u8>, Vec<u8>), String>;

/// Serves what the files hold, and keeps an eye on them.
pub struct Watcher {
    files: Files,
    provider: Arc<CryptoProvider>,
    serving: Serving,
    seen: Seen,
}

// === impl Watcher ===

impl Watcher {
    /// Serves the pair that the files hold now. Without one there is nothing to start with.
    pub fn start(files: Files, provider: Arc<CryptoProvider>, serving: Serving) -> Result<Self, FilesError> {
        let content = files.read()?;
        serving.replace(files.pair(&content, &provider)?);
        Ok(Self { files, provider, serving, seen: Ok(content) })
    }

    /// Looks at the files every `interval`, for as long as it is awaited.
    pub async fn watch(mut self, interval: Duration) {
        loop {
            sleep(interval).await;
            self.look();
        }
    }

    /// Takes a new pair into use. A broken one is told once, and the old one stays.
    fn look(&mut self) {
        let read = self.files.read();
        let seen = read.as_ref().map(Clone::clone).map_err(ToString::to_string);
        if seen == self.seen {
            return;
        }
        self.seen = seen;
        match read.and_then(|content| self.files.pair(&content, &self.provider)) {
            Ok(pair) => {
                tracing::info!(expiry = pair.expiry(), "serving a new certificate");
                self.serving.replace(pair);
            }
            Err(error) => {
                tracing::warn!(%error, "new certificate not usable, the old one is served on");
                self.serving.count_failure();
            }
        }
    }
}

// === impl Files ===

impl Files {
    fn read(&self) -> Result<(Vec<u8>, Vec<u8>), FilesError> {
        let read = |flag, path: &PathBuf| {
            std::fs::read(path).map_err(|cause| FilesError::Read { flag, path: path.clone(), cause })
        };
        Ok((read("--tls-cert", &self.certificate)?, read("--tls-key", &self.key)?))
    }

    fn pair(&self, content: &(Vec<u8>, Vec<u8>), provider: &CryptoProvider) -> Result<Pair, FilesError> {
        Pair::from_pem(&content.0, &content.1, provider)
            .map_err(|cause| FilesError::Pair { files: self.clone(), cause })
    }
}
