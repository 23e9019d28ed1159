//! A Secret or a `ConfigMap` that can hold certificates, and the selection of its keys.

use super::key_names::{CA_KEYS, CLIENT_KEYS, SERVER_KEYS, names_authority};
use crate::objects::data_object::{DataObject, Secret};

/// The part of an object that the guard uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum UsedPart {
    /// The certificate for clients, and the CA.
    #[default]
    CertificateAndCa,
    /// The CA only.
    Ca,
}

/// The keys that can be used.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Keys {
    /// Keys with the usual names.
    #[default]
    Usual,
    /// The keys that a volume shows, each with the name of its file.
    Shown(Vec<(String, String)>),
    /// The keys that an annotation lists.
    Listed,
}

/// An object that can hold certificates.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TlsSource {
    /// The Secret or the `ConfigMap`.
    pub object: DataObject,
    /// The part that is used.
    pub part: UsedPart,
    /// Whether the object is read only after another one was read.
    pub is_fallback: bool,
    keys: Keys,
    /// Keys that the flags of the member or the annotation name.
    pub(super) ca: Option<String>,
    pub(super) pair: Option<(String, String)>,
}

// === impl TlsSource ===

impl TlsSource {
    pub(super) fn new(object: DataObject) -> Self {
        Self {
            object,
            part: UsedPart::default(),
            is_fallback: false,
            keys: Keys::Usual,
            ca: None,
            pair: None,
        }
    }

    /// Whether the keys are those with the usual names.
    pub(super) fn has_usual_keys(&self) -> bool {
        self.keys == Keys::Usual
    }

    /// Uses the CA only.
    pub(super) fn only_ca(self) -> Self {
        Self { part: UsedPart::Ca, ..self }
    }

    /// Reads the object only after another one was read.
    pub(super) fn into_fallback(self) -> Self {
        Self { is_fallback: true, ..self }
    }

    /// Limits the keys to those that a volume shows; empty if it shows all keys.
    pub(super) fn showing(self, items: Vec<(String, String)>) -> Self {
        if items.is_empty() { self } else { Self { keys: Keys::Shown(items), ..self } }
    }

    /// Limits the keys to these.
    pub(super) fn listing(self, pair: Option<(String, String)>, ca: Option<String>) -> Self {
        Self { keys: Keys::Listed, pair, ca, ..self }
    }

    /// Returns the keys that the flags of the member or the annotation name.
    pub fn named_keys(&self) -> Vec<String> {
        let pair = self.pair.iter().flat_map(|(certificate, key)| [certificate, key]);
        pair.filter(|_| self.part != UsedPart::Ca).chain(&self.ca).cloned().collect()
    }

    /// Returns the keys of possible client certificates and of their private keys in `secret`, best first. Keys for
    /// clients take precedence over the keys of the server. The key of a CA is never among them.
    pub fn pairs<'a>(&'a self, secret: &'a Secret) -> Vec<(&'a str, &'a str)> {
        if self.part == UsedPart::Ca {
            return Vec::new();
        }
        let usual = CLIENT_KEYS.into_iter().filter(|_| self.keys != Keys::Listed);
        let servers = SERVER_KEYS.into_iter().filter(|_| self.keys != Keys::Listed);
        let configured = self.pair.iter().map(|(certificate, key)| (certificate.as_str(), key.as_str()));
        let candidates = usual.chain(configured).chain(servers);
        let resolved = candidates.filter_map(|(certificate, key)| {
            let pair = (self.resolve(certificate)?, self.resolve(key)?);
            (secret.get(pair.0).is_some() && secret.get(pair.1).is_some()).then_some(pair)
        });
        resolved
            .filter(|(certificate, key)| !self.is_authority(certificate) && !self.is_authority(key))
            .collect()
    }

    /// Returns the key of the CA in `secret`.
    pub fn ca<'a>(&'a self, secret: &'a Secret) -> Option<&'a str> {
        let usual = CA_KEYS.into_iter().filter(|_| self.keys != Keys::Listed);
        let mut keys = self.ca.as_deref().into_iter().chain(usual).filter_map(|key| self.resolve(key));
        keys.find(|key| secret.get(key).is_some())
    }

    /// Returns all keys that can be chosen.
    #[cfg(any(test, feature = "fixtures"))]
    pub fn possible_keys(&self) -> std::collections::BTreeSet<String> {
        let usual =
            CLIENT_KEYS.into_iter().chain(SERVER_KEYS).flat_map(|(certificate, key)| [certificate, key]);
        let usual = usual.chain(CA_KEYS).map(str::to_owned);
        let configured = self.pair.iter().flat_map(|(certificate, key)| [certificate, key]).chain(&self.ca);
        let shown = match &self.keys {
            Keys::Shown(items) => items.as_slice(),
            Keys::Usual | Keys::Listed => &[],
        };
        usual.chain(configured.cloned()).chain(shown.iter().map(|(key, _)| key.clone())).collect()
    }

    /// Returns the names of the files as which a volume shows a key.
    #[cfg(any(test, feature = "fixtures"))]
    pub fn shown_files<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a str> {
        let items = match &self.keys {
            Keys::Shown(items) => items.as_slice(),
            Keys::Usual | Keys::Listed => &[],
        };
        items.iter().filter(move |(shown, _)| shown == key).map(|(_, file)| file.as_str())
    }

    /// Returns the keys that the annotation lists and that `secret` does not contain.
    pub fn missing_keys(&self, secret: &Secret) -> Vec<&str> {
        let listed = self.pair.iter().flat_map(|(certificate, key)| [certificate, key]).chain(&self.ca);
        let missing = listed.filter(|key| self.keys == Keys::Listed && secret.get(key).is_none());
        missing.map(String::as_str).collect()
    }

    /// Returns the key for the name of a key or of a file, if the pod can read it.
    fn resolve<'a>(&'a self, name: &'a str) -> Option<&'a str> {
        match &self.keys {
            Keys::Usual | Keys::Listed => Some(name),
            Keys::Shown(items) => {
                let by_file = items.iter().find(|(_, file)| file == name);
                let item = by_file.or_else(|| items.iter().find(|(key, _)| key == name));
                item.map(|(key, _)| key.as_str())
            }
        }
    }

    /// Whether a key, or the file that it provides, has the name of a CA.
    fn is_authority(&self, key: &str) -> bool {
        let is_shown_as_authority = match &self.keys {
            Keys::Shown(items) => items.iter().any(|(shown, file)| shown == key && names_authority(file)),
            Keys::Usual | Keys::Listed => false,
        };
        names_authority(key) || is_shown_as_authority
    }
}
