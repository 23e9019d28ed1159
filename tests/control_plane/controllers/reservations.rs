//! Members that are deleted with their StatefulSet are reserved, so that no member of another StatefulSet of the cluster
//! is deleted at the same time.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use serde_json::json;
use tokio::time::sleep;

use test_support::{
    guard::review::{deletion_review, stateful_set_deletion_review},
    guarded_cluster::{GuardedCluster, START_TIMEOUT, Setup},
    layout::{Layout, Topology},
    process_node::ProcessAction,
    wait::wait_until,
};

use super::ownership::{COLLECTOR, leave_out_intent, wait_until_record_contains};
use crate::observability::cost::send_review;

/// Replaces the StatefulSet by one that owns only one of the followers, and returns this follower and the other one. No
/// controller manages the other pods.
async fn split_into_two_owners(etcd: &GuardedCluster) -> [String; 2] {
    let [moved, other] = etcd.followers().await;
    let (_, ordinal) = moved.rsplit_once('-').unwrap();
    let output = etcd.kubectl(&["delete", "statefulset", "etcd", "--cascade=orphan"]).await;
    assert!(output.success, "{output:?}");
    wait_until("the pods have no owner", START_TIMEOUT, async || {
        etcd.pods.get(&moved).await.unwrap().metadata.owner_references.is_none()
    })
    .await;
    let output = etcd.kubectl(&["label", "pod", &moved, "part=moved"]).await;
    assert!(output.success, "{output:?}");
    let set = json!({
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": "etcd"},
        "spec": {
            "replicas": 1,
            "ordinals": {"start": ordinal.parse::<u32>().unwrap()},
            // The pod of the earlier StatefulSet has another revision.
            "updateStrategy": {"type": "OnDelete"},
            "serviceName": "etcd",
            "selector": {"matchLabels": {"part": "moved"}},
            "template": {
                "metadata": {"labels": {"part": "moved"}},
                "spec": {"containers": [{"name": "app", "image": "app"}]},
            },
        },
    });
    let files = tempfile::tempdir_in(&etcd.control_plane.dir).unwrap();
    let file = files.path().join("set.json");
    std::fs::write(&file, set.to_string()).unwrap();
    let output = etcd.kubectl(&["apply", "-f", &file.to_string_lossy()]).await;
    assert!(output.success, "{output:?}");
    wait_until("the StatefulSet adopts the pod", START_TIMEOUT, async || {
        etcd.pods.get(&moved).await.unwrap().metadata.owner_references.is_some()
    })
    .await;
    [moved, other]
}

async fn pod(etcd: &GuardedCluster, name: &str) -> Pod {
    etcd.pods.get(name).await.unwrap()
}

/// The StatefulSet is not deleted here: the time between approval and deletion does not end.
#[tokio::test]
async fn accepted_deletion_reserves_members_of_the_set() {
    let etcd = GuardedCluster::start().await;
    let [_, other] = split_into_two_owners(&etcd).await;
    etcd.break_glass("statefulset/etcd").await;
    wait_until("the break-glass applies", START_TIMEOUT, async || {
        send_review(&etcd.guard, stateful_set_deletion_review(&etcd.namespace, "etcd")).await.0
    })
    .await;
    let (allowed, message) = send_review(&etcd.guard, deletion_review(&pod(&etcd, &other).await)).await;
    assert!(!allowed && message.contains("DisruptionInProgress: "), "{message}");
}

/// The deletion of the StatefulSet is approved because its member does not run. The member runs again before the
/// API server executes the deletion.
#[tokio::test]
async fn harmless_deletion_reserves_stopped_members() {
    let layout = Layout::new(Topology::SetPerMember);
    let etcd = GuardedCluster::start_as(Setup { layout, ..Setup::default() }).await;
    let [deleted, other] = etcd.followers().await;
    etcd.apply(&deleted, ProcessAction::CrashLoop).await;
    let set = deleted.trim_end_matches("-0");
    wait_until("the deletion of the StatefulSet is harmless", START_TIMEOUT, async || {
        let review = stateful_set_deletion_review(&etcd.namespace, set);
        let (allowed, message) = send_review(&etcd.guard, review).await;
        assert!(allowed || message.contains("IntentProtected: "), "{message}");
        allowed
    })
    .await;
    etcd.apply(&deleted, ProcessAction::Resume).await;
    etcd.wait_until_healthy().await;
    assert_leaving(&etcd, &other).await;
}

/// The guard evaluates no deletion of the StatefulSet, and another webhook prevents the deletion of the
/// pod after the guard has approved it.
#[tokio::test]
async fn collected_pod_is_reserved_until_it_terminates() {
    let mut etcd = GuardedCluster::start().await;
    etcd.register_webhook(leave_out_intent).await;
    let [moved, other] = split_into_two_owners(&etcd).await;
    let set = ["get", "statefulset", "etcd", "-o", "jsonpath={.metadata.uid}"];
    let uids = [etcd.kubectl(&set).await.stdout, etcd.uid(&moved).await];
    wait_until_record_contains(&etcd, &uids).await;
    etcd.reject_deletions().await;
    let output = etcd.kubectl(&["delete", "statefulset", "etcd", "--wait=false"]).await;
    assert!(output.success, "{output:?}");
    etcd.guard.wait_for_verdict(COLLECTOR, "allowed", "OwnerDeleted").await;
    assert_leaving(&etcd, &other).await;
    etcd.expire_reservations().await;
    assert_leaving(&etcd, &other).await;
}

/// Reviews the deletion of this pod for longer than a snapshot may be reused, and asserts that another voter of its
/// cluster counts as leaving.
async fn assert_leaving(etcd: &GuardedCluster, other: &str) {
    for _ in 0..4 {
        let (allowed, message) = send_review(&etcd.guard, deletion_review(&pod(etcd, other).await)).await;
        assert!(!allowed && message.contains("DisruptionInProgress: "), "{message}");
        sleep(Duration::from_millis(700)).await;
    }
}

/// Deletes the owner of a member, whose pod the collector cannot delete yet.
async fn delete_owner(etcd: &GuardedCluster, kind: &str, name: &str, with_intent: bool) {
    let object = format!("{kind}/{name}");
    if with_intent {
        etcd.break_glass(&object).await;
    }
    let delete = ["delete", &object, "--wait=false"];
    wait_until("the deletion is accepted", START_TIMEOUT, async || etcd.kubectl(&delete).await.success).await;
    wait_until("the owner is gone", START_TIMEOUT, async || {
        let output = etcd.kubectl(&["get", &object]).await;
        !output.success && output.stderr.contains("NotFound")
    })
    .await;
}

/// The collector deletes the pod later than a reservation expires.
async fn check_member_of_deleted_set_leaves_until_collected(with_intent: bool) {
    let layout = Layout::new(Topology::SetPerMember);
    let mut etcd = GuardedCluster::start_as(Setup { layout, ..Setup::default() }).await;
    if !with_intent {
        etcd.register_webhook(leave_out_intent).await;
    }
    let [deleted, other] = etcd.followers().await;
    let set = deleted.trim_end_matches("-0");
    let uid = ["get", "statefulset", set, "-o", "jsonpath={.metadata.uid}"];
    let uids = [etcd.kubectl(&uid).await.stdout, etcd.uid(&deleted).await];
    wait_until_record_contains(&etcd, &uids).await;
    etcd.hold_collector().await;
    delete_owner(&etcd, "statefulset", set, with_intent).await;
    if with_intent {
        etcd.expire_reservations().await;
    }
    assert_leaving(&etcd, &other).await;
    etcd.guard.kill();
    etcd.guard.restart().await;
    assert_leaving(&etcd, &other).await;
    assert!(etcd.member(&deleted).serves().await, "the collector was held back");
}

#[tokio::test]
async fn member_of_deleted_set_leaves_until_collected() {
    check_member_of_deleted_set_leaves_until_collected(true).await;
}

#[tokio::test]
#[ignore = "without the webhook for owners; scripts/prove tests runs it"]
async fn member_of_deleted_set_leaves_until_collected_without_intent() {
    check_member_of_deleted_set_leaves_until_collected(false).await;
}

/// No watch shows the deletion of a Deployment.
#[tokio::test]
#[ignore = "waits for 40 s; scripts/prove tests runs it"]
async fn member_of_deleted_deployment_leaves_until_collected() {
    let layout = Layout::new(Topology::DeploymentPerMember);
    let mut etcd = GuardedCluster::start_as(Setup { layout, ..Setup::default() }).await;
    let [deleted, other] = etcd.followers().await;
    let name = pod(&etcd, &deleted).await.metadata.labels.unwrap()["member"].clone();
    let uid = ["get", "deployment", &name, "-o", "jsonpath={.metadata.uid}"];
    let uids = [etcd.kubectl(&uid).await.stdout, etcd.uid(&deleted).await];
    wait_until_record_contains(&etcd, &uids).await;
    etcd.hold_collector().await;
    delete_owner(&etcd, "deployment", &name, true).await;
    // The guard reads the owners every 15 s, and the reservation lasts for 60 s.
    sleep(Duration::from_secs(40)).await;
    etcd.expire_reservations().await;
    assert_leaving(&etcd, &other).await;
    etcd.guard.kill();
    etcd.guard.restart().await;
    assert_leaving(&etcd, &other).await;
    assert!(etcd.member(&deleted).serves().await, "the collector was held back");
}
