//! The events that `kubectl describe` and `kubectl get events` show: denials, transfers and break-glass, recorded on
//! the object of the request and on its StatefulSet.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use etcd_guard_core::{documentation::Manual, reason::Reason};
use serde_json::Value;

use test_support::{
    guard::review::{eviction_review, verdict},
    guarded_cluster::{GuardedCluster, START_TIMEOUT, Setup, UNRELATED_POD},
    http_client::Connection,
    kubernetes::{api_proxy::ApiServerProxy, control_plane::ControlPlane},
    process_node::ProcessAction,
    wait::wait_until,
};

/// The guard records equal events of one object once within this time.
const QUIET_PERIOD: Duration = Duration::from_secs(30);

/// The number of events for each `TYPE REASON ACTION`.
type EventCounts = BTreeMap<String, u64>;

/// Returns the guard's events of an object (`KIND/NAME`) in a namespace.
async fn events_in(etcd: &GuardedCluster, namespace: &str, object: &str) -> EventCounts {
    let arguments = ["get", "events.events.k8s.io", "-n", namespace, "-o", "json"];
    let output = etcd.kubectl_everywhere().run(&arguments).await;
    assert!(output.success, "{output:?}");
    let events: Value = serde_json::from_str(&output.stdout).unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let matching = events["items"].as_array().unwrap().iter().filter(|event| {
        let (regarding, controller) = (&event["regarding"], &event["reportingController"]);
        format!("{}/{}", text(&regarding["kind"]), text(&regarding["name"])) == object
            && *controller == "etcd-guard"
    });
    let mut events = EventCounts::new();
    for event in matching {
        let line = format!("{} {} {}", text(&event["type"]), text(&event["reason"]), text(&event["action"]));
        *events.entry(line).or_default() += event["series"]["count"].as_u64().unwrap_or(1);
    }
    events
}

/// Returns the guard's events of an object in the cluster's namespace.
async fn events(etcd: &GuardedCluster, object: &str) -> EventCounts {
    events_in(etcd, &etcd.namespace, object).await
}

/// Waits until an object has this event. It may have others, because a busy machine causes several reasons.
async fn wait_for_event(etcd: &GuardedCluster, object: &str, line: &str) {
    wait_until(&format!("{object} has the event {line}"), START_TIMEOUT, async || {
        events(etcd, object).await.contains_key(line)
    })
    .await;
}

/// Asserts that an event was recorded once despite repeated denials. On a machine so slow that the denials were further
/// apart than the quiet period, it may be recorded once in each period.
async fn assert_recorded_once(etcd: &GuardedCluster, object: &str, line: &str, since: Instant) {
    let events = events(etcd, object).await;
    let max_count = 1 + since.elapsed().as_secs() / QUIET_PERIOD.as_secs();
    let times = events.get(line).copied().unwrap_or_default();
    assert!(
        (1..=max_count).contains(&times),
        "{object}: {line}: {times} times, at most {max_count}: {events:?}"
    );
}

/// Repeats a request until it is denied for this reason: on a busy machine a member may be late, with another reason.
async fn wait_for_denial(etcd: &GuardedCluster, kubectl: &[&str], reason: &str) {
    let code = format!(" denied the request: {reason}: ");
    wait_until(&format!("{kubectl:?} is denied for {reason}"), START_TIMEOUT, async || {
        let output = etcd.kubectl(kubectl).await;
        assert!(!output.success, "{output:?}");
        output.stderr.contains(&code)
    })
    .await;
}

#[tokio::test]
async fn records_denials_and_no_dry_runs() {
    let etcd = GuardedCluster::start().await;
    let leader = etcd.leader().await;
    let [follower, other] = etcd.followers().await;
    wait_for_denial(&etcd, &["delete", "pod", &leader, "--dry-run=server"], "LeaderProtected").await;
    etcd.apply(&follower, ProcessAction::Pause).await;
    let since = Instant::now();
    for _ in 0..2 {
        wait_for_denial(&etcd, &["delete", "pod", &other], "QuorumAtRisk").await;
    }
    // Events are recorded in order, so that the earlier ones precede this one.
    wait_until("an eviction is denied as well", START_TIMEOUT, async || {
        let denial = etcd.evict(&other, None).await.unwrap_err();
        denial.message.contains(" denied the request: QuorumAtRisk: ")
    })
    .await;
    wait_for_event(&etcd, "StatefulSet/etcd", "Warning QuorumAtRisk Evict").await;
    for object in [&format!("Pod/{other}"), "StatefulSet/etcd"] {
        assert_recorded_once(&etcd, object, "Warning QuorumAtRisk Delete", since).await;
    }
    assert_eq!(
        events(&etcd, &format!("Pod/{leader}")).await,
        EventCounts::new(),
        "a dry run leaves no trace"
    );
    etcd.apply(&follower, ProcessAction::Resume).await;
}

#[tokio::test]
async fn records_no_dry_runs_of_workload_operations() {
    let etcd = GuardedCluster::start().await;
    for object in ["statefulset/etcd", "pvc/data-etcd-0", "service/etcd"] {
        let output = etcd.kubectl(&["delete", object, "--dry-run=server"]).await;
        assert!(!output.success && output.stderr.contains("IntentProtected"), "{object}: {output:?}");
    }
    // Events are recorded in order, so that the earlier ones would precede this one.
    wait_for_denial(&etcd, &["scale", "statefulset/etcd", "--replicas=1"], "IntentProtected").await;
    wait_for_event(&etcd, "StatefulSet/etcd", "Warning IntentProtected Scale").await;
    let recorded = events(&etcd, "StatefulSet/etcd").await;
    assert_eq!(recorded.keys().collect::<Vec<_>>(), ["Warning IntentProtected Scale"]);
    for object in ["PersistentVolumeClaim/data-etcd-0", "Service/etcd"] {
        assert_eq!(events(&etcd, object).await, EventCounts::new(), "{object}");
    }
}

/// The review of an eviction contains only the name of the pod. `kubectl describe pod` does not show an event without a
/// uid. The StatefulSet is found without reading a pod.
#[tokio::test]
async fn records_timed_out_eviction_by_pod_name() {
    let control_plane = ControlPlane::shared();
    let files = tempfile::tempdir_in(&control_plane.dir).unwrap();
    let kubeconfig = files.path().join("proxy.kubeconfig");
    let proxy = ApiServerProxy::start(&control_plane.guard_kubeconfig(), kubeconfig.clone()).await;
    let etcd = GuardedCluster::start_as(Setup { kubeconfig: Some(kubeconfig), ..Setup::default() }).await;
    let [member, unrelated] =
        [etcd.pods.get("etcd-1").await.unwrap(), etcd.pods.get(UNRELATED_POD).await.unwrap()];

    let pod_reads = proxy.hold(|call| call.method == "GET" && call.path.contains("/pods"));
    let since = Instant::now();
    for pod in [&member, &member, &unrelated] {
        let mut connection = Connection::tls(etcd.guard.https(), &etcd.guard.ca_pem).await.unwrap();
        let answer = connection.post("/validate?timeout=2s", eviction_review(pod)).await.unwrap();
        let (allowed, message) = verdict(&answer.body);
        assert!(!allowed && message.starts_with("DeadlineExceeded: "), "{message}");
    }
    let line = "Warning DeadlineExceeded Evict";
    // Events are recorded in order.
    wait_for_event(&etcd, &format!("Pod/{UNRELATED_POD}"), line).await;
    for object in ["Pod/etcd-1", "StatefulSet/etcd"] {
        assert_recorded_once(&etcd, object, line, since).await;
    }
    pod_reads.release();
    let output = etcd.kubectl(&["events", "--for=pod/etcd-1"]).await;
    let end = format!("; see {}\n", Manual::default().reason(Reason::DeadlineExceeded));
    assert!(output.stdout.contains("could not evaluate pod etcd-1 within 1s"), "{output:?}");
    assert!(output.stdout.contains(&end), "{output:?}");
    let output = etcd.kubectl(&["describe", "statefulset/etcd"]).await;
    assert!(output.stdout.contains("could not evaluate pod etcd-1 within 1s"), "{output:?}");
    assert!(output.stdout.contains(&end), "{output:?}");
}

#[tokio::test]
async fn records_transfer_as_normal_event() {
    let etcd = GuardedCluster::start().await;
    let leader = etcd.leader().await;
    let output = etcd.kubectl(&["annotate", "statefulset/etcd", "etcd-guard.io/leader=transfer"]).await;
    assert!(output.success, "{output:?}");
    wait_until("the deletion of the leader is approved", START_TIMEOUT, async || {
        etcd.delete(&leader).await.is_ok()
    })
    .await;
    for object in [&format!("Pod/{leader}"), "StatefulSet/etcd"] {
        wait_for_event(&etcd, object, "Normal LeaderTransferred Delete").await;
    }
}

#[tokio::test]
async fn records_denied_operation_on_both_objects() {
    let mut etcd = GuardedCluster::start().await;
    let namespace = etcd.namespace.clone();
    let denial = ["DELETE denied IntentProtected"];

    // Dry runs record no events; otherwise they would precede the next event.
    for object in ["statefulset/etcd", "pvc/data-etcd-0", &format!("namespace/{namespace}")] {
        etcd.kubectl(&["delete", object, "--dry-run=server"]).await;
        assert_eq!(etcd.guard.new_verdicts().await, denial, "{object}");
    }
    etcd.kubectl(&["delete", "pvc", "data-etcd-1", "--wait=false"]).await;
    assert_eq!(etcd.guard.new_verdicts().await, denial);
    let line = "Warning IntentProtected Delete";
    wait_for_event(&etcd, "StatefulSet/etcd", line).await;
    for object in ["PersistentVolumeClaim/data-etcd-1", "StatefulSet/etcd"] {
        let events = events(&etcd, object).await;
        assert_eq!(events, EventCounts::from([(line.to_owned(), 1)]), "dry runs record no event: {object}");
    }
    let untouched = events(&etcd, "PersistentVolumeClaim/data-etcd-0").await;
    assert_eq!(untouched, EventCounts::new(), "a dry run leaves no trace");

    etcd.kubectl_everywhere().run(&["delete", "namespace", &namespace, "--wait=false"]).await;
    assert_eq!(etcd.guard.new_verdicts().await, denial);
    wait_until("the namespace has the event", START_TIMEOUT, async || {
        events_in(&etcd, "default", &format!("Namespace/{namespace}")).await
            == EventCounts::from([(line.to_owned(), 1)])
    })
    .await;
    let text = format!("namespace {namespace} contains an etcd cluster");
    // The command in docs/monitoring.md.
    let events = ["get", "events", "--field-selector", "reportingComponent=etcd-guard"];
    wait_until("the namespace shows the event", START_TIMEOUT, async || {
        etcd.kubectl(&events).await.stdout.contains(&text)
    })
    .await;
}

#[tokio::test]
async fn records_each_denied_operation_once() {
    let etcd = GuardedCluster::start().await;
    let since = Instant::now();
    for _ in 0..2 {
        wait_for_denial(&etcd, &["delete", "statefulset", "etcd", "--wait=false"], "IntentProtected").await;
    }
    wait_for_denial(&etcd, &["scale", "statefulset", "etcd", "--replicas=1"], "IntentProtected").await;
    // Events are recorded in order: the repeated request precedes the scale-down.
    wait_for_event(&etcd, "StatefulSet/etcd", "Warning IntentProtected Scale").await;
    for line in ["Warning IntentProtected Delete", "Warning IntentProtected Scale"] {
        assert_recorded_once(&etcd, "StatefulSet/etcd", line, since).await;
    }
    let described = etcd.kubectl(&["describe", "statefulset", "etcd"]).await;
    assert!(described.stdout.contains("StatefulSet etcd runs an etcd cluster"), "{described:?}");
}

#[tokio::test]
async fn records_every_use_of_break_glass() {
    let mut etcd = GuardedCluster::start().await;
    let leader = etcd.leader().await;
    etcd.break_glass("statefulset/etcd").await;
    wait_until("the deletion of the leader is approved", START_TIMEOUT, async || {
        etcd.delete(&leader).await.is_ok()
    })
    .await;
    assert!(etcd.guard.new_verdicts().await.contains(&String::from("DELETE allowed BreakGlass")));
    for object in [&format!("Pod/{leader}"), "StatefulSet/etcd"] {
        wait_for_event(&etcd, object, "Warning BreakGlass Delete").await;
    }
    etcd.wait_until_healthy().await;

    etcd.guard.new_verdicts().await;
    let output = etcd.kubectl(&["scale", "statefulset/etcd", "--replicas=1"]).await;
    assert!(output.success, "{output:?}");
    assert!(etcd.guard.new_verdicts().await.contains(&String::from("UPDATE allowed BreakGlass")));
    wait_for_event(&etcd, "StatefulSet/etcd", "Warning BreakGlass Scale").await;
}

#[tokio::test]
async fn event_outlives_deleted_namespace() {
    let etcd = GuardedCluster::start().await;
    let namespace = etcd.namespace.clone();
    etcd.break_glass(&format!("namespace/{namespace}")).await;
    let delete = ["delete", "namespace", &namespace, "--wait=false"];
    wait_until("the deletion of the namespace is approved", START_TIMEOUT, async || {
        etcd.kubectl_everywhere().run(&delete).await.success
    })
    .await;
    wait_until("the break-glass is recorded", START_TIMEOUT, async || {
        let events = events_in(&etcd, "default", &format!("Namespace/{namespace}")).await;
        events.contains_key("Warning BreakGlass Delete")
    })
    .await;
}
