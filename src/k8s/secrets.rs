//! Reads Secrets when they are needed, keeps them for a moment, and shows them to nobody.
//!
//! No text of this file can hold a Secret's content: what cannot be parsed is named, never quoted.

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use k8s_openapi::ByteString;
use kube::{
    Client,
    core::{Request, params::GetParams},
};
use moka::sync::Cache;
use serde::Deserialize;

use super::{
    LookupError,
    lookup::read_text,
    pod::{SecretKeyRef, null_as_default},
};

/// How long a Secret, or the word that it cannot be read, is kept. A burst of deletions costs one read; a certificate
/// that was rotated, and a Role that was just applied, work with the next try.
const LIFE: Duration = Duration::from_secs(10);

/// More than any guard needs at a time.
const MOST_SECRETS: u64 = 256;

/// The data of a Secret.
#[derive(Clone)]
pub struct Secret {
    data: Arc<BTreeMap<String, Arc<[u8]>>>,
}

/// Reads Secrets from the apiserver.
#[derive(Clone)]
pub struct Secrets {
    client: Client,
    kept: Cache<(String, String), Result<Secret, Arc<LookupError>>>,
}

#[derive(Deserialize)]
struct Stored {
    #[serde(default, deserialize_with = "null_as_default")]
    data: BTreeMap<String, ByteString>,
}

// === impl Secrets ===

impl Secrets {
    /// Reads with this client's identity.
    #[must_use]
    pub fn new(client: Client) -> Self {
        Self { client, kept: Cache::builder().max_capacity(MOST_SECRETS).time_to_live(LIFE).build() }
    }

    /// The Secret, at most a few seconds old.
    pub async fn get(&self, namespace: &str, name: &str) -> Result<Secret, Arc<LookupError>> {
        let key = (namespace.to_owned(), name.to_owned());
        if let Some(kept) = self.kept.get(&key) {
            return kept;
        }
        let read = self.read(namespace, name).await.map_err(Arc::new);
        // Only what the apiserver said is worth keeping: a slow answer may come next time.
        if !matches!(
            read.as_ref().map_err(Arc::as_ref),
            Err(LookupError::Failed { .. } | LookupError::TimedOut { .. })
        ) {
            self.kept.insert(key, read.clone());
        }
        read
    }

    /// Makes the next [`get`](Self::get) read anew.
    pub fn forget(&self, namespace: &str, name: &str) {
        self.kept.invalidate(&(namespace.to_owned(), name.to_owned()));
    }

    async fn read(&self, namespace: &str, name: &str) -> Result<Secret, LookupError> {
        let what = format!("Secret {namespace}/{name}");
        let secrets = Request::new(format!("/api/v1/namespaces/{namespace}/secrets"));
        let text = read_text(&self.client, &what, secrets.get(name, &GetParams::default())).await?;
        let stored: Stored = serde_json::from_str(&text)
            .map_err(|_| LookupError::Failed { what, cause: String::from("it is no Secret") })?;
        let data = stored.data.into_iter().map(|(key, ByteString(value))| (key, value.into()));
        Ok(Secret { data: Arc::new(data.collect()) })
    }
}

// === impl Secret ===

impl Secret {
    /// The content of a key; an empty one is none.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<Arc<[u8]>> {
        self.data.get(key).filter(|value| !value.is_empty()).cloned()
    }

    /// The content of a key as text, without the line feed that an editor leaves behind.
    #[must_use]
    pub fn text(&self, key: &str) -> Option<String> {
        let value = self.get(key)?;
        Some(std::str::from_utf8(&value).ok()?.trim_end_matches(['\r', '\n']).to_owned())
    }

    /// The names of its keys, for a person who has to find the right one.
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

/// Only the names of its keys.
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
