//! `kubectl etcd-guard conformance` against a real API server: its report, and that it removes everything that it created.

mod suite;

use std::{fs::File, pin::pin, time::Duration};

use futures::StreamExt;
use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api,
    api::{WatchEvent, WatchParams},
};
use nix::sys::signal::Signal;
use serde_json::Value;

use self::suite::{RunningSuite, Suite};
use test_support::{kubernetes::control_plane::ControlPlane, wait::wait_until};

/// The longest time until the program ends; normally it takes a minute or two.
const TIMEOUT: Duration = Duration::from_secs(600);

/// All requests of the suite in order.
const ROWS: [&str; 34] = [
    "delete a pod that runs no etcd",
    "delete the leader, dry run",
    "delete the leader",
    "delete the leader by force",
    "evict the leader, dry run",
    "evict the leader, as a drain does",
    "delete a follower, dry run",
    "delete a follower",
    "delete the other follower at once",
    "the deleted follower",
    "evict the other follower later",
    "delete both followers at the same instant",
    "evict a follower against its budget",
    "delete the other follower then, dry run",
    "delete the first follower then",
    "delete the collection of pods",
    "delete the only member",
    "delete the only member, on an emptyDir",
    "delete the only member, which a preStop hook removes",
    "delete the leader in audit mode, dry run",
    "delete the StatefulSet with --cascade=orphan, dry run",
    "delete the StatefulSet, dry run",
    "delete a member's claim, dry run",
    "delete the namespace, dry run",
    "scale to two replicas, dry run",
    "scale to one replica, dry run",
    "delete the Service of the members, dry run",
    "move leadership by an annotation",
    "kubectl etcd-guard restart",
    "delete the leader under `leader: transfer`",
    "rollout by the StatefulSet controller",
    "delete the leader at the end, dry run",
    "delete the StatefulSet under a break-glass",
    "garbage collection of its pods",
];

/// Requests that depend on the webhook for workload operations.
const WORKLOAD_OPERATIONS: [&str; 8] = [
    "delete the StatefulSet with --cascade=orphan, dry run",
    "delete the StatefulSet, dry run",
    "delete a member's claim, dry run",
    "delete the namespace, dry run",
    "scale to two replicas, dry run",
    "scale to one replica, dry run",
    "delete the StatefulSet under a break-glass",
    "garbage collection of its pods",
];

/// Requests that evict, or depend on an eviction.
const EVICTIONS: [&str; 7] = [
    "evict the leader, dry run",
    "evict the leader, as a drain does",
    "evict the other follower later",
    "evict a follower against its budget",
    "delete the other follower then, dry run",
    "delete the first follower then",
    "kubectl etcd-guard restart",
];

/// Returns the rows of a JSON report.
fn report_rows(report: &str) -> Vec<Value> {
    let report: Value = serde_json::from_str(report).unwrap();
    report["rows"].as_array().unwrap().clone()
}

fn requests<'a>(rows: impl IntoIterator<Item = &'a Value>) -> Vec<&'a str> {
    rows.into_iter().map(|row| row["request"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn every_check_passes_and_leaves_nothing_behind() {
    let (suite, _node) = Suite::with_node("conformance-whole").await;
    suite.register().await;
    let printed = suite.run(&["--yes", "-o", "json"]).await;
    assert_eq!(printed.status, Some(0), "{printed:?}");
    let rows = report_rows(&printed.stdout);
    assert_eq!(requests(&rows), ROWS, "{rows:#?}");
    assert!(rows.iter().all(|row| row["result"] == "passed"), "{rows:#?}");
    assert!(!suite.namespace_exists().await);
    // The guard answered all of these requests.
    let verdicts = suite.guard.verdict_counts().await;
    for verdict in [
        "DELETE allowed NotEtcd",
        "DELETE denied LeaderProtected",
        "CREATE denied LeaderProtected",
        "DELETE allowed SafeToDelete",
        "CREATE allowed SafeToDelete",
        "DELETE denied IntentProtected",
        "UPDATE denied IntentProtected",
        "DELETE allowed LeaderTransferred",
        "DELETE allowed BreakGlass",
        "DELETE allowed OwnerDeleted",
        "DELETE denied SingleMember",
        "DELETE denied PermanentLoss",
        "DELETE audited LeaderProtected",
        "UPDATE allowed IntentHarmless",
    ] {
        assert!(verdicts.get(verdict).is_some_and(|count| *count > 0), "{verdict}: {verdicts:#?}");
    }
}

#[tokio::test]
#[ignore = "a run of a minute or two; scripts/prove tests runs it"]
async fn reports_wrong_answers_and_fails() {
    let (suite, _node) = Suite::with_node("conformance-refused").await;
    suite.register().await;
    suite.deny_deletions("apps", "statefulsets").await;
    let printed = suite.run(&["--yes", "-o", "json"]).await;
    assert_eq!(printed.status, Some(1), "{printed:?}");
    let rows = report_rows(&printed.stdout);
    let failed: Vec<&Value> = rows.iter().filter(|row| row["result"] != "passed").collect();
    let denied = [
        "delete the StatefulSet with --cascade=orphan, dry run",
        "delete the StatefulSet, dry run",
        "delete the StatefulSet under a break-glass",
        "garbage collection of its pods",
    ];
    assert_eq!(requests(failed.iter().copied()), denied, "{rows:#?}");
    let (last, failed) = failed.split_last().unwrap();
    assert_eq!(last["result"], "skipped", "{last}");
    for row in failed {
        assert_eq!(row["result"], "failed");
        assert!(row["answered"].as_str().unwrap().starts_with("rejected, but not by the guard"), "{row}");
        assert!(row["message"].as_str().unwrap().contains("denied by the test"), "{row}");
    }
    assert!(!suite.namespace_exists().await);
}

#[tokio::test]
async fn requires_a_registered_webhook() {
    let suite = Suite::new("conformance-unasked").await;
    let printed = suite.run(&["--yes"]).await;
    assert_eq!(printed.status, Some(2), "{printed:?}");
    assert!(printed.stderr.contains("the guard is not active: "), "{printed:?}");
    assert!(printed.stderr.contains("docs/install.md"), "{printed:?}");
    assert!(!suite.namespace_exists().await);
}

#[tokio::test]
async fn requires_confirmation_and_a_new_namespace() {
    let suite = Suite::new("conformance-asked").await;
    let printed = suite.run(&[]).await;
    assert_eq!(printed.status, Some(2), "{printed:?}");
    assert!(printed.stderr.contains("pass --yes") && !suite.namespace_exists().await, "{printed:?}");

    let output = ControlPlane::shared().kubectl().run_checked(&["create", "namespace", suite.namespace]);
    assert!(output.success);
    let printed = suite.run(&["--yes"]).await;
    assert_eq!(printed.status, Some(2), "{printed:?}");
    assert!(printed.stderr.contains("already exists"), "{printed:?}");
    assert!(suite.namespace_exists().await, "the existing namespace remains");
}

#[tokio::test]
async fn requires_a_reachable_guard() {
    let mut suite = Suite::new("conformance-unreached").await;
    suite.register().await;
    suite.guard.kill();
    let printed = suite.run(&["--yes"]).await;
    assert_eq!(printed.status, Some(2), "{printed:?}");
    assert!(
        printed
            .stderr
            .contains("reading the status of the guard, before anything is created: failed to connect to "),
        "{printed:?}"
    );
    assert!(!printed.stderr.contains("deleting namespace"), "{printed:?}");
    assert!(!suite.namespace_exists().await);
}

/// For example if the output is piped into `head` and the terminal is closed.
#[tokio::test]
async fn leaves_nothing_behind_without_a_reader() {
    let suite = Suite::new("conformance-unread").await;
    let only = WatchParams::default()
        .disable_bookmarks()
        .fields("metadata.name=conformance-unread")
        .timeout(TIMEOUT.as_secs().try_into().unwrap());
    let namespaces = Api::<Namespace>::all(suite.client.clone());
    let mut changes = pin!(namespaces.watch(&only, "0").await.unwrap());
    let mut program = suite.command(&["--yes", "-o", "json"]);
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    // Writes to this file fail for another reason than a missing reader.
    let full = File::options().write(true).open("/dev/full").unwrap();
    let mut child = program.stdout(writer).stderr(full).spawn().unwrap();
    wait_until("the program ends", TIMEOUT, async || child.try_wait().unwrap().is_some()).await;
    assert_eq!(child.wait().unwrap().code(), Some(2));
    let made =
        tokio::time::timeout(TIMEOUT, changes.next()).await.expect("the namespace is created").unwrap();
    assert!(matches!(made, Ok(WatchEvent::Added(_))), "{made:?}");
    assert!(!suite.namespace_exists().await);
}

#[tokio::test]
#[ignore = "a run of a minute or two; scripts/prove tests runs it"]
async fn skips_checks_without_webhook_or_permission() {
    let (suite, _node) = Suite::with_node("conformance-partly").await;
    suite.register_except("intent.guard.etcd-guard.io").await;
    let user = suite
        .user(&[
            "* namespaces,services,pods,persistentvolumeclaims",
            "* statefulsets.apps",
            "* statefulsets.apps/scale",
            "* poddisruptionbudgets.policy",
            "list validatingwebhookconfigurations.admissionregistration.k8s.io",
        ])
        .await;
    let printed = Suite::run_to_end(suite.command_with(&user, &["--yes", "-o", "json"])).await;
    assert_eq!(printed.status, Some(0), "{printed:?}");
    let rows = report_rows(&printed.stdout);
    assert_eq!(requests(&rows), ROWS, "{rows:#?}");
    for row in &rows {
        let request = row["request"].as_str().unwrap();
        let cause = row["answered"].as_str().unwrap();
        if WORKLOAD_OPERATIONS.contains(&request) {
            assert!(cause.contains("webhook intent.guard.etcd-guard.io does not select"), "{row}");
        } else if EVICTIONS.contains(&request) {
            assert!(cause.contains("cannot create resource \"pods/eviction\""), "{row}");
        } else {
            assert_eq!(row["result"], "passed", "{row}");
            continue;
        }
        assert_eq!(row["result"], "skipped", "{row}");
    }
    assert!(!suite.namespace_exists().await);
}

#[tokio::test]
async fn requires_permission_to_delete_the_namespace() {
    let suite = Suite::new("conformance-rights").await;
    let user = suite
        .user(&[
            "create,get,patch namespaces",
            "* services,pods",
            "* statefulsets.apps",
            "list validatingwebhookconfigurations.admissionregistration.k8s.io",
        ])
        .await;
    let printed = Suite::run_to_end(suite.command_with(&user, &["--yes"])).await;
    assert_eq!(printed.status, Some(2), "{printed:?}");
    assert!(
        printed.stderr.contains("missing permissions: delete namespaces, create poddisruptionbudgets."),
        "{printed:?}"
    );
    assert!(!printed.stderr.contains("deleting namespace"), "{printed:?}");
    assert!(!suite.namespace_exists().await);
}

/// Without the webhooks, the API server approves every request.
#[tokio::test]
async fn detects_removed_webhooks_and_fails() {
    let (suite, _node) = Suite::with_node("conformance-forgotten").await;
    suite.register().await;
    let mut run = RunningSuite::start(suite.command(&["--yes", "-o", "json"]));
    while let Some(line) = run.next_line().await {
        if line.starts_with("delete a pod that runs no etcd: ") {
            suite.unregister().await;
        }
    }
    let printed = run.end();
    assert_eq!(printed.status, Some(1), "{printed:?}");
    let rows = report_rows(&printed.stdout);
    assert_eq!(requests(&rows), ROWS, "{rows:#?}");
    // The API server learns of the removed webhooks a moment later.
    let soon = &ROWS[1..3];
    let with_result = |result: &str| {
        let mut requests = requests(rows.iter().filter(|row| row["result"] == result));
        requests.retain(|request| !soon.contains(request));
        requests
    };
    // These requests were sent before the removal, or do not depend on the guard.
    let unharmed = [
        "delete a pod that runs no etcd",
        "the deleted follower",
        "delete the other follower then, dry run",
        "move leadership by an annotation",
        "kubectl etcd-guard restart",
        "rollout by the StatefulSet controller",
    ];
    assert_eq!(with_result("passed"), unharmed, "{rows:#?}");
    let mut uncovered = WORKLOAD_OPERATIONS.to_vec();
    uncovered.insert(6, "delete the Service of the members, dry run");
    assert_eq!(with_result("skipped"), uncovered, "{rows:#?}");
    let row_of = |request: &str| rows.iter().find(|row| row["request"] == request).unwrap();
    let both = row_of("delete both followers at the same instant");
    let answered = both["answered"].as_str().unwrap();
    assert!(answered.contains(" and ") && answered.ends_with(" were deleted"), "{both}");
    for request in ["delete a follower, dry run", "delete a follower", "evict the other follower later"] {
        let row = row_of(request);
        let answered = row["answered"].as_str().unwrap();
        assert!(answered.starts_with("allowed, but the guard "), "{row}");
    }
    assert!(!suite.namespace_exists().await);
}

/// No node runs the pods, so the program waits for them.
#[tokio::test]
async fn leaves_nothing_behind_after_hangup() {
    let suite = Suite::new("conformance-stopped").await;
    suite.register().await;
    let mut run = RunningSuite::start(suite.command(&["--yes"]));
    while let Some(line) = run.next_line().await {
        if line.contains("starting an etcd cluster") {
            wait_until("the etcd cluster is created", TIMEOUT, async || {
                let path = suite.namespace;
                ControlPlane::shared()
                    .kubectl()
                    .run(&["-n", path, "get", "statefulset", "etcd"])
                    .await
                    .success
            })
            .await;
            run.send(Signal::SIGHUP);
        }
        if line.contains("deleting namespace") {
            // Both the shell and the kernel may send this signal.
            run.send(Signal::SIGHUP);
        }
    }
    let printed = run.end();
    assert_eq!(printed.status, Some(2), "{printed:?}");
    assert!(printed.stderr.contains("stopped before the end"), "{printed:?}");
    assert!(!suite.namespace_exists().await, "{printed:?}");
}

/// No node runs the pods, so the program waits for them.
#[tokio::test]
async fn retries_deletion_of_its_namespace() {
    let suite = Suite::new("conformance-kept").await;
    suite.register().await;
    suite.deny_deletions("", "namespaces").await;
    let mut run = RunningSuite::start(suite.command(&["--yes"]));
    let kubectl = ControlPlane::shared().kubectl();
    while let Some(line) = run.next_line().await {
        if line.contains("starting an etcd cluster") {
            wait_until("the deletion is denied", TIMEOUT, async || {
                let output = kubectl.run(&["delete", "namespace", suite.namespace, "--dry-run=server"]).await;
                output.stderr.contains("denied by the test")
            })
            .await;
            run.send(Signal::SIGINT);
        }
        if line.contains("deleting namespace") {
            // Long enough for several denials.
            tokio::time::sleep(Duration::from_secs(3)).await;
            assert!(suite.namespace_exists().await && run.is_running(), "{:?}", run.lines_read);
            let output = kubectl.run(&["delete", "validatingadmissionpolicybinding", suite.namespace]).await;
            assert!(output.success, "{output:?}");
        }
    }
    let printed = run.end();
    assert_eq!(printed.status, Some(2), "{printed:?}");
    assert!(!suite.namespace_exists().await, "{printed:?}");
}
