//! Who asks decides, under the default policy, whether the leader's pod is protected or leadership moves first.

use test_support::{
    guard::check_comparison::impersonating,
    guarded_cluster::{GuardedCluster, START_TIMEOUT, Setup},
    wait::wait_until,
};

const ACCOUNT: &str = "system:serviceaccount:ci:deploy";

const CONFIG: &str = "apiVersion: etcd-guard.io/v1alpha1\nguard: {programs: [argocd@example.com]}\n";

/// Deletes a pod as this user. Returns whether this was approved, and the output.
async fn delete_as(etcd: &GuardedCluster, user: &str, pod: &str) -> (bool, String) {
    let delete = [&["delete", "pod", pod, "--wait=false"][..], &impersonating(user)].concat();
    let output = etcd.kubectl(&delete).await;
    (output.success, output.stderr)
}

#[tokio::test]
async fn person_is_denied_and_eviction_moves_leadership() {
    let mut etcd = GuardedCluster::start().await;
    let leader = etcd.leader().await;
    let uid = etcd.uid(&leader).await;
    for user in ["alice", "system:admin", "system:anonymous"] {
        let (approved, text) = delete_as(&etcd, user, &leader).await;
        assert!(!approved && text.contains(&format!("LeaderProtected: {leader} leads ")), "{user}: {text}");
        assert!(text.contains(&format!("kubectl etcd-guard move-leader -n {} {leader}", etcd.namespace)));
    }
    assert_eq!(etcd.leader().await, leader);
    etcd.guard.new_verdicts().await;

    etcd.wait_until_budgets_allow().await;
    etcd.evict(&leader, None).await.unwrap();
    assert_eq!(etcd.guard.new_verdicts().await, ["CREATE allowed LeaderTransferred"]);
    let successor = etcd.leader().await;
    assert_ne!(successor, leader);
    etcd.wait_until_replaced(&leader, &uid).await;

    // At most one move in ten seconds follows from reviews.
    let denial = etcd.evict(&successor, None).await.unwrap_err();
    assert_eq!(denial.code, 429, "{denial:?}");
    for expected in
        ["DisruptionInProgress: ", "and leadership moved for another deletion less than 10 s ago. Retry in "]
    {
        assert!(denial.message.contains(expected), "{denial:?}");
    }
    let uid = etcd.uid(&successor).await;
    wait_until("leadership moves again", START_TIMEOUT, async || etcd.evict(&successor, None).await.is_ok())
        .await;
    etcd.wait_until_replaced(&successor, &uid).await;
}

#[tokio::test]
async fn service_account_moves_leadership_with_a_warning() {
    let mut etcd = GuardedCluster::start().await;
    let leader = etcd.leader().await;
    let uid = etcd.uid(&leader).await;
    let (approved, text) = delete_as(&etcd, ACCOUNT, &leader).await;
    assert!(approved, "{text}");
    let moved = format!("Warning: leadership of etcd {}/etcd was moved to etcd-", etcd.namespace);
    let account =
        "Warning: the guard moved leadership without asking, because you use a service account: ci:deploy";
    assert!(text.contains(&moved) && text.contains(account), "{text}");
    assert_eq!(etcd.guard.new_verdicts().await, ["DELETE allowed LeaderTransferred"]);
    assert_ne!(etcd.leader().await, leader);
    etcd.wait_until_replaced(&leader, &uid).await;
}

#[tokio::test]
async fn users_of_the_configuration_are_programs() {
    let etcd = GuardedCluster::start_as(Setup { config: CONFIG, ..Setup::default() }).await;
    let leader = etcd.leader().await;
    let uid = etcd.uid(&leader).await;
    let (approved, text) = delete_as(&etcd, "argocd", &leader).await;
    assert!(!approved && text.contains("LeaderProtected: "), "another user: {text}");
    let (approved, text) = delete_as(&etcd, "argocd@example.com", &leader).await;
    assert!(approved && !text.contains("you use a service account"), "{text}");
    etcd.wait_until_replaced(&leader, &uid).await;
}
