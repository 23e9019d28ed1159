//! Live reads. Verdicts require the current pods, therefore no read of this module is served from a cache.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use http::header::{HeaderValue, USER_AGENT};
use kube::{
    Client,
    core::{
        Request,
        params::{GetParams, ListParams},
    },
};
use serde::{Deserialize, de::DeserializeOwned};

use super::{
    body::{BuiltRequest, collect, send},
    list_splitter::MAX_OBJECT_BYTES,
    pages::{List, objects},
};
use crate::error::LookupError;
use etcd_guard_core::{
    objects::{
        admission::ScaleTarget,
        claim::Claim,
        disruption_budget::DisruptionBudget,
        heap_size::HeapSize,
        pod::{Metadata, Pod},
        pod_references::PodReferences,
        pod_template::PodTemplate,
        stateful_set::StatefulSet,
    },
    opt_in_label::OptInLabel,
};

/// Timeout of one read. A healthy API server responds within milliseconds. If the API server is slower, a denial that
/// names it is more useful than a longer wait, which would leave no time for etcd.
const READ_TIMEOUT: Duration = Duration::from_secs(3);

/// User agent of requests that belong to no review.
const BACKGROUND_USER_AGENT: &str = concat!("etcd-guard/", env!("CARGO_PKG_VERSION"), " background");

/// Maximum memory of the pods of one namespace on one node, of which only names, labels and owners are kept: thousands of pods.
const MAX_IDENTITY_BYTES: usize = 4 << 20;

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

/// The pods of a node, without their specification and status.
#[derive(Debug, Default)]
pub struct PodsOfNode {
    /// The pods that were kept.
    pub pods: Vec<Pod>,
    /// The namespaces with further pods on the node.
    pub incomplete: BTreeSet<String>,
}

/// A list of few objects, which is read in one page.
#[derive(Deserialize)]
struct Selected<T> {
    items: Vec<T>,
}

// === impl ApiReader ===

impl ApiReader {
    /// Creates a reader that calls the API server through this client.
    pub fn new(client: Client) -> Self {
        Self { client, user_agent: None }
    }

    /// Returns a reader whose requests the audit log of the API server shows as background work, by their user agent.
    pub fn for_background_tasks(&self) -> Self {
        Self {
            client: self.client.clone(),
            user_agent: Some(HeaderValue::from_static(BACKGROUND_USER_AGENT)),
        }
    }

    /// Returns the stored pod.
    pub async fn get_pod(&self, namespace: &str, name: &str) -> Result<Pod, LookupError> {
        let subject = format!("pod {namespace}/{name}");
        let request = Request::new(pods_path(namespace)).get(name, &GetParams::default());
        self.read(subject, request).await
    }

    /// Returns all stored pods of a namespace. Without a resource version the read is consistent.
    pub async fn list_pods(&self, namespace: &str) -> Result<Vec<Pod>, LookupError> {
        let subject = format!("the pods of namespace {namespace}");
        self.list(&subject, &pods_path(namespace), ListParams::default(), parse_object).await
    }

    /// Returns all stored pods of a namespace, each with its references to other objects.
    pub async fn list_pods_with_references(
        &self,
        namespace: &str,
    ) -> Result<Vec<(Pod, PodReferences)>, LookupError> {
        let subject = format!("the pods of namespace {namespace}");
        let parse = |json: &[u8]| Ok(Some((serde_json::from_slice(json)?, serde_json::from_slice(json)?)));
        self.list(&subject, &pods_path(namespace), ListParams::default(), parse).await
    }

    /// Returns all stored pods of a node in these namespaces. Pods of other namespaces are not stored.
    pub async fn list_pods_of_node(
        &self,
        node: &str,
        namespaces: &BTreeSet<String>,
    ) -> Result<Vec<Pod>, LookupError> {
        let subject = format!("the pods of node {node}");
        let selection = ListParams::default().fields(&format!("spec.nodeName={node}"));
        let parse = |json: &[u8]| {
            let pod: Pod = serde_json::from_slice(json)?;
            Ok(Some(pod).filter(|pod| namespaces.contains(&pod.metadata.namespace)))
        };
        self.list(&subject, "/api/v1/pods", selection, parse).await
    }

    /// Returns the stored pods of a node in these namespaces, each without what a list of its namespace contains as well. The pods of
    /// one namespace must not prevent that those of another one are found: their memory has a limit per namespace.
    pub async fn identify_pods_of_node(
        &self,
        node: &str,
        namespaces: &BTreeSet<String>,
    ) -> Result<PodsOfNode, LookupError> {
        let subject = format!("the pods of node {node}");
        let selection = ListParams::default().fields(&format!("spec.nodeName={node}"));
        let used: Mutex<BTreeMap<String, usize>> = Mutex::default();
        let parse = |json: &[u8]| {
            let pod: Pod = serde_json::from_slice(json)?;
            if !namespaces.contains(&pod.metadata.namespace) {
                return Ok(None);
            }
            let pod = pod.into_identity();
            let mut used = used.lock().unwrap_or_else(PoisonError::into_inner);
            let used = used.entry(pod.metadata.namespace.clone()).or_default();
            *used += size_of::<Pod>() + pod.heap_size();
            Ok((*used <= MAX_IDENTITY_BYTES).then_some(pod))
        };
        let pods = self.list(&subject, "/api/v1/pods", selection, parse).await?;
        let used = used.into_inner().unwrap_or_else(PoisonError::into_inner);
        let exceeding = used.into_iter().filter(|(_, used)| *used > MAX_IDENTITY_BYTES);
        Ok(PodsOfNode { pods, incomplete: exceeding.map(|(namespace, _)| namespace).collect() })
    }

    /// Returns all stored pods with this address, of all namespaces. Pods with `hostNetwork` share the address of their node.
    pub async fn list_pods_at(&self, address: IpAddr) -> Result<Vec<Pod>, LookupError> {
        let subject = format!("the pods with address {address}");
        let selection = ListParams::default().fields(&format!("status.podIP={address}"));
        let parse = |json: &[u8]| {
            let pod: Pod = serde_json::from_slice(json)?;
            let is_same = pod.status.pod_ip.parse().is_ok_and(|ip: IpAddr| ip == address);
            Ok(Some(pod).filter(|_| is_same))
        };
        self.list(&subject, "/api/v1/pods", selection, parse).await
    }

    /// Returns all stored claims of a namespace.
    pub async fn list_claims(&self, namespace: &str) -> Result<Vec<Claim>, LookupError> {
        let subject = format!("the PersistentVolumeClaims of namespace {namespace}");
        let path = format!("/api/v1/namespaces/{namespace}/persistentvolumeclaims");
        self.list(&subject, &path, ListParams::default(), parse_object).await
    }

    /// Returns the `PodDisruptionBudgets` of a namespace from the API server's cache, which may lag behind. A list of what is stored
    /// would wait for that cache, for up to 0.1 s.
    pub async fn list_disruption_budgets(
        &self,
        namespace: &str,
    ) -> Result<Vec<DisruptionBudget>, LookupError> {
        let subject = format!("the PodDisruptionBudgets of namespace {namespace}");
        let request = Request::new(format!("/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets"));
        let list: Selected<DisruptionBudget> =
            self.read(subject, request.list(&ListParams::default().match_any())).await?;
        Ok(list.items)
    }

    /// Returns all stored StatefulSets of a namespace.
    pub async fn list_stateful_sets(&self, namespace: &str) -> Result<Vec<StatefulSet>, LookupError> {
        let subject = format!("the StatefulSets of namespace {namespace}");
        self.list(&subject, &stateful_sets_path(namespace), ListParams::default(), parse_object).await
    }

    /// Returns the stored StatefulSet.
    pub async fn get_stateful_set(&self, namespace: &str, name: &str) -> Result<StatefulSet, LookupError> {
        let subject = format!("StatefulSet {namespace}/{name}");
        let request = Request::new(stateful_sets_path(namespace)).get(name, &GetParams::default());
        self.read(subject, request).await
    }

    /// Returns the stored object of this resource of the group `apps`: a Deployment or a `ReplicaSet`.
    pub async fn get_pod_template(
        &self,
        namespace: &str,
        resource: &str,
        name: &str,
    ) -> Result<PodTemplate, LookupError> {
        let subject = format!("{resource} {namespace}/{name}");
        let request = Request::new(format!("/apis/apps/v1/namespaces/{namespace}/{resource}"));
        self.read(subject, request.get(name, &GetParams::default())).await
    }

    /// Returns the ordinal of a StatefulSet's first pod.
    pub async fn first_ordinal(&self, namespace: &str, name: &str) -> Result<u32, LookupError> {
        let subject = format!("StatefulSet {namespace}/{name}");
        let request = Request::new(stateful_sets_path(namespace)).get(name, &GetParams::default());
        let set: ScaleTarget = self.read(subject, request).await?;
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
        let request = Request::new(stateful_sets_path(namespace)).get(name, &GetParams::default());
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
    /// namespace that was created again.
    pub async fn is_namespace_terminating(&self, name: &str) -> Result<bool, LookupError> {
        let namespace = self.namespace(name).await?;
        Ok(namespace.is_some_and(|metadata| metadata.deletion_timestamp.is_some()))
    }

    /// Whether a namespace has this label, which opts it in. The read is live, because a watch may not contain a recent label yet.
    pub async fn is_namespace_guarded(&self, name: &str, label: &OptInLabel) -> Result<bool, LookupError> {
        let namespace = self.namespace(name).await?;
        Ok(namespace.is_some_and(|metadata| label.matches(&metadata.labels)))
    }

    /// Returns the metadata of a namespace, or `None` if the namespace does not exist.
    async fn namespace(&self, name: &str) -> Result<Option<Metadata>, LookupError> {
        let request = Request::new("/api/v1/namespaces").get(name, &GetParams::default());
        match self.read::<Object>(format!("namespace {name}"), request).await {
            Ok(namespace) => Ok(Some(namespace.metadata)),
            Err(LookupError::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns an error if the API server does not serve this client. This is the first call of a new process.
    pub async fn check_connection(&self) -> Result<(), LookupError> {
        let subject = String::from("the version of the API server");
        self.read::<serde::de::IgnoredAny>(subject, Request::new("/version").list(&ListParams::default()))
            .await?;
        Ok(())
    }

    /// Reads all pages of a list of the objects of this URL path.
    async fn list<T: HeapSize>(
        &self,
        subject: &str,
        path: &str,
        selection: ListParams,
        parse: impl Fn(&[u8]) -> Result<Option<T>, serde_json::Error>,
    ) -> Result<Vec<T>, LookupError> {
        let list = List { client: &self.client, subject, timeout: READ_TIMEOUT, selection };
        let requests = objects(path);
        Ok(list.read(|page| self.with_user_agent(requests(page)), parse).await?.objects)
    }

    /// Reads and parses a body.
    pub(super) async fn read<T: DeserializeOwned>(
        &self,
        subject: String,
        request: BuiltRequest,
    ) -> Result<T, LookupError> {
        let body = read_body(&self.client, &subject, self.with_user_agent(request)).await?;
        serde_json::from_slice(&body)
            .map_err(|error| LookupError::Failed { subject, cause: error.to_string() })
    }

    fn with_user_agent(&self, request: BuiltRequest) -> BuiltRequest {
        request.map(|mut request| {
            if let Some(user_agent) = &self.user_agent {
                request.headers_mut().insert(USER_AGENT, user_agent.clone());
            }
            request
        })
    }
}

/// Returns the body of a response about one object.
pub(crate) async fn read_body(
    client: &Client,
    subject: &str,
    request: BuiltRequest,
) -> Result<Bytes, LookupError> {
    let read = async {
        let body = send(client, subject, request).await?;
        collect(body, subject, MAX_OBJECT_BYTES).await
    };
    let timed_out = |_| LookupError::TimedOut { subject: subject.to_owned(), limit: READ_TIMEOUT };
    tokio::time::timeout(READ_TIMEOUT, read).await.map_err(timed_out)?
}

fn parse_object<T: DeserializeOwned>(json: &[u8]) -> Result<Option<T>, serde_json::Error> {
    serde_json::from_slice(json).map(Some)
}

fn pods_path(namespace: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/pods")
}

fn stateful_sets_path(namespace: &str) -> String {
    format!("/apis/apps/v1/namespaces/{namespace}/statefulsets")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::fake;

    #[tokio::test]
    async fn lists_pods_of_a_node_in_guarded_namespaces() {
        let reader = ApiReader::new(fake::api_server_with(|call, _| {
            let query = call.uri.query().unwrap_or_default();
            assert!(query.contains("fieldSelector=spec.nodeName%3Dworker"), "{query}");
            let pod = |namespace: &str| json!({"metadata": {"name": "etcd-0", "namespace": namespace}});
            (200, json!({"metadata": {}, "items": [pod("prod"), pod("other")]}))
        }));
        let guarded = BTreeSet::from([String::from("prod")]);
        let pods = reader.list_pods_of_node("worker", &guarded).await.unwrap();
        let namespaces: Vec<_> = pods.iter().map(|pod| pod.metadata.namespace.as_str()).collect();
        assert_eq!(namespaces, ["prod"]);
    }

    #[tokio::test]
    async fn namespace_without_label_or_object_is_not_guarded() {
        let reader = ApiReader::new(fake::api_server_with(|call, _| match call.uri.path() {
            "/api/v1/namespaces/prod" => {
                (200, json!({"metadata": {"name": "prod", "labels": {"etcd-guard.io/guard": "enabled"}}}))
            }
            "/api/v1/namespaces/other" => (200, json!({"metadata": {"name": "other"}})),
            _ => (404, json!({"kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404})),
        }));
        let label = OptInLabel::default();
        let mut guarded = Vec::new();
        for name in ["prod", "other", "gone"] {
            guarded.push(reader.is_namespace_guarded(name, &label).await.unwrap());
        }
        assert_eq!(guarded, [true, false, false]);
    }
}
