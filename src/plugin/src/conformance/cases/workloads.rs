//! Workload operations that delete pods: StatefulSets, claims, the namespace.

use std::time::Duration;

use serde_json::{Value, json};

use super::{
    requests::{Expected, INTENT_WEBHOOK, RESOURCES_WEBHOOK, delete_options},
    runner::{Case, Cases, Observation, WARNING_MISSING},
};
use crate::{
    api_server::Response,
    conformance::{manifests::SET, sandbox::cluster_state::MEMBERS},
};

/// The reason of the break-glass.
const BREAK_GLASS_REASON: &str = "etcd-guard conformance";

/// The beginning of the guard's warning for a denial that the break-glass overrules.
const OVERRULED: &str = "break-glass overrules IntentProtected: etcd-guard conformance";

/// The duration of the break-glass annotations, which are used at once.
const BREAK_GLASS: Duration = Duration::from_secs(600);

const PROTECTED: Expected = Expected::Denied(&["IntentProtected"]);

const ORPHANING: Case = Case {
    request: "delete the StatefulSet with --cascade=orphan, dry run",
    expected: Expected::Allowed,
    why: "its pods remain",
};

const SET_DELETION: Case = Case {
    request: "delete the StatefulSet, dry run",
    expected: PROTECTED,
    why: "its pods would be deleted with it",
};

const CLAIM_DELETION: Case = Case {
    request: "delete a member's claim, dry run",
    expected: PROTECTED,
    why: "the next restart would lose the member's data",
};

const NAMESPACE_DELETION: Case = Case {
    request: "delete the namespace, dry run",
    expected: PROTECTED,
    why: "everything in it would be deleted with it",
};

const SCALE_TO_TWO: Case = Case {
    request: "scale to two replicas, dry run",
    expected: Expected::Allowed,
    why: "with a warning: the third member remains a voter",
};

const SCALE_TO_ONE: Case = Case {
    request: "scale to one replica, dry run",
    expected: PROTECTED,
    why: "one of three voters is not a quorum",
};

const SERVICE_DELETION: Case = Case {
    request: "delete the Service of the members, dry run",
    expected: PROTECTED,
    why: "members and clients would not find each other",
};

const FINAL_ENFORCEMENT: Observation = Observation {
    request: "delete the leader at the end, dry run",
    expected: "denied",
    why: "the guard is still called",
};

const BREAK_GLASS_DELETION: Case = Case {
    request: "delete the StatefulSet under a break-glass",
    expected: Expected::Allowed,
    why: "break-glass overrules the denial",
};

const GARBAGE_COLLECTION: Observation = Observation {
    request: "garbage collection of its pods",
    expected: "every pod is deleted",
    why: "the cascade of an approved deletion is approved",
};

// === impl Cases ===

impl Cases<'_> {
    /// Requests dry runs of workload operations.
    pub(super) async fn workload_operations(&mut self) -> anyhow::Result<()> {
        let (set, namespace) = (self.sandbox.set_path(), self.sandbox.namespace_path());
        let claim = self.sandbox.path(&format!("persistentvolumeclaims/data-{SET}-0"));
        let uncovered = self.sandbox.check_coverage(INTENT_WEBHOOK).await.err();
        let orphan = json!({"dryRun": ["All"], "propagationPolicy": "Orphan"});
        let dry_run = json!({"dryRun": ["All"]});
        // The approval of the orphaning deletion has no trace. The denial after it proves that the webhook is called.
        let deletions: [(Case, &str, &Value); 4] = [
            (ORPHANING, &set, &orphan),
            (SET_DELETION, &set, &dry_run),
            (CLAIM_DELETION, &claim, &dry_run),
            (NAMESPACE_DELETION, &namespace, &dry_run),
        ];
        for (case, path, options) in deletions {
            if let Some(reason) = &uncovered {
                self.skip(case, reason);
                continue;
            }
            let response = self.sandbox.api.delete(path, &delete_options(options)).await?;
            self.record(case, &response, None);
        }
        for (case, replicas) in [(SCALE_TO_TWO, 2), (SCALE_TO_ONE, 1)] {
            if let Some(reason) = &uncovered {
                self.skip(case, reason);
                continue;
            }
            let path = format!("{set}/scale?dryRun=All");
            let scale = json!({"spec": {"replicas": replicas}});
            let response = self.sandbox.api.patch(&path, &scale).await?;
            let warning = format!(" remains a voter of etcd {}/{SET}: ", self.sandbox.namespace);
            let is_unwarned = response.is_success() && !response.has_warning(&warning);
            self.record(case, &response, is_unwarned.then(|| String::from(WARNING_MISSING)));
        }
        if let Err(reason) = self.sandbox.check_coverage(RESOURCES_WEBHOOK).await {
            self.skip(SERVICE_DELETION, &reason);
            return Ok(());
        }
        let service = self.sandbox.path(&format!("services/{SET}"));
        let response = self.sandbox.api.delete(&service, &delete_options(&dry_run)).await?;
        self.record(SERVICE_DELETION, &response, None);
        Ok(())
    }

    /// Checks that the guard still denies. A guard that stopped during the run would otherwise not be noticed.
    pub(super) async fn final_enforcement(&mut self) -> anyhow::Result<()> {
        let annotations = json!({"etcd-guard.io/leader": "deny"});
        // If the annotation does not take effect, the row fails.
        let _ = self.sandbox.set_policy(&annotations, "etcd-guard.io/leader", Some("deny")).await?;
        let enforcement = Self::check_enforcement(self.sandbox).await?;
        let observed = enforcement.as_ref().err().map_or("denied", String::as_str);
        self.record_observation(FINAL_ENFORCEMENT, observed, enforcement.is_ok());
        Ok(())
    }

    /// Deletes the StatefulSet under a break-glass. Runs last, because it deletes the cluster.
    pub(super) async fn garbage_collection(&mut self) -> anyhow::Result<()> {
        let until = k8s_openapi::jiff::Timestamp::now()
            .checked_add(k8s_openapi::jiff::SignedDuration::try_from(BREAK_GLASS)?)?;
        let annotations = json!({
            "etcd-guard.io/allow-delete-until": until.to_string(),
            "etcd-guard.io/allow-delete-reason": BREAK_GLASS_REASON,
        });
        let mut obstacle = self.sandbox.check_coverage(INTENT_WEBHOOK).await.err();
        if obstacle.is_none() {
            let policy =
                self.sandbox.set_policy(&annotations, "etcd-guard.io/allow-delete-until", None).await?;
            obstacle = policy.err();
        }
        if let Some(reason) = obstacle {
            self.skip(BREAK_GLASS_DELETION, &reason);
            self.skip_observation(GARBAGE_COLLECTION, &reason);
            return Ok(());
        }
        let options = delete_options(&json!({"propagationPolicy": "Background"}));
        // Another replica may observe the break-glass a moment later, and deny.
        let delete = async || self.sandbox.api.delete(&self.sandbox.set_path(), &options).await;
        let response =
            self.sandbox.retry_until(delete, |response: &Response| response.denial().is_none()).await?;
        let is_unwarned = response.is_success() && !response.has_warning(OVERRULED);
        self.record(BREAK_GLASS_DELETION, &response, is_unwarned.then(|| String::from(WARNING_MISSING)));
        if !response.is_success() {
            self.skip_observation(GARBAGE_COLLECTION, "the StatefulSet was not deleted");
            return Ok(());
        }
        let are_deleted = async || Ok(self.sandbox.pods(SET).await?.is_empty());
        let are_deleted = self.sandbox.wait_until(MEMBERS, are_deleted).await?;
        let observed = if are_deleted { "every pod was deleted" } else { "pods remain" };
        self.record_observation(GARBAGE_COLLECTION, observed, are_deleted);
        Ok(())
    }
}
