//! Reads of Secrets and `ConfigMaps` on demand, cached for seconds.
//!
//! No error or debug text of this module contains a Secret's value. Errors about a body that cannot be parsed name the
//! Secret and do not quote the body.

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use k8s_openapi::ByteString;
use kube::{
    Client,
    core::{Request, params::GetParams},
};
use serde::{Deserialize, Serialize};

use super::api_reader::read_body;
use crate::{
    expiring_cache::{ExpiringCache, Lifetime},
    k8s::{
        error::LookupError,
        objects::pod::{SecretKeyRef, null_as_default},
    },
};

/// Lifetime of a cached object, or of a permanent error. A burst of deletions costs one read, and a rotated certificate
/// or a new Role takes effect after at most this time.
const SECRET_TTL: Duration = Duration::from_secs(10);

/// Maximum number of cached objects, those of dozens of clusters. Beyond it, the guard reads the objects again that were not used for
/// the longest time.
const MAX_OBJECTS: u64 = 256;

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

/// Reads Secrets and `ConfigMaps` from the API server.
#[derive(Clone)]
pub struct SecretReader {
    client: Client,
    cache: ExpiringCache<(String, DataObject), Result<Secret, Arc<LookupError>>>,
}

#[derive(Deserialize)]
struct StoredSecret {
    #[serde(default, deserialize_with = "null_as_default")]
    data: BTreeMap<String, ByteString>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct StoredConfigMap {
    #[serde(default, deserialize_with = "null_as_default")]
    data: BTreeMap<String, String>,
    #[serde(default, deserialize_with = "null_as_default")]
    binary_data: BTreeMap<String, ByteString>,
}

/// Returns a text without names of Secrets: `Secret prod/etcd-tls` becomes `a Secret in namespace prod`, and
/// `secrets "etcd-tls"`, as in messages of the API server, becomes `a Secret`.
#[must_use]
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
#[must_use]
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

// === impl SecretReader ===

impl SecretReader {
    /// Creates a reader that calls the API server through this client.
    #[must_use]
    pub fn new(client: Client) -> Self {
        Self { client, cache: ExpiringCache::new(MAX_OBJECTS, Lifetime::SinceInsertion(SECRET_TTL)) }
    }

    /// Returns the data of a Secret or of a `ConfigMap`, at most 10 s old.
    pub async fn get(&self, namespace: &str, object: &DataObject) -> Result<Secret, Arc<LookupError>> {
        let key = (namespace.to_owned(), object.clone());
        if let Some(cached) = self.cache.get(&key) {
            return cached;
        }
        let read = self.read(namespace, object).await.map_err(Arc::new);
        // Only definite responses are cached: failures and timeouts may be temporary.
        if !matches!(
            read.as_ref().map_err(Arc::as_ref),
            Err(LookupError::Failed { .. } | LookupError::TimedOut { .. })
        ) {
            self.cache.insert(key, read.clone());
        }
        read
    }

    /// Removes the object from the cache: the next [`get`](Self::get) reads it from the API server.
    pub fn invalidate(&self, namespace: &str, object: &DataObject) {
        self.cache.invalidate(&(namespace.to_owned(), object.clone()));
    }

    async fn read(&self, namespace: &str, object: &DataObject) -> Result<Secret, LookupError> {
        let DataObject { kind, name } = object;
        let subject = object.describe(namespace);
        // The name is part of a path, and an annotation can contain any text. No object has such a name.
        if !is_subdomain(name) {
            return Err(LookupError::NotFound { subject });
        }
        let objects = Request::new(format!("/api/v1/namespaces/{namespace}/{}", kind.resource()));
        let body = read_body(&self.client, &subject, objects.get(name, &GetParams::default())).await?;
        let data = match kind {
            DataKind::Secret => serde_json::from_slice(&body).map(StoredSecret::into_data),
            DataKind::ConfigMap => serde_json::from_slice(&body).map(StoredConfigMap::into_data),
        };
        let data = data.map_err(|_| LookupError::Failed {
            subject,
            cause: format!("the body is not a {}", kind.as_str()),
        })?;
        Ok(Secret { data: Arc::new(data) })
    }
}

// === impl DataKind ===

impl DataKind {
    /// The kind as manifests name it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Secret => "Secret",
            Self::ConfigMap => "ConfigMap",
        }
    }

    /// The resource as Roles name it.
    #[must_use]
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
    #[must_use]
    pub fn secret(name: &str) -> Self {
        Self { kind: DataKind::Secret, name: name.to_owned() }
    }

    /// Names the object in texts: `Secret NAMESPACE/NAME` or `ConfigMap NAMESPACE/NAME`.
    #[must_use]
    pub fn describe(&self, namespace: &str) -> String {
        match self.kind {
            DataKind::Secret => SecretName { namespace, name: &self.name }.to_string(),
            DataKind::ConfigMap => format!("ConfigMap {namespace}/{}", displayed_name(&self.name)),
        }
    }
}

// === impl StoredSecret ===

impl StoredSecret {
    fn into_data(self) -> BTreeMap<String, Arc<[u8]>> {
        self.data.into_iter().map(|(key, ByteString(value))| (key, value.into())).collect()
    }
}

// === impl StoredConfigMap ===

impl StoredConfigMap {
    fn into_data(self) -> BTreeMap<String, Arc<[u8]>> {
        let texts = self.data.into_iter().map(|(key, value)| (key, value.into_bytes().into()));
        let binaries = self.binary_data.into_iter().map(|(key, ByteString(value))| (key, value.into()));
        texts.chain(binaries).collect()
    }
}

// === impl Secret ===

impl Secret {
    /// Returns the value of a key; an empty value counts as absent.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<Arc<[u8]>> {
        self.data.get(key).filter(|value| !value.is_empty()).cloned()
    }

    /// Returns the value of a key as text, without trailing line breaks, which editors add.
    #[must_use]
    pub fn text(&self, key: &str) -> Option<String> {
        let value = self.get(key)?;
        Some(std::str::from_utf8(&value).ok()?.trim_end_matches(['\r', '\n']).to_owned())
    }

    /// Returns the names of the keys, for error messages.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.data.keys().map(String::as_str)
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
    use serde_json::json;

    use super::*;

    /// Edge case 56.
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

    #[tokio::test]
    async fn does_not_request_secrets_with_invalid_names() {
        let client = crate::k8s::fake::api_server([]);
        let reader = SecretReader::new(client);
        for name in ["../pods/etcd-0", "a b", "", "A", "-a", "a?x=1"] {
            let error = reader.get("prod", &DataObject::secret(name)).await.unwrap_err();
            assert!(matches!(*error, LookupError::NotFound { .. }), "{name}: {error}");
            assert_eq!(error.to_string(), "Secret prod/(invalid name) does not exist");
        }
    }

    #[tokio::test]
    async fn reads_texts_and_binaries_of_config_maps() {
        let content = json!({"data": {"ca.crt": "CA"}, "binaryData": {"bundle": ByteString(b"B".to_vec())}});
        let client =
            crate::k8s::fake::api_server([("/api/v1/namespaces/prod/configmaps/etcd-ca", 200, content)]);
        let object = DataObject { kind: DataKind::ConfigMap, name: String::from("etcd-ca") };
        let read = SecretReader::new(client).get("prod", &object).await.unwrap();
        assert_eq!((read.text("ca.crt").as_deref(), read.text("bundle").as_deref()), (Some("CA"), Some("B")));
    }
}
