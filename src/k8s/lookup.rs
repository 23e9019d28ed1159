//! Live reads of pods. Never from a cache: a verdict on yesterday's pods would be a guess.

use std::time::Duration;

use kube::{
    Client,
    core::{
        Request,
        params::{GetParams, ListParams},
    },
};
use serde::{Deserialize, de::DeserializeOwned};

use super::{
    admission::Scaled,
    pod::{Metadata, Pod},
};

/// Longest that one read may take. A healthy apiserver answers in milliseconds; one that needs seconds is better
/// named in a denial than waited for until the deadline leaves no time for etcd.
const READ_LIMIT: Duration = Duration::from_secs(3);

/// The most pods in one answer, of up to some tens of KB each. All pages are of one moment.
const PAGE: u32 = 500;

/// A read that brought no object. [`LookupError::NotFound`] alone means that there is none.
#[derive(Clone, Debug, thiserror::Error)]
pub enum LookupError {
    /// The apiserver says that there is no such object.
    #[error("{what} does not exist")]
    NotFound {
        /// For instance `pod prod/etcd-1`.
        what: String,
    },
    /// The apiserver knows who asks and does not let them read this.
    #[error("reading {what} is forbidden: {cause}")]
    Forbidden {
        /// What was to be read.
        what: String,
        /// The apiserver's own words.
        cause: String,
    },
    /// The apiserver refused, could not be reached, or answered something unreadable.
    #[error("reading {what} failed: {cause}")]
    Failed {
        /// What was read.
        what: String,
        /// The apiserver's or the connection's own words.
        cause: String,
    },
    /// No answer in time.
    #[error("reading {what}: the apiserver did not answer within {}", humantime::format_duration(*.limit))]
    TimedOut {
        /// What was read.
        what: String,
        /// How long it was waited for.
        limit: Duration,
    },
}

/// Reads pods from the apiserver.
#[derive(Clone)]
pub struct Pods {
    client: Client,
}

/// An object of which only its own state is of interest.
#[derive(Deserialize)]
struct Owner {
    metadata: Metadata,
}

/// A list of objects, or a page of it.
#[derive(Deserialize)]
struct List<T> {
    #[serde(default)]
    metadata: ListMetadata,
    items: Vec<T>,
}

#[derive(Default, Deserialize)]
struct ListMetadata {
    /// Where the next page begins.
    #[serde(default, rename = "continue")]
    next: Option<String>,
}

// === impl Pods ===

impl Pods {
    /// Reads with this client's identity.
    #[must_use]
    pub fn new(client: Client) -> Self {
        Self { client }
    }

    /// The pod as it is stored now.
    pub async fn get(&self, namespace: &str, name: &str) -> Result<Pod, LookupError> {
        let what = format!("pod {namespace}/{name}");
        let request = pods_of(namespace).get(name, &GetParams::default());
        self.read(what, request).await
    }

    /// All pods of a namespace as they are stored now: without a resource version the read is a consistent one.
    pub async fn list(&self, namespace: &str) -> Result<Vec<Pod>, LookupError> {
        let (mut pods, mut page) = (Vec::new(), ListParams::default().limit(PAGE));
        loop {
            let what = format!("the pods of namespace {namespace}");
            let list: List<Pod> = self.read(what, pods_of(namespace).list(&page)).await?;
            pods.extend(list.items);
            match list.metadata.next {
                Some(next) if !next.is_empty() => page = page.continue_token(&next),
                _ => return Ok(pods),
            }
        }
    }

    /// Whether the StatefulSet of this name and uid is on its way out, or gone already. Read live: a watch may not have
    /// heard of a new one yet, which is neither.
    pub async fn is_stateful_set_going(
        &self,
        namespace: &str,
        name: &str,
        uid: &str,
    ) -> Result<bool, LookupError> {
        let what = format!("StatefulSet {namespace}/{name}");
        let path = format!("/apis/apps/v1/namespaces/{namespace}/statefulsets");
        let request = Request::new(path).get(name, &GetParams::default());
        match self.read::<Owner>(what, request).await {
            Ok(owner) => Ok(owner.metadata.uid != uid || owner.metadata.deletion_timestamp.is_some()),
            Err(LookupError::NotFound { .. }) => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// The ordinal of a StatefulSet's first pod.
    pub async fn first_ordinal(&self, namespace: &str, name: &str) -> Result<u32, LookupError> {
        let what = format!("StatefulSet {namespace}/{name}");
        let path = format!("/apis/apps/v1/namespaces/{namespace}/statefulsets");
        let set: Scaled = self.read(what, Request::new(path).get(name, &GetParams::default())).await?;
        Ok(set.spec.ordinals.map_or(0, |ordinals| ordinals.start))
    }

    /// Whether the namespace's deletion was accepted. Read live: a watch may tell of one that is gone, and was made anew.
    /// As a list, which a guard may have and a single object not.
    pub async fn is_namespace_terminating(&self, name: &str) -> Result<bool, LookupError> {
        let what = format!("namespace {name}");
        let this = ListParams::default().fields(&format!("metadata.name={name}"));
        let list: List<Owner> = self.read(what, Request::new("/api/v1/namespaces").list(&this)).await?;
        Ok(list.items.iter().any(|it| it.metadata.deletion_timestamp.is_some()))
    }

    /// Whether the apiserver answers this client at all: the first call of a new process.
    pub async fn reach_apiserver(&self) -> Result<(), LookupError> {
        let what = String::from("the apiserver's version");
        self.read::<serde::de::IgnoredAny>(what, Request::new("/version").list(&ListParams::default()))
            .await?;
        Ok(())
    }

    /// Parses the body itself: `kube::Client::request` logs a body that it cannot parse.
    pub(super) async fn read<T: DeserializeOwned>(
        &self,
        what: String,
        request: Result<http::Request<Vec<u8>>, kube::core::request::Error>,
    ) -> Result<T, LookupError> {
        let text = read_text(&self.client, &what, request).await?;
        serde_json::from_str(&text).map_err(|error| LookupError::Failed { what, cause: error.to_string() })
    }
}

/// The body of an answer. Never through `kube::Client::request`, which logs a body that it cannot parse.
pub(super) async fn read_text(
    client: &Client,
    what: &str,
    request: Result<http::Request<Vec<u8>>, kube::core::request::Error>,
) -> Result<String, LookupError> {
    let what = || what.to_owned();
    let failed = |cause| LookupError::Failed { what: what(), cause };
    let request = request.map_err(|error| failed(error.to_string()))?;
    match tokio::time::timeout(READ_LIMIT, client.request_text(request)).await {
        Err(_) => Err(LookupError::TimedOut { what: what(), limit: READ_LIMIT }),
        Ok(Err(kube::Error::Api(status))) => Err(match status.code {
            404 => LookupError::NotFound { what: what() },
            403 => LookupError::Forbidden { what: what(), cause: status.message.clone() },
            _ => failed(status.message.clone()),
        }),
        Ok(Err(error)) => Err(failed(innermost(&error))),
        Ok(Ok(text)) => Ok(text),
    }
}

fn pods_of(namespace: &str) -> Request {
    Request::new(format!("/api/v1/namespaces/{namespace}/pods"))
}

/// The last cause of an error: of "service error: client error (Connect): tcp connect error: refused", the last.
pub(super) fn innermost(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::k8s::fake;

    #[tokio::test]
    async fn a_namespace_with_many_pods_is_read_page_by_page_to_the_end() {
        let pods = Pods::new(fake::served_by(|call, _| {
            let query = call.uri.query().unwrap_or_default();
            assert!(query.contains("limit=500"), "{query}");
            let pod = |name: &str| json!({"metadata": {"name": name, "namespace": "prod", "uid": name}});
            if query.contains("continue=there") {
                (200, json!({"metadata": {"continue": ""}, "items": [pod("etcd-1")]}))
            } else {
                (200, json!({"metadata": {"continue": "there"}, "items": [pod("etcd-0")]}))
            }
        }));
        let names: Vec<_> = pods.list("prod").await.unwrap().into_iter().map(|it| it.metadata.name).collect();
        assert_eq!(names, ["etcd-0", "etcd-1"]);
    }
}
