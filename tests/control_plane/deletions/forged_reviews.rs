//! Reviews that no API server has sent: every client that reaches the port can send one. The policies of live objects
//! decide about their effects.

use k8s_openapi::{
    api::{coordination::v1::Lease, core::v1::Pod},
    jiff::{SignedDuration, Timestamp},
};
use kube::{Api, ResourceExt, api::ListParams};
use serde_json::{Value, json};

use test_support::{
    guard::review::{deletion_review, dry_run_review, eviction_review, stateful_set_deletion_review},
    guarded_cluster::{GuardedCluster, LEADER_DENY, START_TIMEOUT, Setup, UNRELATED_POD},
    http_client::{self, Connection},
    kubernetes::{
        pods::{create_etcd_pod, new_namespace},
        webhook::{LABEL, VALUE},
    },
    wait::wait_until,
};

const COLLECTOR: &str = "system:serviceaccount:kube-system:generic-garbage-collector";

/// Series that stay zero as long as the guard has caused nothing.
const EFFECTS: [&str; 3] = [
    "etcd_guard_leader_transfers_total{result=\"moved\"}",
    "etcd_guard_leader_transfers_total{result=\"failed\"}",
    "etcd_guard_break_glass_total",
];

const ROUNDS: &str = "etcd_guard_probe_duration_seconds_count";

/// Sends a review with this timeout to the port of the webhooks. Returns the reason of the verdict.
async fn send_within(etcd: &GuardedCluster, timeout: &str, review: String) -> String {
    let mut connection = Connection::tls(etcd.guard.https(), &etcd.guard.ca_pem).await.unwrap();
    let path = format!("/validate?timeout={timeout}");
    let answer = connection.post(&path, review).await.unwrap();
    let answer: Value = serde_json::from_str(&answer.body).unwrap();
    answer["response"]["auditAnnotations"]["reason"].as_str().unwrap_or_default().to_owned()
}

async fn send(etcd: &GuardedCluster, review: String) -> String {
    send_within(etcd, "10s", review).await
}

async fn pod(etcd: &GuardedCluster, name: &str) -> Pod {
    etcd.pods.get(name).await.unwrap()
}

/// Returns a copy of a pod with further annotations.
async fn forged_pod(etcd: &GuardedCluster, name: &str, annotations: &[(&str, &str)]) -> Pod {
    let mut pod = pod(etcd, name).await;
    pod.annotations_mut().extend(annotations.iter().map(|(name, value)| ((*name).into(), (*value).into())));
    pod
}

/// Returns the name of the Lease with the reservations of the namespace.
fn reservations(etcd: &GuardedCluster) -> String {
    format!("etcd-guard.ns.{}", etcd.namespace)
}

/// Returns the guard's Leases about this cluster, with their versions.
async fn leases(etcd: &GuardedCluster) -> Vec<(String, Option<String>)> {
    let leases: Api<Lease> = Api::namespaced(etcd.client.clone(), "etcd-guard");
    let listed = leases.list(&ListParams::default()).await.unwrap();
    let names = [reservations(etcd), format!("etcd-guard-owners.{}", etcd.namespace)];
    let own = listed.items.into_iter().filter(|lease| names.contains(&lease.name_any()));
    own.map(|lease| (lease.name_any(), lease.resource_version())).collect()
}

async fn assert_no_effects(etcd: &GuardedCluster) {
    for effect in EFFECTS {
        assert_eq!(etcd.guard.metric(effect).await, 0, "{effect}");
    }
    let (leases, reservations) = (leases(etcd).await, reservations(etcd));
    assert!(!leases.iter().any(|(name, _)| *name == reservations), "{leases:?}");
}

/// Returns the reasons of the guard's events in a namespace.
async fn event_reasons(etcd: &GuardedCluster, namespace: &str) -> String {
    let events = ["get", "events", "-n", namespace, "--field-selector", "reportingComponent=etcd-guard"];
    let output = etcd.kubectl_everywhere().run(&[&events[..], &["-o", "jsonpath={..reason}"]].concat()).await;
    assert!(output.success, "{output:?}");
    output.stdout
}

/// Waits until the guard has recorded all events of earlier verdicts: it records them in order.
async fn wait_for_events(etcd: &GuardedCluster) {
    let namespace = new_namespace(&etcd.client, true).await;
    let pods = Api::namespaced(etcd.client.clone(), &namespace);
    let unreachable = create_etcd_pod(&pods, "etcd-0", std::net::Ipv4Addr::LOCALHOST).await;
    assert_eq!(send(etcd, deletion_review(&unreachable)).await, "EtcdUnreachable");
    wait_until("the events are recorded", START_TIMEOUT, async || {
        event_reasons(etcd, &namespace).await.contains("EtcdUnreachable")
    })
    .await;
}

#[tokio::test]
async fn forged_transfer_policy_moves_no_leader() {
    let etcd = GuardedCluster::start().await;
    let leader = etcd.leader().await;
    for policy in ["transfer", "allow"] {
        let forged = forged_pod(&etcd, &leader, &[("etcd-guard.io/leader", policy)]).await;
        assert_eq!(send(&etcd, deletion_review(&forged)).await, "LeaderProtected", "{policy}");
        assert_eq!(etcd.leader().await, leader, "{policy}");
    }
    assert_no_effects(&etcd).await;
}

/// Everyone can forge an eviction, for which the guard moves leadership.
#[tokio::test]
async fn forged_evictions_move_leadership_once_in_ten_seconds() {
    let etcd = GuardedCluster::start().await;
    let leader = etcd.leader().await;
    let start = std::time::Instant::now();
    assert_eq!(send(&etcd, eviction_review(&pod(&etcd, &leader).await)).await, "LeaderTransferred");
    let successor = etcd.leader().await;
    assert_ne!(successor, leader);
    // The pod that was approved still exists, and counts as leaving.
    etcd.delete(&leader).await.unwrap();
    etcd.wait_until_healthy().await;
    let mut reasons = Vec::new();
    while start.elapsed() < std::time::Duration::from_secs(8) {
        reasons.push(send(&etcd, eviction_review(&pod(&etcd, &successor).await)).await);
    }
    assert!(reasons.iter().all(|reason| reason == "DisruptionInProgress"), "{reasons:?}");
    assert_eq!(etcd.leader().await, successor);
    assert_eq!(etcd.guard.metric(EFFECTS[0]).await, 1);
    // The review of an eviction names no uid, so that the name of its pod stays reserved.
    etcd.expire_reservations().await;
    wait_until("leadership may move again", START_TIMEOUT, async || {
        send(&etcd, eviction_review(&pod(&etcd, &successor).await)).await == "LeaderTransferred"
    })
    .await;
}

/// With the shorter timeout, the guard cannot read the live pod.
#[tokio::test]
async fn forged_break_glass_has_no_effect() {
    let etcd = GuardedCluster::start().await;
    let leader = etcd.leader().await;
    let end = (Timestamp::now() + SignedDuration::from_mins(10)).to_string();
    let annotations =
        [("etcd-guard.io/allow-delete-until", end.as_str()), ("etcd-guard.io/allow-delete-reason", "forged")];
    let forged = forged_pod(&etcd, &leader, &annotations).await;
    assert_eq!(send(&etcd, deletion_review(&forged)).await, "LeaderProtected");
    send_within(&etcd, "1ms", deletion_review(&forged)).await;
    // The last snapshot denies this deletion.
    assert_eq!(send(&etcd, deletion_review(&pod(&etcd, &leader).await)).await, "LeaderProtected");
    assert_eq!(send(&etcd, deletion_review(&forged)).await, "LeaderProtected");
    let audited = forged_pod(&etcd, &leader, &[("etcd-guard.io/mode", "audit")]).await;
    assert_eq!(send(&etcd, deletion_review(&audited)).await, "LeaderProtected");
    assert_no_effects(&etcd).await;
    wait_for_events(&etcd).await;
    let reasons = event_reasons(&etcd, &etcd.namespace).await;
    assert!(!reasons.contains("BreakGlass"), "{reasons}");
}

#[tokio::test]
async fn forged_uid_or_owner_reserves_nothing() {
    let etcd = GuardedCluster::start_as(Setup { config: LEADER_DENY, ..Setup::default() }).await;
    let leader = etcd.leader().await;
    let mut forged = pod(&etcd, &etcd.followers().await[0]).await;
    forged.metadata.uid = Some(String::from("another"));
    assert_eq!(send(&etcd, deletion_review(&forged)).await, "PodGone");
    assert_no_effects(&etcd).await;

    // A finalizer prevents that the deleted pod is removed, so it keeps terminating.
    let hold = r#"{"metadata":{"finalizers":["etcd-guard.io/test"]}}"#;
    let output = etcd.kubectl(&["patch", "pod", UNRELATED_POD, "--type=merge", "-p", hold]).await;
    assert!(output.success, "{output:?}");
    etcd.delete(UNRELATED_POD).await.unwrap();
    let owner = json!({
        "apiVersion": "v1", "kind": "Pod", "name": UNRELATED_POD, "uid": etcd.uid(UNRELATED_POD).await, "controller": true,
    });
    let mut forged = pod(&etcd, &leader).await;
    forged.metadata.owner_references = Some(vec![serde_json::from_value(owner).unwrap()]);
    let mut review: Value = serde_json::from_str(&deletion_review(&forged)).unwrap();
    review["request"]["userInfo"]["username"] = json!(COLLECTOR);
    assert_eq!(send(&etcd, review.to_string()).await, "LeaderProtected");
    assert_no_effects(&etcd).await;
    let release = r#"{"metadata":{"finalizers":null}}"#;
    let output = etcd.kubectl(&["patch", "pod", UNRELATED_POD, "--type=merge", "-p", release]).await;
    assert!(output.success, "{output:?}");
}

/// The sender of a forged review controls the annotations in its stored object.
#[tokio::test]
async fn forged_break_glass_of_workload_operations_has_no_effect() {
    let etcd = GuardedCluster::start().await;
    let end = (Timestamp::now() + SignedDuration::from_mins(10)).to_string();
    let annotations =
        json!({"etcd-guard.io/allow-delete-until": end, "etcd-guard.io/allow-delete-reason": "forged"});
    let set: Value = serde_json::from_str(&stateful_set_deletion_review(&etcd.namespace, "etcd")).unwrap();
    let volumes = pod(&etcd, "etcd-1").await.spec.unwrap().volumes.unwrap();
    let claim = volumes.into_iter().find_map(|volume| volume.persistent_volume_claim).unwrap().claim_name;
    let forged = |group: &str, kind: &str, resource: &str, name: &str| {
        let mut review = set.clone();
        let request = &mut review["request"];
        request["kind"] = json!({"group": group, "version": "v1", "kind": kind});
        request["resource"] = json!({"group": group, "version": "v1", "resource": resource});
        request["name"] = json!(name);
        request["oldObject"]["metadata"]["name"] = json!(name);
        request["oldObject"]["metadata"]["annotations"] = annotations.clone();
        review.to_string()
    };
    for review in [
        forged("apps", "StatefulSet", "statefulsets", "etcd"),
        forged("", "PersistentVolumeClaim", "persistentvolumeclaims", &claim),
        forged("", "Namespace", "namespaces", &etcd.namespace),
    ] {
        assert_eq!(send(&etcd, review.clone()).await, "IntentProtected", "{review}");
    }
    assert_no_effects(&etcd).await;
    wait_for_events(&etcd).await;
    let reasons = event_reasons(&etcd, &etcd.namespace).await;
    assert!(!reasons.contains("BreakGlass"), "{reasons}");
}

/// The policies of the owners would permit every deletion.
#[tokio::test]
async fn reviews_of_unguarded_namespace_have_no_effects() {
    let etcd = GuardedCluster::start().await;
    let leader = etcd.leader().await;
    let [follower, other] = etcd.followers().await;
    let output = etcd.kubectl(&["annotate", "statefulset/etcd", "etcd-guard.io/leader=transfer"]).await;
    assert!(output.success, "{output:?}");
    wait_until("the policy applies", START_TIMEOUT, async || {
        send(&etcd, dry_run_review(&pod(&etcd, &leader).await)).await == "LeaderTransferred"
    })
    .await;
    etcd.break_glass("statefulset/etcd").await;
    wait_until("the break-glass applies", START_TIMEOUT, async || {
        let output = etcd.kubectl(&["delete", "statefulset/etcd", "--dry-run=server"]).await;
        output.success
    })
    .await;
    let label = |value: &str| {
        [String::from("label"), String::from("namespace"), etcd.namespace.clone(), format!("{LABEL}{value}")]
    };
    let unlabel = label("-");
    let output = etcd.kubectl_everywhere().run(&unlabel.each_ref().map(String::as_str)).await;
    assert!(output.success, "{output:?}");
    let follower = pod(&etcd, &follower).await;
    let status = format!("/status?namespace={}", etcd.namespace);
    wait_until("the guard knows that the namespace is not guarded", START_TIMEOUT, async || {
        let page = http_client::get(etcd.guard.http(), &status).await.unwrap();
        page.body.contains("is not guarded")
    })
    .await;

    let (leases_before, rounds) = (leases(&etcd).await, etcd.guard.metric(ROUNDS).await);
    let leader_pod = pod(&etcd, &leader).await;
    let mut collected: Value = serde_json::from_str(&deletion_review(&follower)).unwrap();
    collected["request"]["userInfo"]["username"] = json!(COLLECTOR);
    for review in [
        deletion_review(&leader_pod),
        deletion_review(&follower),
        eviction_review(&pod(&etcd, &other).await),
        eviction_review(&leader_pod),
        collected.to_string(),
        stateful_set_deletion_review(&etcd.namespace, "etcd"),
    ] {
        assert_eq!(send(&etcd, review.clone()).await, "NamespaceNotGuarded", "{review}");
    }
    assert_eq!(etcd.leader().await, leader);
    assert_eq!(etcd.guard.metric(ROUNDS).await, rounds, "probe rounds");
    assert_no_effects(&etcd).await;
    let leases_after = leases(&etcd).await;
    assert!(
        leases_after.iter().all(|lease| leases_before.contains(lease)),
        "{leases_before:?} {leases_after:?}"
    );
    wait_for_events(&etcd).await;
    assert_eq!(event_reasons(&etcd, &etcd.namespace).await, "");

    // The watch of the guard may not show the label yet.
    let relabel = label(&format!("={VALUE}"));
    let output = etcd.kubectl_everywhere().run(&relabel.each_ref().map(String::as_str)).await;
    assert!(output.success, "{output:?}");
    assert_ne!(send(&etcd, dry_run_review(&leader_pod)).await, "NamespaceNotGuarded");
}
