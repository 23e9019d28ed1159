//! Evictions: asked about once, without the pod, and told to try again where waiting helps.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{DeleteOptions, Preconditions};

use crate::support::{
    guarded_cluster::{BYSTANDER, GuardedCluster},
    process_node::Order,
};

#[tokio::test]
async fn an_eviction_of_the_leader_is_told_to_try_again() {
    let mut etcd = GuardedCluster::start().await;
    let leader = etcd.leader().await;

    let denial = etcd.evict(&leader, None).await.unwrap_err();
    assert_eq!((denial.code, denial.reason.as_str()), (429, "TooManyRequests"));
    let beginning = format!(
        "admission webhook \"eviction.guard.etcd-guard.io\" denied the request: pod {leader} is the leader of etcd \
         cluster {}/etcd (member ",
        etcd.namespace
    );
    assert!(denial.message.starts_with(&beginning), "{}", denial.message);
    assert_eq!(etcd.guard.news().await, ["CREATE denied LeaderProtected"]);
}

#[tokio::test]
async fn an_evicted_follower_comes_back_and_blocks_the_others_meanwhile() {
    let mut etcd = GuardedCluster::start().await;
    let [one, other] = etcd.followers().await;
    let uid = etcd.uid(&one).await;
    etcd.order(&one, Order::Isolate).await;

    etcd.evict(&one, None).await.unwrap();
    assert_eq!(etcd.guard.news().await, ["CREATE allowed SafeToDelete"]);
    etcd.evict(&one, None).await.unwrap();
    assert_eq!(etcd.guard.news().await, ["CREATE allowed AlreadyTerminating"]);
    let denial = etcd.delete(&other).await.unwrap_err();
    assert!(denial.contains(&format!("{one} is on the way out")), "{denial}");
    assert_eq!(etcd.guard.news().await, ["DELETE denied DisruptionInProgress"]);

    etcd.order(&one, Order::Rejoin).await;
    etcd.wait_until_back(&one, &uid).await;
}

#[tokio::test]
async fn an_eviction_of_a_pod_that_does_not_exist_is_left_to_the_api() {
    let mut etcd = GuardedCluster::start().await;
    for name in ["nobody", "etcd-3"] {
        let error = etcd.evict(name, None).await.unwrap_err();
        assert_eq!((error.code, error.message), (404, format!("pods \"{name}\" not found")));
        assert_eq!(etcd.guard.news().await, ["CREATE allowed PodGone"]);
    }

    let leader = etcd.leader().await;
    let uid = etcd.uid(&leader).await;
    let predecessor = Preconditions { uid: Some(String::from("gone")), ..Preconditions::default() };
    for pod in [leader.as_str(), BYSTANDER] {
        let options = DeleteOptions { preconditions: Some(predecessor.clone()), ..DeleteOptions::default() };
        let error = etcd.evict(pod, Some(options)).await.unwrap_err();
        assert_eq!(error.code, 409, "{}", error.message);
        assert_eq!(etcd.guard.news().await, ["CREATE allowed PodGone"]);
    }
    assert_eq!(etcd.uid(&leader).await, uid);
    let itself = Preconditions { uid: Some(uid), ..Preconditions::default() };
    let options = DeleteOptions { preconditions: Some(itself), ..DeleteOptions::default() };
    assert_eq!(etcd.evict(&leader, Some(options)).await.unwrap_err().code, 429);
    assert_eq!(etcd.guard.news().await, ["CREATE denied LeaderProtected"]);

    etcd.evict(BYSTANDER, None).await.unwrap();
    assert_eq!(etcd.guard.news().await, ["CREATE allowed NotEtcd"]);
}
