//! The names and the data of Secrets and `ConfigMaps`.
//!
//! No debug text contains a value.

use std::{collections::BTreeMap, fmt, sync::Arc};

use serde::Serialize;

use super::pod::SecretKeyRef;

/// Maximum length of the name of an object in Kubernetes.
const MAX_NAME_BYTES: usize = 253;

/// The kind of object before a name.
const SECRET: &str = "Secret ";

/// The text of the API server before the name of a Secret.
const QUOTED_SECRET: &str = "secrets \"";

/// The kind of an object with data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum DataKind {
    /// A Secret.
    Secret,
    /// A `ConfigMap`.
    ConfigMap,
}

/// A Secret or a `ConfigMap`, by its name in a namespace that the context determines.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DataObject {
    /// The kind.
    pub kind: DataKind,
    /// The name.
    pub name: String,
}

/// The data of a Secret or of a `ConfigMap`.
#[derive(Clone)]
pub struct Secret {
    data: Arc<BTreeMap<String, Arc<[u8]>>>,
}

/// Names a Secret in texts: `Secret NAMESPACE/NAME`. [`hide_secret_names`] recognizes this form.
#[derive(Clone, Copy, Debug)]
pub struct SecretName<'a> {
    /// The namespace.
    pub namespace: &'a str,
    /// The name. If it is no name of an object, it is not shown.
    pub name: &'a str,
}

/// Returns a text without names of Secrets: `Secret prod/etcd-tls` becomes `a Secret in namespace prod`, and
/// `secrets "etcd-tls"`, as in messages of the API server, becomes `a Secret`.
pub fn hide_secret_names(text: &str) -> String {
    let is_part =
        |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || "-./".contains(letter);
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(SECRET) {
        let (name, tail) = after.split_at(after.find(|letter| !is_part(letter)).unwrap_or(after.len()));
        shown.push_str(before);
        match name.split_once('/') {
            Some((namespace, _)) => {
                shown.push_str("a Secret in namespace ");
                shown.push_str(namespace);
            }
            None => {
                shown.push_str(SECRET);
                shown.push_str(name);
            }
        }
        rest = tail;
    }
    shown.push_str(rest);
    hide_quoted(&shown)
}

/// Replaces each `secrets "NAME"`.
fn hide_quoted(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(QUOTED_SECRET) {
        shown.push_str(before);
        shown.push_str("a Secret");
        // Without the second quote, the text was cut within the name.
        rest = after.split_once('"').map_or("", |(_, tail)| tail);
    }
    shown.push_str(rest);
    shown
}

/// Whether a text is a DNS subdomain as Kubernetes defines it for names of objects.
pub fn is_subdomain(name: &str) -> bool {
    let is_inner =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.');
    let is_end = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
    name.len() <= MAX_NAME_BYTES
        && name.bytes().all(is_inner)
        && is_end(name.bytes().next())
        && is_end(name.bytes().last())
}

/// Returns the name of an object, or a text without the name if no object can have it.
fn displayed_name(name: &str) -> &str {
    if is_subdomain(name) { name } else { "(invalid name)" }
}

// === impl SecretName ===

impl fmt::Display for SecretName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { namespace, name } = self;
        write!(f, "{SECRET}{namespace}/{}", displayed_name(name))
    }
}

// === impl DataKind ===

impl DataKind {
    /// The kind as manifests name it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Secret => "Secret",
            Self::ConfigMap => "ConfigMap",
        }
    }

    /// The resource as Roles name it.
    pub const fn resource(self) -> &'static str {
        match self {
            Self::Secret => "secrets",
            Self::ConfigMap => "configmaps",
        }
    }
}

// === impl DataObject ===

impl DataObject {
    /// Creates the name of a Secret.
    pub fn secret(name: &str) -> Self {
        Self { kind: DataKind::Secret, name: name.to_owned() }
    }

    /// Names the object in texts: `Secret NAMESPACE/NAME` or `ConfigMap NAMESPACE/NAME`.
    pub fn describe(&self, namespace: &str) -> String {
        match self.kind {
            DataKind::Secret => SecretName { namespace, name: &self.name }.to_string(),
            DataKind::ConfigMap => format!("ConfigMap {namespace}/{}", displayed_name(&self.name)),
        }
    }
}

// === impl Secret ===

impl Secret {
    /// Returns the value of a key; an empty value counts as absent.
    pub fn get(&self, key: &str) -> Option<Arc<[u8]>> {
        self.data.get(key).filter(|value| !value.is_empty()).cloned()
    }

    /// Returns the value of a key as text, without trailing line breaks, which editors add.
    pub fn text(&self, key: &str) -> Option<String> {
        let value = self.get(key)?;
        Some(std::str::from_utf8(&value).ok()?.trim_end_matches(['\r', '\n']).to_owned())
    }

    /// Returns the names of the keys, for error messages.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.data.keys().map(String::as_str)
    }
}

impl From<BTreeMap<String, Arc<[u8]>>> for Secret {
    fn from(data: BTreeMap<String, Arc<[u8]>>) -> Self {
        Self { data: Arc::new(data) }
    }
}

impl<const N: usize> From<[(&str, &str); N]> for Secret {
    fn from(pairs: [(&str, &str); N]) -> Self {
        let data = pairs.map(|(key, value)| (key.to_owned(), value.as_bytes().into()));
        Self { data: Arc::new(data.into()) }
    }
}

impl FromIterator<(String, String)> for Secret {
    fn from_iter<I: IntoIterator<Item = (String, String)>>(pairs: I) -> Self {
        let data = pairs.into_iter().map(|(key, value)| (key, value.into_bytes().into()));
        Self { data: Arc::new(data.collect()) }
    }
}

/// Shows only the names of the keys.
impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.keys()).finish()
    }
}

// === impl SecretKeyRef ===

impl fmt::Display for SecretKeyRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (key {})", self.name, self.key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hides_names_of_secrets_in_texts() {
        let secret = SecretName { namespace: "prod", name: "etcd.tls-1" };
        let text = format!("not healthy: etcd-0 ({secret} does not exist, {secret}; the Secret with the CA)");
        assert_eq!(
            hide_secret_names(&text),
            "not healthy: etcd-0 (a Secret in namespace prod does not exist, a Secret in namespace prod; the Secret with the CA)"
        );
        assert_eq!(
            hide_secret_names(r#"reading Secret prod/etcd-tls failed: secrets "etcd-tls" is locked"#),
            "reading a Secret in namespace prod failed: a Secret is locked"
        );
        assert_eq!(hide_secret_names("Secret prod/etcd-t…"), "a Secret in namespace prod…");
        assert_eq!(hide_secret_names(r#"secrets "etcd-t…"#), "a Secret");
        assert_eq!(hide_secret_names("no name"), "no name");
    }
}
