//! Labels of namespaces and the version of the API server, which the review of a pod does not contain.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use kube::core::{Request, params::GetParams, params::ListParams};
use moka::sync::Cache;
use serde::Deserialize;
use tokio::sync::OnceCell;

use super::api_reader::ApiReader;
use crate::k8s::{error::LookupError, objects::pod::Metadata};

/// Lifetime of cached labels: a burst of pods costs one read, and a new label takes effect almost immediately.
const LABELS_TTL: Duration = Duration::from_secs(2);

/// Maximum number of cached namespaces. It exceeds the number of namespaces that create pods within [`LABELS_TTL`].
const MAX_NAMESPACES: u64 = 4096;

/// The labels of a namespace.
pub type NamespaceLabels = Arc<BTreeMap<String, String>>;

/// One read of labels, shared by all concurrent callers.
type Read = Arc<OnceCell<Result<NamespaceLabels, LookupError>>>;

/// Reads namespaces.
#[derive(Clone)]
pub struct NamespaceReader {
    reader: ApiReader,
    labels: Cache<String, Read>,
}

/// The version of the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ApiServerVersion {
    /// Always 1 so far.
    pub major: u32,
    /// For instance 34.
    pub minor: u32,
}

#[derive(Deserialize)]
struct Namespace {
    #[serde(default)]
    metadata: Metadata,
}

#[derive(Deserialize)]
struct VersionInfo {
    major: String,
    minor: String,
}

// === impl NamespaceReader ===

impl NamespaceReader {
    /// Creates a reader that calls the API server through `reader`.
    #[must_use]
    pub fn new(reader: ApiReader) -> Self {
        let labels = Cache::builder().max_capacity(MAX_NAMESPACES).time_to_live(LABELS_TTL).build();
        Self { reader, labels }
    }

    /// Returns a namespace's labels, at most 2 s old.
    pub async fn labels(&self, name: &str) -> Result<NamespaceLabels, LookupError> {
        let read = self.labels.get_with_by_ref(name, Read::default);
        let labels = read.get_or_init(|| async {
            let labels = self.read_labels(name).await;
            if labels.is_err() {
                // Callers that already wait receive the error; later callers start a new read.
                self.labels.invalidate(name);
            }
            labels
        });
        labels.await.clone()
    }

    async fn read_labels(&self, name: &str) -> Result<NamespaceLabels, LookupError> {
        let request = Request::new("/api/v1/namespaces").get(name, &GetParams::default());
        let namespace: Namespace = self.reader.read(format!("namespace {name}"), request).await?;
        Ok(Arc::new(namespace.metadata.labels))
    }

    /// Returns the version of the API server.
    pub async fn version(&self) -> Result<ApiServerVersion, LookupError> {
        let subject = String::from("the version of the API server");
        let request = Request::new("/version").list(&ListParams::default());
        let info: VersionInfo = self.reader.read(subject.clone(), request).await?;
        ApiServerVersion::parse(&info.major, &info.minor)
            .ok_or_else(|| LookupError::Failed { subject, cause: format!("{}.{}", info.major, info.minor) })
    }
}

// === impl ApiServerVersion ===

impl ApiServerVersion {
    /// The first release of which all supported kubelets have native sidecars: sidecars are enabled by default since
    /// 1.29, and a kubelet may be three releases older than its API server.
    pub const NATIVE_SIDECARS: Self = Self { major: 1, minor: 32 };

    /// Parses `1` and `34`; some cloud providers report `34+`.
    #[must_use]
    pub fn parse(major: &str, minor: &str) -> Option<Self> {
        let number = |text: &str| text.trim_end_matches(|c: char| !c.is_ascii_digit()).parse().ok();
        Some(Self { major: number(major)?, minor: number(minor)? })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures::future::join_all;
    use serde_json::json;

    use super::*;
    use crate::k8s::fake::{api_server_with, status_failure};

    /// A reader of an API server that fails the first `failures` calls, and the number of calls.
    fn namespaces(failures: usize) -> (NamespaceReader, Arc<AtomicUsize>) {
        let calls = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&calls);
        let client = api_server_with(move |_, _| {
            if count.fetch_add(1, Ordering::SeqCst) < failures {
                return (500, status_failure(500, "not now"));
            }
            (200, json!({"metadata": {"name": "web", "labels": {"a": "b"}}}))
        });
        (NamespaceReader::new(ApiReader::new(client)), calls)
    }

    /// Reads the labels eight times concurrently; returns the number of successful reads.
    async fn read_concurrently(namespaces: &NamespaceReader) -> usize {
        let results = join_all((0..8).map(|_| namespaces.labels("web"))).await;
        results
            .into_iter()
            .flatten()
            .filter(|labels| labels.get("a").is_some_and(|value| value == "b"))
            .count()
    }

    #[tokio::test]
    async fn concurrent_calls_share_one_read() {
        let (namespaces, calls) = namespaces(0);
        assert_eq!(read_concurrently(&namespaces).await, 8);
        assert_eq!(calls.load(Ordering::SeqCst), 1);
    }

    #[tokio::test]
    async fn failed_read_fails_waiting_calls_and_is_not_cached() {
        let (namespaces, calls) = namespaces(1);
        assert_eq!(read_concurrently(&namespaces).await, 0);
        assert_eq!(calls.load(Ordering::SeqCst), 1);
        assert_eq!(read_concurrently(&namespaces).await, 8);
        assert_eq!(calls.load(Ordering::SeqCst), 2);
    }
}
