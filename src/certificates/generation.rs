//! A CA, the leaf that it signed, and the leaf's key.

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

use crate::server::tls::{Pair, PairError};

/// How far before its making a certificate is valid: several apiservers' clocks may differ by seconds.
const BACKDATE: Duration = Duration::from_secs(BACKDATE_SECONDS.unsigned_abs());
const BACKDATE_SECONDS: i64 = 60;

/// One CA with one leaf. Equality is that of the CA. Its `Debug` shows no key.
#[derive(Clone)]
pub struct Generation {
    ca: String,
    certificate: String,
    key: String,
    pair: Pair,
}

/// Why there is no usable generation.
#[derive(Debug, thiserror::Error)]
pub enum GenerationError {
    /// It could not be made.
    #[error("making a certificate failed: {0}")]
    Making(#[from] rcgen::Error),
    /// Certificate and key are no pair.
    #[error(transparent)]
    Pair(#[from] PairError),
    /// An apiserver would not take the certificate.
    #[error("the certificate would not be trusted: {0}")]
    Distrusted(String),
    /// Something is no text, or is missing.
    #[error("{0} is missing or no text")]
    Missing(String),
}

// === impl Generation ===

impl Generation {
    /// Makes a new one for a server of these names or addresses, valid from now for `life`.
    pub fn make(
        names: &[String],
        now: OffsetDateTime,
        life: Duration,
        provider: &CryptoProvider,
    ) -> Result<Self, GenerationError> {
        let ca_key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let mut ca = CertificateParams::new(Vec::new())?;
        // A name of its own: verifiers find issuers by name, and two CAs of one name would make them guess.
        let born = now.unix_timestamp_nanos();
        ca.distinguished_name.push(DnType::CommonName, format!("etcd-guard self-managed CA {born}"));
        ca.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        ca.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        ca.not_before = now - BACKDATE;
        ca.not_after = now + life;
        let ca_certificate = ca.self_signed(&ca_key)?;
        let leaf_key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let mut leaf = CertificateParams::new(names.to_vec())?;
        leaf.distinguished_name.push(DnType::CommonName, "etcd-guard");
        leaf.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        leaf.use_authority_key_identifier_extension = true;
        leaf.serial_number = Some(SerialNumber::from_slice(&born.to_be_bytes()));
        leaf.not_before = now - BACKDATE;
        leaf.not_after = now + life;
        // The CA's key goes with the issuer, here: nobody can sign anything further.
        let certificate = leaf.signed_by(&leaf_key, &Issuer::new(ca, ca_key))?;
        Self::read(ca_certificate.pem(), certificate.pem(), leaf_key.serialize_pem(), provider)
    }

    /// Takes what somebody stored.
    pub fn read(
        ca: String,
        certificate: String,
        key: String,
        provider: &CryptoProvider,
    ) -> Result<Self, GenerationError> {
        let pair = Pair::from_pem(certificate.as_bytes(), key.as_bytes(), provider)?;
        Ok(Self { ca, certificate, key, pair })
    }

    /// Whether an apiserver that trusts this CA alone would accept this leaf for each of these names at this time.
    pub fn verify(
        &self,
        names: &[String],
        now: OffsetDateTime,
        provider: &Arc<CryptoProvider>,
    ) -> Result<(), GenerationError> {
        let distrusted = |error: &dyn fmt::Display| GenerationError::Distrusted(error.to_string());
        let seconds = u64::try_from(now.unix_timestamp()).unwrap_or_default();
        let now = UnixTime::since_unix_epoch(Duration::from_secs(seconds));
        let mut roots = RootCertStore::empty();
        let ca = CertificateDer::from_pem_slice(self.ca.as_bytes()).map_err(|error| distrusted(&error))?;
        roots.add(ca).map_err(|error| distrusted(&error))?;
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider))
            .build()
            .map_err(|error| distrusted(&error))?;
        let leaf = CertificateDer::from_pem_slice(self.certificate.as_bytes())
            .map_err(|error| distrusted(&error))?;
        for name in names {
            let name = ServerName::try_from(name.as_str()).map_err(|error| distrusted(&error))?;
            verifier.verify_server_cert(&leaf, &[], &name, &[], now).map_err(|error| distrusted(&error))?;
        }
        Ok(())
    }

    /// Whether less than a third of its life is left: of its own, not of what this process would give a new one. Replicas
    /// of different settings would find each other's due without end. What a clock made that ran ahead is not valid yet.
    #[must_use]
    pub fn is_due(&self, now: OffsetDateTime) -> bool {
        let end = self.pair.expiry();
        let born = self.pair.start().saturating_add(BACKDATE_SECONDS);
        end.saturating_sub(now.unix_timestamp()) < end.saturating_sub(born) / 3
    }

    /// The names and addresses that the leaf is for.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        let Ok(leaf) = CertificateDer::from_pem_slice(self.certificate.as_bytes()) else { return Vec::new() };
        let Ok((_, leaf)) = parse_x509_certificate(&leaf) else { return Vec::new() };
        let names = leaf.subject_alternative_name().ok().flatten();
        names.iter().flat_map(|names| &names.value.general_names).filter_map(name).collect()
    }

    /// The CA's certificate, PEM.
    #[must_use]
    pub fn ca(&self) -> &str {
        &self.ca
    }

    /// The leaf's certificate, PEM.
    #[must_use]
    pub fn certificate(&self) -> &str {
        &self.certificate
    }

    /// The leaf's key, PEM: secret.
    pub(super) fn key(&self) -> &str {
        &self.key
    }

    /// What a server shows.
    #[must_use]
    pub fn pair(&self) -> &Pair {
        &self.pair
    }
}

fn name(name: &GeneralName<'_>) -> Option<String> {
    match name {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        GeneralName::IPAddress(bytes) => {
            let v4 = <[u8; 4]>::try_from(*bytes).map(IpAddr::from);
            v4.or_else(|_| <[u8; 16]>::try_from(*bytes).map(IpAddr::from)).ok().map(|it| it.to_string())
        }
        _ => None,
    }
}

impl PartialEq for Generation {
    fn eq(&self, other: &Self) -> bool {
        self.ca == other.ca
    }
}

impl fmt::Debug for Generation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Generation").field("expiry", &self.pair.expiry()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: i64 = 3600;

    fn at(seconds: i64) -> OffsetDateTime {
        OffsetDateTime::from_unix_timestamp(1_800_000_000 + seconds).unwrap()
    }

    fn made(names: &[&str], life: i64) -> Generation {
        let names: Vec<_> = names.iter().map(|it| (*it).to_owned()).collect();
        let provider = rustls::crypto::ring::default_provider();
        Generation::make(&names, at(0), Duration::from_secs(life.unsigned_abs()), &provider).unwrap()
    }

    #[test]
    fn it_is_due_when_a_third_of_its_own_life_is_left_whatever_a_new_one_would_get() {
        for life in [30, HOUR, 90 * 24 * HOUR] {
            let generation = made(&["a.b.svc"], life);
            assert!(!generation.is_due(at(0)), "{life}");
            assert!(!generation.is_due(at(life * 6 / 10)), "{life}");
            assert!(generation.is_due(at(life * 7 / 10)), "{life}");
            assert!(generation.is_due(at(2 * life)), "{life}");
        }
    }

    #[test]
    fn what_a_clock_made_that_ran_ahead_is_not_taken() {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let names = [String::from("a.b.svc")];
        let generation = made(&["a.b.svc"], HOUR);
        assert!(generation.verify(&names, at(0), &provider).is_ok());
        assert!(generation.verify(&names, at(-HOUR), &provider).is_err());
    }

    #[test]
    fn it_tells_what_it_is_for() {
        let names = ["etcd-guard.etcd-guard.svc", "192.0.2.1", "2001:db8::1"];
        assert_eq!(made(&names, HOUR).names(), names);
    }
}
