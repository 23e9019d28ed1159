//! Ways of asking for a pod's end, and what is right to answer.

use serde_json::{Value, json};

use super::super::{call::Answer, stage::Stage};

/// The webhooks that are shipped for deletions, evictions, and what they follow from.
pub(in crate::cli::conformance) const DELETIONS: &str = "guard.etcd-guard.io";
pub(in crate::cli::conformance) const EVICTIONS: &str = "eviction.guard.etcd-guard.io";
pub(super) const INTENTS: &str = "intent.guard.etcd-guard.io";

/// What is right.
#[derive(Clone, Copy)]
pub(super) enum Expected {
    Allowed,
    /// Forbidden, for one of these reasons.
    Denied(&'static [&'static str]),
    /// "Too many requests", so that a drain tries again, for one of these reasons.
    Later(&'static [&'static str]),
    /// The same by a budget, which is asked after the guard.
    HeldByBudget,
}

/// One way of asking for a pod's end.
#[derive(Clone, Copy)]
pub(super) enum Act {
    Delete,
    DryRun,
    Force,
    Evict,
    EvictDryRun,
}

pub(super) async fn act(stage: &Stage, pod: &str, act: Act) -> anyhow::Result<Answer> {
    let path = stage.path(&format!("pods/{pod}"));
    let dry_run = json!({"dryRun": ["All"]});
    match act {
        Act::Delete => stage.caller.delete(&path, &options(&json!({}))).await,
        Act::DryRun => stage.caller.delete(&path, &options(&dry_run)).await,
        Act::Force => stage.caller.delete(&path, &options(&json!({"gracePeriodSeconds": 0}))).await,
        Act::Evict | Act::EvictDryRun => {
            let how = if matches!(act, Act::EvictDryRun) { dry_run } else { json!({}) };
            let eviction = json!({
                "apiVersion": "policy/v1",
                "kind": "Eviction",
                "metadata": {"name": pod, "namespace": stage.namespace},
                "deleteOptions": options(&how),
            });
            stage.caller.post(&format!("{path}/eviction"), &eviction).await
        }
    }
}

pub(super) fn options(how: &Value) -> Value {
    let mut options = json!({"apiVersion": "v1", "kind": "DeleteOptions"});
    if let (Some(options), Some(how)) = (options.as_object_mut(), how.as_object()) {
        options.extend(how.clone());
    }
    options
}

/// Of what Kubernetes' eviction says: "Cannot evict pod as it would violate the pod's disruption budget."
pub(super) fn is_held_by_budget(answer: &Answer) -> bool {
    answer.code == 429 && answer.denial().is_none() && answer.message.contains("disruption budget")
}

/// Denied as the leader's, of whichever pod was asked about.
pub(super) fn is_of_the_leader(answer: &Answer) -> bool {
    answer.denial().is_some_and(|(_, reason)| reason == "LeaderProtected")
}

pub(super) fn in_words(answer: &Answer) -> String {
    match answer.denial() {
        Some((_, reason)) => format!("denied {reason} ({})", answer.code),
        None if answer.is_success() => String::from("allowed"),
        None if is_held_by_budget(answer) => String::from("refused by the budget (429)"),
        None if answer.is_unasked() => format!("refused, because the guard did not answer ({})", answer.code),
        None => format!("refused, and not by the guard ({})", answer.code),
    }
}

// === impl Expected ===

impl Expected {
    pub(super) fn in_words(self) -> String {
        match self {
            Self::Allowed => String::from("allowed"),
            Self::Denied(reasons) => format!("denied {} (403)", reasons.join(" or ")),
            Self::Later(reasons) => format!("denied {} (429)", reasons.join(" or ")),
            Self::HeldByBudget => String::from("refused by the budget (429)"),
        }
    }

    pub(super) fn is_met(self, answer: &Answer) -> bool {
        let is_denied = |code: u16, reasons: &[&str]| {
            answer.code == code
                && answer.denial().is_some_and(|(webhook, reason)| {
                    [DELETIONS, EVICTIONS, INTENTS].contains(&webhook) && reasons.contains(&reason)
                })
        };
        match self {
            Self::Allowed => answer.is_success(),
            Self::Denied(reasons) => is_denied(403, reasons),
            Self::Later(reasons) => is_denied(429, reasons),
            Self::HeldByBudget => is_held_by_budget(answer),
        }
    }
}
