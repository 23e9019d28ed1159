//! Restarts of StatefulSets that an operator owns, and when a member is replaced.

use std::{collections::BTreeMap, process::Stdio};

use k8s_openapi::api::apps::v1::StatefulSet;
use kube::{Api, api::ListParams};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::json;
use test_support::{
    guard::cli,
    guarded_cluster::{GuardedCluster, START_TIMEOUT},
    wait::{wait_for, wait_until},
};
use tokio::{
    io::{AsyncBufReadExt, BufReader, Lines},
    process::{Child, ChildStdout},
    time::timeout,
};

use super::{RESTART, assert_followers_evicted, evicted, uids};

const GROUP: &str = "operator.etcd.io";

/// A change of the pod template.
const NEW_TEMPLATE: &str = r#"{"spec": {"template": {"metadata": {"annotations": {"changed": "true"}}}}}"#;

/// Starts a cluster whose StatefulSet has this update strategy and belongs to a custom resource.
async fn start_owned(strategy: &str) -> GuardedCluster {
    let etcd = GuardedCluster::start().await;
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("etcdclusters.{GROUP}")},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {"plural": "etcdclusters", "singular": "etcdcluster", "kind": "EtcdCluster"},
            "versions": [{
                "name": "v1alpha1",
                "served": true,
                "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
            }],
        },
    });
    let owner = json!({
        "apiVersion": format!("{GROUP}/v1alpha1"),
        "kind": "EtcdCluster",
        "metadata": {"name": "main", "namespace": etcd.namespace},
    });
    for (name, object) in [("definition", definition), ("owner", owner)] {
        let file = etcd.dir().join(name);
        std::fs::write(&file, object.to_string()).unwrap();
        let apply = ["apply", "--server-side", "-f", &file.to_string_lossy()];
        wait_until(&format!("the {name} is created"), START_TIMEOUT, async || {
            etcd.kubectl_everywhere().run(&apply).await.success
        })
        .await;
    }
    let resource = format!("etcdclusters.{GROUP}/main");
    let uid = etcd.kubectl(&["get", &resource, "-o", "jsonpath={.metadata.uid}"]).await.stdout;
    let owner = json!({
        "apiVersion": format!("{GROUP}/v1alpha1"), "kind": "EtcdCluster", "name": "main", "uid": uid, "controller": true,
    });
    let change = json!({
        "metadata": {"ownerReferences": [owner]},
        "spec": {"updateStrategy": {"type": strategy, "rollingUpdate": null}},
    });
    patch(&etcd, &change.to_string()).await;
    etcd
}

async fn patch(etcd: &GuardedCluster, change: &str) {
    let output = etcd.kubectl(&["patch", "statefulset", "etcd", "--type=merge", "-p", change]).await;
    assert!(output.success, "{output:?}");
}

/// What the operator would restore: the annotations of the StatefulSet, and the generation of its specification.
async fn content(etcd: &GuardedCluster) -> (Option<BTreeMap<String, String>>, Option<i64>) {
    let sets: Api<StatefulSet> = Api::namespaced(etcd.client.clone(), &etcd.namespace);
    let metadata = sets.get("etcd").await.unwrap().metadata;
    (metadata.annotations, metadata.generation)
}

/// Returns the number of pods that carry the record of a restart.
async fn marked(etcd: &GuardedCluster) -> usize {
    let pods = etcd.pods.list(&ListParams::default()).await.unwrap();
    let annotations = pods.items.iter().filter_map(|pod| pod.metadata.annotations.as_ref());
    annotations.filter(|annotations| annotations.contains_key(RESTART)).count()
}

fn spawn(etcd: &GuardedCluster) -> (Child, Lines<BufReader<ChildStdout>>) {
    let arguments = ["statefulset/etcd", "--timeout", "60s"];
    let mut program = tokio::process::Command::from(cli::program(etcd, "restart", &arguments));
    let mut child = program.stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    (child, lines)
}

/// Reads lines up to this number of evictions, and returns them.
async fn read_evictions(lines: &mut Lines<BufReader<ChildStdout>>, count: usize) -> String {
    let mut text = String::new();
    while evicted(&text).len() < count {
        let line = timeout(START_TIMEOUT, lines.next_line()).await.unwrap().unwrap().expect(&text);
        text.extend([line.as_str(), "\n"]);
    }
    text
}

/// Starts a restart, and kills it after this number of evictions. Returns its output.
async fn run_until_killed(etcd: &GuardedCluster, evictions: usize) -> String {
    let (mut child, mut lines) = spawn(etcd);
    let text = read_evictions(&mut lines, evictions).await;
    kill(Pid::from_raw(i32::try_from(child.id().unwrap()).unwrap()), Signal::SIGKILL).unwrap();
    child.wait().await.unwrap();
    text
}

/// The command is killed after this number of evictions and repeated. The template has changed if `is_update` is set.
async fn check_resumption(strategy: &str, killed_after: usize, is_update: bool) {
    let etcd = start_owned(strategy).await;
    if is_update {
        patch(&etcd, NEW_TEMPLATE).await;
    }
    etcd.make_leader("etcd-2").await;
    let (before, set) = (uids(&etcd).await, content(&etcd).await);

    let plan = cli::run(&etcd, "restart", &["statefulset/etcd", "--dry-run"]).await;
    assert_eq!(plan.status, Some(0), "{plan:?}");
    assert!(plan.stdout.contains("; only evicts pods, because EtcdCluster main manages it"), "{plan:?}");
    assert_eq!((uids(&etcd).await, marked(&etcd).await), (before.clone(), 0), "a dry run changes nothing");

    let first = run_until_killed(&etcd, killed_after).await;
    etcd.wait_until_healthy().await;
    assert!(marked(&etcd).await > 0, "{first}");
    let output = cli::run(&etcd, "restart", &["statefulset/etcd"]).await;
    assert_eq!(output.status, Some(0), "{output:?}");
    assert!(output.stdout.contains("Resumed restart of StatefulSet "), "{}", output.stdout);
    assert_eq!(evicted(&output.stdout).len(), 3 - killed_after, "{first}{}", output.stdout);
    let order = evicted(&format!("{first}{}", output.stdout));
    assert_eq!(order, ["etcd-1", "etcd-0", "etcd-2"], "{first}{}", output.stdout);

    assert!(uids(&etcd).await.iter().zip(&before).all(|(after, before)| after != before));
    assert_ne!(etcd.leader().await, "etcd-2", "leadership moved before the eviction");
    assert_eq!((content(&etcd).await, marked(&etcd).await), (set, 0));
    if is_update {
        let pods = etcd.pods.list(&ListParams::default().labels("app=etcd")).await.unwrap();
        let has_new = |pod: &k8s_openapi::api::core::v1::Pod| {
            pod.metadata.annotations.as_ref().is_some_and(|annotations| annotations.contains_key("changed"))
        };
        assert!(pods.items.iter().all(has_new), "each pod has the new template");
    }
}

#[tokio::test]
async fn owned_set_on_delete_is_updated_by_evictions() {
    check_resumption("OnDelete", 1, true).await;
}

/// The revision is unchanged, as for renewed certificates.
#[tokio::test]
async fn owned_set_with_rolling_updates_is_restarted_by_evictions() {
    check_resumption("RollingUpdate", 2, false).await;
}

/// The record outlives the last pod: the repetition evicts none again.
#[tokio::test]
async fn owned_set_is_not_restarted_again_after_the_last_eviction() {
    check_resumption("OnDelete", 3, false).await;
}

#[tokio::test]
async fn restart_leaves_rollouts_of_owned_sets_to_the_controller() {
    let etcd = start_owned("RollingUpdate").await;
    let upgrade = ["statefulset/etcd", "--image", "quay.io/coreos/etcd:v3.6.17"];
    let refused = cli::run(&etcd, "restart", &upgrade).await;
    assert_eq!(refused.status, Some(2), "{refused:?}");
    assert!(refused.stderr.contains("change spec.version in EtcdCluster main: kubectl -n "), "{refused:?}");
    assert_eq!(marked(&etcd).await, 0);

    // A rollout that begins meanwhile ends the command.
    let (mut child, mut lines) = spawn(&etcd);
    let mut text = read_evictions(&mut lines, 1).await;
    assert!(etcd.kubectl(&["annotate", "statefulset/etcd", "etcd-guard.io/min-voters=4"]).await.success);
    patch(&etcd, NEW_TEMPLATE).await;
    while let Some(line) = timeout(START_TIMEOUT, lines.next_line()).await.unwrap().unwrap() {
        text.extend([line.as_str(), "\n"]);
    }
    assert_eq!(child.wait().await.unwrap().code(), Some(1), "{text}");
    let command = format!("kubectl -n {} rollout status statefulset/etcd", etcd.namespace);
    let last = text.lines().last().unwrap();
    assert!(
        last.contains("its controller is replacing the pods itself") && last.ends_with(&command),
        "{text}"
    );
    assert_eq!(evicted(&text).len(), 1, "{text}");

    // The guard holds the rollout.
    let refused = cli::run(&etcd, "restart", &["statefulset/etcd"]).await;
    assert_eq!(refused.status, Some(2), "{refused:?}");
    assert!(refused.stderr.trim_end().ends_with(&command), "{refused:?}");

    assert!(etcd.kubectl(&["annotate", "statefulset/etcd", "etcd-guard.io/min-voters-"]).await.success);
    let status = ["rollout", "status", "statefulset/etcd", "--timeout=90s"];
    assert!(etcd.kubectl(&status).await.success);
    etcd.wait_until_healthy().await;
    assert_eq!(marked(&etcd).await, 0, "the record went with the pods");
    let before = uids(&etcd).await;
    let output = cli::run(&etcd, "restart", &["statefulset/etcd"]).await;
    assert_eq!(output.status, Some(0), "{output:?}");
    assert_followers_and_leader(&output.stdout);
    assert!(uids(&etcd).await.iter().zip(&before).all(|(after, before)| after != before));
}

fn assert_followers_and_leader(stdout: &str) {
    let order = evicted(stdout);
    assert_eq!((order.len(), stdout.matches(" (follower) is evicted").count()), (3, 2), "{stdout}");
}

/// The policy denies the eviction of a leader, so that the command requests the move.
#[tokio::test]
async fn owned_set_is_restarted_under_the_policy_deny() {
    let etcd = start_owned("OnDelete").await;
    assert!(etcd.kubectl(&["annotate", "statefulset/etcd", "etcd-guard.io/leader=deny"]).await.success);
    let denied = wait_for("the policy applies", START_TIMEOUT, async || {
        let status = cli::run(&etcd, "status", &[]).await.stdout;
        status.contains("policy leader: deny").then_some(status)
    })
    .await;
    let output = cli::run(&etcd, "restart", &["statefulset/etcd"]).await;
    assert_eq!(output.status, Some(0), "{denied}{output:?}");
    assert_followers_evicted(&output.stdout);
}

#[tokio::test]
async fn restart_of_an_owned_set_is_ended_on_request() {
    let etcd = start_owned("OnDelete").await;
    run_until_killed(&etcd, 1).await;
    etcd.wait_until_healthy().await;
    let before = uids(&etcd).await;
    let ended = cli::run(&etcd, "restart", &["statefulset/etcd", "--abort"]).await;
    assert_eq!(ended.status, Some(0), "{ended:?}");
    assert!(ended.stdout.trim_end().ends_with(" is ended"), "{ended:?}");
    assert_eq!((marked(&etcd).await, uids(&etcd).await), (0, before));
    let again = cli::run(&etcd, "restart", &["statefulset/etcd", "--abort"]).await;
    assert!(again.stderr.contains("no restart of StatefulSet "), "{again:?}");
}

#[tokio::test]
async fn replacement_of_a_member_is_planned_only_while_its_operator_is_paused() {
    let etcd = start_owned("OnDelete").await;
    let arguments = ["etcd-1", "--no-backup", "--dry-run"];
    let refused = cli::run(&etcd, "replace", &arguments).await;
    assert_eq!(refused.status, Some(2), "{refused:?}");
    assert!(
        refused.stderr.contains("EtcdCluster main owns StatefulSet etcd, and its operator"),
        "{refused:?}"
    );
    assert!(refused.stderr.trim_end().ends_with("pause it, then pass --paused"), "{refused:?}");
    let plan = cli::run(&etcd, "replace", &[&arguments[..], &["--paused"]].concat()).await;
    assert_eq!(plan.status, Some(0), "{plan:?}");
    assert!(plan.stdout.contains("Replacement of etcd-1 of "), "{plan:?}");
}
