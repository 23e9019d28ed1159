//! How generations stand in the Secret. `current` has the keys of a TLS Secret, so that other tools can read it.

use std::{collections::BTreeMap, sync::Arc};

use rustls::crypto::CryptoProvider;

use super::{Generation, GenerationError};

/// The keys of the generation that is served, and of the one that is to come: CA, certificate, key.
const CURRENT: [&str; 3] = ["ca.crt", "tls.crt", "tls.key"];
const NEXT: [&str; 3] = ["next-ca.crt", "next-tls.crt", "next-tls.key"];

/// What the Secret holds.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Stored {
    pub(super) current: Generation,
    pub(super) next: Option<Generation>,
}

// === impl Stored ===

impl Stored {
    /// Reads a Secret's values. A `next` that is broken is none.
    pub(super) fn read(
        data: &BTreeMap<String, Vec<u8>>,
        provider: &Arc<CryptoProvider>,
    ) -> Result<Self, GenerationError> {
        let current = generation(data, CURRENT, provider)?;
        Ok(Self { current, next: generation(data, NEXT, provider).ok() })
    }

    /// The Secret's values.
    pub(super) fn write(&self) -> BTreeMap<String, Vec<u8>> {
        let generations = [(CURRENT, Some(&self.current)), (NEXT, self.next.as_ref())];
        let values = generations.into_iter().filter_map(|(keys, generation)| Some((keys, generation?)));
        values
            .flat_map(|(keys, it)| keys.into_iter().zip([it.ca(), it.certificate(), it.key()]))
            .map(|(key, value)| (key.to_owned(), value.as_bytes().to_vec()))
            .collect()
    }
}

fn generation(
    data: &BTreeMap<String, Vec<u8>>,
    keys: [&str; 3],
    provider: &Arc<CryptoProvider>,
) -> Result<Generation, GenerationError> {
    let text = |key: &str| {
        let value = data.get(key).and_then(|value| String::from_utf8(value.clone()).ok());
        value.ok_or_else(|| GenerationError::Missing(key.to_owned()))
    };
    let [ca, certificate, key] = keys;
    Generation::read(text(ca)?, text(certificate)?, text(key)?, provider)
}
