//! A follower may go while the others serve, and comes back as the same member.

use crate::support::guarded_cluster::GuardedCluster;

#[tokio::test]
async fn a_deleted_follower_comes_back_as_the_same_member() {
    let mut etcd = GuardedCluster::start().await;
    let [follower, _] = etcd.followers().await;
    let (uid, member) = (etcd.uid(&follower).await, etcd.member(&follower).id().await);

    let said = etcd.kubectl(&["delete", "pod", &follower]).await;
    assert!(said.success, "{}", said.stderr);
    assert!(said.stdout.starts_with(&format!("pod \"{follower}\" deleted")), "{}", said.stdout);
    let warning = format!(
        "Warning: etcd {}/etcd has no voter to spare until {follower} is back: 2 of 3 remain, quorum 2",
        etcd.namespace
    );
    assert!(said.stderr.contains(&warning), "{}", said.stderr);

    etcd.wait_until_back(&follower, &uid).await;
    assert_eq!(etcd.member(&follower).id().await, member);
    assert_eq!(etcd.guard.news().await, ["DELETE allowed SafeToDelete"]);
}

/// Edge case 19: the kubelet's DELETE ends what was allowed; without it the pod would stay for ever.
#[tokio::test]
async fn the_kubelets_last_delete_passes() {
    let mut etcd = GuardedCluster::start().await;
    // By the shipped configuration it is not even asked about.
    etcd.register_webhook(|webhook| drop(webhook.as_object_mut().unwrap().remove("matchConditions"))).await;
    let [follower, _] = etcd.followers().await;
    let uid = etcd.uid(&follower).await;
    let said = etcd.kubectl(&["delete", "pod", &follower, "--wait=false"]).await;
    assert!(said.success, "{}", said.stderr);
    etcd.wait_until_back(&follower, &uid).await;
    assert_eq!(etcd.guard.news().await, ["DELETE allowed AlreadyTerminating", "DELETE allowed SafeToDelete"]);
}

/// One API request asks twice here: before the apiserver marks the pod as terminating, and before it removes it.
#[tokio::test]
async fn a_forced_deletion_of_a_follower_is_not_denied_when_the_webhook_is_asked_again() {
    let mut etcd = GuardedCluster::start().await;
    // Of the shipped configuration the second question is spared by these.
    etcd.register_webhook(|webhook| drop(webhook.as_object_mut().unwrap().remove("matchConditions"))).await;
    let [follower, _] = etcd.followers().await;
    let uid = etcd.uid(&follower).await;

    let said = etcd.kubectl(&["delete", "pod", &follower, "--force", "--grace-period=0"]).await;
    assert!(said.success, "{}", said.stderr);
    // Until it is asked again, the node may have removed the pod.
    let again = ["DELETE allowed AlreadyTerminating", "DELETE allowed PodGone"];
    let [second, first] = &etcd.guard.news().await[..] else { panic!("asked once, or more than twice") };
    assert!(again.contains(&second.as_str()), "{second}");
    assert_eq!(first, "DELETE allowed SafeToDelete");
    etcd.wait_until_back(&follower, &uid).await;
}

#[tokio::test]
async fn a_forced_deletion_of_a_follower_passes_while_its_pod_changes_all_the_time() {
    let mut etcd = GuardedCluster::start().await;
    let [follower, other] = etcd.followers().await;
    let uid = etcd.uid(&follower).await;

    // Makes the apiserver's copies stale, so that it asks, finds the pod changed, and asks again.
    let (name, namespace) = (follower.clone(), etcd.namespace.clone());
    let kubectl = etcd.kubectl_everywhere();
    let changes = tokio::spawn(async move {
        for number in 0.. {
            let label = format!("number={number}");
            kubectl.run(&["-n", &namespace, "label", "--overwrite", "pod", &name, &label]).await;
        }
    });
    let said = etcd.kubectl(&["delete", "pod", &follower, "--force", "--grace-period=0"]).await;
    changes.abort();
    assert!(said.success, "{}", said.stderr);
    let news = etcd.guard.news().await;
    assert!(news.contains(&String::from("DELETE allowed SafeToDelete")), "{news:?}");
    assert!(!news.iter().any(|it| it.contains("denied")), "{news:?}");

    let denial = etcd.delete(&other).await.unwrap_err();
    assert!(denial.contains(&format!("without pod {other} etcd cluster")), "{denial}");
    etcd.wait_until_back(&follower, &uid).await;
}
