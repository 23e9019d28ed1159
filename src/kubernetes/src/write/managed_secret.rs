//! A Secret that several processes write with optimistic concurrency: a write succeeds only if the Secret is unchanged
//! since it was read.

use std::{collections::BTreeMap, fmt};

use k8s_openapi::{
    ByteString,
    api::core::v1::{ObjectReference, Secret},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{
    Api, Client,
    api::PostParams,
    core::{Request, params::GetParams},
};

use crate::{
    call::{call, create},
    error::{CallError, LookupError},
    read::api_reader::read_body,
    write::events::EventRecord,
};

/// Reads and writes the Secret of one name, which need not exist.
#[derive(Clone)]
pub struct ManagedSecret {
    client: Client,
    namespace: String,
    name: String,
}

/// The values of the Secret and the version of the object that was read. Its `Debug` shows no value.
#[derive(Clone)]
pub struct SecretContent {
    /// The resource version; `None` if the Secret does not exist.
    version: Option<String>,
    uid: Option<String>,
    /// Whether the API server rejects every write of the Secret.
    is_immutable: bool,
    /// The values by key.
    pub data: BTreeMap<String, Vec<u8>>,
}

// === impl ManagedSecret ===

impl ManagedSecret {
    /// Creates a handle for the Secret of this name and namespace.
    pub fn new(client: Client, namespace: &str, name: &str) -> Self {
        Self { client, namespace: namespace.to_owned(), name: name.to_owned() }
    }

    /// The name of the Secret.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns a reference to the Secret for an Event.
    pub fn reference(&self, content: &SecretContent) -> ObjectReference {
        EventRecord::object(("v1", "Secret"), Some(&self.namespace), &self.name, content.uid.as_deref())
    }

    /// Returns the stored content; empty if the Secret does not exist.
    pub async fn read(&self) -> Result<SecretContent, CallError> {
        let operation = format!("reading Secret {}", self.name);
        // `Api::get` is not used, because `kube` logs a body that it cannot parse.
        let path = format!("/api/v1/namespaces/{}/secrets", self.namespace);
        let request = Request::new(path).get(&self.name, &GetParams::default());
        match read_body(&self.client, &format!("Secret {}", self.name), request).await {
            Ok(body) => {
                let failed =
                    |error: serde_json::Error| CallError::Failed { operation, cause: error.to_string() };
                serde_json::from_slice::<Secret>(&body).map(SecretContent::from).map_err(failed)
            }
            Err(LookupError::NotFound { .. }) => Ok(SecretContent::absent()),
            Err(error) => Err(CallError::Failed { operation, cause: error.to_string() }),
        }
    }

    /// Writes these values if the Secret is unchanged since `content` was read.
    pub async fn write(
        &self,
        content: &SecretContent,
        data: BTreeMap<String, Vec<u8>>,
    ) -> Result<(), CallError> {
        let label = (String::from("app.kubernetes.io/managed-by"), String::from("etcd-guard"));
        let secret = Secret {
            metadata: ObjectMeta {
                name: Some(self.name.clone()),
                labels: Some([label].into()),
                resource_version: content.version.clone(),
                ..ObjectMeta::default()
            },
            data: Some(data.into_iter().map(|(key, value)| (key, ByteString(value))).collect()),
            ..Secret::default()
        };
        let api: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace);
        let parameters = PostParams::default();
        let operation = format!("writing Secret {}", self.name);
        if content.version.is_some() {
            call(&operation, api.replace(&self.name, &parameters, &secret)).await?;
        } else {
            create(&operation, api.create(&parameters, &secret)).await?;
        }
        Ok(())
    }
}

// === impl SecretContent ===

impl SecretContent {
    fn absent() -> Self {
        Self { version: None, uid: None, is_immutable: false, data: BTreeMap::new() }
    }

    /// Whether the Secret exists.
    pub fn exists(&self) -> bool {
        self.version.is_some()
    }

    /// Whether the API server rejects every write of the Secret.
    pub fn is_immutable(&self) -> bool {
        self.is_immutable
    }
}

impl From<Secret> for SecretContent {
    fn from(secret: Secret) -> Self {
        let data = secret.data.unwrap_or_default();
        Self {
            version: secret.metadata.resource_version,
            uid: secret.metadata.uid,
            is_immutable: secret.immutable.unwrap_or_default(),
            data: data.into_iter().map(|(key, ByteString(value))| (key, value)).collect(),
        }
    }
}

impl fmt::Debug for SecretContent {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys: Vec<_> = self.data.keys().collect();
        formatter
            .debug_struct("SecretContent")
            .field("version", &self.version)
            .field("keys", &keys)
            .finish_non_exhaustive()
    }
}
