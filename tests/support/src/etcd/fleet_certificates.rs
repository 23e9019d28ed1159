//! The certificates of a fleet whose members require a client certificate.

use std::{
    fs,
    net::Ipv4Addr,
    path::{Path, PathBuf},
    sync::Arc,
};

use k8s_openapi::{ByteString, api::core::v1::Secret};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, SanType,
};
use rustls::{
    RootCertStore, ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer},
    server::WebPkiClientVerifier,
};
use tokio_rustls::TlsAcceptor;

/// The name of the Secret with the client certificate.
pub(super) const CLIENT_SECRET: &str = "etcd-client-tls";

/// A certificate authority with the client certificate of the guard.
pub(super) struct FleetCertificates {
    ca_der: CertificateDer<'static>,
    issuer: Issuer<'static, KeyPair>,
    /// The keys and values of the Secret.
    client: [(&'static str, String); 3],
}

impl FleetCertificates {
    /// Creates the authority and the client certificate.
    pub(super) fn new() -> Self {
        let mut parameters = CertificateParams::new(Vec::new()).expect("parameters");
        parameters.distinguished_name.push(DnType::CommonName, "fleet");
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let ca = parameters.self_signed(&key).expect("a certificate");
        let (ca_der, ca_pem) = (ca.der().clone(), ca.pem());
        let issuer = Issuer::new(parameters, key);
        let mut client = CertificateParams::new(Vec::new()).expect("parameters");
        client.distinguished_name.push(DnType::CommonName, "etcd-guard");
        client.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().expect("a key");
        let certificate = client.signed_by(&key, &issuer).expect("a certificate").pem();
        let client = [("ca.crt", ca_pem), ("tls.crt", certificate), ("tls.key", key.serialize_pem())];
        Self { ca_der, issuer, client }
    }

    /// Returns the TLS settings of the members at these addresses, which share one certificate.
    pub(super) fn acceptor(&self, addresses: impl IntoIterator<Item = Ipv4Addr>) -> TlsAcceptor {
        let mut parameters = CertificateParams::new(Vec::new()).expect("parameters");
        parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        parameters.subject_alt_names =
            addresses.into_iter().map(|address| SanType::IpAddress(address.into())).collect();
        let key = KeyPair::generate().expect("a key");
        let certificate = parameters.signed_by(&key, &self.issuer).expect("a certificate").der().clone();
        let mut roots = RootCertStore::empty();
        roots.add(self.ca_der.clone()).expect("a certificate authority");
        let verifier = WebPkiClientVerifier::builder(Arc::new(roots)).build().expect("a verifier");
        let key = PrivateKeyDer::try_from(key.serialize_der()).expect("a key");
        let config = ServerConfig::builder().with_client_cert_verifier(verifier);
        let mut config = config.with_single_cert(vec![certificate], key).expect("a pair");
        config.alpn_protocols = vec![b"h2".to_vec()];
        TlsAcceptor::from(Arc::new(config))
    }

    /// Writes the certificate authority, the client certificate and its key to this folder, and returns their paths.
    pub(super) fn write_client(&self, folder: &Path) -> [PathBuf; 3] {
        self.client.each_ref().map(|(name, text)| {
            let path = folder.join(name);
            fs::write(&path, text).expect("a file");
            path
        })
    }

    /// Returns the Secret with the client certificate.
    pub(super) fn secret(&self) -> Secret {
        let mut secret = Secret::default();
        secret.metadata.name = Some(CLIENT_SECRET.to_owned());
        let data = self.client.iter();
        let data =
            data.map(|(name, text)| ((*name).to_owned(), ByteString(text.clone().into_bytes()))).collect();
        secret.data = Some(data);
        secret
    }
}
