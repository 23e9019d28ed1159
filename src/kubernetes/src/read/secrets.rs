//! Reads of Secrets and `ConfigMaps` on demand, cached for seconds.
//!
//! No error or debug text of this module contains a Secret's value. Errors about a body that cannot be parsed name the
//! Secret and do not quote the body.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use k8s_openapi::ByteString;
use kube::{
    Client,
    core::{Request, params::GetParams},
};
use serde::Deserialize;

use super::api_reader::read_body;
use crate::error::LookupError;
use etcd_guard_cache::{ExpiringCache, Lifetime};
use etcd_guard_core::objects::{
    data_object::{DataKind, DataObject, Secret, is_subdomain},
    pod::null_as_default,
};

/// Lifetime of a cached object, or of a permanent error. A burst of deletions costs one read, and a rotated certificate
/// or a new Role takes effect after at most this time.
const SECRET_TTL: Duration = Duration::from_secs(10);

/// Maximum number of cached objects, those of dozens of clusters. Beyond it, the guard reads the objects again that were not used for
/// the longest time.
const MAX_OBJECTS: u64 = 256;

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

// === impl SecretReader ===

impl SecretReader {
    /// Creates a reader that calls the API server through this client.
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
        Ok(Secret::from(data))
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[tokio::test]
    async fn does_not_request_secrets_with_invalid_names() {
        let client = crate::fake::api_server([]);
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
        let client = crate::fake::api_server([("/api/v1/namespaces/prod/configmaps/etcd-ca", 200, content)]);
        let object = DataObject { kind: DataKind::ConfigMap, name: String::from("etcd-ca") };
        let read = SecretReader::new(client).get("prod", &object).await.unwrap();
        assert_eq!((read.text("ca.crt").as_deref(), read.text("bundle").as_deref()), (Some("CA"), Some("B")));
    }
}
