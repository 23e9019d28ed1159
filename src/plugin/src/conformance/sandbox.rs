//! The namespace of a run. Nothing outside the namespace is changed.

mod cleanup;
pub(crate) mod cluster_state;

use std::time::Duration;

use anyhow::{Context, bail};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::{
    manifests::{ClusterOptions, SET},
    permissions,
};
use crate::{
    api_server::{ApiServer, Response},
    guard_client::{GuardClient, webhook_coverage::WebhookCoverage},
};
use etcd_guard_core::opt_in_label::OptInLabel;

/// The label by which namespaces of former runs are found.
pub(super) const OWN_LABEL: (&str, &str) = ("app.kubernetes.io/managed-by", "etcd-guard-conformance");

/// Interval of polling for a condition.
pub(super) const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Maximum time until a changed label or annotation is known to all API servers and all replicas of the guard.
const PROPAGATION_TIMEOUT: Duration = Duration::from_secs(30);

/// A namespace that this run created. The run may change its content in any way.
pub(super) struct Sandbox {
    pub(super) api: ApiServer,
    pub(super) guard: GuardClient,
    /// The label of guarded namespaces.
    pub(super) opt_in_label: OptInLabel,
    pub(super) namespace: String,
    uid: String,
    /// Maximum time for a member to start or to recover.
    pub(super) timeout: Duration,
}

// === impl Sandbox ===

impl Sandbox {
    /// Creates the namespace with this name, which must not exist, or with a generated name.
    pub(super) async fn create(
        guard: GuardClient,
        opt_in_label: OptInLabel,
        name: Option<&str>,
        timeout: Duration,
    ) -> anyhow::Result<Self> {
        let api = guard.api_server.clone();
        permissions::check(&api, name).await?;
        let (key, name) = name.map_or(("generateName", "etcd-guard-conformance-"), |name| ("name", name));
        let namespace = json!({
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {key: name, "labels": {
                opt_in_label.key(): opt_in_label.value(),
                OWN_LABEL.0: OWN_LABEL.1,
            }},
        });
        let created = api.post("/api/v1/namespaces", &namespace).await.with_context(|| {
            let (key, value) = OWN_LABEL;
            format!(
                "creating a namespace; to find out whether it exists: kubectl get namespaces -l {key}={value}"
            )
        })?;
        let created = created.into_object("creating a namespace")?;
        let text =
            |pointer: &str| created.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
        let (namespace, uid) = (text("/metadata/name"), text("/metadata/uid"));
        anyhow::ensure!(!namespace.is_empty() && !uid.is_empty(), "the new namespace has no name or no uid");
        Ok(Self { api, guard, opt_in_label, namespace, uid, timeout })
    }

    /// Checks that a registered webhook selects objects in the namespace. The error is the reason why not.
    pub(super) async fn check_coverage(&self, webhook: &str) -> Result<(), String> {
        match WebhookCoverage::find(&self.api, webhook, &self.namespace).await {
            WebhookCoverage::Covered => Ok(()),
            WebhookCoverage::NotCovered(reason) | WebhookCoverage::Unknown(reason) => Err(reason),
        }
    }

    /// Creates the objects of the example.
    pub(super) async fn start_cluster(&self, options: &ClusterOptions<'_>) -> anyhow::Result<()> {
        self.create_objects(options.objects()?).await
    }

    /// Creates objects of the kinds in the example.
    pub(super) async fn create_objects(&self, objects: Vec<Value>) -> anyhow::Result<()> {
        for object in objects {
            let kind = object.get("kind").and_then(Value::as_str).unwrap_or_default().to_owned();
            let collection = match kind.as_str() {
                "Service" => "/api/v1/namespaces/{}/services",
                "PodDisruptionBudget" => "/apis/policy/v1/namespaces/{}/poddisruptionbudgets",
                "StatefulSet" => "/apis/apps/v1/namespaces/{}/statefulsets",
                other => bail!("etcd-manifests/plain.yaml contains the unsupported kind {other}"),
            };
            let path = collection.replace("{}", &self.namespace);
            self.api.post(&path, &object).await?.into_object(&format!("creating the {kind}"))?;
        }
        Ok(())
    }

    /// The path of a collection or an object of the core API in the namespace.
    pub(super) fn path(&self, resource: &str) -> String {
        format!("/api/v1/namespaces/{}/{resource}", self.namespace)
    }

    pub(super) fn set_path(&self) -> String {
        format!("/apis/apps/v1/namespaces/{}/statefulsets/{SET}", self.namespace)
    }

    pub(super) fn namespace_path(&self) -> String {
        format!("/api/v1/namespaces/{}", self.namespace)
    }

    /// Sets annotations of the StatefulSet and waits until the guard reports the policy `name`, with `value` if given.
    /// The inner error states the policy that applies instead.
    pub(super) async fn set_policy(
        &self,
        annotations: &Value,
        name: &str,
        value: Option<&str>,
    ) -> anyhow::Result<Result<(), String>> {
        let patch = json!({"metadata": {"annotations": annotations}});
        self.api.patch(&self.set_path(), &patch).await?.into_object("annotating the StatefulSet")?;
        let end = Instant::now() + PROPAGATION_TIMEOUT;
        loop {
            let policies = match self.cluster().await {
                Ok(cluster) => cluster.policy,
                Err(error) if Instant::now() > end => return Err(error),
                Err(_) => {
                    sleep(POLL_INTERVAL).await;
                    continue;
                }
            };
            let found = policies.iter().find(|policy| policy.name == name);
            if found.is_some_and(|policy| value.is_none_or(|value| policy.value == value)) {
                return Ok(Ok(()));
            }
            if Instant::now() > end {
                let reason = found.map_or_else(
                    || format!("the guard reports no policy {name}"),
                    |policy| format!("{name} is {}, set by the {}", policy.value, policy.from),
                );
                return Ok(Err(reason));
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Repeats a call until `is_final` accepts the response, at most for the time in which a change propagates. A call
    /// without response and a failed call of a webhook are repeated as well.
    pub(super) async fn retry_until(
        &self,
        call: impl AsyncFn() -> anyhow::Result<Response>,
        is_final: impl Fn(&Response) -> bool,
    ) -> anyhow::Result<Response> {
        let end = Instant::now() + PROPAGATION_TIMEOUT;
        loop {
            let result = call().await;
            let is_done =
                result.as_ref().is_ok_and(|response| is_final(response) && !response.is_webhook_failure());
            if is_done || Instant::now() > end {
                return result;
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Waits until a condition is true, at most for the time that this number of members needs one after another.
    /// Returns whether it became true. An error of the condition is returned only at the end of that time.
    pub(super) async fn wait_until(
        &self,
        members: u32,
        condition: impl AsyncFn() -> anyhow::Result<bool>,
    ) -> anyhow::Result<bool> {
        let end = Instant::now() + self.timeout * members;
        loop {
            let result = condition().await;
            if matches!(result, Ok(true)) || Instant::now() > end {
                return result;
            }
            sleep(POLL_INTERVAL).await;
        }
    }
}
