//! Live reads. Verdicts require the current pods, therefore no read of this module is served from a cache.

use std::time::Duration;

use http::header::{HeaderValue, USER_AGENT};
use kube::{
    Client,
    core::{
        Request,
        params::{GetParams, ListParams},
    },
};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::value::RawValue;

use crate::k8s::{
    error::{LookupError, error_message},
    objects::{
        admission::ScaleTarget,
        claim::Claim,
        pod::{Metadata, Pod},
        pod_references::PodReferences,
        stateful_set::StatefulSet,
    },
};

/// Timeout of one read. A healthy API server responds within milliseconds. If the API server is slower, a denial that
/// names it is more useful than a longer wait, which would leave no time for etcd.
const READ_TIMEOUT: Duration = Duration::from_secs(3);

/// User agent of requests that belong to no review.
const BACKGROUND_USER_AGENT: &str = concat!("etcd-guard/", env!("CARGO_PKG_VERSION"), " background");

/// Maximum number of objects in one page of a list; a pod has up to some tens of KB. All pages have the same resource
/// version.
const MAX_PAGE_SIZE: u32 = 500;

/// Reads pods and the state of their owners from the API server.
#[derive(Clone)]
pub struct ApiReader {
    client: Client,
    user_agent: Option<HeaderValue>,
}

/// An object of which only the metadata is read.
#[derive(Deserialize)]
struct Object {
    metadata: Metadata,
}

/// A StatefulSet with its number of replicas.
#[derive(Deserialize)]
struct ReplicaOwner {
    metadata: Metadata,
    #[serde(flatten)]
    target: ScaleTarget,
}

/// A page of a list of objects.
#[derive(Deserialize)]
struct List<T> {
    #[serde(default)]
    metadata: ListMetadata,
    items: Vec<T>,
}

#[derive(Default, Deserialize)]
struct ListMetadata {
    /// Continue token of the next page.
    #[serde(default, rename = "continue")]
    next: Option<String>,
}

// === impl ApiReader ===

impl ApiReader {
    /// Creates a reader that calls the API server through this client.
    #[must_use]
    pub fn new(client: Client) -> Self {
        Self { client, user_agent: None }
    }

    /// Returns a reader whose requests the audit log of the API server shows as background work, by their user agent.
    #[must_use]
    pub fn for_background_tasks(&self) -> Self {
        Self {
            client: self.client.clone(),
            user_agent: Some(HeaderValue::from_static(BACKGROUND_USER_AGENT)),
        }
    }

    /// Returns the stored pod.
    pub async fn get_pod(&self, namespace: &str, name: &str) -> Result<Pod, LookupError> {
        let subject = format!("pod {namespace}/{name}");
        let request = pod_requests(namespace).get(name, &GetParams::default());
        self.read(subject, request).await
    }

    /// Returns all stored pods of a namespace. Without a resource version the read is consistent.
    pub async fn list_pods(&self, namespace: &str) -> Result<Vec<Pod>, LookupError> {
        let subject = format!("the pods of namespace {namespace}");
        self.list(&subject, &pod_requests(namespace), ListParams::default()).await
    }

    /// Returns all stored pods of a namespace, each with its references to other objects.
    pub async fn list_pods_with_references(
        &self,
        namespace: &str,
    ) -> Result<Vec<(Pod, PodReferences)>, LookupError> {
        let subject = format!("the pods of namespace {namespace}");
        let pods: Vec<Box<RawValue>> =
            self.list(&subject, &pod_requests(namespace), ListParams::default()).await?;
        let parse =
            |pod: Box<RawValue>| Ok((serde_json::from_str(pod.get())?, serde_json::from_str(pod.get())?));
        let parsed: Result<_, serde_json::Error> = pods.into_iter().map(parse).collect();
        parsed.map_err(|error| LookupError::Failed { subject, cause: error.to_string() })
    }

    /// Returns all stored pods of a node, of all namespaces.
    pub async fn list_pods_of_node(&self, node: &str) -> Result<Vec<Pod>, LookupError> {
        let subject = format!("the pods of node {node}");
        let selection = ListParams::default().fields(&format!("spec.nodeName={node}"));
        self.list(&subject, &Request::new("/api/v1/pods"), selection).await
    }

    /// Returns all stored claims of a namespace.
    pub async fn list_claims(&self, namespace: &str) -> Result<Vec<Claim>, LookupError> {
        let subject = format!("the PersistentVolumeClaims of namespace {namespace}");
        let claims = Request::new(format!("/api/v1/namespaces/{namespace}/persistentvolumeclaims"));
        self.list(&subject, &claims, ListParams::default()).await
    }

    /// Returns all stored StatefulSets of a namespace.
    pub async fn list_stateful_sets(&self, namespace: &str) -> Result<Vec<StatefulSet>, LookupError> {
        let subject = format!("the StatefulSets of namespace {namespace}");
        self.list(&subject, &stateful_set_requests(namespace), ListParams::default()).await
    }

    /// Returns the stored StatefulSet.
    pub async fn get_stateful_set(&self, namespace: &str, name: &str) -> Result<StatefulSet, LookupError> {
        let subject = format!("StatefulSet {namespace}/{name}");
        self.read(subject, stateful_set_requests(namespace).get(name, &GetParams::default())).await
    }

    /// Returns the ordinal of a StatefulSet's first pod.
    pub async fn first_ordinal(&self, namespace: &str, name: &str) -> Result<u32, LookupError> {
        let subject = format!("StatefulSet {namespace}/{name}");
        let path = format!("/apis/apps/v1/namespaces/{namespace}/statefulsets");
        let set: ScaleTarget =
            self.read(subject, Request::new(path).get(name, &GetParams::default())).await?;
        Ok(set.spec.ordinals.map_or(0, |ordinals| ordinals.start))
    }

    /// Returns the number of replicas of the StatefulSet of this name and uid. Returns `None` if the StatefulSet is
    /// terminating or no longer exists.
    pub async fn stateful_set_replicas(
        &self,
        namespace: &str,
        name: &str,
        uid: &str,
    ) -> Result<Option<u32>, LookupError> {
        let subject = format!("StatefulSet {namespace}/{name}");
        let path = format!("/apis/apps/v1/namespaces/{namespace}/statefulsets");
        let request = Request::new(path).get(name, &GetParams::default());
        match self.read::<ReplicaOwner>(subject, request).await {
            Ok(ReplicaOwner { metadata, target }) => {
                let is_same = metadata.uid == uid && metadata.deletion_timestamp.is_none();
                Ok(is_same.then(|| target.spec.replicas.unwrap_or(1)))
            }
            Err(LookupError::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Whether the namespace's deletion was accepted. The read is live, because a watch may still contain a deleted
    /// namespace that was created again. It is a list, because the guard's role permits `list` of namespaces, but not
    /// `get`.
    pub async fn is_namespace_terminating(&self, name: &str) -> Result<bool, LookupError> {
        let subject = format!("namespace {name}");
        let selection = ListParams::default().fields(&format!("metadata.name={name}"));
        let list: List<Object> =
            self.read(subject, Request::new("/api/v1/namespaces").list(&selection)).await?;
        Ok(list.items.iter().any(|namespace| namespace.metadata.deletion_timestamp.is_some()))
    }

    /// Returns an error if the API server does not serve this client. This is the first call of a new process.
    pub async fn check_connection(&self) -> Result<(), LookupError> {
        let subject = String::from("the version of the API server");
        self.read::<serde::de::IgnoredAny>(subject, Request::new("/version").list(&ListParams::default()))
            .await?;
        Ok(())
    }

    /// Reads all pages of a list.
    async fn list<T: DeserializeOwned>(
        &self,
        subject: &str,
        requests: &Request,
        selection: ListParams,
    ) -> Result<Vec<T>, LookupError> {
        let (mut items, mut page) = (Vec::new(), selection.limit(MAX_PAGE_SIZE));
        loop {
            let list: List<T> = self.read(subject.to_owned(), requests.list(&page)).await?;
            items.extend(list.items);
            match list.metadata.next {
                Some(next) if !next.is_empty() => page = page.continue_token(&next),
                _ => return Ok(items),
            }
        }
    }

    /// Reads and parses a body. `kube::Client::request` is not used, because it logs a body that it cannot parse.
    pub(super) async fn read<T: DeserializeOwned>(
        &self,
        subject: String,
        request: Result<http::Request<Vec<u8>>, kube::core::request::Error>,
    ) -> Result<T, LookupError> {
        let request = request.map(|mut request| {
            if let Some(user_agent) = &self.user_agent {
                request.headers_mut().insert(USER_AGENT, user_agent.clone());
            }
            request
        });
        let text = read_text(&self.client, &subject, request).await?;
        serde_json::from_str(&text).map_err(|error| LookupError::Failed { subject, cause: error.to_string() })
    }
}

/// Returns the body of a response. `kube::Client::request` is not used, because it logs a body that it cannot parse.
pub(in crate::k8s) async fn read_text(
    client: &Client,
    subject: &str,
    request: Result<http::Request<Vec<u8>>, kube::core::request::Error>,
) -> Result<String, LookupError> {
    let subject = || subject.to_owned();
    let failed = |cause| LookupError::Failed { subject: subject(), cause };
    let request = request.map_err(|error| failed(error.to_string()))?;
    match tokio::time::timeout(READ_TIMEOUT, client.request_text(request)).await {
        Err(_) => Err(LookupError::TimedOut { subject: subject(), limit: READ_TIMEOUT }),
        Ok(Err(kube::Error::Api(status))) => Err(match status.code {
            404 => LookupError::NotFound { subject: subject() },
            403 => LookupError::Forbidden { subject: subject(), cause: status.message.clone() },
            _ => failed(status.message.clone()),
        }),
        Ok(Err(error)) => Err(failed(error_message(&error))),
        Ok(Ok(text)) => Ok(text),
    }
}

fn pod_requests(namespace: &str) -> Request {
    Request::new(format!("/api/v1/namespaces/{namespace}/pods"))
}

fn stateful_set_requests(namespace: &str) -> Request {
    Request::new(format!("/apis/apps/v1/namespaces/{namespace}/statefulsets"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::k8s::fake;

    #[tokio::test]
    async fn reads_all_pages_of_a_namespace_with_many_pods() {
        let reader = ApiReader::new(fake::api_server_with(|call, _| {
            let query = call.uri.query().unwrap_or_default();
            assert!(query.contains("limit=500"), "{query}");
            let pod = |name: &str| json!({"metadata": {"name": name, "namespace": "prod", "uid": name}});
            if query.contains("continue=there") {
                (200, json!({"metadata": {"continue": ""}, "items": [pod("etcd-1")]}))
            } else {
                (200, json!({"metadata": {"continue": "there"}, "items": [pod("etcd-0")]}))
            }
        }));
        let names: Vec<_> =
            reader.list_pods("prod").await.unwrap().into_iter().map(|pod| pod.metadata.name).collect();
        assert_eq!(names, ["etcd-0", "etcd-1"]);
    }
}
