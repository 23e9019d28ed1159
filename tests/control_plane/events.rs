//! The events that `kubectl describe` and `kubectl get events` show: of denials, transfers and break-glass, on what was asked
//! about and on its StatefulSet.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use serde_json::Value;

use crate::support::{
    apiserver_proxy::ApiserverProxy,
    control_plane::ControlPlane,
    guarded_cluster::{BYSTANDER, GuardedCluster, START_LIMIT, Setup},
    http_client::Connection,
    process_node::Order,
    review::{eviction_of, verdict},
    wait::until,
};

/// Within this time the guard tells the same of the same object once.
const QUIET: Duration = Duration::from_secs(30);

/// `TYPE REASON ACTION`, and how often it is told.
type Told = BTreeMap<String, u64>;

/// What is told of an object (`KIND/NAME`) in a namespace.
async fn told_in(etcd: &GuardedCluster, namespace: &str, object: &str) -> Told {
    let arguments = ["get", "events.events.k8s.io", "-n", namespace, "-o", "json"];
    let said = etcd.kubectl_everywhere().run(&arguments).await;
    assert!(said.success, "{said:?}");
    let events: Value = serde_json::from_str(&said.stdout).unwrap();
    let text = |it: &Value| it.as_str().unwrap().to_owned();
    let of_object = events["items"].as_array().unwrap().iter().filter(|it| {
        let it = (&it["regarding"], &it["reportingController"]);
        format!("{}/{}", text(&it.0["kind"]), text(&it.0["name"])) == object && *it.1 == "etcd-guard"
    });
    let mut told = Told::new();
    for it in of_object {
        let line = format!("{} {} {}", text(&it["type"]), text(&it["reason"]), text(&it["action"]));
        *told.entry(line).or_default() += it["series"]["count"].as_u64().unwrap_or(1);
    }
    told
}

/// The same of an object in the cluster's namespace.
async fn told(etcd: &GuardedCluster, object: &str) -> Told {
    told_in(etcd, &etcd.namespace, object).await
}

/// Returns when this is told of an object. Others may be as well: a busy machine makes for more verdicts than one.
async fn until_told(etcd: &GuardedCluster, object: &str, line: &str) {
    until(&format!("{line} is told of {object}"), START_LIMIT, async || {
        told(etcd, object).await.contains_key(line)
    })
    .await;
}

/// That this was told of an object once, however often it was denied since then; on a machine so slow that the denials were
/// further apart than the guard is quiet, no more often than that.
async fn assert_told_once(etcd: &GuardedCluster, object: &str, line: &str, since: Instant) {
    let told = told(etcd, object).await;
    let most = 1 + since.elapsed().as_secs() / QUIET.as_secs();
    let times = told.get(line).copied().unwrap_or_default();
    assert!((1..=most).contains(&times), "{object}: {line}: {times} times, at most {most}: {told:?}");
}

/// Asks until this is denied for this reason: on a busy machine a member may be late, and the reason another one.
async fn denied(etcd: &GuardedCluster, kubectl: &[&str], reason: &str) {
    let end = format!("[{reason}]");
    until(&format!("{kubectl:?} is denied for {reason}"), START_LIMIT, async || {
        let said = etcd.kubectl(kubectl).await;
        assert!(!said.success, "{said:?}");
        said.stderr.contains(&end)
    })
    .await;
}

#[tokio::test]
async fn a_denial_is_an_event_on_the_pod_and_its_stateful_set_and_a_dry_run_is_none() {
    let etcd = GuardedCluster::start().await;
    let leader = etcd.leader().await;
    let [follower, other] = etcd.followers().await;
    denied(&etcd, &["delete", "pod", &leader, "--dry-run=server"], "LeaderProtected").await;
    etcd.order(&follower, Order::Pause).await;
    let since = Instant::now();
    for _ in 0..2 {
        denied(&etcd, &["delete", "pod", &other], "QuorumAtRisk").await;
    }
    // Events are written in their order: whatever of the above is told has been told before this.
    until("an eviction is denied as well", START_LIMIT, async || {
        let denial = etcd.evict(&other, None).await.unwrap_err();
        denial.message.contains("[QuorumAtRisk]")
    })
    .await;
    until_told(&etcd, "StatefulSet/etcd", "Warning QuorumAtRisk Evict").await;
    for object in [&format!("Pod/{other}"), "StatefulSet/etcd"] {
        assert_told_once(&etcd, object, "Warning QuorumAtRisk Delete", since).await;
    }
    assert_eq!(told(&etcd, &format!("Pod/{leader}")).await, Told::new(), "a dry run leaves no trace");
    etcd.order(&follower, Order::Resume).await;
}

/// An eviction brings nothing of the pod but its name. Of that alone `kubectl describe pod` shows nothing, since it asks by the
/// uid; the StatefulSet's is known without any pod.
#[tokio::test]
async fn an_eviction_denied_for_want_of_time_is_an_event_on_the_pod_by_its_name_and_on_its_stateful_set() {
    let control_plane = ControlPlane::shared();
    let files = tempfile::tempdir_in(&control_plane.dir).unwrap();
    let kubeconfig = files.path().join("proxy.kubeconfig");
    let proxy = ApiserverProxy::start(&control_plane.guard_kubeconfig(), kubeconfig.clone()).await;
    let etcd = GuardedCluster::start_as(Setup { kubeconfig: Some(kubeconfig), ..Setup::default() }).await;
    let [member, bystander] =
        [etcd.pods.get("etcd-1").await.unwrap(), etcd.pods.get(BYSTANDER).await.unwrap()];

    let no_pods = proxy.hold(|call| call.method == "GET" && call.path.contains("/pods"));
    let since = Instant::now();
    for pod in [&member, &member, &bystander] {
        let mut connection = Connection::tls(etcd.guard.https(), &etcd.guard.ca_pem).await.unwrap();
        let answer = connection.post("/validate?timeout=2s", eviction_of(pod)).await.unwrap();
        let (allowed, message) = verdict(&answer.body);
        assert!(!allowed && message.ends_with("[DeadlineExceeded]"), "{message}");
    }
    let line = "Warning DeadlineExceeded Evict";
    // They are written in their order.
    until_told(&etcd, &format!("Pod/{BYSTANDER}"), line).await;
    for object in ["Pod/etcd-1", "StatefulSet/etcd"] {
        assert_told_once(&etcd, object, line, since).await;
    }
    no_pods.release();
    let said = etcd.kubectl(&["events", "--for=pod/etcd-1"]).await;
    assert!(said.stdout.contains("whether pod etcd-1 may go could not be found out within 1s"), "{said:?}");
    let said = etcd.kubectl(&["describe", "statefulset/etcd"]).await;
    assert!(said.stdout.contains("whether pod etcd-1 may go could not be found out within 1s"), "{said:?}");
}

#[tokio::test]
async fn a_transfer_is_an_event_that_warns_of_nothing() {
    let etcd = GuardedCluster::start().await;
    let leader = etcd.leader().await;
    let said = etcd.kubectl(&["annotate", "statefulset/etcd", "etcd-guard.io/leader=transfer"]).await;
    assert!(said.success, "{said:?}");
    until("the leader may go", START_LIMIT, async || etcd.delete(&leader).await.is_ok()).await;
    for object in [&format!("Pod/{leader}"), "StatefulSet/etcd"] {
        until_told(&etcd, object, "Normal LeaderTransferred Delete").await;
    }
}

#[tokio::test]
async fn a_denied_intent_is_an_event_on_what_was_meant_and_on_the_stateful_set() {
    let mut etcd = GuardedCluster::start().await;
    let namespace = etcd.namespace.clone();
    let denial = ["DELETE denied IntentProtected"];

    // Of these none is told, or it would be before what comes after it.
    for object in ["statefulset/etcd", "pvc/data-etcd-0", &format!("namespace/{namespace}")] {
        etcd.kubectl(&["delete", object, "--dry-run=server"]).await;
        assert_eq!(etcd.guard.news().await, denial, "{object}");
    }
    etcd.kubectl(&["delete", "pvc", "data-etcd-1", "--wait=false"]).await;
    assert_eq!(etcd.guard.news().await, denial);
    let line = "Warning IntentProtected Delete";
    until_told(&etcd, "StatefulSet/etcd", line).await;
    for object in ["PersistentVolumeClaim/data-etcd-1", "StatefulSet/etcd"] {
        let told = told(&etcd, object).await;
        assert_eq!(told, Told::from([(line.to_owned(), 1)]), "of the dry runs nothing: {object}");
    }
    let untouched = told(&etcd, "PersistentVolumeClaim/data-etcd-0").await;
    assert_eq!(untouched, Told::new(), "a dry run leaves no trace");

    etcd.kubectl_everywhere().run(&["delete", "namespace", &namespace, "--wait=false"]).await;
    assert_eq!(etcd.guard.news().await, denial);
    until("the denial is told of the namespace", START_LIMIT, async || {
        told_in(&etcd, "default", &format!("Namespace/{namespace}")).await
            == Told::from([(line.to_owned(), 1)])
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
    let etcd = GuardedCluster::start().await;
    let since = Instant::now();
    for _ in 0..2 {
        denied(&etcd, &["delete", "statefulset", "etcd", "--wait=false"], "IntentProtected").await;
    }
    denied(&etcd, &["scale", "statefulset", "etcd", "--replicas=1"], "IntentProtected").await;
    // They are written in their order: what was asked for twice was told of before the scale-down.
    until_told(&etcd, "StatefulSet/etcd", "Warning IntentProtected Scale").await;
    for line in ["Warning IntentProtected Delete", "Warning IntentProtected Scale"] {
        assert_told_once(&etcd, "StatefulSet/etcd", line, since).await;
    }
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
        until_told(&etcd, object, "Warning BreakGlass Delete").await;
    }
    etcd.wait_until_whole().await;

    etcd.guard.news().await;
    let said = etcd.kubectl(&["scale", "statefulset/etcd", "--replicas=1"]).await;
    assert!(said.success, "{said:?}");
    assert!(etcd.guard.news().await.contains(&String::from("UPDATE allowed BreakGlass")));
    until_told(&etcd, "StatefulSet/etcd", "Warning BreakGlass Scale").await;
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
        told.contains_key("Warning BreakGlass Delete")
    })
    .await;
}
