//! The cases, in an order in which each leaves a whole cluster to the next.
//!
//! A yes is no proof that anybody was asked. So each is held against something that only the guard can have done: a
//! reservation, a warning of its own, or, where it does neither, a denial right after it.

mod ask;
mod members;
mod owners;
mod policies;
mod singles;
mod together;

use std::{collections::BTreeSet, time::Duration};

use tokio::time::{Instant, sleep};

use self::ask::{Act, Expected, act, in_words};
pub(super) use self::ask::{DELETIONS, EVICTIONS};
use super::{
    call::Answer,
    example::{SET, Wanted},
    report::{Outcome, Report, Row},
    stage::{MEMBERS, PAUSE, Stage, Whole},
};

/// How often a case is tried again that came too late, or during which another member came to lead.
const MOST_TRIES: usize = 5;

/// Why such a case is left out.
const OTHERS_LED: &str = "another member came to lead each time";

/// Longest until a survey tells of what was allowed: the members may be busy with it at this moment.
const KNOWN_LIMIT: Duration = Duration::from_secs(10);

/// Tries all cases, and writes down what came of them.
pub(super) struct Cases<'a> {
    pub(super) stage: &'a Stage,
    pub(super) wanted: &'a Wanted<'a>,
    pub(super) report: &'a mut Report,
}

/// Deletions that the guard knew of at some moment: pods, and when they were allowed.
type Known = BTreeSet<(String, String)>;

// === impl Cases ===

impl Cases<'_> {
    pub(super) async fn play(&mut self) -> anyhow::Result<()> {
        self.bystander().await?;
        self.leader().await?;
        self.followers().await?;
        self.pair().await?;
        self.later().await?;
        self.at_once().await?;
        self.budget().await?;
        self.collection().await?;
        self.singles().await?;
        self.audit().await?;
        self.intents().await?;
        self.transfer().await?;
        self.still_in_force().await?;
        self.garbage_collector().await
    }

    /// Whether the apiserver asks the guard here and the guard protects the leader; else what it answered.
    pub(super) async fn in_force(stage: &Stage) -> anyhow::Result<Result<(), String>> {
        let is_denied = |answer: &Answer| answer.denial().is_some_and(|(webhook, _)| webhook == DELETIONS);
        let call = async || {
            let leader = stage.whole().await?.leader;
            act(stage, &leader, Act::DryRun).await
        };
        let answer = stage.until_in_force(call, is_denied).await?;
        Ok(match answer {
            answer if is_denied(&answer) => Ok(()),
            answer if answer.is_success() => {
                Err(String::from("a dry run of the leader's deletion was allowed"))
            }
            answer => Err(answer.message),
        })
    }

    /// What a yes that leaves no trace is worth: nothing, if the leader is not protected right after it.
    async fn unasked(&self) -> anyhow::Result<Option<String>> {
        Ok(Self::in_force(self.stage).await?.err().map(|why| format!("the guard is not asked: {why}")))
    }

    /// What is wrong with a yes that the guard knows nothing of. Those of before it are of another deletion.
    async fn unknown(&self, before: &Known, pod: &str) -> anyhow::Result<Option<String>> {
        let end = Instant::now() + KNOWN_LIMIT;
        loop {
            if self.stage.allowed().await?.difference(before).any(|(name, _)| name == pod) {
                return Ok(None);
            }
            if Instant::now() > end {
                return Ok(Some(String::from(
                    "the guard was not asked: it holds no reservation for that pod",
                )));
            }
            sleep(PAUSE).await;
        }
    }

    /// Whether another member came to lead: what was asked about was another pod then, and another answer may be right.
    async fn has_changed_hands(&self, before: &Whole) -> anyhow::Result<bool> {
        Ok(self.stage.whole().await?.leader != before.leader)
    }

    /// Which of these pods are gone or going.
    async fn gone(&self, before: &Whole) -> anyhow::Result<Vec<String>> {
        let pods = self.stage.pods(SET).await?;
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

    /// Writes down an answer. `wrong` is what went wrong beside it.
    fn judge(
        &mut self,
        request: &str,
        expected: Expected,
        why: &'static str,
        answer: &Answer,
        wrong: Option<String>,
    ) {
        if answer.is_without_right() {
            return self.skip(request, expected, why, &format!("you may not: {}", answer.message));
        }
        let is_right = expected.is_met(answer) && wrong.is_none();
        let mut answered = in_words(answer);
        if let Some(wrong) = wrong {
            answered = format!("{answered}, but {wrong}");
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
        self.leave_out(request, &expected.in_words(), why, why_not);
    }

    /// Of something that would have been seen and not answered.
    fn leave_out(&mut self, request: &str, expected: &str, why: &'static str, why_not: &str) {
        self.push(Row {
            request: request.to_owned(),
            expected: expected.to_owned(),
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
