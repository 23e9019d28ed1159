//! The labels of namespaces, and the apiserver's version: what a pod's review does not bring.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use kube::core::{Request, params::GetParams, params::ListParams};
use moka::sync::Cache;
use serde::Deserialize;

use super::{LookupError, Pods, pod::Metadata};

/// How long labels are remembered: a burst of pods is one read, and whoever labels a namespace need not wait.
const LABELS_LIFE: Duration = Duration::from_secs(2);

/// More namespaces than are busy at a time.
const MOST_NAMESPACES: u64 = 4096;

/// The labels of a namespace.
pub type NamespaceLabels = Arc<BTreeMap<String, String>>;

/// Reads namespaces.
#[derive(Clone)]
pub struct Namespaces {
    reader: Pods,
    labels: Cache<String, NamespaceLabels>,
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
        if let Some(labels) = self.labels.get(name) {
            return Ok(labels);
        }
        let request = Request::new("/api/v1/namespaces").get(name, &GetParams::default());
        let namespace: Namespace = self.reader.read(format!("namespace {name}"), request).await?;
        let labels = Arc::new(namespace.metadata.labels);
        self.labels.insert(name.to_owned(), Arc::clone(&labels));
        Ok(labels)
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
