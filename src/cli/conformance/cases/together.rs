//! More than one pod: one after the other, at the same instant, against a budget, by a collection.

use std::time::Duration;

use futures::future::join_all;
use serde_json::json;
use tokio::time::Instant;

use super::{
    Act, Cases, Expected, Known, MOST_TRIES, OTHERS_LED, SET, Whole, act,
    ask::{is_of_the_leader, options},
    in_words,
};
use crate::cli::conformance::call::Answer;

/// A member that was deleted cannot be back this soon; whoever is judged later may find it back, rightly, if its pod has a
/// successor.
const SURELY_AWAY: Duration = Duration::from_millis(200);

/// How many calls ask for each follower at the same instant. The client speaks HTTP/1.1, so that each has a connection of its
/// own, and several replicas of the guard are asked where there are several.
const CALLS_EACH: usize = 4;

const AWAY: Expected = Expected::Denied(&["DisruptionInProgress", "QuorumAtRisk"]);

/// Why such a pair is left out.
const CAME_LATE: &str = "the second answer came so late that the first may have been back";

const BUDGET: [(&str, Expected, &str); 3] = [
    ("evict a follower against its budget", Expected::HeldByBudget, "the budget is asked after the guard"),
    ("delete the other follower then, dry run", AWAY, "the first was allowed, and may be on its way"),
    ("delete the first follower then", Expected::Allowed, "its own reservation does not hold it up"),
];

/// What came of deletions at the same instant.
enum Both {
    /// One pod went, and the other was denied.
    OneWent,
    /// Both were denied by the guard, in every call.
    Stayed,
    Wrong(String),
    /// Neither right nor wrong; why.
    Unclear(String),
}

// === impl Cases ===

impl Cases<'_> {
    /// Two deletions, the second while the first pod is away.
    pub(super) async fn pair(&mut self) -> anyhow::Result<()> {
        let first_row = ("delete a follower", Expected::Allowed, "a quorum stays");
        let second_row = ("delete the other follower at once", AWAY, "two of three would be away");
        let back_row = ("the deleted follower", "comes back as the same member", "its data stayed");
        let mut why_not = "";
        for _ in 0..MOST_TRIES {
            let before = self.stage.whole().await?;
            let known = self.stage.allowed().await?;
            let [first, second] = &before.followers;
            let one = act(self.stage, first, Act::Delete).await?;
            let allowed = Instant::now();
            let other = act(self.stage, second, Act::Delete).await?;
            let is_late = allowed.elapsed() > SURELY_AWAY;
            if one.is_success() && other.is_success() && is_late && self.has_successor(&before, first).await?
            {
                why_not = CAME_LATE;
                continue;
            }
            let is_protected = [&one, &other].into_iter().any(is_of_the_leader);
            if is_protected && self.has_changed_hands(&before).await? {
                why_not = OTHERS_LED;
                continue;
            }
            let wrong = if one.is_success() { self.unknown(&known, first).await? } else { None };
            self.judge(first_row.0, first_row.1, first_row.2, &one, wrong);
            self.judge(second_row.0, second_row.1, second_row.2, &other, None);
            let after = self.stage.whole().await?;
            let is_same = after.ids.get(first) == before.ids.get(first);
            let is_new = after.uids.get(first) != before.uids.get(first);
            let came_back = is_same && is_new;
            let answered = if came_back { "came back" } else { "is another member, or was never away" };
            self.note(back_row.0, back_row.1, back_row.2, answered, came_back);
            return Ok(());
        }
        self.skip(first_row.0, first_row.1, first_row.2, why_not);
        self.skip(second_row.0, second_row.1, second_row.2, why_not);
        self.leave_out(back_row.0, back_row.1, back_row.2, why_not);
        Ok(())
    }

    /// What the guard is for: whoever asks, and at whatever instant, two of three never go.
    pub(super) async fn at_once(&mut self) -> anyhow::Result<()> {
        let request = "delete both followers at the same instant";
        let (expected, why) = ("one goes, the other is denied", "two of three would be away");
        let mut last = String::from("both were denied");
        let mut stayed = 0;
        for _ in 0..MOST_TRIES {
            let before = self.stage.whole().await?;
            let known = self.stage.allowed().await?;
            let outcome = self.delete_both(&before, &known).await?;
            self.stage.whole().await?;
            match outcome {
                Both::OneWent => {
                    self.note(request, expected, why, "one went, the other was denied", true);
                    return Ok(());
                }
                Both::Wrong(what) => {
                    self.note(request, expected, why, &what, false);
                    return Ok(());
                }
                Both::Stayed => stayed += 1,
                Both::Unclear(what) => last = what,
            }
        }
        if stayed == MOST_TRIES {
            // Who lets nobody go wedges whatever asks like that.
            let what = format!("both were denied, {MOST_TRIES} times");
            self.note(request, expected, why, &what, false);
        } else {
            self.leave_out(request, expected, why, &last);
        }
        Ok(())
    }

    async fn delete_both(&self, before: &Whole, known: &Known) -> anyhow::Result<Both> {
        let calls = (0..CALLS_EACH).flat_map(|_| &before.followers).map(async |pod| {
            // Not its successor, whom a late call might find.
            let how = json!({"preconditions": {"uid": before.uids.get(pod)}});
            let path = self.stage.path(&format!("pods/{pod}"));
            let answer = self.stage.caller.delete(&path, &options(&how)).await;
            (pod, answer, Instant::now())
        });
        let mut answers = join_all(calls).await;
        answers.sort_by_key(|(.., at)| *at);
        let gone = self.gone(before).await?;
        let since_yes = |pod: &String| {
            let is_yes = |answer: &anyhow::Result<Answer>| answer.as_ref().is_ok_and(Answer::is_success);
            answers.iter().find(|(name, answer, _)| *name == pod && is_yes(answer)).map(|(.., at)| *at)
        };
        match gone.as_slice() {
            [] => {
                let are_denied = answers.iter().all(|(_, answer, _)| {
                    answer.as_ref().is_ok_and(|it| it.denial().is_some() && !is_of_the_leader(it))
                });
                Ok(if are_denied { Both::Stayed } else { Both::Unclear(String::from("neither went")) })
            }
            [one] => {
                if let Some(why) = self.unknown(known, one).await? {
                    return Ok(Both::Wrong(format!("{one} went, but {why}")));
                }
                let others = answers.iter().filter(|(pod, ..)| *pod != one);
                let mut unclear = None;
                for (pod, answer, _) in others {
                    match answer {
                        Ok(answer) if answer.denial().is_some() => {}
                        Ok(answer) if answer.is_success() => {
                            return Ok(Both::Wrong(format!("{pod} was allowed beside {one}")));
                        }
                        Ok(answer) => unclear = Some(format!("{pod}: {}", in_words(answer))),
                        Err(error) => unclear = Some(format!("{pod}: {error:#}")),
                    }
                }
                Ok(unclear.map_or(Both::OneWent, Both::Unclear))
            }
            _ => {
                let [one, other] = before.followers.each_ref().map(since_yes);
                let gap = match (one, other) {
                    (Some(one), Some(other)) => one.max(other).duration_since(one.min(other)),
                    // A pod went that nobody was told may go.
                    _ => Duration::ZERO,
                };
                let [first, second] = &before.followers;
                let may_be_back =
                    self.has_successor(before, first).await? || self.has_successor(before, second).await?;
                if gap > SURELY_AWAY && may_be_back {
                    return Ok(Both::Unclear(String::from(CAME_LATE)));
                }
                Ok(Both::Wrong(format!("{} went", gone.join(" and "))))
            }
        }
    }

    /// Whether there is another pod of this name by now, which may serve already.
    async fn has_successor(&self, before: &Whole, name: &str) -> anyhow::Result<bool> {
        let pods = self.stage.pods(SET).await?;
        Ok(pods.iter().any(|pod| pod.name == name && before.uids.get(name) != Some(&pod.uid)))
    }

    /// A budget refuses after the guard's yes, and nobody tells the guard.
    pub(super) async fn budget(&mut self) -> anyhow::Result<()> {
        if let Some(why_not) = self.allow_disruptions(0).await? {
            self.skip_budget(&why_not);
            return Ok(());
        }
        let mut tries = 1;
        while !self.try_budget().await? {
            if tries == MOST_TRIES {
                self.skip_budget(OTHERS_LED);
                break;
            }
            tries += 1;
        }
        self.stage.whole().await?;
        self.allow_disruptions(1).await?;
        Ok(())
    }

    fn skip_budget(&mut self, why_not: &str) {
        for (request, expected, why) in BUDGET {
            self.skip(request, expected, why, why_not);
        }
    }

    /// Whether it could be judged.
    async fn try_budget(&mut self) -> anyhow::Result<bool> {
        let before = self.stage.whole().await?;
        let known = self.stage.allowed().await?;
        let [first, second] = &before.followers;
        let evicted = act(self.stage, first, Act::Evict).await?;
        if evicted.is_without_right() {
            for (request, expected, why) in BUDGET {
                self.judge(request, expected, why, &evicted, None);
            }
            return Ok(true);
        }
        let mut wrong = self.lost(&before).await?;
        if wrong.is_none() && evicted.denial().is_none() {
            wrong = self.unknown(&known, first).await?;
        }
        let other = act(self.stage, second, Act::DryRun).await?;
        let known = self.stage.allowed().await?;
        let again = act(self.stage, first, Act::Delete).await?;
        let is_protected = [&evicted, &other, &again].into_iter().any(is_of_the_leader);
        if is_protected && self.has_changed_hands(&before).await? {
            return Ok(false);
        }
        let unknown = if again.is_success() { self.unknown(&known, first).await? } else { None };
        let answers = [(evicted, wrong), (other, None), (again, unknown)];
        for ((request, expected, why), (answer, wrong)) in BUDGET.into_iter().zip(answers) {
            self.judge(request, expected, why, &answer, wrong);
        }
        Ok(true)
    }

    /// Sets how many pods the budget lets go, and waits until it says so; else why it does not.
    async fn allow_disruptions(&self, pods: u64) -> anyhow::Result<Option<String>> {
        let path = format!("/apis/policy/v1/namespaces/{}/poddisruptionbudgets/{SET}", self.stage.namespace);
        let change = json!({"spec": {"maxUnavailable": pods}});
        let is_so = |answer: &Answer| {
            let status = answer.object.pointer("/status/disruptionsAllowed");
            status.and_then(serde_json::Value::as_u64) == Some(pods) || answer.is_without_right()
        };
        let call = async || self.stage.caller.patch(&path, &change).await;
        let answer = self.stage.until_in_force(call, is_so).await?;
        Ok(match answer {
            answer if answer.is_without_right() => Some(format!("you may not: {}", answer.message)),
            answer if is_so(&answer) => None,
            answer if answer.is_success() => Some(format!("its budget does not come to allow {pods}")),
            answer => Some(answer.message),
        })
    }

    pub(super) async fn collection(&mut self) -> anyhow::Result<()> {
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
}
