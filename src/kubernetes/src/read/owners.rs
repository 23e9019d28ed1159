//! Live reads of the owners to which ownerReferences point. Only metadata is read.
//!
//! The kind of an owner is arbitrary. The API server's discovery maps the kind to a resource. Every authenticated user
//! may read discovery; the owner itself requires the permission `get` for its resource.

use kube::core::{Request, params::GetParams};
use serde::Deserialize;

use super::api_reader::ApiReader;
use crate::error::LookupError;
use etcd_guard_core::{
    escape::{MAX_NAME_CHARS, to_bounded_line},
    objects::pod::{Metadata, OwnerReference, null_as_default},
};

/// Finalizer of an object with dependents that remain after its deletion.
const ORPHAN_FINALIZER: &str = "orphan";

/// Resources of the kinds that usually own members, which need no discovery.
const KNOWN_RESOURCES: [(&str, &str, &str); 4] = [
    ("apps/v1", "StatefulSet", "statefulsets"),
    ("apps/v1", "ReplicaSet", "replicasets"),
    ("apps/v1", "Deployment", "deployments"),
    ("v1", "Pod", "pods"),
];

/// The owner of an object at the time of a read.
#[derive(Clone, Debug, Default)]
pub struct Owner {
    /// Whether the owner exists.
    pub state: Existence,
    /// Metadata of the owner; empty if the owner does not exist.
    pub metadata: Metadata,
}

/// The resource of a kind of owners, which needs no discovery.
#[derive(Clone, Copy, Debug)]
pub struct OwnerResource<'a> {
    /// The API group.
    pub group: &'a str,
    /// A version that the API server serves.
    pub version: &'a str,
    /// The plural name, for instance `deployments`.
    pub resource: &'a str,
}

/// Whether the owner of an object exists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Existence {
    /// The owner exists. The garbage collector does not delete its dependents.
    Alive,
    /// The owner exists, its deletion was accepted, and its dependents are deleted with it.
    Terminating,
    /// No object of this kind, name and uid exists.
    #[default]
    Gone,
}

/// An object of which only the metadata is read.
#[derive(Deserialize)]
struct Object {
    #[serde(default)]
    metadata: Metadata,
}

/// `APIResourceList` (`meta/v1`), in part.
#[derive(Deserialize)]
struct ResourceList {
    #[serde(default, deserialize_with = "null_as_default")]
    resources: Vec<ApiResource>,
}

/// `APIResource` (`meta/v1`), in part.
#[derive(Deserialize)]
struct ApiResource {
    #[serde(default)]
    name: String,
    #[serde(default)]
    kind: String,
    #[serde(default)]
    namespaced: bool,
}

// === impl ApiReader ===

impl ApiReader {
    /// Returns the owner to which an object of this namespace refers. An owner of another uid is another object.
    ///
    /// # Errors
    ///
    /// Returns [`LookupError::Forbidden`] if the guard may not read objects of this kind.
    pub async fn owner(&self, namespace: &str, owner: &OwnerReference) -> Result<Owner, LookupError> {
        match self.read_owner(namespace, owner).await {
            Ok(metadata) if metadata.uid == owner.uid => {
                Ok(Owner { state: Existence::new(&metadata), metadata })
            }
            // The API server does not serve this kind (any more), or no object has this name and uid.
            Ok(_) | Err(LookupError::NotFound { .. }) => Ok(Owner::default()),
            Err(error) => Err(error),
        }
    }

    /// Returns the metadata of a StatefulSet.
    pub async fn stateful_set_metadata(&self, namespace: &str, name: &str) -> Result<Metadata, LookupError> {
        let path = format!("/apis/apps/v1/namespaces/{namespace}/statefulsets");
        self.read_metadata(format!("StatefulSet {namespace}/{name}"), path, name).await
    }

    /// Returns the owner to which an object of this namespace refers, by the resource of its kind, like [`Self::owner`].
    ///
    /// # Errors
    ///
    /// Fails also if the API server does not serve the resource, which does not prove that the owner does not exist.
    pub async fn owner_of_resource(
        &self,
        namespace: &str,
        owner: &OwnerReference,
        resource: OwnerResource<'_>,
    ) -> Result<Owner, LookupError> {
        match self.object_metadata(namespace, &owner.name, &owner.kind, resource).await? {
            Some(metadata) if metadata.uid == owner.uid => {
                Ok(Owner { state: Existence::new(&metadata), metadata })
            }
            Some(_) | None => Ok(Owner::default()),
        }
    }

    /// Returns the metadata of an object of this resource, or `None` if the object does not exist.
    ///
    /// # Errors
    ///
    /// Fails also if the API server does not serve the resource.
    pub async fn object_metadata(
        &self,
        namespace: &str,
        name: &str,
        kind: &str,
        resource: OwnerResource<'_>,
    ) -> Result<Option<Metadata>, LookupError> {
        let OwnerResource { group, version, resource } = resource;
        let line = |text| to_bounded_line(text, MAX_NAME_CHARS);
        let subject = format!("{} {namespace}/{}", line(kind), line(name));
        if !is_path_segment(name) {
            let cause = String::from("the name is not valid");
            return Err(LookupError::Failed { subject, cause });
        }
        let prefix = format!("/apis/{group}/{version}");
        let path = format!("{prefix}/namespaces/{namespace}/{resource}");
        match self.read_metadata(subject.clone(), path, name).await {
            Ok(metadata) => Ok(Some(metadata)),
            // The API server returns the same status for a resource that it does not serve.
            Err(LookupError::NotFound { .. }) => {
                let served = self.resources(&prefix, &format!("{group}/{version}")).await;
                match served {
                    Ok(list) if list.iter().any(|served| served.name == resource) => Ok(None),
                    Ok(_) | Err(LookupError::NotFound { .. }) => {
                        let cause = format!("the API server serves no {resource} of {group}/{version}");
                        Err(LookupError::Failed { subject, cause })
                    }
                    Err(error) => Err(error),
                }
            }
            Err(error) => Err(error),
        }
    }

    /// Returns the resources of a group and version.
    async fn resources(&self, prefix: &str, version: &str) -> Result<Vec<ApiResource>, LookupError> {
        let request = Request::new(prefix).list(&kube::core::params::ListParams::default());
        let list: ResourceList = self.read(format!("the resources of {version}"), request).await?;
        Ok(list.resources)
    }

    async fn read_owner(&self, namespace: &str, owner: &OwnerReference) -> Result<Metadata, LookupError> {
        let OwnerReference { api_version, kind, name, .. } = owner;
        let subject = format!("{kind} {namespace}/{name}");
        // The API server does not validate references, and these texts become parts of a URL path.
        let is_valid = api_version.split('/').all(is_path_segment) && is_path_segment(name);
        if !is_valid || api_version.matches('/').count() > 1 {
            let cause = String::from("the ownerReference has an invalid apiVersion or name");
            return Err(LookupError::Failed { subject, cause });
        }
        let prefix = if api_version.contains('/') {
            format!("/apis/{api_version}")
        } else {
            format!("/api/{api_version}")
        };
        let known =
            KNOWN_RESOURCES.iter().find(|(version, known, _)| version == api_version && known == kind);
        let path = match known {
            Some((_, _, resource)) => format!("{prefix}/namespaces/{namespace}/{resource}"),
            None => {
                let resources = self.resources(&prefix, api_version).await?;
                let is_kind =
                    |resource: &&ApiResource| resource.kind == *kind && is_path_segment(&resource.name);
                match resources.iter().find(is_kind) {
                    Some(ApiResource { name, namespaced: true, .. }) => {
                        format!("{prefix}/namespaces/{namespace}/{name}")
                    }
                    Some(ApiResource { name, .. }) => format!("{prefix}/{name}"),
                    None => {
                        return Err(LookupError::NotFound {
                            subject: format!("kind {kind} of {api_version}"),
                        });
                    }
                }
            }
        };
        self.read_metadata(subject, path, name).await
    }

    async fn read_metadata(
        &self,
        subject: String,
        path: String,
        name: &str,
    ) -> Result<Metadata, LookupError> {
        let request = Request::new(path).get_metadata(name, &GetParams::default());
        Ok(self.read::<Object>(subject, request).await?.metadata)
    }
}

// === impl Existence ===

impl Existence {
    fn new(metadata: &Metadata) -> Self {
        let orphans = metadata.finalizers.iter().any(|finalizer| finalizer == ORPHAN_FINALIZER);
        if metadata.deletion_timestamp.is_some() && !orphans { Self::Terminating } else { Self::Alive }
    }
}

/// Whether this text is one segment of a URL path and needs no escaping.
fn is_path_segment(text: &str) -> bool {
    !text.is_empty()
        && text != "."
        && text != ".."
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b':'))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::fake;

    fn reference(api_version: &str, kind: &str, uid: &str) -> OwnerReference {
        OwnerReference {
            api_version: api_version.to_owned(),
            kind: kind.to_owned(),
            name: String::from("etcd"),
            uid: uid.to_owned(),
            controller: None,
        }
    }

    fn object(extra: &Value) -> Value {
        let mut object = json!({"metadata": {"name": "etcd", "uid": "u1"}});
        object["metadata"].as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        object
    }

    async fn state(extra: &Value, uid: &str) -> Existence {
        let path = "/apis/apps/v1/namespaces/prod/statefulsets/etcd";
        let reader = ApiReader::new(fake::api_server([(path, 200, object(extra))]));
        reader.owner("prod", &reference("apps/v1", "StatefulSet", uid)).await.unwrap().state
    }

    #[tokio::test]
    async fn only_the_same_uid_without_deletion_is_alive() {
        let deleted =
            || json!({"deletionTimestamp": "2026-01-31T12:00:00Z", "finalizers": ["foregroundDeletion"]});
        assert_eq!(state(&json!({}), "u1").await, Existence::Alive);
        assert_eq!(state(&json!({}), "u0").await, Existence::Gone);
        assert_eq!(state(&deleted(), "u1").await, Existence::Terminating);
        assert_eq!(state(&deleted(), "u0").await, Existence::Gone);
        let orphaning = json!({"deletionTimestamp": "2026-01-31T12:00:00Z", "finalizers": ["orphan"]});
        assert_eq!(state(&orphaning, "u1").await, Existence::Alive, "its dependents remain");
    }

    #[tokio::test]
    async fn finds_resources_of_custom_kinds_by_discovery() {
        let list = json!({"resources": [
            {"name": "etcdclusters/status", "kind": "EtcdCluster", "namespaced": true},
            {"name": "etcdclusters", "kind": "EtcdCluster", "namespaced": true},
            {"name": "etcdfleets", "kind": "EtcdFleet", "namespaced": false},
        ]});
        let forbidden = fake::status_failure(403, "forbidden");
        let reader = ApiReader::new(fake::api_server([
            ("/apis/example.com/v1", 200, list),
            ("/apis/example.com/v1/namespaces/prod/etcdclusters/etcd", 200, object(&json!({}))),
            ("/apis/example.com/v1/etcdfleets/etcd", 403, forbidden),
        ]));
        let owner =
            async |version: &str, kind: &str| reader.owner("prod", &reference(version, kind, "u1")).await;
        assert_eq!(owner("example.com/v1", "EtcdCluster").await.unwrap().state, Existence::Alive);
        assert!(matches!(owner("example.com/v1", "EtcdFleet").await, Err(LookupError::Forbidden { .. })));
        assert_eq!(owner("example.com/v1", "Other").await.unwrap().state, Existence::Gone);
        assert_eq!(owner("removed.com/v1", "EtcdCluster").await.unwrap().state, Existence::Gone);
    }

    #[tokio::test]
    async fn unserved_resource_proves_no_absence() {
        let list =
            json!({"resources": [{"name": "etcdclusters", "kind": "EtcdCluster", "namespaced": true}]});
        let reader = ApiReader::new(fake::api_server([
            ("/apis/example.com/v1", 200, list),
            ("/apis/example.com/v1/namespaces/prod/etcdclusters/etcd", 200, object(&json!({}))),
        ]));
        let read = async |version: &str, name: &str, uid: &str| {
            let owner =
                OwnerReference { name: name.to_owned(), ..reference("example.com/v2", "EtcdCluster", uid) };
            let resource = OwnerResource { group: "example.com", version, resource: "etcdclusters" };
            reader.owner_of_resource("prod", &owner, resource).await.map(|owner| owner.state)
        };
        // The version of the reference does not matter.
        assert_eq!(read("v1", "etcd", "u1").await.unwrap(), Existence::Alive);
        assert_eq!(read("v1", "etcd", "u0").await.unwrap(), Existence::Gone);
        assert_eq!(read("v1", "other", "u1").await.unwrap(), Existence::Gone);
        let error = read("v3", "etcd", "u1").await.unwrap_err().to_string();
        assert!(error.contains("serves no etcdclusters of example.com/v3"), "{error}");
        assert!(read("v1", "../../etcd", "u1").await.is_err());
    }

    #[tokio::test]
    async fn rejects_references_that_are_no_path_segments() {
        let reader = ApiReader::new(fake::api_server([]));
        let mut traversal = reference("v1", "Pod", "u1");
        traversal.name = String::from("../secrets/root");
        assert!(matches!(reader.owner("prod", &traversal).await, Err(LookupError::Failed { .. })));
        let version = reference("apps/../v1", "StatefulSet", "u1");
        assert!(matches!(reader.owner("prod", &version).await, Err(LookupError::Failed { .. })));
    }
}
