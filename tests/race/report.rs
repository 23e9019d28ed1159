//! The report of a stress test, as a table that can be compared with the tables of other subjects.

use std::{collections::BTreeMap, fmt, sync::atomic::Ordering, time::Duration};

use crate::{
    clients::{RequestResult, RequestStats},
    disruptions::DisruptionCounts,
    environment::Environment,
    stress::{Requests, StressTest, Subject},
};

/// The results of a stress test.
#[derive(Debug)]
pub(crate) struct Report {
    test: StressTest,
    requests: usize,
    /// The number of requests by result.
    output: [u32; 4],
    /// The number of approvals for pods that were not approved or terminating already.
    pub(crate) approved: u32,
    /// Descriptions of the approvals that violated the safety invariant.
    pub(crate) violations: Vec<String>,
    /// The number of approvals for pods in an unknown state.
    pub(crate) unchecked: u32,
    longest_gap: Duration,
    /// The longest time that a single deletion waited while all members served.
    pub(crate) longest_wait: Duration,
    took: Duration,
    pub(crate) completed: DisruptionCounts,
    pub(crate) slow_terminations: u32,
    pub(crate) slow_cascades: u32,
    answers: BTreeMap<String, u32>,
}

impl Report {
    pub(crate) async fn new(
        test: StressTest,
        environment: &Environment,
        requests: &RequestStats,
        completed: &DisruptionCounts,
        longest_gap: Duration,
        longest_wait: Duration,
        took: Duration,
    ) -> Self {
        let (violations, approved, unchecked) = environment.oracle.violations().await;
        let output =
            [RequestResult::Allowed, RequestResult::Denied, RequestResult::Absent, RequestResult::Failed]
                .map(|result| requests.results(result));
        let answers = environment.proxy.answers.lock().unwrap().clone();
        let slow_terminations = environment.slow_terminations.load(Ordering::Relaxed);
        let slow_cascades = environment.slow_cascades.load(Ordering::Relaxed);
        let (requests, completed) = (requests.count(), completed.clone());
        Self {
            test,
            requests,
            output,
            approved,
            violations,
            unchecked,
            longest_gap,
            longest_wait,
            took,
            completed,
            slow_terminations,
            slow_cascades,
            answers,
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let StressTest { members, replicas, seed, subject, owners, requests, .. } = self.test;
        let requested = match requests {
            Requests::All => "",
            Requests::Deletions => ", no restarts",
            Requests::Evictions => ", only evictions, no faults",
        };
        let subject = match subject {
            Subject::Guard => "guard",
            Subject::LeaderOnly => "leader-only",
            Subject::Pdb => "pdb",
            Subject::XPdb => "x-pdb",
            Subject::Nothing => "nothing",
        };
        writeln!(
            f,
            "stress test: {members} members, {owners}, {replicas} replicas, seed {seed}, {:.0} s{requested}",
            self.took.as_secs_f64()
        )?;
        writeln!(
            f,
            "  {:<12} {:>9} {:>8} {:>8} {:>6} {:>7} {:>7} {:>7} {:>18} {:>18}",
            "against",
            "deletions",
            "allowed",
            "denied",
            "absent",
            "failed",
            "granted",
            "losses",
            "longest write gap",
            "longest lone wait"
        )?;
        let [allowed, denied, absent, failed] = self.output;
        writeln!(
            f,
            "  {subject:<12} {:>9} {allowed:>8} {denied:>8} {absent:>6} {failed:>7} {:>7} {:>7} {:>16.1} s {:>16.1} s",
            self.requests,
            self.approved,
            self.violations.len(),
            self.longest_gap.as_secs_f64(),
            self.longest_wait.as_secs_f64()
        )?;
        if self.unchecked > 0 {
            writeln!(f, "  not checked: {}", self.unchecked)?;
        }
        writeln!(f, "  disruptions:")?;
        for (disruption, count) in &self.completed {
            writeln!(f, "    {:<30} {count:>6}", disruption.description())?;
        }
        writeln!(f, "    {:<30} {:>6}", "slow terminations", self.slow_terminations)?;
        writeln!(f, "    {:<30} {:>6}", "slow cascades", self.slow_cascades)?;
        writeln!(f, "  verdicts of the webhook:")?;
        for (verdict, count) in &self.answers {
            writeln!(f, "    {verdict:<30} {count:>6}")?;
        }
        for violation in &self.violations {
            writeln!(f, "  loss: {violation}")?;
        }
        Ok(())
    }
}
