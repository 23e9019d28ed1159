//! Compares `kubectl etcd-guard check` with the verdict of the webhook.

use std::time::Instant;

use crate::{
    guard::cli,
    guarded_cluster::{GuardedCluster, START_TIMEOUT},
};

/// The result of `check`.
#[derive(Debug)]
struct CheckResult {
    /// `VERDICT REASON`.
    verdict: String,
    /// The text that kubectl must print: the message of a denial, and all warnings.
    printed: Vec<String>,
}

/// The beginnings of kubectl's own warnings: about forced deletions, drains and objects without a namespace.
const KUBECTL_WARNINGS: [&str; 2] = ["Warning: Immediate deletion ", "Warning: deleting "];

impl CheckResult {
    /// Whether kubectl printed all of this and no other warning.
    fn matches(&self, printed: &str) -> bool {
        let is_kubectl_warning =
            |line: &str| KUBECTL_WARNINGS.iter().any(|warning| line.starts_with(warning));
        // The webhook prints each further advice on a line of its own.
        let one_line = printed.replace('\n', "; ");
        let one_line = without_countdown(&one_line);
        let mut warnings =
            printed.lines().filter(|line| line.starts_with("Warning: ") && !is_kubectl_warning(line));
        warnings.all(|line| self.printed.iter().any(|expected| expected == line))
            && self
                .printed
                .iter()
                .all(|expected| printed.contains(expected) || one_line.contains(&without_countdown(expected)))
    }
}

/// Leaves out the seconds for which a reservation still counts: they pass between the two requests.
fn without_countdown(text: &str) -> String {
    const BEFORE: &str = "for another ";
    let parts = text.split(BEFORE).enumerate().map(|(index, part)| match index {
        0 => part,
        _ => part.trim_start_matches(|letter: char| letter.is_ascii_digit()),
    });
    parts.collect::<Vec<_>>().join(BEFORE)
}

/// Runs `check` and returns `VERDICT REASON`.
pub async fn check_verdict(etcd: &GuardedCluster, question: &[&str]) -> String {
    run_check(etcd, question).await.verdict
}

async fn run_check(etcd: &GuardedCluster, question: &[&str]) -> CheckResult {
    let (status, answer) = cli::json(etcd, "check", question).await;
    let verdict = answer["verdict"].as_str().unwrap_or_else(|| panic!("{answer}"));
    assert_eq!(status, Some(i32::from(verdict == "denied")), "{answer}");
    assert_eq!(answer["asked"], true, "{answer}");
    let reason = answer["reason"].as_str().expect("a reason");
    let text = |value: &serde_json::Value| value.as_str().expect("a text").to_owned();
    let warnings = answer["warnings"].as_array().expect("warnings").iter();
    let mut printed: Vec<String> = warnings.map(|warning| format!("Warning: {}", text(warning))).collect();
    if verdict == "denied" {
        printed.push(format!("{reason}: {}", text(&answer["message"])));
    }
    CheckResult { verdict: format!("{verdict} {reason}"), printed }
}

/// Runs `check`, then the operation by kubectl, and compares both: verdict and reason by the guard's metrics, the
/// message of a denial and the warnings by the output of kubectl. Returns `VERDICT REASON`.
pub async fn assert_check_matches(etcd: &mut GuardedCluster, question: &[&str], kubectl: &[&str]) -> String {
    let started = Instant::now();
    loop {
        let before = run_check(etcd, question).await;
        etcd.guard.new_verdicts().await;
        let output = etcd.kubectl(kubectl).await;
        let news = etcd.guard.new_verdicts().await;
        // A kubelet or a controller may have caused other verdicts.
        let mut verdicts = news.iter().filter_map(|verdict| verdict.split_once(' ').map(|(_, rest)| rest));
        if verdicts.any(|verdict| verdict == before.verdict) && before.matches(&output.stderr) {
            return before.verdict;
        }
        // Pods and leaders change, and the API server learns of a changed webhook by a watch, so the comparison is
        // repeated.
        assert!(
            started.elapsed() < START_TIMEOUT,
            "check {question:?}: {before:?}; kubectl {kubectl:?}: {news:?}, {output:?}"
        );
    }
}

/// Runs `check` for each of several pods, then one command that deletes all of them. Returns each distinct verdict
/// once.
pub async fn assert_checks_match(etcd: &mut GuardedCluster, pods: &[&str], kubectl: &[&str]) -> Vec<String> {
    let started = Instant::now();
    loop {
        let mut before = Vec::new();
        for pod in pods {
            before.push(check_verdict(etcd, &[pod]).await);
        }
        before.sort();
        before.dedup();
        etcd.guard.new_verdicts().await;
        let output = etcd.kubectl(kubectl).await;
        let news = etcd.guard.new_verdicts().await;
        let verdicts: Vec<&str> = news.iter().filter_map(|verdict| verdict.strip_prefix("DELETE ")).collect();
        if verdicts == before {
            return before;
        }
        assert!(started.elapsed() < START_TIMEOUT, "check {pods:?}: {before:?}; {news:?}, {output:?}");
    }
}

/// Returns kubectl's flags for a request of another user with all permissions.
pub fn impersonating(user: &str) -> [&str; 3] {
    ["--as-group=system:masters", "--as", user]
}
