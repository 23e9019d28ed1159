//! Labels of namespaces and the version of the API server, which the review of a pod does not contain.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use kube::core::{
    Request,
    params::{GetParams, ListParams},
};
use serde::Deserialize;
use tokio::sync::OnceCell;

use super::api_reader::ApiReader;
use crate::error::LookupError;
use etcd_guard_cache::{ExpiringCache, Lifetime};
use etcd_guard_core::objects::{api_server_version::ApiServerVersion, pod::Metadata};

/// Lifetime of cached labels: a burst of pods costs one read, and a new label takes effect almost immediately.
const LABELS_TTL: Duration = Duration::from_secs(2);

/// Maximum number of cached namespaces. It exceeds the number of namespaces that create pods within [`LABELS_TTL`].
const MAX_NAMESPACES: u64 = 4096;

/// The column with the kubelet's version in the table of nodes.
const VERSION_COLUMN: &str = "Version";

/// The labels of a namespace.
pub type NamespaceLabels = Arc<BTreeMap<String, String>>;

/// One read of labels, shared by all concurrent callers.
type Read = Arc<OnceCell<Result<NamespaceLabels, LookupError>>>;

/// Reads namespaces.
#[derive(Clone)]
pub struct NamespaceReader {
    reader: ApiReader,
    labels: ExpiringCache<String, Read>,
}

#[derive(Deserialize)]
struct Namespace {
    #[serde(default)]
    metadata: Metadata,
}

/// A list in the form that kubectl prints.
#[derive(Deserialize)]
struct Table {
    #[serde(rename = "columnDefinitions")]
    columns: Vec<Column>,
    #[serde(default)]
    rows: Vec<Row>,
}

#[derive(Deserialize)]
struct Column {
    name: String,
}

#[derive(Deserialize)]
struct Row {
    cells: Vec<serde_json::Value>,
}

#[derive(Deserialize)]
struct VersionInfo {
    major: String,
    minor: String,
}

// === impl NamespaceReader ===

impl NamespaceReader {
    /// Creates a reader that calls the API server through `reader`.
    pub fn new(reader: ApiReader) -> Self {
        let labels = ExpiringCache::new(MAX_NAMESPACES, Lifetime::SinceInsertion(LABELS_TTL));
        Self { reader, labels }
    }

    /// Returns a namespace's labels, at most 2 s old.
    pub async fn labels(&self, name: &str) -> Result<NamespaceLabels, LookupError> {
        let (read, _) = self.labels.get_or_default(name);
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

    /// Returns the oldest version of all kubelets; `None` if no node has reported one. The API server returns a table
    /// with one short row per node, from its cache.
    pub async fn oldest_kubelet(&self) -> Result<Option<ApiServerVersion>, LookupError> {
        let subject = String::from("the versions of the kubelets");
        let request = http::Request::get("/api/v1/nodes?includeObject=None&resourceVersion=0")
            .header(http::header::ACCEPT, "application/json;as=Table;v=v1;g=meta.k8s.io")
            .body(Vec::new())
            .map_err(kube::core::request::Error::BuildRequest);
        let table: Table = self.reader.read(subject.clone(), request).await?;
        let missing = || LookupError::Failed { subject, cause: String::from("the table has no versions") };
        let column =
            table.columns.iter().position(|column| column.name == VERSION_COLUMN).ok_or_else(missing)?;
        let versions = table.rows.iter().filter_map(|row| row.cells.get(column)?.as_str());
        Ok(versions.filter_map(ApiServerVersion::parse_full).min())
    }

    /// Returns whether the API server with this version and all kubelets have native sidecars. If the versions of the
    /// kubelets cannot be read, the supported version skew decides, and the error is returned as well.
    pub async fn native_sidecars(&self, version: ApiServerVersion) -> (bool, Option<LookupError>) {
        if version < ApiServerVersion::NATIVE_SIDECARS {
            return (false, None);
        }
        let oldest = self.oldest_kubelet().await;
        (version.has_native_sidecars(oldest.as_ref().ok().copied()), oldest.err())
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures::future::join_all;
    use serde_json::json;

    use super::*;
    use crate::fake::{api_server_with, status_failure};

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
    async fn reads_oldest_kubelet_of_all_nodes() {
        let rows = |versions: &[&str]| {
            versions.iter().map(|version| json!({"cells": ["node", version]})).collect::<Vec<_>>()
        };
        let oldest = async |versions: &[&str]| {
            let columns = json!([{"name": "Name"}, {"name": "Version"}]);
            let table = json!({"columnDefinitions": columns, "rows": rows(versions)});
            let client = api_server_with(move |call, _| {
                assert!(call.headers.get("accept").unwrap().to_str().unwrap().contains("as=Table"));
                (200, table.clone())
            });
            NamespaceReader::new(ApiReader::new(client)).oldest_kubelet().await.unwrap()
        };
        let minor = |minor| Some(ApiServerVersion { major: 1, minor });
        assert_eq!(oldest(&["v1.34.3", "v1.28.15+k3s1", "v1.29.0-eks-1"]).await, minor(28));
        // A node that has not reported its version yet runs no pods.
        assert_eq!(oldest(&["", "v1.33.1"]).await, minor(33));
        assert_eq!(oldest(&[]).await, None);
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
