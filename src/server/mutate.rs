//! `POST /mutate`: new pods, and updates of nodes' status.
//!
//! An error of this server's own never rejects anything here: the object is admitted as it came, with a warning. Only a
//! rule that says no, says no.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use axum::{
    extract::{Query, Request, State},
    response::Response,
};
use prometheus_client::registry::Registry;
use tokio::{
    sync::oneshot,
    time::{Instant, sleep},
};
use tracing::Instrument;

use super::{
    metrics::{Entry, Metrics, NOTHING_TO_INJECT},
    review::{Body, Mutation, Objects, Review},
    routes::{HARMLESS, Parameters, Rejection, Webhooks, json, reject},
    spans,
};
use crate::{
    config::{Config, Labels, Live, ReloadMetrics},
    guard::Deadline,
    inject::{Injection, Note, Reason, Surroundings, inject, needs_namespace},
    json::Json,
    k8s::{NamespaceLabels, Namespaces, Version, admission::AdmissionRequest},
    node::over_commit,
};

/// Pause between two looks at the apiserver's version: control planes get upgraded.
const VERSION_LIFE: Duration = Duration::from_secs(600);

/// Pause after a look that failed.
const VERSION_PAUSE: Duration = Duration::from_secs(2);

/// The longest warning: kubectl shows them on one line, and the apiserver drops what is too much.
const LONGEST_WARNING: usize = 120;

/// What mutations need beside the object.
pub struct Mutator {
    config: Live,
    namespaces: Namespaces,
    reloads: ReloadMetrics,
    native_sidecars: Arc<AtomicBool>,
}

/// What is answered, and under which words it is counted.
struct Answered {
    entry: Entry,
    reason: &'static str,
    mutation: Mutation,
}

// === impl Mutator ===

impl Mutator {
    /// Mutates by this configuration, and reads namespaces.
    #[must_use]
    pub fn new(config: Live, namespaces: Namespaces, reloads: ReloadMetrics) -> Self {
        Self { config, namespaces, reloads, native_sidecars: Arc::default() }
    }

    /// Asks for the apiserver's version, and again now and then; says when it is known for the first time.
    pub fn follow_version(&self, known: oneshot::Sender<()>) -> impl Future<Output = ()> + Send + 'static {
        let (namespaces, native_sidecars) = (self.namespaces.clone(), Arc::clone(&self.native_sidecars));
        let mut known = Some(known);
        async move {
            loop {
                match namespaces.version().await {
                    Ok(version) => {
                        native_sidecars.store(version >= Version::NATIVE_SIDECARS, Ordering::Relaxed);
                        // Who waited may have gone.
                        let _ = known.take().map(|it| it.send(()));
                        sleep(VERSION_LIFE).await;
                    }
                    Err(_) => sleep(VERSION_PAUSE).await,
                }
            }
        }
    }

    pub(super) fn register(&self, registry: &mut Registry) {
        self.reloads.register(registry);
    }

    /// The configuration that counts now.
    pub(super) fn config(&self) -> Arc<Config> {
        Arc::clone(&self.config.borrow())
    }

    async fn pod(
        &self,
        request: &AdmissionRequest<'_>,
        pod: Json<'_>,
        config: &Config,
        metrics: &Metrics,
        deadline: Deadline,
    ) -> Answered {
        let namespace = request.namespace.as_deref().unwrap_or_default();
        let labels = if needs_namespace(&pod, config) {
            self.labels(namespace, deadline).await
        } else {
            Ok(Arc::default())
        };
        let surroundings = Surroundings {
            namespace,
            namespace_labels: labels.as_deref().map(|it: &Labels| it).map_err(String::as_str),
            native_sidecars: self.native_sidecars.load(Ordering::Relaxed),
        };
        // No path in there panics by design.
        let injected = catch_unwind(AssertUnwindSafe(|| inject(pod, &surroundings, config)));
        let injection = match injected {
            Ok(Ok(injection)) => injection,
            Ok(Err(denial)) => {
                metrics.record_injection(Some(denial.reason));
                let mutation = Mutation { denial: Some(denial.message), ..Mutation::default() };
                return Answered { entry: Entry::Inject, reason: denial.reason.word(), mutation };
            }
            Err(_) => {
                metrics.record_injection(Some(Reason::PatchFailed));
                return Answered::admitted(Entry::Inject, Reason::PatchFailed.word(), INTERNAL);
            }
        };
        for Note { reason, .. } in &injection.notes {
            metrics.record_injection(Some(*reason));
        }
        if injection.notes.is_empty() {
            metrics.record_injection(None);
        }
        Answered::of(injection)
    }

    /// A namespace's labels, or why they are not known in time.
    async fn labels(&self, namespace: &str, deadline: Deadline) -> Result<NamespaceLabels, String> {
        match deadline.within("reading the namespace", self.namespaces.labels(namespace)).await {
            Ok(labels) => labels.map_err(|error| error.to_string()),
            Err(late) => {
                Err(format!("{} took longer than {}", late.what, humantime::format_duration(late.limit)))
            }
        }
    }

    fn node(node: Json<'_>, stored: Option<&Json<'_>>, config: &Config) -> Answered {
        let judged =
            catch_unwind(AssertUnwindSafe(|| over_commit(node, stored, config.over_commit.as_ref())));
        match judged {
            Ok(outcome) => {
                let reason = outcome.reason.word();
                let warnings = outcome.warning.into_iter().collect();
                let mutation = Mutation { patch: outcome.patch.into_json(), warnings, ..Mutation::default() };
                Answered { entry: Entry::Nodes, reason, mutation }
            }
            Err(_) => Answered::admitted(Entry::Nodes, "PatchFailed", INTERNAL),
        }
    }
}

const INTERNAL: &str = "an error inside etcd-guard; its log says where. Nothing was changed";

pub(super) async fn mutate(
    State(webhooks): State<Arc<Webhooks>>,
    Query(parameters): Query<Parameters>,
    request: Request,
) -> Result<Response, Rejection> {
    let span = spans::begin("POST /mutate", request.headers());
    answer(&webhooks, parameters, request).instrument(span).await
}

async fn answer(
    webhooks: &Webhooks,
    parameters: Parameters,
    request: Request,
) -> Result<Response, Rejection> {
    let deadline = parameters.deadline().map_err(Rejection::bad_request)?;
    let body = webhooks.read_body(request).await?;
    let started = Instant::now();
    // One configuration for what is read of an object and for what is done with it.
    let config = webhooks.mutator.config();
    let body = Body::of(&body.bytes);
    let (review, objects) = match Review::read_with_objects(&body, &config.sidecars.variables) {
        Ok(read) => read,
        Err(error) => return reject(webhooks, &error),
    };
    let request = match review.request() {
        Ok(request) => request,
        Err(error) => {
            webhooks.metrics.record_bad_request();
            let text = format!("the AdmissionReview's request is not readable: {error}");
            return Ok(json(&review.bad_request(text)));
        }
    };
    let Answered { entry, reason, mut mutation } =
        answered(webhooks, &config, request, objects, deadline).await;
    webhooks.metrics.record_answer(entry, mutation.denial.is_none(), reason, started.elapsed());
    log(review.uid(), request, reason, &mutation, started.elapsed());
    spans::tell_answer(review.uid(), request, mutation.denial.is_none(), reason);
    for warning in &mut mutation.warnings {
        cut(warning);
    }
    mutation.reason = reason.to_owned();
    Ok(json(&review.answer_mutation(&mut mutation)))
}

async fn answered(
    webhooks: &Webhooks,
    config: &Config,
    request: &AdmissionRequest<'_>,
    objects: Objects<'_>,
    deadline: Deadline,
) -> Answered {
    let sub_resource = request.sub_resource.as_deref().unwrap_or_default();
    let is_core = request.resource.group.is_empty();
    let entry = match (request.operation.as_ref(), request.resource.resource.as_ref(), sub_resource) {
        ("CREATE", "pods", "") if is_core => Entry::Inject,
        ("UPDATE", "nodes", "status") if is_core => Entry::Nodes,
        _ => {
            let text = "etcd-guard changes new pods and nodes/status only: correct the rules of its webhook";
            return Answered::admitted(Entry::Unknown, "NotOurs", text);
        }
    };
    match (entry, objects.new) {
        (entry, None) => Answered::admitted(entry, "Unreadable", "the request's object is not readable"),
        (Entry::Nodes, Some(node)) => Mutator::node(node, objects.stored.as_ref(), config),
        (_, Some(pod)) => webhooks.mutator.pod(request, pod, config, &webhooks.metrics, deadline).await,
    }
}

/// One line for each object that was changed or that somebody is warned about.
fn log(uid: &str, request: &AdmissionRequest<'_>, reason: &str, mutation: &Mutation, elapsed: Duration) {
    let operations = mutation.patch.as_ref().map_or(0, Vec::len);
    let verdict = if mutation.denial.is_none() { "allowed" } else { "denied" };
    let is_quiet = mutation.patch.is_none() && mutation.denial.is_none() && mutation.warnings.is_empty();
    if is_quiet || request.sub_resource.as_deref() == Some("status") && mutation.warnings.is_empty() {
        tracing::debug!(uid, reason, "nothing to tell");
        return;
    }
    tracing::info!(
        name: HARMLESS,
        uid,
        namespace = request.namespace.as_deref(),
        name = request.name.as_deref(),
        resource = request.resource.resource.as_ref(),
        user = request.user_info.username,
        dry_run = request.dry_run,
        verdict,
        reason,
        patch_bytes = operations,
        warnings = mutation.warnings.len(),
        elapsed_ms = elapsed.as_secs_f64() * 1000.0,
    );
}

fn cut(warning: &mut String) {
    if let Some((end, _)) = warning.char_indices().nth(LONGEST_WARNING) {
        warning.truncate(end);
    }
}

// === impl Answered ===

impl Answered {
    fn of(injection: Injection<'_>) -> Self {
        let reason = match injection.notes.first() {
            _ if !injection.is_empty() => "Injected",
            Some(note) => note.reason.word(),
            None => NOTHING_TO_INJECT,
        };
        let patch = injection.patch.into_json();
        let warnings = injection.notes.into_iter().filter_map(|note| note.warning).collect();
        Self { entry: Entry::Inject, reason, mutation: Mutation { patch, warnings, ..Mutation::default() } }
    }

    /// As it came, with a warning.
    fn admitted(entry: Entry, reason: &'static str, warning: &str) -> Self {
        let mutation = Mutation { warnings: vec![warning.to_owned()], ..Mutation::default() };
        Self { entry, reason, mutation }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use tokio::{sync::watch, time::timeout};

    use super::*;
    use crate::k8s::{Pods, fake::apiserver};

    fn mutator<const N: usize>(answers: [(&str, u16, Value); N]) -> Mutator {
        let (_, live) = watch::channel(Arc::new(Config::default()));
        Mutator::new(live, Namespaces::new(Pods::new(apiserver(answers))), ReloadMetrics::default())
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_waits_for_the_version_finds_it_known() {
        let mutator = mutator([("/version", 200, json!({"major": "1", "minor": "34+"}))]);
        let (told, known) = oneshot::channel();
        let follower = tokio::spawn(mutator.follow_version(told));
        timeout(VERSION_LIFE, known).await.expect("in time").expect("told");
        assert!(mutator.native_sidecars.load(Ordering::Relaxed));
        follower.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn a_version_that_is_not_told_is_not_known() {
        let mutator = mutator([("/version", 200, json!({"major": "one", "minor": "34"}))]);
        let (told, known) = oneshot::channel();
        let follower = tokio::spawn(mutator.follow_version(told));
        assert!(timeout(VERSION_LIFE, known).await.is_err(), "it is asked again and again");
        follower.abort();
    }
}
