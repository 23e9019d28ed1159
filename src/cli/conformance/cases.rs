//! The cases, in an order in which each leaves a whole cluster to the next.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    call::Answer,
    report::{Outcome, Report, Row},
    stage::{SET, Stage, Whole},
};

/// The webhooks that are shipped for deletions, evictions, and what they follow from.
pub(super) const DELETIONS: &str = "guard.etcd-guard.io";
pub(super) const EVICTIONS: &str = "eviction.guard.etcd-guard.io";
const INTENTS: &str = "intent.guard.etcd-guard.io";

/// A pod that runs no etcd, and nothing else either: no node takes it.
const BYSTANDER: &str = "bystander";

/// A member that was deleted cannot be back this soon; whoever is judged later may find it back, rightly.
const SURELY_AWAY: Duration = Duration::from_millis(200);

/// How often a case is tried again that came too late, or during which another member came to lead.
const MOST_TRIES: usize = 5;

/// How long a break-glass lasts that is used at once.
const BREAK_GLASS: Duration = Duration::from_secs(600);

/// What is right.
#[derive(Clone, Copy)]
enum Expected {
    Allowed,
    /// Forbidden, for one of these reasons.
    Denied(&'static [&'static str]),
    /// "Too many requests", so that a drain tries again, for one of these reasons.
    Later(&'static [&'static str]),
}

/// One way of asking for a pod's end.
#[derive(Clone, Copy)]
enum Act {
    Delete,
    DryRun,
    Force,
    Evict,
    EvictDryRun,
}

/// Tries all cases, and writes down what came of them.
pub(super) struct Cases<'a> {
    pub(super) stage: &'a Stage,
    pub(super) report: &'a mut Report,
}

// === impl Cases ===

impl Cases<'_> {
    pub(super) async fn play(&mut self) -> anyhow::Result<()> {
        self.bystander().await?;
        self.leader().await?;
        self.followers().await?;
        self.collection().await?;
        self.intents().await?;
        self.transfer().await?;
        self.garbage_collector().await
    }

    /// Whether the apiserver asks the guard here and the guard protects the leader; else what it answered.
    pub(super) async fn in_force(stage: &Stage) -> anyhow::Result<Result<(), String>> {
        let is_denied = |answer: &Answer| answer.denial().is_some();
        let call = async || {
            let leader = stage.whole().await?.leader;
            act(stage, &leader, Act::DryRun).await
        };
        let answer = stage.until_in_force(call, is_denied).await?;
        Ok(match answer.denial() {
            Some(_) => Ok(()),
            None if answer.is_success() => {
                Err(String::from("a dry run of the leader's deletion was allowed"))
            }
            None => Err(answer.message),
        })
    }

    async fn bystander(&mut self) -> anyhow::Result<()> {
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
        self.stage.caller.post(&self.stage.path("pods"), &pod).await?.object("making a pod without etcd")?;
        let answer = act(self.stage, BYSTANDER, Act::Delete).await?;
        self.judge(
            "delete a pod that runs no etcd",
            Expected::Allowed,
            "only members are guarded",
            &answer,
            None,
        );
        Ok(())
    }

    async fn leader(&mut self) -> anyhow::Result<()> {
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
                // After an election: what was asked about was no leader any more, perhaps.
                if lost.is_some() || self.stage.whole().await?.leader == before.leader {
                    judged = Some((answer, lost));
                    break;
                }
            }
            match judged {
                Some((answer, lost)) => self.judge(request, expected, why, &answer, lost),
                None => self.skip(request, expected, why, "another member came to lead each time"),
            }
        }
        Ok(())
    }

    async fn followers(&mut self) -> anyhow::Result<()> {
        let before = self.stage.whole().await?;
        let [follower, _] = &before.followers;
        let answer = act(self.stage, follower, Act::DryRun).await?;
        let mut lost = self.lost(&before).await?;
        if !self.stage.cluster().await?.reservations.is_empty() {
            lost = Some(String::from("it was reserved"));
        }
        let why = "a quorum stays, and nothing is reserved";
        self.judge("delete a follower, dry run", Expected::Allowed, why, &answer, lost);

        self.pair().await?;

        let before = self.stage.whole().await?;
        let [_, second] = &before.followers;
        // A budget counts pods that are ready, some seconds late.
        let evict = async || act(self.stage, second, Act::Evict).await;
        let is_judged = |answer: &Answer| answer.is_success() || answer.denial().is_some();
        let answer = self.stage.until_in_force(evict, is_judged).await?;
        let why = "the first is back: a drain goes on";
        self.judge("evict the other follower later", Expected::Allowed, why, &answer, None);
        self.stage.whole().await?;
        Ok(())
    }

    /// Two deletions, the second while the first pod is away.
    async fn pair(&mut self) -> anyhow::Result<()> {
        let (request, why) = ("delete the other follower at once", "two of three would be away");
        let expected = Expected::Denied(&["DisruptionInProgress", "QuorumAtRisk"]);
        for _ in 0..MOST_TRIES {
            let before = self.stage.whole().await?;
            let [first, second] = &before.followers;
            let one = act(self.stage, first, Act::Delete).await?;
            let allowed = Instant::now();
            let other = act(self.stage, second, Act::Delete).await?;
            if one.is_success() && other.is_success() && allowed.elapsed() > SURELY_AWAY {
                continue;
            }
            self.judge("delete a follower", Expected::Allowed, "a quorum stays", &one, None);
            self.judge(request, expected, why, &other, None);
            let after = self.stage.whole().await?;
            let is_same = after.ids.get(first) == before.ids.get(first);
            let is_new = after.uids.get(first) != before.uids.get(first);
            let came_back = is_same && is_new;
            let answered = if came_back { "came back" } else { "is another member, or was never away" };
            let expected = "comes back as the same member";
            self.note("the deleted follower", expected, "its data stayed", answered, came_back);
            return Ok(());
        }
        self.skip(request, expected, why, "the answer came so late that the first may have been back");
        Ok(())
    }

    async fn collection(&mut self) -> anyhow::Result<()> {
        let before = self.stage.whole().await?;
        let path = format!("{}?labelSelector=app%3D{SET}", self.stage.path("pods"));
        let answer = self.stage.caller.delete(&path, &options(&json!({}))).await?;
        let gone = self.gone(&before).await?.len();
        let lost = (gone > 1).then(|| format!("{gone} pods went"));
        let expected = Expected::Denied(&["LeaderProtected", "DisruptionInProgress", "QuorumAtRisk"]);
        self.judge("delete the collection of pods", expected, "one member goes at most", &answer, lost);
        self.stage.whole().await?;
        Ok(())
    }

    /// What pods' deletions follow from; dry runs all.
    async fn intents(&mut self) -> anyhow::Result<()> {
        let (set, namespace) = (self.stage.set_path(), self.stage.namespace_path());
        let claim = self.stage.path(&format!("persistentvolumeclaims/data-{SET}-0"));
        let denied = Expected::Denied(&["IntentProtected"]);
        let missing = self.stage.is_asked(INTENTS).await.err();
        let orphan = json!({"dryRun": ["All"], "propagationPolicy": "Orphan"});
        let dry_run = json!({"dryRun": ["All"]});
        for (request, path, how, expected, why) in [
            ("delete the StatefulSet, dry run", &set, &dry_run, denied, "its pods would follow"),
            ("delete it with --cascade=orphan, dry run", &set, &orphan, Expected::Allowed, "its pods stay"),
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
        let (request, why) = ("scale to one replica, dry run", "one voter of three is no quorum");
        if let Some(why_not) = &missing {
            self.skip(request, denied, why, why_not);
            return Ok(());
        }
        let path = format!("{set}/scale?dryRun=All");
        let answer = self.stage.caller.patch(&path, &json!({"spec": {"replicas": 1}})).await?;
        self.judge(request, denied, why, &answer, None);
        Ok(())
    }

    /// The leader goes once another leads; the StatefulSet controller makes use of it.
    async fn transfer(&mut self) -> anyhow::Result<()> {
        let (request, why) = ("delete the leader under `leader: transfer`", "another voter leads first");
        let rollout = ("rollout by the StatefulSet controller", "every pod replaced, the quorum kept");
        let annotations = json!({"etcd-guard.io/leader": "transfer"});
        let chosen = self.stage.choose(&annotations, "etcd-guard.io/leader", Some("transfer")).await?;
        if let Err(why_not) = chosen {
            self.skip(request, Expected::Allowed, why, &why_not);
            self.skip(rollout.0, Expected::Allowed, "it waits for a denial to pass", &why_not);
            return Ok(());
        }
        let before = self.stage.whole().await?;
        let answer = act(self.stage, &before.leader, Act::Delete).await?;
        let is_told = answer.warnings.iter().any(|it| it.contains("leadership of etcd"));
        let after = self.stage.whole().await?;
        let lost = (!is_told || after.leader == before.leader)
            .then(|| String::from("leadership was not moved, or not told of"));
        self.judge(request, Expected::Allowed, why, &answer, lost);

        let before = self.stage.whole().await?;
        let now = k8s_openapi::jiff::Timestamp::now().to_string();
        let restart =
            json!({"spec": {"template": {"metadata": {"annotations": {"etcd-guard.io/restarted-at": now}}}}});
        let patched = self.stage.caller.patch(&self.stage.set_path(), &restart).await?;
        patched.object("restarting the StatefulSet")?;
        let fewest = std::cell::Cell::new(usize::MAX);
        let is_through = async || {
            // The guard may be asked by the controller at this moment, and a look come too late.
            let healthy = self.stage.cluster().await.ok().and_then(|it| it.healthy);
            fewest.set(fewest.get().min(healthy.unwrap_or(usize::MAX)));
            Ok(self.gone(&before).await?.len() == before.uids.len())
        };
        let is_done = self.stage.until(is_through).await?;
        self.stage.whole().await?;
        let kept = fewest.get() >= 2;
        let answered = match (is_done, kept) {
            (true, true) => String::from("every pod replaced, never fewer than two healthy voters seen"),
            (true, false) => format!("{} healthy voters seen", fewest.get()),
            (false, _) => String::from("not through in time"),
        };
        self.note(
            rollout.0,
            rollout.1,
            "the controller tries again after a denial",
            &answered,
            is_done && kept,
        );
        Ok(())
    }

    /// Last, because nothing is left after it.
    async fn garbage_collector(&mut self) -> anyhow::Result<()> {
        let (request, why) = ("delete the StatefulSet under a break-glass", "its owners insist");
        let until = k8s_openapi::jiff::Timestamp::now()
            .checked_add(k8s_openapi::jiff::SignedDuration::try_from(BREAK_GLASS)?)?;
        let annotations = json!({
            "etcd-guard.io/allow-delete-until": until.to_string(),
            "etcd-guard.io/allow-delete-reason": "etcd-guard conformance",
        });
        let chosen = self.stage.choose(&annotations, "etcd-guard.io/allow-delete-until", None).await?;
        if let Err(why_not) = chosen {
            self.skip(request, Expected::Allowed, why, &why_not);
            return Ok(());
        }
        let how = options(&json!({"propagationPolicy": "Background"}));
        let answer = self.stage.caller.delete(&self.stage.set_path(), &how).await?;
        let is_deleted = answer.is_success();
        self.judge(request, Expected::Allowed, why, &answer, None);
        if !is_deleted {
            return Ok(());
        }
        let are_gone = self.stage.until(async || Ok(self.stage.pods().await?.is_empty())).await?;
        self.note(
            "garbage collection of its pods",
            "every pod goes",
            "what follows from an accepted deletion passes",
            if are_gone { "every pod went" } else { "pods are left" },
            are_gone,
        );
        Ok(())
    }

    /// Which of these pods are gone or going.
    async fn gone(&self, before: &Whole) -> anyhow::Result<Vec<String>> {
        let pods = self.stage.pods().await?;
        let stays = |(name, uid): &(&String, &String)| {
            pods.iter().any(|pod| pod.name == **name && pod.uid == **uid && !pod.terminating)
        };
        Ok(before.uids.iter().filter(|it| !stays(it)).map(|(name, _)| name.clone()).collect())
    }

    /// Which pods did not stay that should have; in words.
    async fn lost(&self, before: &Whole) -> anyhow::Result<Option<String>> {
        let gone = self.gone(before).await?;
        Ok((!gone.is_empty()).then(|| format!("pod {} did not stay", gone.join(", "))))
    }

    /// Writes down an answer. `lost` is what went wrong beside it.
    fn judge(
        &mut self,
        request: &str,
        expected: Expected,
        why: &'static str,
        answer: &Answer,
        lost: Option<String>,
    ) {
        let is_right = expected.is_met(answer) && lost.is_none();
        let mut answered = in_words(answer);
        if let Some(lost) = lost {
            answered = format!("{answered}, but {lost}");
        }
        self.push(Row {
            request: request.to_owned(),
            expected: expected.in_words(),
            why,
            answered,
            message: answer.message.clone(),
            result: if is_right { Outcome::Passed } else { Outcome::Failed },
        });
    }

    /// Writes down something that is seen and not answered.
    fn note(&mut self, request: &str, expected: &str, why: &'static str, answered: &str, is_right: bool) {
        self.push(Row {
            request: request.to_owned(),
            expected: expected.to_owned(),
            why,
            answered: answered.to_owned(),
            message: String::new(),
            result: if is_right { Outcome::Passed } else { Outcome::Failed },
        });
    }

    fn skip(&mut self, request: &str, expected: Expected, why: &'static str, why_not: &str) {
        self.push(Row {
            request: request.to_owned(),
            expected: expected.in_words(),
            why,
            answered: why_not.to_owned(),
            message: String::new(),
            result: Outcome::Skipped,
        });
    }

    fn push(&mut self, row: Row) {
        super::say(&format!("{}: {}", row.request, row.answered));
        self.report.rows.push(row);
    }
}

async fn act(stage: &Stage, pod: &str, act: Act) -> anyhow::Result<Answer> {
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

fn options(how: &Value) -> Value {
    let mut options = json!({"apiVersion": "v1", "kind": "DeleteOptions"});
    if let (Some(options), Some(how)) = (options.as_object_mut(), how.as_object()) {
        options.extend(how.clone());
    }
    options
}

fn in_words(answer: &Answer) -> String {
    match answer.denial() {
        Some((_, reason)) => format!("denied {reason} ({})", answer.code),
        None if answer.is_success() => String::from("allowed"),
        None => format!("refused, and not by the guard ({})", answer.code),
    }
}

// === impl Expected ===

impl Expected {
    fn in_words(self) -> String {
        match self {
            Self::Allowed => String::from("allowed"),
            Self::Denied(reasons) => format!("denied {} (403)", reasons.join(" or ")),
            Self::Later(reasons) => format!("denied {} (429)", reasons.join(" or ")),
        }
    }

    fn is_met(self, answer: &Answer) -> bool {
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
        }
    }
}
