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

/// Starts a cluster whose members have an owner each, and returns the names of two followers.
async fn start_with_owners(topology: Topology) -> (GuardedCluster, [String; 2]) {
    let etcd = GuardedCluster::start_as(Setup { layout: Layout::new(topology), ..Setup::default() }).await;
    let followers = etcd.followers().await;
    (etcd, followers)
}

/// Waits until the record contains this pod and its owner.
async fn wait_until_recorded(etcd: &GuardedCluster, owner: &str, pod: &str) {
    let uid = ["get", owner, "-o", "jsonpath={.metadata.uid}"];
    wait_until_record_contains(etcd, &[etcd.kubectl(&uid).await.stdout, etcd.uid(pod).await]).await;
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
    let (etcd, [deleted, other]) = start_with_owners(Topology::SetPerMember).await;
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
    wait_until_recorded(&etcd, "statefulset/etcd", &moved).await;
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
async fn delete_owner(etcd: &GuardedCluster, owner: &str) {
    let delete = ["delete", owner, "--wait=false"];
    wait_until("the deletion is accepted", START_TIMEOUT, async || etcd.kubectl(&delete).await.success).await;
    wait_until("the owner is gone", START_TIMEOUT, async || {
        let output = etcd.kubectl(&["get", owner]).await;
        !output.success && output.stderr.contains("NotFound")
    })
    .await;
}

/// Asserts that a member leaves while the collector is held back, also after a restart of the guard.
async fn assert_leaving_until_collected(etcd: &mut GuardedCluster, deleted: &str, other: &str) {
    assert_leaving(etcd, other).await;
    etcd.guard.kill();
    etcd.guard.restart().await;
    assert_leaving(etcd, other).await;
    assert!(etcd.member(deleted).serves().await, "the collector was held back");
}

/// The collector deletes the pod later than a reservation expires.
#[tokio::test]
async fn member_of_deleted_set_leaves_until_collected() {
    let (mut etcd, [deleted, other]) = start_with_owners(Topology::SetPerMember).await;
    let set = format!("statefulset/{}", deleted.trim_end_matches("-0"));
    wait_until_recorded(&etcd, &set, &deleted).await;
    etcd.hold_collector().await;
    etcd.break_glass(&set).await;
    delete_owner(&etcd, &set).await;
    etcd.expire_reservations().await;
    assert_leaving_until_collected(&mut etcd, &deleted, &other).await;
}

#[tokio::test]
#[ignore = "without the webhook for owners; scripts/prove tests runs it"]
async fn member_of_deleted_set_leaves_until_collected_without_intent() {
    let (mut etcd, [deleted, other]) = start_with_owners(Topology::SetPerMember).await;
    etcd.register_webhook(leave_out_intent).await;
    let set = format!("statefulset/{}", deleted.trim_end_matches("-0"));
    wait_until_recorded(&etcd, &set, &deleted).await;
    etcd.hold_collector().await;
    delete_owner(&etcd, &set).await;
    assert_leaving_until_collected(&mut etcd, &deleted, &other).await;
}

/// No watch shows the deletion of a Deployment.
#[tokio::test]
#[ignore = "waits for 40 s; scripts/prove tests runs it"]
async fn member_of_deleted_deployment_leaves_until_collected() {
    let (mut etcd, [deleted, other]) = start_with_owners(Topology::DeploymentPerMember).await;
    let deployment = format!("deployment/{}", pod(&etcd, &deleted).await.metadata.labels.unwrap()["member"]);
    wait_until_recorded(&etcd, &deployment, &deleted).await;
    etcd.hold_collector().await;
    etcd.break_glass(&deployment).await;
    delete_owner(&etcd, &deployment).await;
    // The guard reads the owners every 15 s, and the reservation lasts for 60 s.
    sleep(Duration::from_secs(40)).await;
    etcd.expire_reservations().await;
    assert_leaving_until_collected(&mut etcd, &deleted, &other).await;
}
