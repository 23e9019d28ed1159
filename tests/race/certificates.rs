//! The serving certificate of the webhook's Service, and its rotation under load.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use rustls::{
    ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};
use tokio_rustls::TlsAcceptor;

use test_support::guard::process::make_certificate;

/// The served certificates and the CAs that callers trust.
pub(crate) struct Certificates {
    files: PathBuf,
    /// The folders of the replicas' certificates.
    replicas: Vec<PathBuf>,
    trusted: Mutex<String>,
    acceptor: Mutex<TlsAcceptor>,
}

/// A certificate that is not served yet.
pub(crate) struct Next {
    pub(crate) ca_pem: String,
    files: PathBuf,
}

impl Certificates {
    /// Creates the proxy's certificate in this folder; the bundle also contains the CAs of the replicas' own
    /// certificates.
    pub(crate) fn new(files: PathBuf, replicas: Vec<PathBuf>, replicas_ca_pem: &str) -> Self {
        fs::create_dir_all(&files).unwrap();
        let trusted = make_certificate(&files) + replicas_ca_pem;
        let acceptor = Mutex::new(acceptor(&files));
        Self { files, replicas, trusted: Mutex::new(trusted), acceptor }
    }

    /// Returns the `caBundle`.
    pub(crate) fn trusted(&self) -> String {
        self.trusted.lock().unwrap().clone()
    }

    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        self.acceptor.lock().unwrap().clone()
    }

    /// Creates the next certificate, and trusts its CA in addition to the current ones.
    pub(crate) fn make_next(&self) -> Next {
        let files = self.files.join("next");
        fs::create_dir_all(&files).unwrap();
        let ca_pem = make_certificate(&files);
        self.trusted.lock().unwrap().push_str(&ca_pem);
        Next { ca_pem, files }
    }

    /// Serves the next certificate: the proxy at once, the replicas when they reload their files.
    pub(crate) fn serve(&self, next: &Next) {
        for folder in self.replicas.iter().chain([&self.files]) {
            for file in ["tls.crt", "tls.key"] {
                // Replaced atomically, because a replica may read it at any time.
                let fresh = folder.join(format!("{file}.next"));
                fs::copy(next.files.join(file), &fresh).unwrap();
                fs::rename(&fresh, folder.join(file)).unwrap();
            }
        }
        *self.acceptor.lock().unwrap() = acceptor(&self.files);
    }

    /// Trusts only the CA of this certificate.
    pub(crate) fn trust_only(&self, next: &Next) {
        self.trusted.lock().unwrap().clone_from(&next.ca_pem);
    }
}

fn acceptor(files: &Path) -> TlsAcceptor {
    let certificate = CertificateDer::from_pem_file(files.join("tls.crt")).unwrap();
    let key = PrivateKeyDer::from_pem_file(files.join("tls.key")).unwrap();
    let config = ServerConfig::builder().with_no_client_auth().with_single_cert(vec![certificate], key);
    TlsAcceptor::from(Arc::new(config.unwrap()))
}
