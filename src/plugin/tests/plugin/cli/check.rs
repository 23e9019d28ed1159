//! `kubectl etcd-guard check` returns the verdict of the guard in advance. For the requesters of docs/requesters.md, both
//! verdicts are compared; `check_operations.rs` compares the operations that cause these deletions.

use kube::api::{DeleteParams, ListParams};

use test_support::{
    guard::{
        check_comparison::{assert_check_matches, assert_checks_match, check_verdict, impersonating},
        cli,
    },
    guarded_cluster::{GuardedCluster, LEADER_DENY, START_TIMEOUT, Setup, UNRELATED_POD},
    kubernetes::{
        control_plane::{CHECKED_NODE, SHARED_NODE},
        pods::create_failed_pod,
    },
    process_node::ProcessAction,
    wait::wait_until,
};

#[tokio::test]
async fn check_matches_deletion() {
    let mut etcd = GuardedCluster::start().await;
    let leader = etcd.leader().await;
    let [follower, other] = etcd.followers().await;

    assert_eq!(
        assert_check_matches(&mut etcd, &[&leader], &["delete", "pod", &leader]).await,
        "denied LeaderProtected"
    );
    let force = ["delete", "pod", &leader, "--force", "--grace-period=0"];
    assert_eq!(
        assert_check_matches(&mut etcd, &[&leader, "--force"], &force).await,
        "denied LeaderProtected"
    );
    for (pod, expected) in [
        (UNRELATED_POD, "allowed NotEtcd"),
        (leader.as_str(), "denied LeaderProtected"),
        (follower.as_str(), "allowed SafeToDelete"),
    ] {
        let dry_run = ["delete", "pod", pod, "--dry-run=server"];
        assert_eq!(assert_check_matches(&mut etcd, &[pod], &dry_run).await, expected, "{pod}");
    }
    etcd.guard.new_verdicts().await;
    check_verdict(&etcd, &[&leader]).await;
    assert_eq!(etcd.guard.new_verdicts().await, [""; 0], "a check causes no admission review");

    // The kubelet is disconnected, so the pod keeps terminating during the following requests.
    etcd.apply(&follower, ProcessAction::Isolate).await;
    let delete = ["delete", "pod", &follower, "--wait=false"];
    assert_eq!(assert_check_matches(&mut etcd, &[&follower], &delete).await, "allowed SafeToDelete");
    let output = assert_check_matches(&mut etcd, &[&other], &["delete", "pod", &other]).await;
    assert_eq!(output, "denied DisruptionInProgress");
    etcd.apply(&follower, ProcessAction::Rejoin).await;
    etcd.wait_until_healthy().await;

    let force = ["delete", "pod", &follower, "--force", "--grace-period=0"];
    assert_eq!(
        assert_check_matches(&mut etcd, &[&follower, "--force"], &force).await,
        "allowed SafeToDelete"
    );
    etcd.wait_until_healthy().await;
    wait_until("no pod is terminating or reserved", START_TIMEOUT, async || {
        check_verdict(&etcd, &[&other]).await == "allowed SafeToDelete"
    })
    .await;

    etcd.apply(&follower, ProcessAction::Pause).await;
    let output = assert_check_matches(&mut etcd, &[&other], &["delete", "pod", &other]).await;
    assert_eq!(output, "denied QuorumAtRisk");
    etcd.apply(&follower, ProcessAction::Resume).await;
}

/// Leadership moves before deletions by controllers.
#[tokio::test]
async fn check_matches_deletions_by_controllers() {
    let mut etcd = GuardedCluster::start().await;
    let leader = etcd.leader().await;
    let [follower, _] = etcd.followers().await;
    for controller in [
        "system:serviceaccount:kube-system:statefulset-controller",
        "system:serviceaccount:kube-system:node-controller",
        "system:serviceaccount:kube-system:generic-garbage-collector",
        "system:serviceaccount:kube-system:namespace-controller",
        "system:kube-scheduler",
    ] {
        for (pod, expected) in [(&leader, "allowed LeaderTransferred"), (&follower, "allowed SafeToDelete")] {
            let delete =
                [&["delete", "pod", pod, "--dry-run=server"][..], &impersonating(controller)].concat();
            let output = assert_check_matches(&mut etcd, &[pod, "--requester", controller], &delete).await;
            assert_eq!(output, expected, "{controller}");
        }
    }
}

#[tokio::test]
async fn check_matches_drain_with_any_budget() {
    let setup = Setup { nodes: &[CHECKED_NODE], config: LEADER_DENY, ..Setup::default() };
    let mut etcd = GuardedCluster::start_as(setup).await;
    let leader = etcd.leader().await;
    let [follower, _] = etcd.followers().await;
    let selectors =
        [&leader, &follower].map(|pod| format!("--pod-selector=statefulset.kubernetes.io/pod-name={pod}"));
    let [leader_selector, follower_selector] = selectors.each_ref().map(String::as_str);

    let drain = ["drain", CHECKED_NODE, "--force"];
    // Shorter than the pause of five seconds between two attempts of a drain.
    let once = "--timeout=2s";
    let evict_leader = [&leader[..], "--evict"];
    let evict_follower = [&follower[..], "--evict"];
    for mode in ["--dry-run=server", "--dry-run=none"] {
        let drain = [&drain[..], &[leader_selector, once, mode]].concat();
        assert_eq!(
            assert_check_matches(&mut etcd, &evict_leader, &drain).await,
            "denied LeaderProtected",
            "{mode}"
        );
    }
    let by_deletion = [&drain[..], &[leader_selector, "--disable-eviction"]].concat();
    assert_eq!(assert_check_matches(&mut etcd, &[&leader], &by_deletion).await, "denied LeaderProtected");
    let dry_run = [&drain[..], &[follower_selector, "--dry-run=server"]].concat();
    assert_eq!(assert_check_matches(&mut etcd, &evict_follower, &dry_run).await, "allowed SafeToDelete");

    // The guard denies what the budget would refuse, because a reservation would block the other pods.
    let no_disruptions = r#"{"spec":{"maxUnavailable":0}}"#;
    let output =
        etcd.kubectl(&["patch", "poddisruptionbudget", "etcd", "--type=merge", "-p", no_disruptions]).await;
    assert!(output.success, "{output:?}");
    let refused = [&drain[..], &[follower_selector, once]].concat();
    wait_until("the budget denies the eviction", START_TIMEOUT, async || {
        let output = etcd.kubectl(&refused).await;
        assert!(!output.success, "the budget allows nothing: {output:?}");
        output.stderr.contains("BudgetExhausted")
    })
    .await;
    assert_eq!(assert_check_matches(&mut etcd, &evict_follower, &refused).await, "denied BudgetExhausted");
    let output = etcd.kubectl(&["delete", "poddisruptionbudget", "etcd"]).await;
    assert!(output.success, "{output:?}");

    let whole_drain = [&drain[..], &[follower_selector, "--timeout=60s"]].concat();
    assert_eq!(assert_check_matches(&mut etcd, &evict_follower, &whole_drain).await, "allowed SafeToDelete");
    let output = etcd.kubectl(&["uncordon", CHECKED_NODE]).await;
    assert!(output.success, "{output:?}");
}

#[tokio::test]
async fn check_matches_deletion_of_all_pods() {
    let mut etcd = GuardedCluster::start().await;
    etcd.make_leader("etcd-2").await;
    let pods = ["etcd-0", "etcd-1", "etcd-2", UNRELATED_POD];
    let all = ["delete", "pods", "--all", "--dry-run=server"];
    let output = assert_checks_match(&mut etcd, &pods, &all).await;
    assert_eq!(output, ["allowed NotEtcd", "allowed SafeToDelete", "denied LeaderProtected"]);

    // Without a dry run, the first deletion blocks the others; each check is independent of the other checks.
    for name in GuardedCluster::names() {
        etcd.apply(name, ProcessAction::Isolate).await;
    }
    let first = check_verdict(&etcd, &["etcd-0"]).await;
    assert_eq!(check_verdict(&etcd, &["etcd-1"]).await, first);
    etcd.guard.new_verdicts().await;
    let members = ListParams::default().labels("app=etcd");
    etcd.pods.delete_collection(&DeleteParams::default(), &members).await.unwrap_err();
    // The API server deletes them in the order of their names, and stops at the first denial.
    assert_eq!(first, "allowed SafeToDelete");
    assert_eq!(
        etcd.guard.new_verdicts().await,
        ["DELETE allowed SafeToDelete", "DELETE denied DisruptionInProgress"]
    );
    let second = assert_check_matches(&mut etcd, &["etcd-1"], &["delete", "pod", "etcd-1"]).await;
    assert!(second.starts_with("denied "), "{second}");
}

#[tokio::test]
async fn check_matches_denial_of_other_webhook() {
    let mut etcd = GuardedCluster::start().await;
    let [one, other] = etcd.followers().await;
    let refusing = etcd.reject_deletions().await;
    // `check` returns only the verdict of the guard, not that of the other webhook.
    for attempt in ["the first call", "the second call, which its own reservation does not block"] {
        let output = assert_check_matches(&mut etcd, &[&one], &["delete", "pod", &one]).await;
        assert_eq!(output, "allowed SafeToDelete", "{attempt}");
    }
    // If both webhooks deny, the API server chooses the message that kubectl prints.
    let output = assert_checks_match(&mut etcd, &[&other], &["delete", "pod", &other]).await;
    assert_eq!(output, ["denied DisruptionInProgress"]);
    let output = etcd.kubectl(&["delete", "validatingwebhookconfiguration", &refusing]).await;
    assert!(output.success, "{output:?}");
}

#[tokio::test]
async fn check_matches_terminating_and_ended_pods() {
    let mut etcd = GuardedCluster::start().await;
    // With the shipped configuration, the API server does not call the guard for these.
    etcd.register_webhook(|webhook| drop(webhook.as_object_mut().unwrap().remove("matchConditions"))).await;
    // A finalizer prevents that the deleted pod is removed, so it keeps terminating.
    let hold = r#"{"metadata":{"finalizers":["etcd-guard.io/test"]}}"#;
    let output = etcd.kubectl(&["patch", "pod", UNRELATED_POD, "--type=merge", "-p", hold]).await;
    assert!(output.success, "{output:?}");
    let output = etcd.kubectl(&["delete", "pod", UNRELATED_POD, "--wait=false"]).await;
    assert!(output.success, "{output:?}");
    let delete = ["delete", "pod", UNRELATED_POD, "--wait=false"];
    assert_eq!(
        assert_check_matches(&mut etcd, &[UNRELATED_POD], &delete).await,
        "allowed AlreadyTerminating"
    );
    let kubelet = format!("system:node:{SHARED_NODE}");
    let force = ["--force", "--grace-period=0"];
    let last = [&delete[..], &force, &impersonating(&kubelet)].concat();
    let output =
        assert_check_matches(&mut etcd, &[UNRELATED_POD, "--force", "--requester", &kubelet], &last).await;
    assert_eq!(output, "allowed AlreadyTerminating");

    create_failed_pod(&etcd.pods, "ended").await;
    let collector = "system:serviceaccount:kube-system:pod-garbage-collector";
    let delete = [&["delete", "pod", "ended"][..], &force, &impersonating(collector)].concat();
    let output =
        assert_check_matches(&mut etcd, &["ended", "--force", "--requester", collector], &delete).await;
    assert_eq!(output, "allowed PodFinished");

    let release = r#"{"metadata":{"finalizers":null}}"#;
    let output = etcd.kubectl(&["patch", "pod", UNRELATED_POD, "--type=merge", "-p", release]).await;
    assert!(output.success, "{output:?}");
}

#[tokio::test]
async fn check_reports_missing_pods_and_unguarded_namespaces() {
    let etcd = GuardedCluster::start().await;
    let printed = cli::run(&etcd, "check", &["etcd-9"]).await;
    assert_eq!(printed.status, Some(2), "{printed:?}");
    assert!(printed.stderr.contains(&format!("pod {}/etcd-9 does not exist", etcd.namespace)), "{printed:?}");

    let printed = cli::run(&etcd, "check", &["etcd-0"]).await;
    assert!(!printed.stdout.contains('\u{1b}'), "no colours in a pipe: {printed:?}");
    assert!(!printed.stderr.contains("Not guarded"), "{printed:?}");

    let label = etcd.kubectl_everywhere();
    let unlabel = format!("{}-", test_support::kubernetes::webhook::LABEL);
    let output = label.run(&["label", "namespace", &etcd.namespace, &unlabel]).await;
    assert!(output.success, "{output:?}");
    let printed = cli::run(&etcd, "check", &["etcd-0"]).await;
    let text = format!("does not select namespace {}: kubectl label namespace", etcd.namespace);
    assert!(printed.stderr.contains(&text), "{printed:?}");
}
