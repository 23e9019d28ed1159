//! Clusters whose members have separate owners: a StatefulSet or Deployment per member, two StatefulSets, pods without
//! an owner, and pods that their StatefulSet has released. The peer URLs name Services or hostnames instead of pods.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, api::ListParams};

use super::replicas::send_review;
use test_support::{
    guard::review::{node_deletion_review, stateful_set_deletion_review, verdict},
    guarded_cluster::{GuardedCluster, START_TIMEOUT, Setup},
    http_client::Connection,
    kubernetes::control_plane::{SHARED_NODE, SILENT_NODE},
    layout::{Layout, Topology},
    process_node::ProcessAction,
    wait::wait_until,
};

/// A terminating member serves longer than the test runs.
const SLOW: Duration = Duration::from_secs(600);

async fn start(topology: Topology, pre_stop: Duration) -> GuardedCluster {
    let layout = Layout { pre_stop, ..Layout::new(topology) };
    GuardedCluster::start_as(Setup { layout, ..Setup::default() }).await
}

/// The terminating member still serves, and its reservation has expired.
async fn denies_second_deletion(etcd: &mut GuardedCluster) {
    let [first, second] = etcd.followers().await;
    let first_address = etcd.member(&first);
    etcd.guard.new_verdicts().await;
    etcd.delete(&first).await.unwrap();
    etcd.expire_reservations().await;
    assert!(first_address.serves().await);

    let denial = etcd.delete(&second).await.unwrap_err();
    assert!(denial.contains("1 of 3 voters healthy, quorum 2"), "{denial}");
    assert!(denial.contains(&format!("{first} is being deleted")), "{denial}");
    assert_eq!(
        etcd.guard.new_verdicts().await,
        ["DELETE allowed SafeToDelete", "DELETE denied DisruptionInProgress"]
    );
    assert!(first_address.serves().await);
}

#[tokio::test]
async fn counts_terminating_pod_of_another_set() {
    denies_second_deletion(&mut start(Topology::SetPerMember, SLOW).await).await;
}

/// The successor of the terminating pod exists, and waits for the data.
#[tokio::test]
#[ignore = "another kind of owner; scripts/prove tests runs it"]
async fn counts_terminating_pod_of_another_deployment() {
    denies_second_deletion(&mut start(Topology::DeploymentPerMember, SLOW).await).await;
}

#[tokio::test]
async fn counts_terminating_pod_without_owner() {
    denies_second_deletion(&mut start(Topology::BarePods, SLOW).await).await;
}

#[tokio::test]
#[ignore = "another kind of owner; scripts/prove tests runs it"]
async fn counts_terminating_pod_of_second_set() {
    denies_second_deletion(&mut start(Topology::TwoSets, SLOW).await).await;
}

#[tokio::test]
async fn counts_terminating_pod_that_was_released() {
    let mut etcd = start(Topology::OneSet, SLOW).await;
    for name in etcd.followers().await {
        etcd.layout.release(&etcd.pods, &name).await;
    }
    denies_second_deletion(&mut etcd).await;
}

async fn check_approves_frozen_member_with_own_owner(topology: Topology) {
    let mut etcd = start(topology, Duration::ZERO).await;
    let [frozen, healthy] = etcd.followers().await;
    etcd.apply(&frozen, ProcessAction::Pause).await;
    let denial = etcd.delete(&healthy).await.unwrap_err();
    assert!(denial.contains(&format!("QuorumAtRisk: {frozen} (")), "{topology:?}: {denial}");
    etcd.delete(&frozen).await.unwrap();
    let verdicts = etcd.guard.new_verdicts().await;
    assert_eq!(verdicts, ["DELETE allowed SafeToDelete", "DELETE denied QuorumAtRisk"], "{topology:?}");
}

#[tokio::test]
async fn approves_frozen_member_with_own_owner() {
    check_approves_frozen_member_with_own_owner(Topology::SetPerMember).await;
}

#[tokio::test]
#[ignore = "other kinds of owners; scripts/prove tests runs it"]
async fn approves_frozen_member_with_own_owner_of_other_kinds() {
    for topology in [Topology::DeploymentPerMember, Topology::BarePods] {
        check_approves_frozen_member_with_own_owner(topology).await;
    }
}

/// Deletions pass one after the other, and each one waits until the member of the previous one serves again.
async fn check_replaces_members_with_own_owners_one_by_one(topology: Topology) {
    let etcd = start(topology, Duration::ZERO).await;
    for name in etcd.followers().await {
        wait_until(&format!("the deletion of {name} passes"), START_TIMEOUT, async || {
            etcd.delete(&name).await.is_ok()
        })
        .await;
        wait_until(&format!("{name} is gone"), START_TIMEOUT, async || {
            etcd.pods
                .get_opt(&name)
                .await
                .is_ok_and(|pod| pod.is_none_or(|pod| pod.metadata.deletion_timestamp.is_none()))
        })
        .await;
        if topology == Topology::BarePods {
            etcd.recreate_pods();
        }
    }
    etcd.wait_until_healthy().await;
}

#[tokio::test]
async fn replaces_members_with_own_owners_one_by_one() {
    check_replaces_members_with_own_owners_one_by_one(Topology::SetPerMember).await;
}

#[tokio::test]
#[ignore = "other kinds of owners; scripts/prove tests runs it"]
async fn replaces_members_with_own_owners_one_by_one_of_other_kinds() {
    for topology in [Topology::DeploymentPerMember, Topology::BarePods] {
        check_replaces_members_with_own_owners_one_by_one(topology).await;
    }
}

/// The replica has never read the cluster id, and the Lease was written by an approval for another owner.
async fn check_reserves_crashed_member_while_no_member_answers(topology: Topology) {
    let mut etcd = start(topology, Duration::ZERO).await;
    let [crashed, other] = etcd.followers().await;
    assert_eq!(send_review(&etcd.guard, &etcd, &other).await, (true, String::new()), "{topology:?}");
    for name in [etcd.leader().await, other] {
        etcd.apply(&name, ProcessAction::Pause).await;
    }
    etcd.apply(&crashed, ProcessAction::CrashLoop).await;
    etcd.guard.kill();
    etcd.guard.restart().await;
    wait_until("the deletion of the crashed member is approved", START_TIMEOUT, async || {
        send_review(&etcd.guard, &etcd, &crashed).await.0
    })
    .await;
    assert!(is_reserved(&etcd, &crashed).await, "{topology:?}");
}

#[tokio::test]
async fn reserves_crashed_member_while_no_member_answers() {
    check_reserves_crashed_member_while_no_member_answers(Topology::SetPerMember).await;
}

#[tokio::test]
#[ignore = "other kinds of owners; scripts/prove tests runs it"]
async fn reserves_crashed_member_while_no_member_answers_of_other_kinds() {
    check_reserves_crashed_member_while_no_member_answers(Topology::BarePods).await;
}

/// Whether a Lease contains a reservation of this pod.
async fn is_reserved(etcd: &GuardedCluster, pod: &str) -> bool {
    let uid = etcd.uid(pod).await;
    let leases: Api<Lease> = Api::namespaced(etcd.client.clone(), "etcd-guard");
    let leases = leases.list(&ListParams::default()).await.unwrap();
    leases.iter().any(|lease| {
        let annotations = lease.metadata.annotations.as_ref();
        let reservations = annotations.and_then(|item| item.get("etcd-guard.io/reservations"));
        reservations.is_some_and(|text| text.contains(&uid))
    })
}

/// The members do not answer this replica, which has never read the cluster id. They can serve at other replicas.
#[tokio::test]
async fn reserves_silent_members_that_are_deleted_with_their_node_or_owner() {
    let layout = Layout::new(Topology::SetPerMember);
    let nodes = &[SILENT_NODE, SHARED_NODE, SHARED_NODE];
    let mut etcd = GuardedCluster::start_as(Setup { layout, nodes, ..Setup::default() }).await;
    etcd.break_glass("statefulset/eb").await;
    for name in ["ea-0", "eb-0", "ec-0"] {
        etcd.apply(name, ProcessAction::Pause).await;
    }
    etcd.guard.kill();
    etcd.guard.restart().await;
    let send = async |review: String| {
        let mut connection = Connection::tls(etcd.guard.https(), &etcd.guard.ca_pem).await.unwrap();
        verdict(&connection.post("/validate?timeout=10s", review).await.unwrap().body)
    };
    for (pod, review) in [
        ("ea-0", node_deletion_review(SILENT_NODE)),
        ("eb-0", stateful_set_deletion_review(&etcd.namespace, "eb")),
    ] {
        wait_until(&format!("the deletion is approved, and {pod} is reserved"), START_TIMEOUT, async || {
            let (allowed, message) = send(review.clone()).await;
            println!("{pod}: {allowed} {message}");
            allowed && is_reserved(&etcd, pod).await
        })
        .await;
    }
}

/// The API server has not executed the approved deletion yet.
async fn check_scale_down_counts_reserved_member(topology: Topology, kind: &str) {
    let etcd = start(topology, Duration::ZERO).await;
    let [reserved, scaled] = etcd.followers().await;
    let owner = etcd.pods.get(&scaled).await.unwrap().metadata.labels.unwrap()["member"].clone();
    assert_eq!(send_review(&etcd.guard, &etcd, &reserved).await, (true, String::new()), "{topology:?}");
    let output = etcd.kubectl(&["scale", kind, &owner, "--replicas=0"]).await;
    assert!(!output.success && output.stderr.contains("denied the request"), "{topology:?}: {output:?}");
    assert!(etcd.member(&scaled).serves().await);
    etcd.expire_reservations().await;
    wait_until("the scale-down is approved", START_TIMEOUT, async || {
        etcd.kubectl(&["scale", kind, &owner, "--replicas=0"]).await.success
    })
    .await;
}

#[tokio::test]
async fn scale_down_counts_reserved_member_of_another_set() {
    check_scale_down_counts_reserved_member(Topology::SetPerMember, "statefulset").await;
}

#[tokio::test]
#[ignore = "another kind of owner; scripts/prove tests runs it"]
async fn scale_down_counts_reserved_member_of_another_deployment() {
    check_scale_down_counts_reserved_member(Topology::DeploymentPerMember, "deployment").await;
}
