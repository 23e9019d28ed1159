//! The labels of namespaces, and the apiserver's version: what a pod's review does not bring.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use kube::core::{Request, params::GetParams, params::ListParams};
use moka::sync::Cache;
use serde::Deserialize;
use tokio::sync::OnceCell;

use super::{LookupError, Pods, pod::Metadata};

/// How long labels are remembered: a burst of pods is one read, and whoever labels a namespace need not wait.
const LABELS_LIFE: Duration = Duration::from_secs(2);

/// More namespaces than are busy at a time.
const MOST_NAMESPACES: u64 = 4096;

/// The labels of a namespace.
pub type NamespaceLabels = Arc<BTreeMap<String, String>>;

/// One read of labels: all who ask while it goes on wait for it.
type Read = Arc<OnceCell<Result<NamespaceLabels, LookupError>>>;

/// Reads namespaces.
#[derive(Clone)]
pub struct Namespaces {
    reader: Pods,
    labels: Cache<String, Read>,
}

/// The apiserver's version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// 1, so far.
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

// === impl Namespaces ===

impl Namespaces {
    /// Reads with the identity of `reader`.
    #[must_use]
    pub fn new(reader: Pods) -> Self {
        let labels = Cache::builder().max_capacity(MOST_NAMESPACES).time_to_live(LABELS_LIFE).build();
        Self { reader, labels }
    }

    /// A namespace's labels, as they were at most a moment ago.
    pub async fn labels(&self, name: &str) -> Result<NamespaceLabels, LookupError> {
        let read = self.labels.get_with_by_ref(name, Read::default);
        let labels = read.get_or_init(|| async {
            let labels = self.read_labels(name).await;
            if labels.is_err() {
                // For those who wait already; who asks from here on has it read again.
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

    /// The apiserver's version.
    pub async fn version(&self) -> Result<Version, LookupError> {
        let what = String::from("the apiserver's version");
        let request = Request::new("/version").list(&ListParams::default());
        let info: VersionInfo = self.reader.read(what.clone(), request).await?;
        Version::of(&info.major, &info.minor)
            .ok_or_else(|| LookupError::Failed { what, cause: format!("{}.{}", info.major, info.minor) })
    }
}

// === impl Version ===

impl Version {
    /// The first release whose apiserver supports no kubelet that lacks native sidecars: they are on by default from
    /// 1.29, and a kubelet may be three releases older than its apiserver.
    pub const NATIVE_SIDECARS: Self = Self { major: 1, minor: 32 };

    /// Reads `1` and `34`; some clouds write `34+`.
    #[must_use]
    pub fn of(major: &str, minor: &str) -> Option<Self> {
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
    use crate::k8s::fake::{failure, served_by};

    /// An apiserver that fails so often first, and how often it was asked.
    fn namespaces(failures: usize) -> (Namespaces, Arc<AtomicUsize>) {
        let calls = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&calls);
        let client = served_by(move |_, _| {
            if count.fetch_add(1, Ordering::SeqCst) < failures {
                return (500, failure(500, "not now"));
            }
            (200, json!({"metadata": {"name": "web", "labels": {"a": "b"}}}))
        });
        (Namespaces::new(Pods::new(client)), calls)
    }

    /// Asks eight times at once; how many got the labels.
    async fn told(namespaces: &Namespaces) -> usize {
        let answers = join_all((0..8).map(|_| namespaces.labels("web"))).await;
        answers.into_iter().flatten().filter(|it| it.get("a").is_some_and(|it| it == "b")).count()
    }

    #[tokio::test]
    async fn of_those_who_ask_at_once_one_reads() {
        let (namespaces, calls) = namespaces(0);
        assert_eq!(told(&namespaces).await, 8);
        assert_eq!(calls.load(Ordering::SeqCst), 1);
    }

    #[tokio::test]
    async fn a_read_that_fails_is_told_to_who_waits_and_is_not_remembered() {
        let (namespaces, calls) = namespaces(1);
        assert_eq!(told(&namespaces).await, 0);
        assert_eq!(calls.load(Ordering::SeqCst), 1);
        assert_eq!(told(&namespaces).await, 8);
        assert_eq!(calls.load(Ordering::SeqCst), 2);
    }
}
