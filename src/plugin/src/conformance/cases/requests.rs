//! The requests of the cases and the expected responses.

use serde_json::{Value, json};

use crate::{api_server::Response, conformance::sandbox::Sandbox};

/// The webhook for deletions of pods.
pub(crate) const DELETION_WEBHOOK: &str = "guard.etcd-guard.io";
/// The webhook for evictions.
pub(crate) const EVICTION_WEBHOOK: &str = "eviction.guard.etcd-guard.io";
/// The webhook for workload operations.
pub(super) const INTENT_WEBHOOK: &str = "intent.guard.etcd-guard.io";

/// The webhook for objects that members use.
pub(super) const RESOURCES_WEBHOOK: &str = "resources.guard.etcd-guard.io";

/// The expected response.
#[derive(Clone, Copy)]
pub(super) enum Expected {
    Allowed,
    /// Denied with status 403 and one of these reason codes.
    Denied(&'static [&'static str]),
    /// Denied with status 429, so that a drain retries, and one of these reason codes.
    DeniedForNow(&'static [&'static str]),
}

/// A way of deleting a pod.
#[derive(Clone, Copy)]
pub(super) enum Deletion {
    Delete,
    DryRun,
    Force,
    Evict,
    EvictDryRun,
}

/// Requests the deletion of a pod.
pub(super) async fn request_deletion(
    sandbox: &Sandbox,
    pod: &str,
    deletion: Deletion,
) -> anyhow::Result<Response> {
    let path = sandbox.path(&format!("pods/{pod}"));
    let dry_run = json!({"dryRun": ["All"]});
    match deletion {
        Deletion::Delete => sandbox.api.delete(&path, &delete_options(&json!({}))).await,
        Deletion::DryRun => sandbox.api.delete(&path, &delete_options(&dry_run)).await,
        Deletion::Force => {
            sandbox.api.delete(&path, &delete_options(&json!({"gracePeriodSeconds": 0}))).await
        }
        Deletion::Evict | Deletion::EvictDryRun => {
            let options = if matches!(deletion, Deletion::EvictDryRun) { dry_run } else { json!({}) };
            let eviction = json!({
                "apiVersion": "policy/v1",
                "kind": "Eviction",
                "metadata": {"name": pod, "namespace": sandbox.namespace},
                "deleteOptions": delete_options(&options),
            });
            sandbox.api.post(&format!("{path}/eviction"), &eviction).await
        }
    }
}

/// Returns `DeleteOptions` with these fields.
pub(super) fn delete_options(fields: &Value) -> Value {
    let mut options = json!({"apiVersion": "v1", "kind": "DeleteOptions"});
    if let (Some(options), Some(fields)) = (options.as_object_mut(), fields.as_object()) {
        options.extend(fields.clone());
    }
    options
}

/// Whether a `PodDisruptionBudget` rejected an eviction: "Cannot evict pod as it would violate the pod's disruption
/// budget."
fn is_rejected_by_budget(response: &Response) -> bool {
    response.code == 429 && response.denial().is_none() && response.message.contains("disruption budget")
}

/// Whether the guard denied the request because it took the pod for the leader's.
pub(super) fn is_leader_denial(response: &Response) -> bool {
    response.denial().is_some_and(|(_, reason)| reason == "LeaderProtected")
}

/// A short description of a response for the report.
pub(super) fn summarize(response: &Response) -> String {
    let code = response.code;
    match response.denial() {
        Some((_, reason)) => format!("denied {reason} ({code})"),
        None if response.is_success() => String::from("allowed"),
        None if is_rejected_by_budget(response) => String::from("rejected by the budget (429)"),
        None if response.is_webhook_failure() => {
            format!("rejected because the guard did not respond ({code})")
        }
        None => format!("rejected, but not by the guard ({code})"),
    }
}

// === impl Expected ===

impl Expected {
    /// A short description for the report.
    pub(super) fn summary(self) -> String {
        match self {
            Self::Allowed => String::from("allowed"),
            Self::Denied(reasons) => format!("denied {} (403)", reasons.join(" or ")),
            Self::DeniedForNow(reasons) => format!("denied {} (429)", reasons.join(" or ")),
        }
    }

    /// Whether a response is the expected one.
    pub(super) fn matches(self, response: &Response) -> bool {
        let is_denied = |code: u16, reasons: &[&str]| {
            response.code == code
                && response.denial().is_some_and(|(webhook, reason)| {
                    [DELETION_WEBHOOK, EVICTION_WEBHOOK, INTENT_WEBHOOK, RESOURCES_WEBHOOK].contains(&webhook)
                        && reasons.contains(&reason)
                })
        };
        match self {
            Self::Allowed => response.is_success(),
            Self::Denied(reasons) => is_denied(403, reasons),
            Self::DeniedForNow(reasons) => is_denied(429, reasons),
        }
    }
}
