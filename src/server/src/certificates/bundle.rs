//! The content of a `caBundle`: a list of trusted CA certificates.

use base64::{Engine, engine::general_purpose::STANDARD};
use rustls::pki_types::{CertificateDer, pem::PemObject};
use time::OffsetDateTime;
use x509_parser::parse_x509_certificate;

/// The certificates of a `caBundle`, in order and without duplicates.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Bundle {
    certificates: Vec<CertificateDer<'static>>,
}

// === impl Bundle ===

impl Bundle {
    /// Parses base64-encoded PEM, the format of the API. Certificates that cannot be parsed are dropped.
    pub(super) fn parse(base64: &str) -> Self {
        let pem = STANDARD.decode(base64).unwrap_or_default();
        Self::from_pem(&pem)
    }

    fn from_pem(pem: &[u8]) -> Self {
        let mut bundle = Self::default();
        for certificate in CertificateDer::pem_slice_iter(pem).filter_map(Result::ok) {
            bundle.add(certificate);
        }
        bundle
    }

    /// Whether the bundle contains all certificates of this PEM, which must contain at least one.
    pub(super) fn covers(&self, ca: &str) -> bool {
        let wanted = Self::from_pem(ca.as_bytes()).certificates;
        !wanted.is_empty() && wanted.iter().all(|certificate| self.certificates.contains(certificate))
    }

    /// Adds the certificates of this PEM.
    pub(super) fn with(mut self, ca: &str) -> Self {
        for certificate in Self::from_pem(ca.as_bytes()).certificates {
            self.add(certificate);
        }
        self
    }

    /// Adds the certificates of another bundle.
    pub(super) fn join(mut self, other: Self) -> Self {
        for certificate in other.certificates {
            self.add(certificate);
        }
        self
    }

    /// Removes expired certificates, because a leaf expires with its CA. Other unknown certificates stay: a replica
    /// that is being replaced may still serve a leaf of such a CA.
    pub(super) fn without_expired(mut self, now: OffsetDateTime) -> Self {
        self.certificates.retain(|certificate| {
            let parsed = parse_x509_certificate(certificate);
            parsed.is_ok_and(|(_, parsed)| parsed.validity().not_after.timestamp() >= now.unix_timestamp())
        });
        self
    }

    /// Whether the bundle contains no certificate. The API server would then use the CAs of its operating system.
    pub(super) fn is_empty(&self) -> bool {
        self.certificates.is_empty()
    }

    /// Formats the bundle as base64-encoded PEM.
    pub(super) fn to_base64(&self) -> String {
        let pem = self.certificates.iter().map(|certificate| {
            let text = STANDARD.encode(certificate);
            let lines: Vec<&str> = lines(&text).collect();
            format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n", lines.join("\n"))
        });
        STANDARD.encode(pem.collect::<String>())
    }

    fn add(&mut self, certificate: CertificateDer<'static>) {
        if !self.certificates.contains(&certificate) {
            self.certificates.push(certificate);
        }
    }
}

/// Splits a text into the lines of 64 characters that PEM requires.
fn lines(mut base64: &str) -> impl Iterator<Item = &str> {
    std::iter::from_fn(move || {
        let (line, rest) = base64.split_at_checked(64).unwrap_or((base64, ""));
        base64 = rest;
        (!line.is_empty()).then_some(line)
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::certificates::certificate_set::CertificateSet;

    fn set(age: i64) -> CertificateSet {
        let now = OffsetDateTime::from_unix_timestamp(1_800_000_000 - age).unwrap();
        let provider = rustls::crypto::ring::default_provider();
        CertificateSet::generate(&[String::from("a.b.svc")], now, Duration::from_secs(100), &provider)
            .unwrap()
    }

    #[test]
    fn round_trips_bundle_and_removes_expired_certificates() {
        let (old, new) = (set(101), set(50));
        let bundle = Bundle::default().with(old.ca()).with(new.ca()).with(old.ca());
        assert_eq!(Bundle::parse(&bundle.to_base64()), bundle);
        assert!(bundle.covers(old.ca()) && bundle.covers(new.ca()));
        let now = OffsetDateTime::from_unix_timestamp(1_800_000_000).unwrap();
        let rest = bundle.without_expired(now);
        assert!(!rest.covers(old.ca()) && rest.covers(new.ca()));
    }

    #[test]
    fn parses_invalid_text_as_empty_bundle() {
        assert_eq!(Bundle::parse("%%%"), Bundle::default());
        assert!(!Bundle::default().covers(""));
    }
}
