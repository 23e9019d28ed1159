//! What became of a storm, as a table that can be laid beside another guard's.

use std::{collections::BTreeMap, fmt, time::Duration};

use crate::{
    askers::{Asked, Said},
    harm::Done,
    scene::Scene,
    storm::{Against, Storm},
};

/// What became of it.
#[derive(Debug)]
pub(crate) struct Report {
    storm: Storm,
    asked: usize,
    /// By what the API said.
    said: [u32; 4],
    /// Yeses that let a pod go that was not on its way already.
    pub(crate) let_go: u32,
    /// Of these, such that broke the law.
    pub(crate) losses: Vec<String>,
    /// Yeses of which too little could be found out.
    pub(crate) unjudged: u32,
    longest_gap: Duration,
    /// How long a lone deletion had to wait at most while all members served.
    longest_wait: Duration,
    took: Duration,
    pub(crate) done: Done,
    answers: BTreeMap<String, u32>,
}

impl Report {
    pub(crate) async fn of(
        storm: Storm,
        scene: &Scene,
        asked: &Asked,
        done: &Done,
        longest_gap: Duration,
        longest_wait: Duration,
        took: Duration,
    ) -> Self {
        let (losses, let_go, unjudged) = scene.truth.losses().await;
        let said = [Said::Yes, Said::No, Said::Gone, Said::Failed].map(|it| asked.said(it));
        let answers = scene.front.answers.lock().unwrap().clone();
        let (asked, done) = (asked.count(), done.clone());
        Self { storm, asked, said, let_go, losses, unjudged, longest_gap, longest_wait, took, done, answers }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Storm { members, replicas, seed, against, .. } = self.storm;
        let against = match against {
            Against::Guard => "guard",
            Against::LeaderOnly => "leader-only",
            Against::Pdb => "pdb",
            Against::Nothing => "nothing",
        };
        writeln!(
            f,
            "storm: {members} members, {replicas} replicas, seed {seed}, {:.0} s",
            self.took.as_secs_f64()
        )?;
        writeln!(
            f,
            "  {:<12} {:>9} {:>8} {:>8} {:>6} {:>7} {:>7} {:>7} {:>18} {:>18}",
            "against",
            "deletions",
            "allowed",
            "denied",
            "gone",
            "failed",
            "let go",
            "losses",
            "longest write gap",
            "longest lone wait"
        )?;
        let [yes, no, gone, failed] = self.said;
        writeln!(
            f,
            "  {against:<12} {:>9} {yes:>8} {no:>8} {gone:>6} {failed:>7} {:>7} {:>7} {:>16.1} s {:>16.1} s",
            self.asked,
            self.let_go,
            self.losses.len(),
            self.longest_gap.as_secs_f64(),
            self.longest_wait.as_secs_f64()
        )?;
        if self.unjudged > 0 {
            writeln!(f, "  not judged: {}", self.unjudged)?;
        }
        writeln!(f, "  what happened meanwhile:")?;
        for (harm, count) in &self.done {
            writeln!(f, "    {:<30} {count:>6}", harm.words())?;
        }
        writeln!(f, "  what the webhook said:")?;
        for (what, count) in &self.answers {
            writeln!(f, "    {what:<30} {count:>6}")?;
        }
        for loss in &self.losses {
            writeln!(f, "  loss: {loss}")?;
        }
        Ok(())
    }
}
