//! `etcd-guard check`, held against what the guard says when it comes to it.

use std::time::Instant;

use super::{
    cli,
    guarded_cluster::{GuardedCluster, START_LIMIT},
};

/// What `check` says.
#[derive(Debug)]
struct Foretold {
    /// `VERDICT REASON`.
    verdict: String,
    /// What kubectl is to print besides: the words of a denial, and all warnings.
    printed: Vec<String>,
}

/// How kubectl's own warnings begin: of a forced deletion, and of a drain or of what has no namespace.
const OF_KUBECTL: [&str; 2] = ["Warning: Immediate deletion ", "Warning: deleting "];

impl Foretold {
    /// Whether kubectl printed all of this, and warned of nothing else.
    fn is_all_of(&self, printed: &str) -> bool {
        let is_own = |line: &str| OF_KUBECTL.iter().any(|it| line.starts_with(it));
        let mut warnings = printed.lines().filter(|it| it.starts_with("Warning: ") && !is_own(it));
        warnings.all(|line| self.printed.iter().any(|it| it == line))
            && self.printed.iter().all(|it| printed.contains(it))
    }
}

/// What `check` says: `VERDICT REASON`.
pub async fn foretold(etcd: &GuardedCluster, question: &[&str]) -> String {
    ask(etcd, question).await.verdict
}

async fn ask(etcd: &GuardedCluster, question: &[&str]) -> Foretold {
    let (status, answer) = cli::json(etcd, "check", question).await;
    let verdict = answer["verdict"].as_str().unwrap_or_else(|| panic!("{answer}"));
    assert_eq!(status, Some(i32::from(verdict == "denied")), "{answer}");
    assert_eq!(answer["asked"], true, "{answer}");
    let reason = answer["reason"].as_str().expect("a reason");
    let text = |it: &serde_json::Value| it.as_str().expect("a text").to_owned();
    let warnings = answer["warnings"].as_array().expect("warnings").iter();
    let mut printed: Vec<String> = warnings.map(|it| format!("Warning: {}", text(it))).collect();
    if verdict == "denied" {
        printed.push(format!("{} [{reason}]", text(&answer["message"])));
    }
    Foretold { verdict: format!("{verdict} {reason}"), printed }
}

/// Asks `check`, then does it by kubectl, and compares: verdict and reason by the guard's own count, the words of a denial
/// and the warnings by what kubectl prints. Returns what both said, as `VERDICT REASON`.
pub async fn both(etcd: &mut GuardedCluster, question: &[&str], kubectl: &[&str]) -> String {
    let started = Instant::now();
    loop {
        let before = ask(etcd, question).await;
        etcd.guard.news().await;
        let said = etcd.kubectl(kubectl).await;
        let news = etcd.guard.news().await;
        // A kubelet or a controller may have asked as well.
        let mut told = news.iter().filter_map(|it| it.split_once(' ').map(|(_, rest)| rest));
        if told.any(|it| it == before.verdict) && before.is_all_of(&said.stderr) {
            return before.verdict;
        }
        // Pods come and go, and leaders, and an apiserver learns of a changed webhook by a watch: both are asked again.
        assert!(
            started.elapsed() < START_LIMIT,
            "check {question:?}: {before:?}; kubectl {kubectl:?}: {news:?}, {said:?}"
        );
    }
}

/// The same of several pods that one command takes, each asked about by itself: what is said of all of them, each once.
pub async fn each(etcd: &mut GuardedCluster, pods: &[&str], kubectl: &[&str]) -> Vec<String> {
    let started = Instant::now();
    loop {
        let mut before = Vec::new();
        for pod in pods {
            before.push(foretold(etcd, &[pod]).await);
        }
        before.sort();
        before.dedup();
        etcd.guard.news().await;
        let said = etcd.kubectl(kubectl).await;
        let news = etcd.guard.news().await;
        let told: Vec<&str> = news.iter().filter_map(|it| it.strip_prefix("DELETE ")).collect();
        if told == before {
            return before;
        }
        assert!(started.elapsed() < START_LIMIT, "check {pods:?}: {before:?}; {news:?}, {said:?}");
    }
}

/// kubectl's flags for a request in another's name, to whom nothing is forbidden.
pub fn impersonating(user: &str) -> [&str; 3] {
    ["--as-group=system:masters", "--as", user]
}
