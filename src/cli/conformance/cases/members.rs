//! One pod at a time: no member, the leader, a follower.

use serde_json::json;

use super::{Act, Cases, Expected, MOST_TRIES, OTHERS_LED, act};
use crate::cli::conformance::call::Answer;

/// A pod that runs no etcd, and nothing else either: no node takes it.
const BYSTANDER: &str = "bystander";

// === impl Cases ===

impl Cases<'_> {
    pub(super) async fn bystander(&mut self) -> anyhow::Result<()> {
        let pod = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": BYSTANDER},
            "spec": {
                "schedulerName": "nobody",
                "automountServiceAccountToken": false,
                "securityContext": {
                    "runAsNonRoot": true, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"},
                },
                "containers": [{
                    "name": "none",
                    "image": "bystander",
                    "resources": {"limits": {"cpu": "10m", "memory": "16Mi"}},
                    "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
                }],
            },
        });
        let (request, why) = ("delete a pod that runs no etcd", "only members are guarded");
        // A policy of the cluster's may forbid its image, say.
        let made = self.stage.caller.post(&self.stage.path("pods"), &pod).await?;
        if !made.is_success() {
            self.skip(request, Expected::Allowed, why, &format!("no such pod may be made: {}", made.message));
            return Ok(());
        }
        let answer = act(self.stage, BYSTANDER, Act::Delete).await?;
        let wrong = if answer.is_success() { self.unasked().await? } else { None };
        self.judge(request, Expected::Allowed, why, &answer, wrong);
        Ok(())
    }

    pub(super) async fn leader(&mut self) -> anyhow::Result<()> {
        let (denied, later) = (Expected::Denied(&["LeaderProtected"]), Expected::Later(&["LeaderProtected"]));
        let policy = "the policy here is `leader: deny`";
        for (request, way, expected, why) in [
            ("delete the leader, dry run", Act::DryRun, denied, "a dry run gets the true answer"),
            ("delete the leader", Act::Delete, denied, policy),
            ("delete the leader by force", Act::Force, denied, "force cures nothing for etcd"),
            ("evict the leader, dry run", Act::EvictDryRun, later, "a dry run gets the true answer"),
            ("evict the leader, as a drain does", Act::Evict, later, "a drain tries a 429 again"),
        ] {
            let mut judged = None;
            for _ in 0..MOST_TRIES {
                let before = self.stage.whole().await?;
                let answer = act(self.stage, &before.leader, way).await?;
                let lost = self.lost(&before).await?;
                if lost.is_some() || !self.has_changed_hands(&before).await? {
                    judged = Some((answer, lost));
                    break;
                }
            }
            match judged {
                Some((answer, lost)) => self.judge(request, expected, why, &answer, lost),
                None => self.skip(request, expected, why, OTHERS_LED),
            }
        }
        Ok(())
    }

    pub(super) async fn followers(&mut self) -> anyhow::Result<()> {
        let (request, why) = ("delete a follower, dry run", "a quorum stays, and nothing is reserved");
        for _ in 0..MOST_TRIES {
            let before = self.stage.whole().await?;
            let known = self.stage.allowed().await?;
            let [follower, _] = &before.followers;
            let answer = act(self.stage, follower, Act::DryRun).await?;
            let mut wrong = self.lost(&before).await?;
            if !answer.is_success() && self.has_changed_hands(&before).await? {
                continue;
            }
            if !self.stage.allowed().await?.is_subset(&known) {
                wrong = Some(String::from("it was reserved"));
            }
            if answer.is_success() && wrong.is_none() {
                wrong = self.unasked().await?;
            }
            self.judge(request, Expected::Allowed, why, &answer, wrong);
            return Ok(());
        }
        self.skip(request, Expected::Allowed, why, OTHERS_LED);
        Ok(())
    }

    /// After the first came back, the other.
    pub(super) async fn later(&mut self) -> anyhow::Result<()> {
        let (request, why) = ("evict the other follower later", "the first is back: a drain goes on");
        for _ in 0..MOST_TRIES {
            let before = self.stage.whole().await?;
            let known = self.stage.allowed().await?;
            let [_, second] = &before.followers;
            // A budget counts pods that are ready, some seconds late.
            let evict = async || act(self.stage, second, Act::Evict).await;
            let is_judged = |it: &Answer| it.is_success() || it.denial().is_some() || it.is_without_right();
            let answer = self.stage.until_in_force(evict, is_judged).await?;
            let wrong = if answer.is_success() { self.unknown(&known, second).await? } else { None };
            if answer.is_success() || !self.has_changed_hands(&before).await? {
                self.judge(request, Expected::Allowed, why, &answer, wrong);
                self.stage.whole().await?;
                return Ok(());
            }
        }
        self.skip(request, Expected::Allowed, why, OTHERS_LED);
        Ok(())
    }
}
