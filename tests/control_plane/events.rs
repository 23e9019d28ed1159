//! The events that `kubectl describe` and `kubectl get events` show: of denials, transfers and break-glass, on what was asked
//! about and on its StatefulSet.

use serde_json::Value;

use crate::support::{
    guarded_cluster::{GuardedCluster, START_LIMIT},
    process_node::Order,
    wait::until,
};

/// What is told of an object (`KIND/NAME`) in a namespace: `TYPE REASON ACTION`, each once.
async fn told_in(etcd: &GuardedCluster, namespace: &str, object: &str) -> Vec<String> {
    let arguments = ["get", "events.events.k8s.io", "-n", namespace, "-o", "json"];
    let said = etcd.kubectl_everywhere().run(&arguments).await;
    assert!(said.success, "{said:?}");
    let events: Value = serde_json::from_str(&said.stdout).unwrap();
    let text = |it: &Value| it.as_str().unwrap().to_owned();
    let of_object = events["items"].as_array().unwrap().iter().filter(|it| {
        let it = (&it["regarding"], &it["reportingController"]);
        format!("{}/{}", text(&it.0["kind"]), text(&it.0["name"])) == object && *it.1 == "etcd-guard"
    });
    of_object
        .map(|it| {
            assert!(it["series"].is_null(), "the same again: {it}");
            format!("{} {} {}", text(&it["type"]), text(&it["reason"]), text(&it["action"]))
        })
        .collect()
}

/// The same of an object in the cluster's namespace.
async fn told(etcd: &GuardedCluster, object: &str) -> Vec<String> {
    told_in(etcd, &etcd.namespace, object).await
}

/// Returns when these are told of an object, in any order; others must not be.
async fn until_told(etcd: &GuardedCluster, object: &str, expected: &[&str]) {
    until(&format!("{expected:?} are told of {object}"), START_LIMIT, async || {
        let mut told = told(etcd, object).await;
        told.sort();
        told == expected
    })
    .await;
}

#[tokio::test]
async fn a_denial_is_an_event_on_the_pod_and_its_stateful_set_and_a_dry_run_is_none() {
    let mut etcd = GuardedCluster::start().await;
    let leader = etcd.leader().await;
    let [follower, other] = etcd.followers().await;
    etcd.kubectl(&["delete", "pod", &leader, "--dry-run=server"]).await;
    assert_eq!(etcd.guard.news().await, ["DELETE denied LeaderProtected"]);
    // Were the dry run told of, it would be before what comes after it.
    etcd.order(&follower, Order::Pause).await;
    for _ in 0..2 {
        etcd.kubectl(&["delete", "pod", &other]).await;
    }
    let news = etcd.guard.news().await;
    assert_eq!(news, ["DELETE denied QuorumAtRisk"]);
    until_told(&etcd, &format!("Pod/{other}"), &["Warning QuorumAtRisk Delete"]).await;
    until_told(&etcd, "StatefulSet/etcd", &["Warning QuorumAtRisk Delete"]).await;
    assert_eq!(told(&etcd, &format!("Pod/{leader}")).await, [""; 0], "a dry run leaves no trace");
    etcd.order(&follower, Order::Resume).await;
}

#[tokio::test]
async fn a_transfer_is_an_event_that_warns_of_nothing() {
    let etcd = GuardedCluster::start().await;
    let leader = etcd.leader().await;
    let said = etcd.kubectl(&["annotate", "statefulset/etcd", "etcd-guard.io/leader=transfer"]).await;
    assert!(said.success, "{said:?}");
    until("the leader may go", START_LIMIT, async || etcd.delete(&leader).await.is_ok()).await;
    for object in [&format!("Pod/{leader}"), "StatefulSet/etcd"] {
        until("the transfer is told", START_LIMIT, async || {
            told(&etcd, object).await.contains(&String::from("Normal LeaderTransferred Delete"))
        })
        .await;
    }
}

#[tokio::test]
async fn a_denied_intent_is_an_event_on_what_was_meant_and_on_the_stateful_set() {
    let mut etcd = GuardedCluster::start().await;
    let namespace = etcd.namespace.clone();
    let denied = ["DELETE denied IntentProtected"];

    // Of these none is told, or it would be before what comes after it.
    for object in ["statefulset/etcd", "pvc/data-etcd-0", &format!("namespace/{namespace}")] {
        etcd.kubectl(&["delete", object, "--dry-run=server"]).await;
        assert_eq!(etcd.guard.news().await, denied, "{object}");
    }
    etcd.kubectl(&["delete", "pvc", "data-etcd-1", "--wait=false"]).await;
    assert_eq!(etcd.guard.news().await, denied);
    until_told(&etcd, "PersistentVolumeClaim/data-etcd-1", &["Warning IntentProtected Delete"]).await;
    until_told(&etcd, "StatefulSet/etcd", &["Warning IntentProtected Delete"]).await;
    assert_eq!(told(&etcd, "PersistentVolumeClaim/data-etcd-0").await, [""; 0], "a dry run leaves no trace");

    etcd.kubectl_everywhere().run(&["delete", "namespace", &namespace, "--wait=false"]).await;
    assert_eq!(etcd.guard.news().await, denied);
    until("the denial is told of the namespace", START_LIMIT, async || {
        told_in(&etcd, "default", &format!("Namespace/{namespace}")).await
            == ["Warning IntentProtected Delete"]
    })
    .await;
    let text = format!("namespace {namespace} holds a living etcd cluster");
    // As docs/monitoring.md advises.
    let events = ["get", "events", "--field-selector", "reportingComponent=etcd-guard"];
    until("whoever looks into the namespace sees it", START_LIMIT, async || {
        etcd.kubectl(&events).await.stdout.contains(&text)
    })
    .await;
}

#[tokio::test]
async fn a_denied_deletion_of_a_stateful_set_and_a_denied_scale_down_are_told_once_each() {
    let mut etcd = GuardedCluster::start().await;
    for _ in 0..2 {
        etcd.kubectl(&["delete", "statefulset", "etcd", "--wait=false"]).await;
    }
    assert_eq!(etcd.guard.news().await, ["DELETE denied IntentProtected"]);
    etcd.kubectl(&["scale", "statefulset", "etcd", "--replicas=1"]).await;
    assert_eq!(etcd.guard.news().await, ["UPDATE denied IntentProtected"]);
    // They are written in their order: what was asked for twice was told of before the scale-down.
    let both = ["Warning IntentProtected Delete", "Warning IntentProtected Scale"];
    until_told(&etcd, "StatefulSet/etcd", &both).await;
    let described = etcd.kubectl(&["describe", "statefulset", "etcd"]).await;
    assert!(described.stdout.contains("StatefulSet etcd runs a living etcd cluster"), "{described:?}");
}

#[tokio::test]
async fn whatever_a_break_glass_lets_through_is_an_event() {
    let mut etcd = GuardedCluster::start().await;
    let leader = etcd.leader().await;
    etcd.break_glass("statefulset/etcd").await;
    until("the leader may go", START_LIMIT, async || etcd.delete(&leader).await.is_ok()).await;
    assert!(etcd.guard.news().await.contains(&String::from("DELETE allowed BreakGlass")));
    for object in [&format!("Pod/{leader}"), "StatefulSet/etcd"] {
        until("the break-glass is told", START_LIMIT, async || {
            told(&etcd, object).await.contains(&String::from("Warning BreakGlass Delete"))
        })
        .await;
    }
    etcd.wait_until_whole().await;

    etcd.guard.news().await;
    let said = etcd.kubectl(&["scale", "statefulset/etcd", "--replicas=1"]).await;
    assert!(said.success, "{said:?}");
    assert!(etcd.guard.news().await.contains(&String::from("UPDATE allowed BreakGlass")));
    until("the break-glass is told of the scale-down", START_LIMIT, async || {
        told(&etcd, "StatefulSet/etcd").await.contains(&String::from("Warning BreakGlass Scale"))
    })
    .await;
}

#[tokio::test]
async fn the_event_of_a_namespace_that_a_break_glass_lets_go_outlives_it() {
    let etcd = GuardedCluster::start().await;
    let namespace = etcd.namespace.clone();
    etcd.break_glass(&format!("namespace/{namespace}")).await;
    let delete = ["delete", "namespace", &namespace, "--wait=false"];
    until("the namespace may go", START_LIMIT, async || etcd.kubectl_everywhere().run(&delete).await.success)
        .await;
    until("the break-glass is told", START_LIMIT, async || {
        let told = told_in(&etcd, "default", &format!("Namespace/{namespace}")).await;
        told.contains(&String::from("Warning BreakGlass Delete"))
    })
    .await;
}
