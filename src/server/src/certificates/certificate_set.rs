//! A CA certificate, the leaf certificate that it signed, and the key of the leaf.

use std::{fmt, net::IpAddr, sync::Arc, time::Duration};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, SerialNumber,
};
use rustls::{
    RootCertStore,
    client::{WebPkiServerVerifier, danger::ServerCertVerifier},
    crypto::CryptoProvider,
    pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject},
};
use time::OffsetDateTime;
use x509_parser::{extensions::GeneralName, parse_x509_certificate};

use crate::tls::{CertificatePair, CertificatePairError};

/// Time by which the start of validity precedes the creation, because the clocks of API servers may differ by seconds.
const BACKDATE: Duration = Duration::from_secs(BACKDATE_SECONDS.unsigned_abs());
const BACKDATE_SECONDS: i64 = 60;

/// A CA certificate with one leaf certificate and its key. Two sets are equal if their CAs are equal. `Debug` does not
/// print the key.
#[derive(Clone)]
pub(crate) struct CertificateSet {
    ca: String,
    certificate: String,
    key: String,
    pair: CertificatePair,
}

/// The reason why a certificate set cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CertificateSetError {
    /// The certificates could not be generated.
    #[error("cannot generate a certificate: {0}")]
    Generate(#[from] rcgen::Error),
    /// The certificate does not match the key.
    #[error(transparent)]
    Pair(#[from] CertificatePairError),
    /// An API server would reject the certificate.
    #[error("API servers would reject the certificate: {0}")]
    Rejected(String),
    /// A key of the Secret is missing or not UTF-8.
    #[error("key {0} is missing or not UTF-8")]
    Missing(String),
}

// === impl CertificateSet ===

impl CertificateSet {
    /// Generates a set for a server with these names or IP addresses, valid from `now` for `lifetime`.
    pub(crate) fn generate(
        names: &[String],
        now: OffsetDateTime,
        lifetime: Duration,
        provider: &CryptoProvider,
    ) -> Result<Self, CertificateSetError> {
        let ca_key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let mut ca = CertificateParams::new(Vec::new())?;
        // A unique name: verifiers look up issuers by name, which is ambiguous for two CAs of the same name.
        let created = now.unix_timestamp_nanos();
        ca.distinguished_name.push(DnType::CommonName, format!("etcd-guard self-managed CA {created}"));
        ca.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        ca.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        ca.not_before = now - BACKDATE;
        ca.not_after = now + lifetime;
        let ca_certificate = ca.self_signed(&ca_key)?;
        let leaf_key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let mut leaf = CertificateParams::new(names.to_vec())?;
        leaf.distinguished_name.push(DnType::CommonName, "etcd-guard");
        leaf.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        leaf.use_authority_key_identifier_extension = true;
        leaf.serial_number = Some(SerialNumber::from_slice(&created.to_be_bytes()));
        leaf.not_before = now - BACKDATE;
        leaf.not_after = now + lifetime;
        // The key of the CA is dropped with the issuer, so that no further certificate can be signed.
        let certificate = leaf.signed_by(&leaf_key, &Issuer::new(ca, ca_key))?;
        Self::from_pem(ca_certificate.pem(), certificate.pem(), leaf_key.serialize_pem(), provider)
    }

    /// Parses a stored set.
    pub(crate) fn from_pem(
        ca: String,
        certificate: String,
        key: String,
        provider: &CryptoProvider,
    ) -> Result<Self, CertificateSetError> {
        let pair = CertificatePair::from_pem(certificate.as_bytes(), key.as_bytes(), provider)?;
        Ok(Self { ca, certificate, key, pair })
    }

    /// Checks that an API server that trusts only this CA accepts the leaf for each of these names at this time.
    pub(crate) fn verify(
        &self,
        names: &[String],
        now: OffsetDateTime,
        provider: &Arc<CryptoProvider>,
    ) -> Result<(), CertificateSetError> {
        let now = unix_time(now);
        let roots = Arc::new(self.roots()?);
        let verifier = WebPkiServerVerifier::builder_with_provider(roots, Arc::clone(provider))
            .build()
            .map_err(|error| rejected(&error))?;
        let leaf =
            CertificateDer::from_pem_slice(self.certificate.as_bytes()).map_err(|error| rejected(&error))?;
        for name in names {
            let name = ServerName::try_from(name.as_str()).map_err(|error| rejected(&error))?;
            verifier.verify_server_cert(&leaf, &[], &name, &[], now).map_err(|error| rejected(&error))?;
        }
        Ok(())
    }

    /// The CA as the only trusted certificate.
    pub(super) fn roots(&self) -> Result<RootCertStore, CertificateSetError> {
        let mut roots = RootCertStore::empty();
        let ca = CertificateDer::from_pem_slice(self.ca.as_bytes()).map_err(|error| rejected(&error))?;
        roots.add(ca).map_err(|error| rejected(&error))?;
        Ok(roots)
    }

    /// Whether less than a third of the lifetime is left. The lifetime of this set counts, not the configured one:
    /// replicas with different settings would otherwise renew each other's certificates endlessly.
    pub(crate) fn is_renewal_due(&self, now: OffsetDateTime) -> bool {
        let end = self.pair.expiry();
        let start = self.pair.start().saturating_add(BACKDATE_SECONDS);
        end.saturating_sub(now.unix_timestamp()) < end.saturating_sub(start) / 3
    }

    /// The DNS names and IP addresses of the leaf.
    pub(crate) fn names(&self) -> Vec<String> {
        let Ok(leaf) = CertificateDer::from_pem_slice(self.certificate.as_bytes()) else { return Vec::new() };
        let Ok((_, leaf)) = parse_x509_certificate(&leaf) else { return Vec::new() };
        let names = leaf.subject_alternative_name().ok().flatten();
        names.iter().flat_map(|names| &names.value.general_names).filter_map(to_text).collect()
    }

    /// The CA certificate as PEM.
    pub(crate) fn ca(&self) -> &str {
        &self.ca
    }

    /// The leaf certificate as PEM.
    pub(crate) fn certificate(&self) -> &str {
        &self.certificate
    }

    /// The key of the leaf as PEM. Secret.
    pub(super) fn key(&self) -> &str {
        &self.key
    }

    /// The certificate and key that a TLS server uses.
    pub(crate) fn pair(&self) -> &CertificatePair {
        &self.pair
    }
}

fn rejected(error: &dyn fmt::Display) -> CertificateSetError {
    CertificateSetError::Rejected(error.to_string())
}

/// Converts a time to the type of rustls.
pub(super) fn unix_time(time: OffsetDateTime) -> UnixTime {
    let seconds = u64::try_from(time.unix_timestamp()).unwrap_or_default();
    UnixTime::since_unix_epoch(Duration::from_secs(seconds))
}

fn to_text(name: &GeneralName<'_>) -> Option<String> {
    match name {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        GeneralName::IPAddress(bytes) => {
            let v4 = <[u8; 4]>::try_from(*bytes).map(IpAddr::from);
            v4.or_else(|_| <[u8; 16]>::try_from(*bytes).map(IpAddr::from))
                .ok()
                .map(|address| address.to_string())
        }
        _ => None,
    }
}

impl PartialEq for CertificateSet {
    fn eq(&self, other: &Self) -> bool {
        self.ca == other.ca
    }
}

impl fmt::Debug for CertificateSet {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("CertificateSet").field("expiry", &self.pair.expiry()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: i64 = 3600;

    fn at(seconds: i64) -> OffsetDateTime {
        OffsetDateTime::from_unix_timestamp(1_800_000_000 + seconds).unwrap()
    }

    fn generate(names: &[&str], lifetime: i64) -> CertificateSet {
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        let provider = rustls::crypto::ring::default_provider();
        CertificateSet::generate(&names, at(0), Duration::from_secs(lifetime.unsigned_abs()), &provider)
            .unwrap()
    }

    #[test]
    fn renewal_is_due_when_a_third_of_lifetime_is_left() {
        for lifetime in [30, HOUR, 90 * 24 * HOUR] {
            let set = generate(&["a.b.svc"], lifetime);
            assert!(!set.is_renewal_due(at(0)), "{lifetime}");
            assert!(!set.is_renewal_due(at(lifetime * 6 / 10)), "{lifetime}");
            assert!(set.is_renewal_due(at(lifetime * 7 / 10)), "{lifetime}");
            assert!(set.is_renewal_due(at(2 * lifetime)), "{lifetime}");
        }
    }

    #[test]
    fn rejects_certificate_that_is_not_valid_yet() {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let names = [String::from("a.b.svc")];
        let set = generate(&["a.b.svc"], HOUR);
        assert!(set.verify(&names, at(0), &provider).is_ok());
        assert!(set.verify(&names, at(-HOUR), &provider).is_err());
    }

    #[test]
    fn returns_names_and_addresses_of_leaf() {
        let names = ["etcd-guard.etcd-guard.svc", "192.0.2.1", "2001:db8::1"];
        assert_eq!(generate(&names, HOUR).names(), names);
    }
}
