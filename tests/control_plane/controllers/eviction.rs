//! Evictions: reviews without the pod, and status 429 where a retry helps.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{DeleteOptions, Preconditions};

use test_support::{
    guarded_cluster::{GuardedCluster, LEADER_DENY, START_TIMEOUT, Setup, UNRELATED_POD},
    process_node::ProcessAction,
    wait::wait_until,
};

#[tokio::test]
async fn denies_eviction_of_leader_with_429() {
    let mut etcd = GuardedCluster::start_as(Setup { config: LEADER_DENY, ..Setup::default() }).await;
    let leader = etcd.leader().await;

    let denial = etcd.evict(&leader, None).await.unwrap_err();
    assert_eq!((denial.code, denial.reason.as_str()), (429, "TooManyRequests"));
    let beginning = format!(
        "admission webhook \"eviction.guard.etcd-guard.io\" denied the request: LeaderProtected: {leader} leads \
         {}/etcd (member ",
        etcd.namespace
    );
    assert!(denial.message.starts_with(&beginning), "{}", denial.message);
    assert_eq!(etcd.guard.new_verdicts().await, ["CREATE denied LeaderProtected"]);
}

/// A drain ends, because no time will come at which the eviction passes.
#[tokio::test]
async fn denies_eviction_from_two_voters_with_403() {
    let etcd = GuardedCluster::start().await;
    let leader = etcd.leader().await;
    let [follower, removed] = etcd.followers().await;
    let id = etcd.member(&removed).status().await.unwrap().header().unwrap().member_id();
    wait_until("the third voter is removed", START_TIMEOUT, async || {
        let mut client = etcd.member(&leader).client().await.unwrap();
        client.member_remove(id).await.is_ok()
    })
    .await;
    wait_until("the eviction is denied for good", START_TIMEOUT, async || {
        let denial = etcd.evict(&follower, None).await.unwrap_err();
        let is_final = denial.message.contains("1 of 2 voters healthy, quorum 2");
        let code = if is_final { (403, "Forbidden") } else { (429, "TooManyRequests") };
        assert_eq!((denial.code, denial.reason.as_str()), code, "{}", denial.message);
        is_final && denial.message.contains("QuorumAtRisk")
    })
    .await;
}

#[tokio::test]
async fn evicted_follower_blocks_others_until_replaced() {
    let mut etcd = GuardedCluster::start().await;
    let [one, other] = etcd.followers().await;
    let uid = etcd.uid(&one).await;
    etcd.apply(&one, ProcessAction::Isolate).await;

    etcd.evict(&one, None).await.unwrap();
    assert_eq!(etcd.guard.new_verdicts().await, ["CREATE allowed SafeToDelete"]);
    etcd.evict(&one, None).await.unwrap();
    assert_eq!(etcd.guard.new_verdicts().await, ["CREATE allowed AlreadyTerminating"]);
    let denial = etcd.delete(&other).await.unwrap_err();
    assert!(denial.contains(&format!("{one} is being deleted")), "{denial}");
    assert_eq!(etcd.guard.new_verdicts().await, ["DELETE denied DisruptionInProgress"]);

    etcd.apply(&one, ProcessAction::Rejoin).await;
    etcd.wait_until_replaced(&one, &uid).await;
}

#[tokio::test]
async fn allows_eviction_of_missing_pod() {
    let mut etcd = GuardedCluster::start_as(Setup { config: LEADER_DENY, ..Setup::default() }).await;
    for name in ["missing", "etcd-3"] {
        let error = etcd.evict(name, None).await.unwrap_err();
        assert_eq!((error.code, error.message), (404, format!("pods \"{name}\" not found")));
        assert_eq!(etcd.guard.new_verdicts().await, ["CREATE allowed PodGone"]);
    }

    let leader = etcd.leader().await;
    let uid = etcd.uid(&leader).await;
    let predecessor = Preconditions { uid: Some(String::from("deleted")), ..Preconditions::default() };
    for pod in [leader.as_str(), UNRELATED_POD] {
        let options = DeleteOptions { preconditions: Some(predecessor.clone()), ..DeleteOptions::default() };
        let error = etcd.evict(pod, Some(options)).await.unwrap_err();
        assert_eq!(error.code, 409, "{}", error.message);
        assert_eq!(etcd.guard.new_verdicts().await, ["CREATE allowed PodGone"]);
    }
    assert_eq!(etcd.uid(&leader).await, uid);
    let itself = Preconditions { uid: Some(uid), ..Preconditions::default() };
    let options = DeleteOptions { preconditions: Some(itself), ..DeleteOptions::default() };
    assert_eq!(etcd.evict(&leader, Some(options)).await.unwrap_err().code, 429);
    assert_eq!(etcd.guard.new_verdicts().await, ["CREATE denied LeaderProtected"]);

    etcd.evict(UNRELATED_POD, None).await.unwrap();
    assert_eq!(etcd.guard.new_verdicts().await, ["CREATE allowed NotEtcd"]);
}
