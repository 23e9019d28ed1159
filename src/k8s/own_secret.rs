//! One Secret that several processes write, each only if it knows what it replaces.

use std::{collections::BTreeMap, fmt};

use k8s_openapi::{ByteString, api::core::v1::Secret, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::{
    Api, Client,
    api::PostParams,
    core::{Request, params::GetParams},
};

use super::{
    LookupError,
    call::{CallError, call, create},
    lookup::read_text,
};

/// The Secret of this name, there or not.
#[derive(Clone)]
pub struct OwnSecret {
    client: Client,
    namespace: String,
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
        Self { client, namespace: namespace.to_owned(), name: name.to_owned() }
    }

    /// What it holds now; nothing where there is none.
    pub async fn read(&self) -> Result<Content, CallError> {
        let what = format!("reading Secret {}", self.name);
        // As text: the client's own reading logs a body that it cannot parse.
        let path = format!("/api/v1/namespaces/{}/secrets", self.namespace);
        let request = Request::new(path).get(&self.name, &GetParams::default());
        match read_text(&self.client, &format!("Secret {}", self.name), request).await {
            Ok(text) => {
                let failed = |error: serde_json::Error| CallError::Failed { what, cause: error.to_string() };
                serde_json::from_str(&text).map(Content::of).map_err(failed)
            }
            Err(LookupError::NotFound { .. }) => Ok(Content::nothing()),
            Err(error) => Err(CallError::Failed { what, cause: error.to_string() }),
        }
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
        let api: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace);
        let parameters = PostParams::default();
        let what = format!("writing Secret {}", self.name);
        if content.version.is_some() {
            call(&what, api.replace(&self.name, &parameters, &secret)).await?;
        } else {
            create(&what, api.create(&parameters, &secret)).await?;
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
