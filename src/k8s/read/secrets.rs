//! Reads of Secrets on demand, cached for seconds.
//!
//! No error or debug text of this module contains a Secret's value. Errors about a body that cannot be parsed name the
//! Secret and do not quote the body.

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use k8s_openapi::ByteString;
use kube::{
    Client,
    core::{Request, params::GetParams},
};
use moka::sync::Cache;
use serde::Deserialize;

use super::api_reader::read_text;
use crate::k8s::{
    error::LookupError,
    objects::pod::{SecretKeyRef, null_as_default},
};

/// Lifetime of a cached Secret, or of a permanent error. A burst of deletions costs one read, and a rotated certificate
/// or a new Role takes effect after at most this time.
const SECRET_TTL: Duration = Duration::from_secs(10);

/// Maximum number of cached Secrets. It exceeds the Secrets of all guarded clusters.
const MAX_SECRETS: u64 = 256;

/// The data of a Secret.
#[derive(Clone)]
pub struct Secret {
    data: Arc<BTreeMap<String, Arc<[u8]>>>,
}

/// Reads Secrets from the API server.
#[derive(Clone)]
pub struct SecretReader {
    client: Client,
    cache: Cache<(String, String), Result<Secret, Arc<LookupError>>>,
}

#[derive(Deserialize)]
struct StoredSecret {
    #[serde(default, deserialize_with = "null_as_default")]
    data: BTreeMap<String, ByteString>,
}

// === impl SecretReader ===

impl SecretReader {
    /// Creates a reader that calls the API server through this client.
    #[must_use]
    pub fn new(client: Client) -> Self {
        Self { client, cache: Cache::builder().max_capacity(MAX_SECRETS).time_to_live(SECRET_TTL).build() }
    }

    /// Returns the Secret, at most 10 s old.
    pub async fn get(&self, namespace: &str, name: &str) -> Result<Secret, Arc<LookupError>> {
        let key = (namespace.to_owned(), name.to_owned());
        if let Some(cached) = self.cache.get(&key) {
            return cached;
        }
        let read = self.read(namespace, name).await.map_err(Arc::new);
        // Only definite responses are cached: failures and timeouts may be temporary.
        if !matches!(
            read.as_ref().map_err(Arc::as_ref),
            Err(LookupError::Failed { .. } | LookupError::TimedOut { .. })
        ) {
            self.cache.insert(key, read.clone());
        }
        read
    }

    /// Removes the Secret from the cache: the next [`get`](Self::get) reads it from the API server.
    pub fn invalidate(&self, namespace: &str, name: &str) {
        self.cache.invalidate(&(namespace.to_owned(), name.to_owned()));
    }

    async fn read(&self, namespace: &str, name: &str) -> Result<Secret, LookupError> {
        let subject = format!("Secret {namespace}/{name}");
        let secrets = Request::new(format!("/api/v1/namespaces/{namespace}/secrets"));
        let text = read_text(&self.client, &subject, secrets.get(name, &GetParams::default())).await?;
        let stored: StoredSecret = serde_json::from_str(&text)
            .map_err(|_| LookupError::Failed { subject, cause: String::from("the body is not a Secret") })?;
        let data = stored.data.into_iter().map(|(key, ByteString(value))| (key, value.into()));
        Ok(Secret { data: Arc::new(data.collect()) })
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
