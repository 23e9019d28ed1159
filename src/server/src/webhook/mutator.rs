//! The mutations of new pods and of node status.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use json_patch::{AddOperation, Patch, PatchOperation, jsonptr::PointerBuf};
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tokio::{
    sync::oneshot,
    time::{sleep, timeout},
};

use super::metrics::{Metrics, NOTHING_TO_INJECT, WebhookEntry};
use crate::reload::{LiveConfig, ReloadMetrics};
use etcd_guard_core::{
    config::selector::Labels,
    objects::{admission::AdmissionRequest, api_server_version::ApiServerVersion},
};
use etcd_guard_guard::Deadline;
use etcd_guard_inject::{
    config::Config,
    nodes::over_commit,
    pods::{Injection, InjectionContext, Note, Reason, inject, needs_namespace},
};
use etcd_guard_kubernetes::{ApiReader, NamespaceLabels, NamespaceLimitsReader, NamespaceReader};

/// Interval between reads of the API server's version, which changes with upgrades of the control plane.
const VERSION_TTL: Duration = Duration::from_secs(600);

/// Interval between reads of the kubelets' versions if older kubelets are supported: new nodes may have such a kubelet.
const KUBELETS_TTL: Duration = Duration::from_secs(60);

/// Interval between attempts while the version cannot be read.
const VERSION_RETRY_INTERVAL: Duration = Duration::from_secs(2);

/// The warning after a panic.
const INTERNAL_ERROR: &str = "internal error of etcd-guard, see its log; the object is unchanged";

/// Evaluates mutations. Holds the configuration and clients for namespaces and their limits.
pub struct Mutator {
    config: LiveConfig,
    namespaces: NamespaceReader,
    limits: NamespaceLimitsReader,
    reloads: ReloadMetrics,
    native_sidecars: Arc<AtomicBool>,
}

/// The result of a mutating webhook, or of a rule for new pods.
#[derive(Debug)]
pub(super) struct Mutation {
    /// The webhook, for metrics.
    pub(super) entry: WebhookEntry,
    /// The reason code, as in metrics.
    pub(super) reason: &'static str,
    /// Message of the denial; absent if the request is allowed.
    pub(super) denial: Option<String>,
    /// The serialized JSON patch; absent if the object stays unchanged.
    pub(super) patch: Option<Vec<u8>>,
    pub(super) warnings: Vec<String>,
}

// === impl Mutator ===

impl Mutator {
    /// Creates a mutator with this configuration, which may change over time, and this client of the API server.
    pub fn new(config: LiveConfig, reader: &ApiReader, reloads: ReloadMetrics) -> Self {
        Self {
            config,
            namespaces: NamespaceReader::new(reader.clone()),
            limits: NamespaceLimitsReader::new(reader.clone()),
            reloads,
            native_sidecars: Arc::default(),
        }
    }

    /// Reads the versions of the API server and of the kubelets periodically and never returns. Sends on `first_read`
    /// after the first successful read. The kubelets are read only if the configuration contains templates.
    pub(crate) fn follow_version(
        &self,
        first_read: oneshot::Sender<()>,
    ) -> impl Future<Output = ()> + Send + 'static {
        let (namespaces, native_sidecars) = (self.namespaces.clone(), Arc::clone(&self.native_sidecars));
        let mut first_read = Some(first_read);
        let mut config = self.config.clone();
        async move {
            loop {
                match namespaces.version().await {
                    Ok(version) => {
                        let has_templates = !config.borrow_and_update().sidecars.templates.is_empty();
                        let is_supported =
                            supports_native_sidecars(&namespaces, version, has_templates).await;
                        if native_sidecars.swap(is_supported, Ordering::Relaxed) != is_supported {
                            tracing::info!(is_supported, "native sidecars");
                        }
                        // The send fails if the receiver was dropped.
                        let _ = first_read.take().map(|sender| sender.send(()));
                        let is_certain = version >= ApiServerVersion::ALL_KUBELETS_HAVE_SIDECARS;
                        wait_for_change(&mut config, if is_certain { VERSION_TTL } else { KUBELETS_TTL })
                            .await;
                    }
                    Err(_) => sleep(VERSION_RETRY_INTERVAL).await,
                }
            }
        }
    }

    pub(crate) fn register(&self, registry: &mut Registry) {
        self.reloads.register(registry);
    }

    /// Returns the current configuration.
    pub(super) fn config(&self) -> Arc<Config> {
        Arc::clone(&self.config.borrow())
    }

    /// Evaluates the injections into a new pod.
    pub(super) async fn mutate_pod(
        &self,
        request: &AdmissionRequest<'_>,
        pod: Value,
        config: &Config,
        metrics: &Metrics,
        deadline: Deadline,
    ) -> Mutation {
        let namespace = request.namespace.as_deref().unwrap_or_default();
        let labels = if needs_namespace(&pod, config) {
            self.labels(namespace, deadline).await
        } else {
            Ok(Arc::default())
        };
        let context = InjectionContext {
            namespace,
            namespace_labels: labels.as_deref().map(|labels: &Labels| labels).map_err(String::as_str),
            native_sidecars: self.native_sidecars.load(Ordering::Relaxed),
        };
        // `inject` contains no intended panic. After a panic, the pod is admitted unchanged.
        let injected = catch_unwind(AssertUnwindSafe(|| inject(pod, &context, config)));
        let mut injection = match injected {
            Ok(Ok(injection)) => injection,
            Ok(Err(denial)) => {
                metrics.record_injection(Some(denial.reason));
                let text = format!("{}: {}", denial.reason.as_str(), denial.message);
                return Mutation::denied(WebhookEntry::Inject, denial.reason.as_str(), text);
            }
            Err(_) => {
                metrics.record_injection(Some(Reason::PatchFailed));
                return Mutation::admitted(
                    WebhookEntry::Inject,
                    Reason::PatchFailed.as_str(),
                    INTERNAL_ERROR,
                );
            }
        };
        if !injection.added_containers.is_empty() {
            let read = deadline.within("reading quotas and LimitRanges", self.limits.limits(namespace));
            // Without an answer there is no warning.
            let warnings = read.await.map(|limits| injection.limit_warnings(&limits));
            injection.notes.extend(warnings.into_iter().flatten());
        }
        for Note { reason, .. } in &injection.notes {
            metrics.record_injection(Some(*reason));
        }
        if injection.notes.is_empty() {
            metrics.record_injection(None);
        }
        Mutation::from(injection)
    }

    /// Returns the labels of a namespace, or an error message after a failed read or a timeout.
    async fn labels(&self, namespace: &str, deadline: Deadline) -> Result<NamespaceLabels, String> {
        match deadline.within("reading the namespace", self.namespaces.labels(namespace)).await {
            Ok(labels) => labels.map_err(|error| error.to_string()),
            Err(exceeded) => Err(format!(
                "{} took longer than {}",
                exceeded.step,
                humantime::format_duration(exceeded.limit)
            )),
        }
    }

    /// Evaluates the over-commit of a node's status.
    pub(super) fn mutate_node(node: Value, stored: Option<&Value>, config: &Config) -> Mutation {
        let result =
            catch_unwind(AssertUnwindSafe(|| over_commit(node, stored, config.over_commit.as_ref())));
        match result {
            Ok(outcome) => {
                let reason = outcome.reason.as_str();
                let warnings = outcome.warning.into_iter().collect();
                Mutation::patched(WebhookEntry::Nodes, reason, &outcome.patch, warnings)
            }
            Err(_) => Mutation::admitted(WebhookEntry::Nodes, "PatchFailed", INTERNAL_ERROR),
        }
    }
}

/// Whether the API server and all kubelets have native sidecars. Without the versions of the kubelets, the supported
/// version skew decides.
async fn supports_native_sidecars(
    namespaces: &NamespaceReader,
    version: ApiServerVersion,
    has_templates: bool,
) -> bool {
    if !has_templates {
        return version >= ApiServerVersion::ALL_KUBELETS_HAVE_SIDECARS;
    }
    let (is_supported, error) = namespaces.native_sidecars(version).await;
    if let Some(error) = error {
        tracing::warn!(%error, "native sidecars are used according to the version of the API server only");
    }
    is_supported
}

/// Returns the patch that makes the uid a precondition of an eviction.
fn uid_patch(eviction: &Value, uid: &str) -> Patch {
    let options = eviction.get("deleteOptions").filter(|options| !options.is_null());
    let preconditions = options.map(|options| options.get("preconditions"));
    let (path, value): (&[&str], Value) = match preconditions {
        None => (&["deleteOptions"], json!({"preconditions": {"uid": uid}})),
        Some(None | Some(Value::Null)) => (&["deleteOptions", "preconditions"], json!({"uid": uid})),
        Some(Some(_)) => (&["deleteOptions", "preconditions", "uid"], json!(uid)),
    };
    let path = PointerBuf::from_tokens(path.iter().copied());
    Patch(vec![PatchOperation::Add(AddOperation { path, value })])
}

/// Waits until the configuration changes, at most for `limit`.
async fn wait_for_change(config: &mut LiveConfig, limit: Duration) {
    let changed = async {
        if config.changed().await.is_err() {
            // A server without a configuration file has no sender.
            std::future::pending::<()>().await;
        }
    };
    // The timeout is the usual end of the wait.
    let _ = timeout(limit, changed).await;
}

// === impl Mutation ===

impl From<Injection<'_>> for Mutation {
    fn from(injection: Injection<'_>) -> Self {
        let reason = match injection.notes.first() {
            _ if !injection.is_empty() => "Injected",
            Some(note) => note.reason.as_str(),
            None => NOTHING_TO_INJECT,
        };
        let warnings = injection.notes.into_iter().filter_map(|note| note.warning).collect();
        Self::patched(WebhookEntry::Inject, reason, &injection.patch, warnings)
    }
}

impl Mutation {
    /// Denies the request.
    pub(super) fn denied(entry: WebhookEntry, reason: &'static str, message: String) -> Self {
        Self { entry, reason, denial: Some(message), patch: None, warnings: Vec::new() }
    }

    /// Admits the object unchanged.
    pub(super) fn unchanged(entry: WebhookEntry, reason: &'static str) -> Self {
        Self::patched(entry, reason, &Patch::default(), Vec::new())
    }

    /// Admits the object with a patch, which may be empty.
    fn patched(entry: WebhookEntry, reason: &'static str, patch: &Patch, warnings: Vec<String>) -> Self {
        // The serialization of JSON values does not fail.
        let patch = if patch.is_empty() { None } else { serde_json::to_vec(patch).ok() };
        Self { entry, reason, denial: None, patch, warnings }
    }

    /// Admits an eviction, to which a patch adds this uid of its pod.
    pub(super) fn with_uid(eviction: &Value, uid: &str) -> Self {
        Self::patched(WebhookEntry::Uid, "UidAdded", &uid_patch(eviction, uid), Vec::new())
    }

    /// Admits the object unchanged, with a warning.
    pub(super) fn admitted(entry: WebhookEntry, reason: &'static str, warning: &str) -> Self {
        Self::patched(entry, reason, &Patch::default(), vec![warning.to_owned()])
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::watch;

    use super::*;
    use etcd_guard_kubernetes::fake::api_server;

    fn mutator<const N: usize>(answers: [(&str, u16, Value); N]) -> Mutator {
        let (_, live) = watch::channel(Arc::new(Config::default()));
        Mutator::new(live, &ApiReader::new(api_server(answers)), ReloadMetrics::default())
    }

    #[tokio::test(start_paused = true)]
    async fn signals_when_version_is_first_read() {
        let mutator = mutator([("/version", 200, json!({"major": "1", "minor": "34+"}))]);
        let (sender, first_read) = oneshot::channel();
        let follower = tokio::spawn(mutator.follow_version(sender));
        timeout(VERSION_TTL, first_read).await.expect("a signal within the TTL").expect("a sender");
        assert!(mutator.native_sidecars.load(Ordering::Relaxed));
        follower.abort();
    }

    #[tokio::test]
    async fn native_sidecars_depend_on_kubelets() {
        let supported = async |minor: u32, kubelet: Option<&str>| {
            let rows: Vec<_> = kubelet.iter().map(|version| json!({"cells": [version]})).collect();
            let table = json!({"columnDefinitions": [{"name": "Version"}], "rows": rows});
            let path = if kubelet.is_some() { "/api/v1/nodes" } else { "/" };
            let namespaces = NamespaceReader::new(ApiReader::new(api_server([(path, 200, table)])));
            supports_native_sidecars(&namespaces, ApiServerVersion { major: 1, minor }, true).await
        };
        assert!(supported(30, Some("v1.29.4")).await);
        assert!(!supported(30, Some("v1.28.4")).await, "the kubelet would wait for the sidecar to end");
        assert!(!supported(34, Some("v1.28.4")).await, "an unsupported skew");
        assert!(!supported(28, Some("v1.28.4")).await);
        // Without access to nodes.
        assert!(!supported(31, None).await);
        assert!(supported(32, None).await);
    }

    #[test]
    fn adds_uid_to_evictions_without_one() {
        let with = |options: Value| {
            let mut eviction = json!({"metadata": {"name": "etcd-0"}, "deleteOptions": options});
            if eviction["deleteOptions"] == "absent" {
                eviction.as_object_mut().unwrap().remove("deleteOptions");
            }
            let patch = uid_patch(&eviction, "a");
            json_patch::patch(&mut eviction, &patch).unwrap();
            eviction["deleteOptions"].clone()
        };
        let bare = json!({"preconditions": {"uid": "a"}});
        assert_eq!(with(json!("absent")), bare);
        assert_eq!(with(json!(null)), bare);
        assert_eq!(with(json!({"preconditions": null})), bare);
        assert_eq!(with(json!({"preconditions": {"uid": ""}})), bare);
        let version = json!({"gracePeriodSeconds": 1, "preconditions": {"resourceVersion": "7"}});
        let both = json!({"gracePeriodSeconds": 1, "preconditions": {"resourceVersion": "7", "uid": "a"}});
        assert_eq!(with(version), both);
    }

    #[tokio::test(start_paused = true)]
    async fn does_not_signal_while_version_is_unreadable() {
        let mutator = mutator([("/version", 200, json!({"major": "one", "minor": "34"}))]);
        let (sender, first_read) = oneshot::channel();
        let follower = tokio::spawn(mutator.follow_version(sender));
        assert!(timeout(VERSION_TTL, first_read).await.is_err(), "no signal, in spite of retries");
        follower.abort();
    }
}
