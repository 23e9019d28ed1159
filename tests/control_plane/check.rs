//! `etcd-guard check` says before a deletion what the guard says at it: for each row of docs/requesters.md both are asked, and
//! compared. What comes before these deletions, or instead of them, is compared in `check_intents.rs`.

use std::collections::BTreeSet;

use kube::api::{DeleteParams, ListParams};

use crate::support::{
    cli,
    control_plane::{CHECKED_NODE, SHARED_NODE},
    foretold::{both, each, foretold, impersonating},
    guarded_cluster::{BYSTANDER, GuardedCluster, START_LIMIT},
    pods::create_failed_pod,
    process_node::Order,
    wait::until,
};

/// The rows of the table of requesters, and the tests that compare them.
const COMPARED: [(&str, &[&str]); 20] = [
    ("`kubectl delete pod`", &["check_says_before_a_deletion_what_the_guard_says_at_it"]),
    (
        "`kubectl delete --force --grace-period=0`",
        &["check_says_before_a_deletion_what_the_guard_says_at_it"],
    ),
    (
        "`kubectl delete pods --all`",
        &["check_says_of_each_pod_what_the_guard_says_when_all_are_deleted_by_one_command"],
    ),
    (
        "deletion of the collection by the API",
        &["check_says_of_each_pod_what_the_guard_says_when_all_are_deleted_by_one_command"],
    ),
    ("`kubectl drain`", &["check_says_before_a_drain_what_the_guard_says_at_it_whatever_a_budget_says"]),
    (
        "`kubectl drain --disable-eviction`",
        &["check_says_before_a_drain_what_the_guard_says_at_it_whatever_a_budget_says"],
    ),
    ("a dry run of a deletion", &["check_says_before_a_deletion_what_the_guard_says_at_it"]),
    (
        "a dry run of an eviction",
        &["check_says_before_a_drain_what_the_guard_says_at_it_whatever_a_budget_says"],
    ),
    (
        "a second call for the same pod",
        &["check_says_of_a_pod_that_was_allowed_and_refused_elsewhere_what_the_guard_says"],
    ),
    ("kubelet, last delete", &["check_knows_of_pods_that_are_on_their_way_out_or_have_ended"]),
    ("StatefulSet controller, rollout", &["check_says_what_the_guard_says_to_each_controller"]),
    (
        "StatefulSet controller, scale-down",
        &[
            "check_says_of_intents_and_under_policies_what_the_guard_says",
            "check_says_what_the_guard_says_to_each_controller",
        ],
    ),
    (
        "garbage collector, after a StatefulSet was deleted in the background or the foreground",
        &["check_says_of_pods_whose_stateful_set_goes_what_the_guard_says"],
    ),
    (
        "garbage collector, `--cascade=orphan`",
        &["check_says_of_orphans_and_of_what_orphans_them_what_the_guard_says"],
    ),
    ("namespace controller", &["check_says_of_pods_whose_namespace_goes_what_the_guard_says"]),
    (
        "pod garbage collection, after the Node object is gone",
        &["check_knows_of_pods_that_are_on_their_way_out_or_have_ended"],
    ),
    ("taint eviction (`NoExecute`)", &["check_says_what_the_guard_says_to_each_controller"]),
    ("scheduler, preemption", &["check_says_what_the_guard_says_to_each_controller"]),
    (
        "a budget that refuses after the guard's yes",
        &["check_says_before_a_drain_what_the_guard_says_at_it_whatever_a_budget_says"],
    ),
    (
        "another webhook that refuses after the guard's yes",
        &["check_says_of_a_pod_that_was_allowed_and_refused_elsewhere_what_the_guard_says"],
    ),
];

/// The first cells of a table's rows: of the first table below these words.
fn first_cells<'a>(page: &'a str, below: &str) -> Vec<&'a str> {
    let (_, rest) = page.split_once(below).unwrap_or_else(|| panic!("no {below:?}"));
    let table = rest.lines().skip_while(|it| !it.starts_with("| ")).take_while(|it| it.starts_with("| "));
    table.skip(2).map(|row| row.trim_start_matches("| ").split(" | ").next().unwrap()).collect()
}

#[test]
fn every_row_of_the_table_of_requesters_is_compared_and_has_its_question() {
    let rows = first_cells(include_str!("../../docs/requesters.md"), "# Who asks");
    assert_eq!(rows, COMPARED.map(|(row, _)| row), "docs/requesters.md, and what is compared");
    let questions = first_cells(include_str!("../../docs/cli.md"), "### Whoever asks");
    assert_eq!(rows, questions, "docs/requesters.md, and the questions in docs/cli.md");

    let sources = [include_str!("check.rs"), include_str!("check_intents.rs")].concat();
    let named: BTreeSet<&str> = COMPARED.iter().flat_map(|(_, tests)| tests.iter().copied()).collect();
    for test in named {
        let head = format!("#[tokio::test]\nasync fn {test}()");
        assert!(sources.contains(&head), "no test is called {test}");
    }
}

#[tokio::test]
async fn check_says_before_a_deletion_what_the_guard_says_at_it() {
    let mut etcd = GuardedCluster::start().await;
    let leader = etcd.leader().await;
    let [follower, other] = etcd.followers().await;

    assert_eq!(both(&mut etcd, &[&leader], &["delete", "pod", &leader]).await, "denied LeaderProtected");
    let force = ["delete", "pod", &leader, "--force", "--grace-period=0"];
    assert_eq!(both(&mut etcd, &[&leader, "--force"], &force).await, "denied LeaderProtected");
    for (pod, expected) in [
        (BYSTANDER, "allowed NotEtcd"),
        (leader.as_str(), "denied LeaderProtected"),
        (follower.as_str(), "allowed SafeToDelete"),
    ] {
        let dry_run = ["delete", "pod", pod, "--dry-run=server"];
        assert_eq!(both(&mut etcd, &[pod], &dry_run).await, expected, "{pod}");
    }
    etcd.guard.news().await;
    foretold(&etcd, &[&leader]).await;
    assert_eq!(etcd.guard.news().await, [""; 0], "a question is no request");

    // Its kubelet does not hear, so that it is on its way for as long as others are asked about.
    etcd.order(&follower, Order::Isolate).await;
    let delete = ["delete", "pod", &follower, "--wait=false"];
    assert_eq!(both(&mut etcd, &[&follower], &delete).await, "allowed SafeToDelete");
    let said = both(&mut etcd, &[&other], &["delete", "pod", &other]).await;
    assert_eq!(said, "denied DisruptionInProgress");
    etcd.order(&follower, Order::Rejoin).await;
    etcd.wait_until_whole().await;

    let force = ["delete", "pod", &follower, "--force", "--grace-period=0"];
    assert_eq!(both(&mut etcd, &[&follower, "--force"], &force).await, "allowed SafeToDelete");
    etcd.wait_until_whole().await;
    until("nobody is on the way any more", START_LIMIT, async || {
        foretold(&etcd, &[&other]).await == "allowed SafeToDelete"
    })
    .await;

    etcd.order(&follower, Order::Pause).await;
    let said = both(&mut etcd, &[&other], &["delete", "pod", &other]).await;
    assert_eq!(said, "denied QuorumAtRisk");
    etcd.order(&follower, Order::Resume).await;
}

/// Controllers delete pods like anybody else.
#[tokio::test]
async fn check_says_what_the_guard_says_to_each_controller() {
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
        for (pod, expected) in [(&leader, "denied LeaderProtected"), (&follower, "allowed SafeToDelete")] {
            let delete =
                [&["delete", "pod", pod, "--dry-run=server"][..], &impersonating(controller)].concat();
            let said = both(&mut etcd, &[pod, "--as", controller], &delete).await;
            assert_eq!(said, expected, "{controller}");
        }
    }
}

#[tokio::test]
async fn check_says_before_a_drain_what_the_guard_says_at_it_whatever_a_budget_says() {
    let mut etcd = GuardedCluster::start_on(&[CHECKED_NODE]).await;
    let leader = etcd.leader().await;
    let [follower, _] = etcd.followers().await;
    let selectors =
        [&leader, &follower].map(|it| format!("--pod-selector=statefulset.kubernetes.io/pod-name={it}"));
    let [of_leader, of_follower] = selectors.each_ref().map(String::as_str);

    let drain = ["drain", CHECKED_NODE, "--force"];
    // Shorter than drain's pause of five seconds between two tries.
    let once = "--timeout=2s";
    let evict_leader = [&leader[..], "--evict"];
    let evict_follower = [&follower[..], "--evict"];
    for how in ["--dry-run=server", "--dry-run=none"] {
        let drain = [&drain[..], &[of_leader, once, how]].concat();
        assert_eq!(both(&mut etcd, &evict_leader, &drain).await, "denied LeaderProtected", "{how}");
    }
    let by_deletion = [&drain[..], &[of_leader, "--disable-eviction"]].concat();
    assert_eq!(both(&mut etcd, &[&leader], &by_deletion).await, "denied LeaderProtected");
    let dry_run = [&drain[..], &[of_follower, "--dry-run=server"]].concat();
    assert_eq!(both(&mut etcd, &evict_follower, &dry_run).await, "allowed SafeToDelete");

    // The guard's answer is all that `check` tells: the budget has its own.
    let none = r#"{"spec":{"maxUnavailable":0}}"#;
    let said = etcd.kubectl(&["patch", "poddisruptionbudget", "etcd", "--type=merge", "-p", none]).await;
    assert!(said.success, "{said:?}");
    let refused = [&drain[..], &[of_follower, once]].concat();
    until("the budget refuses", START_LIMIT, async || {
        let said = etcd.kubectl(&refused).await;
        assert!(!said.success, "the budget allows nothing: {said:?}");
        said.stderr.contains("would violate the pod's disruption budget")
    })
    .await;
    assert_eq!(both(&mut etcd, &evict_follower, &refused).await, "allowed SafeToDelete");
    let said = etcd.kubectl(&["delete", "poddisruptionbudget", "etcd"]).await;
    assert!(said.success, "{said:?}");

    let to_its_end = [&drain[..], &[of_follower, "--timeout=60s"]].concat();
    assert_eq!(both(&mut etcd, &evict_follower, &to_its_end).await, "allowed SafeToDelete");
    let said = etcd.kubectl(&["uncordon", CHECKED_NODE]).await;
    assert!(said.success, "{said:?}");
}

#[tokio::test]
async fn check_says_of_each_pod_what_the_guard_says_when_all_are_deleted_by_one_command() {
    let mut etcd = GuardedCluster::start().await;
    etcd.let_lead("etcd-2").await;
    let pods = ["etcd-0", "etcd-1", "etcd-2", BYSTANDER];
    let all = ["delete", "pods", "--all", "--dry-run=server"];
    let said = each(&mut etcd, &pods, &all).await;
    assert_eq!(said, ["allowed NotEtcd", "allowed SafeToDelete", "denied LeaderProtected"]);

    // Without a dry run the first that goes is in the way of the others: each question is answered as the first is.
    for name in GuardedCluster::names() {
        etcd.order(name, Order::Isolate).await;
    }
    let first = foretold(&etcd, &["etcd-0"]).await;
    assert_eq!(foretold(&etcd, &["etcd-1"]).await, first);
    etcd.guard.news().await;
    let members = ListParams::default().labels("app=etcd");
    etcd.pods.delete_collection(&DeleteParams::default(), &members).await.unwrap_err();
    // The apiserver goes through them by name, and stops at the first denial.
    assert_eq!(first, "allowed SafeToDelete");
    assert_eq!(
        etcd.guard.news().await,
        ["DELETE allowed SafeToDelete", "DELETE denied DisruptionInProgress"]
    );
    let second = both(&mut etcd, &["etcd-1"], &["delete", "pod", "etcd-1"]).await;
    assert!(second.starts_with("denied "), "{second}");
}

#[tokio::test]
async fn check_says_of_a_pod_that_was_allowed_and_refused_elsewhere_what_the_guard_says() {
    let mut etcd = GuardedCluster::start().await;
    let [one, other] = etcd.followers().await;
    let refusing = etcd.refuse_deletions().await;
    // The guard's answer is all that `check` tells: the other webhook has its own.
    for which in ["the first call", "the second, which its own reservation does not stop"] {
        let said = both(&mut etcd, &[&one], &["delete", "pod", &one]).await;
        assert_eq!(said, "allowed SafeToDelete", "{which}");
    }
    // Which of two refusals kubectl prints is the apiserver's choice.
    let said = each(&mut etcd, &[&other], &["delete", "pod", &other]).await;
    assert_eq!(said, ["denied DisruptionInProgress"]);
    let said = etcd.kubectl(&["delete", "validatingwebhookconfiguration", &refusing]).await;
    assert!(said.success, "{said:?}");
}

#[tokio::test]
async fn check_knows_of_pods_that_are_on_their_way_out_or_have_ended() {
    let mut etcd = GuardedCluster::start().await;
    // By the shipped configuration the apiserver answers these alone.
    etcd.register_webhook(|webhook| drop(webhook.as_object_mut().unwrap().remove("matchConditions"))).await;
    // A finalizer: what is deleted stays, on its way out.
    let hold = r#"{"metadata":{"finalizers":["etcd-guard.io/test"]}}"#;
    let said = etcd.kubectl(&["patch", "pod", BYSTANDER, "--type=merge", "-p", hold]).await;
    assert!(said.success, "{said:?}");
    let said = etcd.kubectl(&["delete", "pod", BYSTANDER, "--wait=false"]).await;
    assert!(said.success, "{said:?}");
    let delete = ["delete", "pod", BYSTANDER, "--wait=false"];
    assert_eq!(both(&mut etcd, &[BYSTANDER], &delete).await, "allowed AlreadyTerminating");
    let kubelet = format!("system:node:{SHARED_NODE}");
    let force = ["--force", "--grace-period=0"];
    let last = [&delete[..], &force, &impersonating(&kubelet)].concat();
    let said = both(&mut etcd, &[BYSTANDER, "--force", "--as", &kubelet], &last).await;
    assert_eq!(said, "allowed AlreadyTerminating");

    create_failed_pod(&etcd.pods, "ended").await;
    let collector = "system:serviceaccount:kube-system:pod-garbage-collector";
    let delete = [&["delete", "pod", "ended"][..], &force, &impersonating(collector)].concat();
    let said = both(&mut etcd, &["ended", "--force", "--as", collector], &delete).await;
    assert_eq!(said, "allowed PodFinished");

    let release = r#"{"metadata":{"finalizers":null}}"#;
    let said = etcd.kubectl(&["patch", "pod", BYSTANDER, "--type=merge", "-p", release]).await;
    assert!(said.success, "{said:?}");
}

#[tokio::test]
async fn check_tells_what_it_cannot_tell_and_what_nobody_asks_for() {
    let etcd = GuardedCluster::start().await;
    let printed = cli::run(&etcd, "check", &["etcd-9"]).await;
    assert_eq!(printed.status, Some(2), "{printed:?}");
    assert!(printed.stderr.contains(&format!("pod {}/etcd-9 does not exist", etcd.namespace)), "{printed:?}");

    let printed = cli::run(&etcd, "check", &["etcd-0"]).await;
    assert!(!printed.stdout.contains('\u{1b}'), "no colours in a pipe: {printed:?}");
    assert!(!printed.stderr.contains("Not guarded"), "{printed:?}");

    let label = etcd.kubectl_everywhere();
    let unlabel = format!("{}-", crate::support::webhook::LABEL);
    let said = label.run(&["label", "namespace", &etcd.namespace, &unlabel]).await;
    assert!(said.success, "{said:?}");
    let printed = cli::run(&etcd, "check", &["etcd-0"]).await;
    let text = format!("does not select namespace {}: kubectl label namespace", etcd.namespace);
    assert!(printed.stderr.contains(&text), "{printed:?}");
}
