//! One Secret that several processes write, each only if it knows what it replaces.

use std::{collections::BTreeMap, fmt};

use k8s_openapi::{ByteString, api::core::v1::Secret, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::{Api, Client, api::PostParams};

use super::call::{CallError, call, create};

/// The Secret of this name, there or not.
#[derive(Clone)]
pub struct OwnSecret {
    api: Api<Secret>,
    name: String,
}

/// What the Secret held when it was read. Its `Debug` shows no value.
#[derive(Clone)]
pub struct Content {
    /// The resource version; `None` where there is no such Secret.
    version: Option<String>,
    /// The values by key.
    pub data: BTreeMap<String, Vec<u8>>,
}

// === impl OwnSecret ===

impl OwnSecret {
    /// A Secret of this namespace, with this client's identity.
    #[must_use]
    pub fn new(client: Client, namespace: &str, name: &str) -> Self {
        Self { api: Api::namespaced(client, namespace), name: name.to_owned() }
    }

    /// What it holds now; nothing where there is none.
    pub async fn read(&self) -> Result<Content, CallError> {
        let secret = call(&format!("reading Secret {}", self.name), self.api.get_opt(&self.name)).await?;
        Ok(secret.map_or_else(Content::nothing, Content::of))
    }

    /// Writes these values if nobody wrote since `content` was read.
    pub async fn write(&self, content: &Content, data: BTreeMap<String, Vec<u8>>) -> Result<(), CallError> {
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
        let parameters = PostParams::default();
        let what = format!("writing Secret {}", self.name);
        if content.version.is_some() {
            call(&what, self.api.replace(&self.name, &parameters, &secret)).await?;
        } else {
            create(&what, self.api.create(&parameters, &secret)).await?;
        }
        Ok(())
    }
}

// === impl Content ===

impl Content {
    fn nothing() -> Self {
        Self { version: None, data: BTreeMap::new() }
    }

    fn of(secret: Secret) -> Self {
        let data = secret.data.unwrap_or_default();
        Self {
            version: secret.metadata.resource_version,
            data: data.into_iter().map(|(key, ByteString(value))| (key, value)).collect(),
        }
    }

    /// Whether there is such a Secret.
    #[must_use]
    pub fn exists(&self) -> bool {
        self.version.is_some()
    }
}

impl fmt::Debug for Content {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys: Vec<_> = self.data.keys().collect();
        formatter
            .debug_struct("Content")
            .field("version", &self.version)
            .field("keys", &keys)
            .finish_non_exhaustive()
    }
}
