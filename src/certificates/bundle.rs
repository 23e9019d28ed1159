//! What stands in a `caBundle`: certificates that are trusted, one after the other.

use base64::{Engine, engine::general_purpose::STANDARD};
use rustls::pki_types::{CertificateDer, pem::PemObject};
use time::OffsetDateTime;
use x509_parser::parse_x509_certificate;

/// The certificates of a `caBundle`, in order, each once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Bundle {
    certificates: Vec<CertificateDer<'static>>,
}

// === impl Bundle ===

impl Bundle {
    /// Reads base64 of PEM, as the API has it. What is unreadable trusts nobody, and counts as nothing.
    pub(super) fn read(base64: &str) -> Self {
        let pem = STANDARD.decode(base64).unwrap_or_default();
        Self::of_pem(&pem)
    }

    fn of_pem(pem: &[u8]) -> Self {
        let mut bundle = Self::default();
        for certificate in CertificateDer::pem_slice_iter(pem).filter_map(Result::ok) {
            bundle.add(certificate);
        }
        bundle
    }

    /// Whether it trusts all CAs of this PEM.
    pub(super) fn covers(&self, ca: &str) -> bool {
        let wanted = Self::of_pem(ca.as_bytes()).certificates;
        !wanted.is_empty() && wanted.iter().all(|it| self.certificates.contains(it))
    }

    /// Adds the CAs of this PEM.
    pub(super) fn with(mut self, ca: &str) -> Self {
        for certificate in Self::of_pem(ca.as_bytes()).certificates {
            self.add(certificate);
        }
        self
    }

    /// What either of them trusts.
    pub(super) fn join(mut self, other: Self) -> Self {
        for certificate in other.certificates {
            self.add(certificate);
        }
        self
    }

    /// Without those that have ended: nothing that they signed is valid any more. Those of others stay too while they
    /// last, as a replica that is being replaced may still serve what they signed.
    pub(super) fn without_expired(mut self, now: OffsetDateTime) -> Self {
        self.certificates.retain(|certificate| {
            let parsed = parse_x509_certificate(certificate);
            parsed.is_ok_and(|(_, it)| it.validity().not_after.timestamp() >= now.unix_timestamp())
        });
        self
    }

    /// Base64 of PEM.
    pub(super) fn write(&self) -> String {
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

/// Of 64 characters, as PEM wants them.
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
    use crate::certificates::Generation;

    fn generation(age: i64) -> Generation {
        let now = OffsetDateTime::from_unix_timestamp(1_800_000_000 - age).unwrap();
        let provider = rustls::crypto::ring::default_provider();
        Generation::make(&[String::from("a.b.svc")], now, Duration::from_secs(100), &provider).unwrap()
    }

    #[test]
    fn what_is_written_is_read_again_and_the_expired_leaves() {
        let (old, new) = (generation(101), generation(50));
        let bundle = Bundle::default().with(old.ca()).with(new.ca()).with(old.ca());
        assert_eq!(Bundle::read(&bundle.write()), bundle);
        assert!(bundle.covers(old.ca()) && bundle.covers(new.ca()));
        let now = OffsetDateTime::from_unix_timestamp(1_800_000_000).unwrap();
        let rest = bundle.without_expired(now);
        assert!(!rest.covers(old.ca()) && rest.covers(new.ca()));
    }

    #[test]
    fn rubbish_trusts_nobody() {
        assert_eq!(Bundle::read("%%%"), Bundle::default());
        assert!(!Bundle::default().covers(""));
    }
}
