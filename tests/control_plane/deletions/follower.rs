//! A follower may be deleted while the others serve, and restarts as the same member.

use test_support::guarded_cluster::GuardedCluster;

#[tokio::test]
async fn deleted_follower_restarts_as_same_member() {
    let mut etcd = GuardedCluster::start().await;
    let [follower, _] = etcd.followers().await;
    let (uid, member) = (etcd.uid(&follower).await, etcd.member(&follower).id().await);

    let output = etcd.kubectl(&["delete", "pod", &follower]).await;
    assert!(output.success, "{}", output.stderr);
    assert!(output.stdout.starts_with(&format!("pod \"{follower}\" deleted")), "{}", output.stdout);
    let warning = format!(
        "Warning: etcd {}/etcd has no voter to spare until {follower} is ready: 2 of 3 remain, quorum 2",
        etcd.namespace
    );
    assert!(output.stderr.contains(&warning), "{}", output.stderr);

    etcd.wait_until_replaced(&follower, &uid).await;
    assert_eq!(etcd.member(&follower).id().await, member);
    assert_eq!(etcd.guard.new_verdicts().await, ["DELETE allowed SafeToDelete"]);
}

/// The kubelet's DELETE completes the approved deletion; without it the pod would remain forever.
#[tokio::test]
async fn allows_final_delete_of_kubelet() {
    let mut etcd = GuardedCluster::start().await;
    // The shipped configuration does not send this request to the guard.
    etcd.register_webhook(|webhook| drop(webhook.as_object_mut().unwrap().remove("matchConditions"))).await;
    let [follower, _] = etcd.followers().await;
    let uid = etcd.uid(&follower).await;
    let output = etcd.kubectl(&["delete", "pod", &follower, "--wait=false"]).await;
    assert!(output.success, "{}", output.stderr);
    etcd.wait_until_replaced(&follower, &uid).await;
    assert_eq!(
        etcd.guard.new_verdicts().await,
        ["DELETE allowed AlreadyTerminating", "DELETE allowed SafeToDelete"]
    );
}

/// One API request calls the webhook twice here: before the API server marks the pod as terminating, and before it
/// removes the pod.
#[tokio::test]
async fn allows_second_call_for_forced_deletion() {
    let mut etcd = GuardedCluster::start().await;
    // The match conditions of the shipped configuration prevent the second call.
    etcd.register_webhook(|webhook| drop(webhook.as_object_mut().unwrap().remove("matchConditions"))).await;
    let [follower, _] = etcd.followers().await;
    let uid = etcd.uid(&follower).await;

    let output = etcd.kubectl(&["delete", "pod", &follower, "--force", "--grace-period=0"]).await;
    assert!(output.success, "{}", output.stderr);
    let verdicts = etcd.guard.new_verdicts().await;
    let is_known = |verdict: &str| verdicts.iter().any(|known| known == verdict);
    assert!(is_known("DELETE allowed SafeToDelete"), "{verdicts:?}");
    // The node may have removed the pod before the second call. The API server can then repeat the deletion with the successor,
    // which does not serve yet.
    let again = ["DELETE allowed AlreadyTerminating", "DELETE allowed PodGone"];
    assert!(again.iter().any(|verdict| is_known(verdict)), "{verdicts:?}");
    let all = ["DELETE allowed SafeToDelete", "DELETE allowed MemberNotServing", again[0], again[1]];
    assert!(verdicts.iter().all(|verdict| all.contains(&verdict.as_str())), "{verdicts:?}");
    etcd.wait_until_replaced(&follower, &uid).await;
}

#[tokio::test]
async fn allows_forced_deletion_of_changing_pod() {
    let mut etcd = GuardedCluster::start().await;
    let [follower, other] = etcd.followers().await;
    let uid = etcd.uid(&follower).await;

    // Makes the copies of the API server stale, so that it has to repeat the request with the changed pod.
    let (name, namespace) = (follower.clone(), etcd.namespace.clone());
    let kubectl = etcd.kubectl_everywhere();
    let changes = tokio::spawn(async move {
        for number in 0.. {
            let label = format!("number={number}");
            kubectl.run(&["-n", &namespace, "label", "--overwrite", "pod", &name, &label]).await;
        }
    });
    let output = etcd.kubectl(&["delete", "pod", &follower, "--force", "--grace-period=0"]).await;
    changes.abort();
    assert!(output.success, "{}", output.stderr);
    let verdicts = etcd.guard.new_verdicts().await;
    assert!(verdicts.contains(&String::from("DELETE allowed SafeToDelete")), "{verdicts:?}");
    assert!(!verdicts.iter().any(|verdict| verdict.contains("denied")), "{verdicts:?}");

    let denial = etcd.delete(&other).await.unwrap_err();
    // QuorumAtRisk if the pod was replaced and its member does not serve yet.
    let has_reason = |reason: &str| denial.contains(&format!("{reason}: "));
    assert!(denial.contains(&format!("without {other}, ")), "{denial}");
    assert!(has_reason("DisruptionInProgress") || has_reason("QuorumAtRisk"), "{denial}");
    etcd.wait_until_replaced(&follower, &uid).await;
}
