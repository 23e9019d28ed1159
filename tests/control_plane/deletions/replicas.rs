//! Several replicas of the guard, called concurrently: each knows the approvals of the others.

use futures::future::join_all;
use nix::sys::signal::Signal;

use test_support::{
    guard::{
        process::GuardProcess,
        review::{deletion_review, verdict},
    },
    guarded_cluster::GuardedCluster,
    http_client::Connection,
};

const PATH: &str = "/validate?timeout=10s";

#[tokio::test]
async fn three_replicas_approve_one_concurrent_deletion() {
    let etcd = GuardedCluster::start().await;
    let mut replicas = Vec::new();
    for n in 0..3 {
        let dir = etcd.control_plane.dir.join(format!("{}-replica-{n}", etcd.namespace));
        replicas.push(GuardProcess::start(&etcd.control_plane.guard_kubeconfig(), &dir).await);
    }
    let followers = etcd.followers().await;
    let mut requests = Vec::new();
    for _ in 0..5 {
        for follower in &followers {
            for replica in &replicas {
                requests.push((follower, replica));
            }
        }
    }
    let answers =
        join_all(requests.iter().map(async |(pod, replica)| (*pod, send_review(replica, &etcd, pod).await)))
            .await;
    let mut allowed: Vec<&String> =
        answers.iter().filter(|(_, (allowed, _))| *allowed).map(|(pod, _)| *pod).collect();
    allowed.sort();
    allowed.dedup();
    assert_eq!(allowed.len(), 1, "{answers:?}");
}

#[tokio::test]
async fn restarted_replica_knows_earlier_approval() {
    let mut etcd = GuardedCluster::start().await;
    let [first, second] = etcd.followers().await;
    // The deletion is approved and does not happen, so only the reservation records it.
    assert_eq!(send_review(&etcd.guard, &etcd, &first).await, (true, String::new()));
    etcd.guard.signal(Signal::SIGKILL);
    etcd.guard.restart().await;
    let (allowed, message) = send_review(&etcd.guard, &etcd, &second).await;
    assert!(!allowed && message.contains(&format!("{first} is being deleted")), "{message}");
    assert_eq!(
        send_review(&etcd.guard, &etcd, &first).await,
        (true, String::new()),
        "a reservation does not block its own pod"
    );
}

/// Sends a review to a replica, and returns the verdict and the message.
pub(super) async fn send_review(replica: &GuardProcess, etcd: &GuardedCluster, pod: &str) -> (bool, String) {
    let pod = etcd.pods.get(pod).await.unwrap();
    let mut connection = Connection::tls(replica.https(), &replica.ca_pem).await.unwrap();
    verdict(&connection.post(PATH, deletion_review(&pod)).await.unwrap().body)
}
