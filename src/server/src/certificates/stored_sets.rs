//! The format of certificate sets in the Secret. The current set has the keys of a TLS Secret, which servers mount.

use std::{collections::BTreeMap, sync::Arc};

use rustls::crypto::CryptoProvider;

use super::certificate_set::{CertificateSet, CertificateSetError};

/// The keys of the current and the next set: CA certificate, leaf certificate, key of the leaf.
const CURRENT: [&str; 3] = ["ca.crt", "tls.crt", "tls.key"];
const NEXT: [&str; 3] = ["next-ca.crt", "next-tls.crt", "next-tls.key"];

/// The certificate sets in the Secret.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct StoredSets {
    pub(super) current: Option<CertificateSet>,
    pub(super) next: Option<CertificateSet>,
}

// === impl StoredSets ===

impl StoredSets {
    /// Parses the data of the Secret. An invalid set is treated as absent. Fails if there is no valid one.
    pub(super) fn from_data(
        data: &BTreeMap<String, Vec<u8>>,
        provider: &Arc<CryptoProvider>,
    ) -> Result<Self, CertificateSetError> {
        match (parse_set(data, CURRENT, provider), parse_set(data, NEXT, provider)) {
            (Err(error), Err(_)) => Err(error),
            (current, next) => Ok(Self { current: current.ok(), next: next.ok() }),
        }
    }

    /// Both sets, as far as they exist.
    pub(super) fn iter(&self) -> impl Iterator<Item = &CertificateSet> {
        self.current.iter().chain(&self.next)
    }

    /// Formats the data of the Secret.
    pub(super) fn to_data(&self) -> BTreeMap<String, Vec<u8>> {
        let sets = [(CURRENT, self.current.as_ref()), (NEXT, self.next.as_ref())];
        let values = sets.into_iter().filter_map(|(keys, set)| Some((keys, set?)));
        values
            .flat_map(|(keys, set)| keys.into_iter().zip([set.ca(), set.certificate(), set.key()]))
            .map(|(key, value)| (key.to_owned(), value.as_bytes().to_vec()))
            .collect()
    }
}

fn parse_set(
    data: &BTreeMap<String, Vec<u8>>,
    keys: [&str; 3],
    provider: &Arc<CryptoProvider>,
) -> Result<CertificateSet, CertificateSetError> {
    let text = |key: &str| {
        let value = data.get(key).and_then(|value| String::from_utf8(value.clone()).ok());
        value.ok_or_else(|| CertificateSetError::Missing(key.to_owned()))
    };
    let [ca, certificate, key] = keys;
    CertificateSet::from_pem(text(ca)?, text(certificate)?, text(key)?, provider)
}
