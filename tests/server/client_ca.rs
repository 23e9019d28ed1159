//! `--client-ca`: callers without a certificate of that CA get no response.

use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};

use crate::{Server, UNREACHABLE, deletion_review};
use test_support::{
    guard::process::CLIENT_CA,
    http_client::{Connection, Identity, RequestError},
};

/// A CA and the caller that has a certificate of it.
struct Caller {
    ca: String,
    certificate: String,
    key: String,
}

impl Caller {
    fn new() -> Self {
        let (ca_key, key) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
        let mut ca = CertificateParams::new(Vec::new()).unwrap();
        // Both CAs of the test have the same name, because a name proves nothing.
        ca.distinguished_name.push(DnType::CommonName, "CA of apiservers");
        ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca_pem = ca.self_signed(&ca_key).unwrap().pem();
        let mut caller = CertificateParams::new(Vec::new()).unwrap();
        caller.distinguished_name.push(DnType::CommonName, "kube-apiserver");
        caller.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let certificate = caller.signed_by(&key, &Issuer::new(ca, ca_key)).unwrap().pem();
        Self { ca: ca_pem, certificate, key: key.serialize_pem() }
    }

    fn identity(&self) -> Identity<'_> {
        Identity { certificate: &self.certificate, key: &self.key }
    }
}

/// In TLS 1.3 the handshake finishes for the caller before the server has checked the certificate, so a review is sent.
async fn status_of(connection: Result<Connection, RequestError>) -> Result<u16, RequestError> {
    let review = deletion_review(&crate::etcd_pod()).to_string();
    Ok(connection?.post("/validate?timeout=10s", review).await?.status.as_u16())
}

#[tokio::test]
async fn accepts_only_callers_of_client_ca() {
    let (caller, stranger) = (Caller::new(), Caller::new());
    let files = tempfile::tempdir().unwrap();
    std::fs::write(files.path().join(CLIENT_CA), &caller.ca).unwrap();
    let server = Server::with_files(UNREACHABLE, files);
    let (address, ca) = (server.address(), &server.guard.ca_pem);

    let answer = status_of(Connection::tls_with_identity(caller.identity(), address, ca).await).await;
    assert_eq!(answer.unwrap(), 200);
    let answer = status_of(Connection::tls_with_identity(stranger.identity(), address, ca).await).await;
    assert!(answer.is_err(), "a caller of another CA: {answer:?}");
    let answer = status_of(Connection::tls(address, ca).await).await;
    assert!(answer.is_err(), "a caller without a certificate: {answer:?}");
}

#[test]
fn rejects_invalid_client_ca_at_start() {
    let files = tempfile::tempdir().unwrap();
    test_support::guard::process::make_certificate(files.path());
    std::fs::write(files.path().join(CLIENT_CA), "rubbish").unwrap();
    let file = |name: &str| files.path().join(name);
    let mut serve = test_support::processes::child::scoped_command(env!("CARGO_BIN_EXE_etcd-guard"));
    serve.args(["serve", "--listen=127.0.0.1:0", "--admin-listen=127.0.0.1:0"]);
    serve.arg("--tls-cert").arg(file("tls.crt")).arg("--tls-key").arg(file("tls.key"));
    let output = serve.arg("--client-ca").arg(file(CLIENT_CA)).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && stderr.contains("--client-ca"), "{stderr}");
    assert!(stderr.contains("the file contains no certificate"), "{stderr}");
}
