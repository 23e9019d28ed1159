//! Several replicas of the guard, asked at once and directly: what one allows, the others know.

use futures::future::join_all;
use nix::sys::signal::Signal;

use crate::support::{
    guard_process::GuardProcess,
    guarded_cluster::GuardedCluster,
    http_client::Connection,
    review::{deletion_of, verdict},
};

const PATH: &str = "/validate?timeout=10s";

/// Edge case 27.
#[tokio::test]
async fn of_deletions_through_three_replicas_at_once_one_pod_goes() {
    let etcd = GuardedCluster::start().await;
    let mut replicas = Vec::new();
    for n in 0..3 {
        let dir = etcd.control_plane.dir.join(format!("{}-replica-{n}", etcd.namespace));
        replicas.push(GuardProcess::start(&etcd.control_plane.guard_kubeconfig(), &dir).await);
    }
    let followers = etcd.followers().await;
    let mut questions = Vec::new();
    for _ in 0..5 {
        for follower in &followers {
            for replica in &replicas {
                questions.push((follower, replica));
            }
        }
    }
    let answers =
        join_all(questions.iter().map(async |(pod, replica)| (*pod, ask(replica, &etcd, pod).await))).await;
    let mut allowed: Vec<&String> =
        answers.iter().filter(|(_, (allowed, _))| *allowed).map(|(pod, _)| *pod).collect();
    allowed.sort();
    allowed.dedup();
    assert_eq!(allowed.len(), 1, "{answers:?}");
}

#[tokio::test]
async fn a_replica_that_starts_again_knows_what_was_allowed() {
    let mut etcd = GuardedCluster::start().await;
    let [first, second] = etcd.followers().await;
    // Allowed, and never carried out: nothing but the record tells of it.
    assert_eq!(ask(&etcd.guard, &etcd, &first).await, (true, String::new()));
    etcd.guard.signal(Signal::SIGKILL);
    etcd.guard.start_again().await;
    let (allowed, message) = ask(&etcd.guard, &etcd, &second).await;
    assert!(!allowed && message.contains(&format!("{first} is on the way out")), "{message}");
    assert_eq!(
        ask(&etcd.guard, &etcd, &first).await,
        (true, String::new()),
        "its own reservation holds nobody up"
    );
}

/// Whether this replica lets the pod go, and what it says.
async fn ask(replica: &GuardProcess, etcd: &GuardedCluster, pod: &str) -> (bool, String) {
    let pod = etcd.pods.get(pod).await.unwrap();
    let mut connection = Connection::tls(replica.https(), &replica.ca_pem).await.unwrap();
    verdict(&connection.post(PATH, deletion_of(&pod)).await.unwrap().body)
}
