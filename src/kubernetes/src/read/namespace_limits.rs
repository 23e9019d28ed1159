//! resource quotas and limit ranges of namespaces, cached, so that a burst of pods costs two reads.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use kube::core::{
    Request,
    params::{ListParams, VersionMatch},
};
use serde::{Deserialize, de::DeserializeOwned};
use tokio::{sync::OnceCell, time::timeout};

use super::api_reader::ApiReader;
use crate::error::LookupError;
use etcd_guard_cache::{ExpiringCache, Lifetime};
use etcd_guard_core::objects::namespace_limits::{LimitRange, NamespaceLimits, ResourceQuota};

/// Lifetime of cached limits, and of the absence of limits after a failed read. Only warnings depend on them, so that a
/// changed quota may take effect late.
const LIMITS_TTL: Duration = Duration::from_secs(30);

/// Maximum number of cached namespaces. It exceeds the number of namespaces that create mutated pods within
/// [`LIMITS_TTL`].
const MAX_NAMESPACES: u64 = 4096;

/// Timeout of both reads. The creation of a pod waits for them once per [`LIMITS_TTL`], and only for warnings.
const READ_TIMEOUT: Duration = Duration::from_millis(500);

/// One read of limits, shared by all concurrent callers.
type Read = Arc<OnceCell<Arc<NamespaceLimits>>>;

/// Reads quotas and limit ranges.
#[derive(Clone)]
pub struct NamespaceLimitsReader {
    reader: ApiReader,
    limits: ExpiringCache<String, Read>,
    /// Whether the last read failed, so that a missing permission is logged once.
    is_failing: Arc<AtomicBool>,
}

#[derive(Deserialize)]
struct Items<T> {
    items: Vec<T>,
}

// === impl NamespaceLimitsReader ===

impl NamespaceLimitsReader {
    /// Creates a reader that calls the API server through `reader`.
    pub fn new(reader: ApiReader) -> Self {
        let limits = ExpiringCache::new(MAX_NAMESPACES, Lifetime::SinceInsertion(LIMITS_TTL));
        Self { reader, limits, is_failing: Arc::default() }
    }

    /// Returns a namespace's limits, at most 30 s old. They are empty if they cannot be read: without the permission,
    /// or within half a second.
    pub async fn limits(&self, namespace: &str) -> Arc<NamespaceLimits> {
        let (read, _) = self.limits.get_or_default(namespace);
        Arc::clone(read.get_or_init(|| async { Arc::new(self.read_or_report(namespace).await) }).await)
    }

    async fn read_or_report(&self, namespace: &str) -> NamespaceLimits {
        let subject = || format!("the quotas and LimitRanges of namespace {namespace}");
        let read = timeout(READ_TIMEOUT, self.read(namespace)).await;
        let read =
            read.unwrap_or_else(|_| Err(LookupError::TimedOut { subject: subject(), limit: READ_TIMEOUT }));
        match read {
            Ok(limits) => {
                self.is_failing.store(false, Ordering::Relaxed);
                limits
            }
            Err(error) => {
                if !self.is_failing.swap(true, Ordering::Relaxed) {
                    tracing::warn!(
                        %error,
                        "no warnings about quotas and LimitRanges; they require the permission to list both \
                         (ClusterRole etcd-guard-inject)"
                    );
                }
                NamespaceLimits::default()
            }
        }
    }

    async fn read(&self, namespace: &str) -> Result<NamespaceLimits, LookupError> {
        let (quotas, ranges) = tokio::try_join!(
            self.list::<ResourceQuota>(namespace, "resourcequotas"),
            self.list::<LimitRange>(namespace, "limitranges"),
        )?;
        Ok(NamespaceLimits { quotas, ranges })
    }

    /// Lists the objects of a resource from the cache of the API server.
    async fn list<T: DeserializeOwned>(&self, namespace: &str, plural: &str) -> Result<Vec<T>, LookupError> {
        let path = format!("/api/v1/namespaces/{namespace}/{plural}");
        let any_version = ListParams {
            resource_version: Some(String::from("0")),
            version_match: Some(VersionMatch::NotOlderThan),
            ..ListParams::default()
        };
        let subject = format!("the {plural} of namespace {namespace}");
        let list: Items<T> = self.reader.read(subject, Request::new(path).list(&any_version)).await?;
        Ok(list.items)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use futures::future::join_all;
    use serde_json::{Value, json};

    use super::*;
    use crate::fake::{api_server_with, status_failure};

    /// A reader of an API server with this status code for quotas, and the number of calls.
    fn reader(code: u16) -> (NamespaceLimitsReader, Arc<AtomicUsize>) {
        let calls = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&calls);
        let client = api_server_with(move |call, _| {
            count.fetch_add(1, Ordering::SeqCst);
            let list = |item: Value| (200, json!({"items": [item]}));
            match call.uri.path() {
                "/api/v1/namespaces/web/resourcequotas" if code == 200 => list(
                    json!({"metadata": {"name": "q"}, "spec": {"hard": {"limits.cpu": "1"}, "scopes": null}}),
                ),
                "/api/v1/namespaces/web/limitranges" => list(
                    json!({"metadata": {"name": "r"}, "spec": {"limits": [{"type": "Pod", "max": {"cpu": "1"}}]}}),
                ),
                _ => (code, status_failure(code, "no")),
            }
        });
        (NamespaceLimitsReader::new(ApiReader::new(client)), calls)
    }

    #[tokio::test]
    async fn reads_limits_once_for_many_pods() {
        let (reader, calls) = reader(200);
        let all = join_all((0..8).map(|_| reader.limits("web"))).await;
        assert_eq!(calls.load(Ordering::SeqCst), 2);
        assert_eq!(all[7].quotas[0].spec.hard["limits.cpu"], "1");
        assert_eq!(all[7].ranges[0].spec.limits[0].max["cpu"], "1");
    }

    #[tokio::test]
    async fn missing_permission_means_no_limits_and_no_retry() {
        let (reader, calls) = reader(403);
        assert!(reader.limits("web").await.is_empty());
        let first = calls.load(Ordering::SeqCst);
        assert!(reader.limits("web").await.is_empty());
        assert_eq!(calls.load(Ordering::SeqCst), first, "the absence is cached");
    }
}
