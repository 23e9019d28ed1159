//! `--client-ca`: who does not come from that CA gets no answer.

use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};

use crate::{
    Guarded, NOBODY, deletion_of,
    support::{
        guard_process::CLIENT_CA,
        http_client::{Connection, Identity, NoAnswer},
    },
};

/// A CA, and the one caller that it vouches for.
struct Vouched {
    ca: String,
    certificate: String,
    key: String,
}

impl Vouched {
    fn new() -> Self {
        let (ca_key, key) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
        let mut ca = CertificateParams::new(Vec::new()).unwrap();
        // Both CAs of the test have this name: a name proves nothing.
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

/// A handshake of TLS 1.3 ends for the caller before the server has judged it, so that a review has to be sent.
async fn status_of(connection: Result<Connection, NoAnswer>) -> Result<u16, NoAnswer> {
    let review = deletion_of(&crate::etcd_pod()).to_string();
    Ok(connection?.post("/validate?timeout=10s", review).await?.status.as_u16())
}

#[tokio::test]
async fn only_callers_of_the_right_ca_are_answered() {
    let (vouched, stranger) = (Vouched::new(), Vouched::new());
    let files = tempfile::tempdir().unwrap();
    std::fs::write(files.path().join(CLIENT_CA), &vouched.ca).unwrap();
    let guarded = Guarded::with_files(NOBODY, files);
    let (address, ca) = (guarded.address(), &guarded.guard.ca_pem);

    let answer = status_of(Connection::tls_as(vouched.identity(), address, ca).await).await;
    assert_eq!(answer.unwrap(), 200);
    let answer = status_of(Connection::tls_as(stranger.identity(), address, ca).await).await;
    assert!(answer.is_err(), "a stranger: {answer:?}");
    let answer = status_of(Connection::tls(address, ca).await).await;
    assert!(answer.is_err(), "nobody: {answer:?}");
}

#[test]
fn a_client_ca_that_is_none_is_told_at_the_start() {
    let files = tempfile::tempdir().unwrap();
    crate::support::guard_process::make_certificate(files.path());
    std::fs::write(files.path().join(CLIENT_CA), "rubbish").unwrap();
    let file = |name: &str| files.path().join(name);
    let mut serve = crate::support::child::mortal(env!("CARGO_BIN_EXE_etcd-guard"));
    serve.args(["serve", "--listen=127.0.0.1:0", "--admin-listen=127.0.0.1:0"]);
    serve.arg("--tls-cert").arg(file("tls.crt")).arg("--tls-key").arg(file("tls.key"));
    let output = serve.arg("--client-ca").arg(file(CLIENT_CA)).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("--client-ca"), "{said}");
    assert!(said.contains("it holds no certificate"), "{said}");
}
