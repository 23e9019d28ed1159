//! What owners choose: audit mode, and leadership that moves.

use std::cell::Cell;

use serde_json::json;

use super::{Act, Cases, Expected, MEMBERS, MOST_TRIES, SET, Whole, act};
use crate::cli::conformance::call::Answer;

const ROLLOUT: (&str, &str, &str) = (
    "rollout by the StatefulSet controller",
    "every pod replaced, the quorum kept",
    "the controller tries again after a denial",
);

/// Voters of three that make a quorum.
const QUORUM: usize = 2;

/// What was seen of a cluster while something went on.
#[derive(Default)]
struct Watched {
    looks: Cell<usize>,
    /// Healthy voters.
    last: Cell<Option<usize>>,
    /// The fewest that two looks in a row have seen: members that are away are so for longer than a look, and one look
    /// may come at a bad moment.
    fewest: Cell<Option<usize>>,
}

// === impl Cases ===

impl Cases<'_> {
    pub(super) async fn audit(&mut self) -> anyhow::Result<()> {
        let (request, why) =
            ("delete the leader in audit mode, dry run", "what would be denied is only told");
        let mode = |it: &str| json!({"etcd-guard.io/mode": it});
        let chosen = self.stage.choose(&mode("audit"), "etcd-guard.io/mode", Some("audit")).await?;
        match chosen {
            Err(why_not) => self.skip(request, Expected::Allowed, why, &why_not),
            Ok(()) => {
                let is_told = |it: &Answer| {
                    it.warnings.iter().any(|it| it.contains("would be denied [LeaderProtected]"))
                };
                // Another replica may hear of it a moment later.
                let answer = self.stage.until_in_force(async || self.ask_for_leader().await, is_told).await?;
                let untold = !is_told(&answer) && answer.is_success();
                let wrong = untold.then(|| String::from("no warning of the guard's came with it"));
                self.judge(request, Expected::Allowed, why, &answer, wrong);
            }
        }
        // What this does not bring about, the last row tells.
        let _ = self.stage.choose(&mode("enforce"), "etcd-guard.io/mode", Some("enforce")).await?;
        let _ = Self::in_force(self.stage).await?;
        Ok(())
    }

    async fn ask_for_leader(&self) -> anyhow::Result<Answer> {
        let leader = self.stage.whole().await?.leader;
        act(self.stage, &leader, Act::DryRun).await
    }

    /// The leader goes once another leads; the StatefulSet controller makes use of it.
    pub(super) async fn transfer(&mut self) -> anyhow::Result<()> {
        let (request, why) = ("delete the leader under `leader: transfer`", "another voter leads first");
        let annotations = json!({"etcd-guard.io/leader": "transfer"});
        let chosen = self.stage.choose(&annotations, "etcd-guard.io/leader", Some("transfer")).await?;
        if let Err(why_not) = chosen {
            self.skip(request, Expected::Allowed, why, &why_not);
            self.leave_out(ROLLOUT.0, ROLLOUT.1, ROLLOUT.2, &why_not);
            return Ok(());
        }
        let mut tries = 1;
        loop {
            let led = Cell::new(String::new());
            // Another replica may hear of the policy a moment later, and deny.
            let delete = async || {
                let leader = self.stage.whole().await?.leader;
                let answer = act(self.stage, &leader, Act::Delete).await;
                led.set(leader);
                answer
            };
            let answer = self.stage.until_in_force(delete, Answer::is_success).await?;
            let is_told = answer.warnings.iter().any(|it| it.contains("leadership of etcd"));
            let is_moved = self.stage.whole().await?.leader != led.take();
            // Who did not lead any more when it was asked about went without a word.
            if answer.is_success() && !is_told && is_moved && tries < MOST_TRIES {
                tries += 1;
                continue;
            }
            let unmoved = answer.is_success() && !(is_told && is_moved);
            let wrong = unmoved.then(|| String::from("leadership was not moved, or not told of"));
            self.judge(request, Expected::Allowed, why, &answer, wrong);
            break;
        }
        self.rollout().await
    }

    async fn rollout(&mut self) -> anyhow::Result<()> {
        let before = self.stage.whole().await?;
        let now = k8s_openapi::jiff::Timestamp::now().to_string();
        let restart =
            json!({"spec": {"template": {"metadata": {"annotations": {"etcd-guard.io/restarted-at": now}}}}});
        let patched = self.stage.caller.patch(&self.stage.set_path(), &restart).await?;
        patched.object("restarting the StatefulSet")?;
        let watched = Watched::default();
        let is_done = self.stage.until(MEMBERS, async || self.is_replaced(&before, &watched).await).await?;
        if is_done && watched.fewest.get().is_none() {
            self.leave_out(
                ROLLOUT.0,
                ROLLOUT.1,
                ROLLOUT.2,
                "the guard told too little of the cluster meanwhile",
            );
            return Ok(());
        }
        let fewest = watched.fewest.get().unwrap_or(QUORUM);
        let kept = fewest >= QUORUM;
        let answered = match (is_done, kept) {
            (true, true) => format!(
                "every pod replaced; of {} looks, no two in a row without a quorum",
                watched.looks.get()
            ),
            (_, false) => format!("{fewest} healthy voters seen"),
            (false, true) => String::from("not through in time"),
        };
        self.note(ROLLOUT.0, ROLLOUT.1, ROLLOUT.2, &answered, is_done && kept);
        Ok(())
    }

    /// Whether each of these pods has a successor that serves.
    async fn is_replaced(&self, before: &Whole, watched: &Watched) -> anyhow::Result<bool> {
        // The guard may be asked by the controller at this moment, and the look come too late: that is none.
        let Ok(cluster) = self.stage.cluster().await else { return Ok(false) };
        // Where voters cannot be counted, nobody proved a quorum.
        watched.note(cluster.healthy.unwrap_or(0));
        let pods = self.stage.pods(SET).await?;
        let are_new = before.uids.values().all(|uid| !pods.iter().any(|pod| pod.uid == *uid));
        Ok(are_new && self.stage.is_whole(&cluster).await?.is_ok())
    }
}

// === impl Watched ===

impl Watched {
    fn note(&self, healthy: usize) {
        self.looks.set(self.looks.get() + 1);
        if let Some(last) = self.last.replace(Some(healthy)) {
            let seen = last.max(healthy);
            self.fewest.set(Some(self.fewest.get().map_or(seen, |it| it.min(seen))));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fewest(looks: &[usize]) -> Option<usize> {
        let watched = Watched::default();
        for healthy in looks {
            watched.note(*healthy);
        }
        watched.fewest.get()
    }

    #[test]
    fn a_lost_quorum_counts_once_a_second_look_has_seen_it() {
        assert_eq!(fewest(&[3, 2, 2, 3]), Some(2));
        assert_eq!(fewest(&[3, 0, 2, 3]), Some(2));
        assert_eq!(fewest(&[3, 0, 1, 3]), Some(1));
        assert_eq!(fewest(&[0]), None);
    }
}
