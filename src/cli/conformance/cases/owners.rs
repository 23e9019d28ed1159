//! What pods' deletions follow from: StatefulSets, claims, the namespace.

use std::time::Duration;

use serde_json::json;

use super::{
    Cases, Expected, MEMBERS, SET,
    ask::{INTENTS, options},
};
use crate::cli::conformance::call::Answer;

/// How long a break-glass lasts that is used at once.
const BREAK_GLASS: Duration = Duration::from_secs(600);

// === impl Cases ===

impl Cases<'_> {
    /// Dry runs all.
    pub(super) async fn intents(&mut self) -> anyhow::Result<()> {
        let (set, namespace) = (self.stage.set_path(), self.stage.namespace_path());
        let claim = self.stage.path(&format!("persistentvolumeclaims/data-{SET}-0"));
        let denied = Expected::Denied(&["IntentProtected"]);
        let missing = self.stage.is_asked(INTENTS).await.err();
        let orphan = json!({"dryRun": ["All"], "propagationPolicy": "Orphan"});
        let dry_run = json!({"dryRun": ["All"]});
        // The StatefulSet twice, and the denial last: what is allowed in between leaves no trace.
        for (request, path, how, expected, why) in [
            (
                "delete the StatefulSet with --cascade=orphan, dry run",
                &set,
                &orphan,
                Expected::Allowed,
                "its pods stay",
            ),
            ("delete the StatefulSet, dry run", &set, &dry_run, denied, "its pods would follow"),
            (
                "delete a member's claim, dry run",
                &claim,
                &dry_run,
                denied,
                "the next restart would lose the member",
            ),
            ("delete the namespace, dry run", &namespace, &dry_run, denied, "all of it would follow"),
        ] {
            if let Some(why_not) = &missing {
                self.skip(request, expected, why, why_not);
                continue;
            }
            let answer = self.stage.caller.delete(path, &options(how)).await?;
            self.judge(request, expected, why, &answer, None);
        }
        for (request, replicas, expected, why) in [
            (
                "scale to two replicas, dry run",
                2,
                Expected::Allowed,
                "with a warning: the third stays a voter",
            ),
            ("scale to one replica, dry run", 1, denied, "one voter of three is no quorum"),
        ] {
            if let Some(why_not) = &missing {
                self.skip(request, expected, why, why_not);
                continue;
            }
            let path = format!("{set}/scale?dryRun=All");
            let answer = self.stage.caller.patch(&path, &json!({"spec": {"replicas": replicas}})).await?;
            let is_told = answer.warnings.iter().any(|it| it.contains("stays a voter of etcd"));
            let untold = answer.is_success() && !is_told;
            let wrong = untold.then(|| String::from("no warning of the guard's came with it"));
            self.judge(request, expected, why, &answer, wrong);
        }
        Ok(())
    }

    /// A guard that died on the way would else be found out by nobody.
    pub(super) async fn still_in_force(&mut self) -> anyhow::Result<()> {
        let annotations = json!({"etcd-guard.io/leader": "deny"});
        // What this does not bring about, the row tells.
        let _ = self.stage.choose(&annotations, "etcd-guard.io/leader", Some("deny")).await?;
        let in_force = Self::in_force(self.stage).await?;
        let answered = in_force.as_ref().err().map_or("denied", String::as_str);
        self.note(
            "delete the leader in the end, dry run",
            "denied",
            "the guard is still asked",
            answered,
            in_force.is_ok(),
        );
        Ok(())
    }

    /// Last, because nothing is left after it.
    pub(super) async fn garbage_collector(&mut self) -> anyhow::Result<()> {
        let (request, why) = ("delete the StatefulSet under a break-glass", "its owners insist");
        let follows = (
            "garbage collection of its pods",
            "every pod goes",
            "what follows from an accepted deletion passes",
        );
        let until = k8s_openapi::jiff::Timestamp::now()
            .checked_add(k8s_openapi::jiff::SignedDuration::try_from(BREAK_GLASS)?)?;
        let annotations = json!({
            "etcd-guard.io/allow-delete-until": until.to_string(),
            "etcd-guard.io/allow-delete-reason": "etcd-guard conformance",
        });
        let mut obstacle = self.stage.is_asked(INTENTS).await.err();
        if obstacle.is_none() {
            let chosen = self.stage.choose(&annotations, "etcd-guard.io/allow-delete-until", None).await?;
            obstacle = chosen.err();
        }
        if let Some(why_not) = obstacle {
            self.skip(request, Expected::Allowed, why, &why_not);
            self.leave_out(follows.0, follows.1, follows.2, &why_not);
            return Ok(());
        }
        let how = options(&json!({"propagationPolicy": "Background"}));
        // Another replica may hear of the break-glass a moment later, and deny.
        let delete = async || self.stage.caller.delete(&self.stage.set_path(), &how).await;
        let is_judged = |it: &Answer| it.denial().is_none();
        let answer = self.stage.until_in_force(delete, is_judged).await?;
        let is_told = answer.warnings.iter().any(|it| it.contains("break-glass overrules IntentProtected"));
        let untold = answer.is_success() && !is_told;
        let wrong = untold.then(|| String::from("no warning of the guard's came with it"));
        self.judge(request, Expected::Allowed, why, &answer, wrong);
        if !answer.is_success() {
            self.leave_out(follows.0, follows.1, follows.2, "the StatefulSet was not deleted");
            return Ok(());
        }
        let are_gone = self.stage.until(MEMBERS, async || Ok(self.stage.pods(SET).await?.is_empty())).await?;
        let answered = if are_gone { "every pod went" } else { "pods are left" };
        self.note(follows.0, follows.1, follows.2, answered, are_gone);
        Ok(())
    }
}
