//! The mutations of new pods and of node status.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use prometheus_client::registry::Registry;
use tokio::{sync::oneshot, time::sleep};

use super::{
    metrics::{Metrics, NOTHING_TO_INJECT, WebhookEntry},
    review_response::Mutation,
};
use crate::{
    config::{Config, Labels, LiveConfig, ReloadMetrics},
    guard::Deadline,
    inject::{Injection, InjectionContext, Note, Reason, inject, needs_namespace},
    json::Json,
    k8s::{ApiServerVersion, NamespaceLabels, NamespaceReader, admission::AdmissionRequest},
    nodes::over_commit,
};

/// Interval between reads of the API server's version, which changes with upgrades of the control plane.
const VERSION_TTL: Duration = Duration::from_secs(600);

/// Interval between attempts while the version cannot be read.
const VERSION_RETRY_INTERVAL: Duration = Duration::from_secs(2);

/// The warning after a panic.
const INTERNAL_ERROR: &str = "internal error of etcd-guard, see its log; the object is unchanged";

/// Evaluates mutations. Holds the configuration and a client for namespaces.
pub struct Mutator {
    config: LiveConfig,
    namespaces: NamespaceReader,
    reloads: ReloadMetrics,
    native_sidecars: Arc<AtomicBool>,
}

/// The result of one request, with its metric labels.
pub(super) struct MutationOutcome {
    pub(super) entry: WebhookEntry,
    pub(super) reason: &'static str,
    pub(super) mutation: Mutation,
}

// === impl Mutator ===

impl Mutator {
    /// Creates a mutator with this configuration, which may change over time.
    #[must_use]
    pub fn new(config: LiveConfig, namespaces: NamespaceReader, reloads: ReloadMetrics) -> Self {
        Self { config, namespaces, reloads, native_sidecars: Arc::default() }
    }

    /// Reads the API server's version periodically and never returns. Sends on `first_read` after the first successful
    /// read.
    pub fn follow_version(
        &self,
        first_read: oneshot::Sender<()>,
    ) -> impl Future<Output = ()> + Send + 'static {
        let (namespaces, native_sidecars) = (self.namespaces.clone(), Arc::clone(&self.native_sidecars));
        let mut first_read = Some(first_read);
        async move {
            loop {
                match namespaces.version().await {
                    Ok(version) => {
                        native_sidecars
                            .store(version >= ApiServerVersion::NATIVE_SIDECARS, Ordering::Relaxed);
                        // The send fails if the receiver was dropped.
                        let _ = first_read.take().map(|sender| sender.send(()));
                        sleep(VERSION_TTL).await;
                    }
                    Err(_) => sleep(VERSION_RETRY_INTERVAL).await,
                }
            }
        }
    }

    pub(in crate::server) fn register(&self, registry: &mut Registry) {
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
        pod: Json<'_>,
        config: &Config,
        metrics: &Metrics,
        deadline: Deadline,
    ) -> MutationOutcome {
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
        let injection = match injected {
            Ok(Ok(injection)) => injection,
            Ok(Err(denial)) => {
                metrics.record_injection(Some(denial.reason));
                let text = format!("{}: {}", denial.reason.as_str(), denial.message);
                let mutation = Mutation { denial: Some(text), ..Mutation::default() };
                return MutationOutcome {
                    entry: WebhookEntry::Inject,
                    reason: denial.reason.as_str(),
                    mutation,
                };
            }
            Err(_) => {
                metrics.record_injection(Some(Reason::PatchFailed));
                return MutationOutcome::admitted(
                    WebhookEntry::Inject,
                    Reason::PatchFailed.as_str(),
                    INTERNAL_ERROR,
                );
            }
        };
        for Note { reason, .. } in &injection.notes {
            metrics.record_injection(Some(*reason));
        }
        if injection.notes.is_empty() {
            metrics.record_injection(None);
        }
        MutationOutcome::from(injection)
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
    pub(super) fn mutate_node(node: Json<'_>, stored: Option<&Json<'_>>, config: &Config) -> MutationOutcome {
        let result =
            catch_unwind(AssertUnwindSafe(|| over_commit(node, stored, config.over_commit.as_ref())));
        match result {
            Ok(outcome) => {
                let reason = outcome.reason.as_str();
                let warnings = outcome.warning.into_iter().collect();
                let mutation = Mutation { patch: outcome.patch.into_json(), warnings, ..Mutation::default() };
                MutationOutcome { entry: WebhookEntry::Nodes, reason, mutation }
            }
            Err(_) => MutationOutcome::admitted(WebhookEntry::Nodes, "PatchFailed", INTERNAL_ERROR),
        }
    }
}

// === impl MutationOutcome ===

impl From<Injection<'_>> for MutationOutcome {
    fn from(injection: Injection<'_>) -> Self {
        let reason = match injection.notes.first() {
            _ if !injection.is_empty() => "Injected",
            Some(note) => note.reason.as_str(),
            None => NOTHING_TO_INJECT,
        };
        let patch = injection.patch.into_json();
        let warnings = injection.notes.into_iter().filter_map(|note| note.warning).collect();
        Self {
            entry: WebhookEntry::Inject,
            reason,
            mutation: Mutation { patch, warnings, ..Mutation::default() },
        }
    }
}

impl MutationOutcome {
    /// Admits the object unchanged, with a warning.
    pub(super) fn admitted(entry: WebhookEntry, reason: &'static str, warning: &str) -> Self {
        let mutation = Mutation { warnings: vec![warning.to_owned()], ..Mutation::default() };
        Self { entry, reason, mutation }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use tokio::{sync::watch, time::timeout};

    use super::*;
    use crate::k8s::{ApiReader, fake::api_server};

    fn mutator<const N: usize>(answers: [(&str, u16, Value); N]) -> Mutator {
        let (_, live) = watch::channel(Arc::new(Config::default()));
        Mutator::new(
            live,
            NamespaceReader::new(ApiReader::new(api_server(answers))),
            ReloadMetrics::default(),
        )
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

    #[tokio::test(start_paused = true)]
    async fn does_not_signal_while_version_is_unreadable() {
        let mutator = mutator([("/version", 200, json!({"major": "one", "minor": "34"}))]);
        let (sender, first_read) = oneshot::channel();
        let follower = tokio::spawn(mutator.follow_version(sender));
        assert!(timeout(VERSION_TTL, first_read).await.is_err(), "no signal, in spite of retries");
        follower.abort();
    }
}
