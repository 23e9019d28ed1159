//! The format of certificate sets in the Secret. The current set has the keys of a TLS Secret, so that other tools can
//! read it.

use std::{collections::BTreeMap, sync::Arc};

use rustls::crypto::CryptoProvider;

use super::certificate_set::{CertificateSet, CertificateSetError};

/// The keys of the current and the next set: CA certificate, leaf certificate, key of the leaf.
const CURRENT: [&str; 3] = ["ca.crt", "tls.crt", "tls.key"];
const NEXT: [&str; 3] = ["next-ca.crt", "next-tls.crt", "next-tls.key"];

/// The certificate sets in the Secret.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct StoredSets {
    pub(super) current: CertificateSet,
    pub(super) next: Option<CertificateSet>,
}

// === impl StoredSets ===

impl StoredSets {
    /// Parses the data of the Secret. An invalid next set is treated as absent.
    pub(super) fn from_data(
        data: &BTreeMap<String, Vec<u8>>,
        provider: &Arc<CryptoProvider>,
    ) -> Result<Self, CertificateSetError> {
        let current = parse_set(data, CURRENT, provider)?;
        Ok(Self { current, next: parse_set(data, NEXT, provider).ok() })
    }

    /// Formats the data of the Secret.
    pub(super) fn to_data(&self) -> BTreeMap<String, Vec<u8>> {
        let sets = [(CURRENT, Some(&self.current)), (NEXT, self.next.as_ref())];
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
