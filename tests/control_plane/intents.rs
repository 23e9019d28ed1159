//! What deletions of pods follow from is denied where it is said.

use crate::support::{
    guarded_cluster::{GuardedCluster, START_LIMIT},
    wait::until,
};

#[tokio::test]
async fn deleting_the_stateful_set_of_a_living_cluster_is_denied() {
    let mut etcd = GuardedCluster::start().await;
    let said = etcd.kubectl(&["delete", "statefulset", "etcd", "--wait=false"]).await;
    assert!(!said.success, "{said:?}");
    assert!(
        said.stderr.contains(
            "Error from server (Forbidden): admission webhook \"intent.guard.etcd-guard.io\" denied the request: \
             StatefulSet etcd runs a living etcd cluster (3 pods)"
        ),
        "{said:?}"
    );
    assert!(said.stderr.contains("--cascade=orphan"), "{said:?}");
    assert_eq!(etcd.guard.news().await, ["DELETE denied IntentProtected"]);

    let said = etcd.kubectl(&["delete", "statefulset", "etcd", "--cascade=orphan"]).await;
    assert!(said.success, "{said:?}");
    assert_eq!(etcd.guard.news().await, ["DELETE allowed IntentHarmless"]);
}

/// Edge case 31.
#[tokio::test]
async fn deleting_the_namespace_of_a_living_cluster_is_denied() {
    let mut etcd = GuardedCluster::start().await;
    let said = etcd.kubectl_everywhere().run(&["delete", "namespace", &etcd.namespace, "--wait=false"]).await;
    assert!(!said.success && said.stderr.contains("holds a living etcd cluster (3 pods, etcd-"), "{said:?}");
    assert_eq!(etcd.guard.news().await, ["DELETE denied IntentProtected"]);
}

/// The claim that holds the data of this pod's member.
async fn claim_of(etcd: &GuardedCluster, pod: &str) -> String {
    let pod = etcd.pods.get(pod).await.unwrap();
    let volumes = pod.spec.unwrap().volumes.unwrap();
    volumes.into_iter().find_map(|it| it.persistent_volume_claim).unwrap().claim_name
}

#[tokio::test]
async fn deleting_a_members_claim_is_denied() {
    let mut etcd = GuardedCluster::start().await;
    let claim = claim_of(&etcd, "etcd-1").await;
    let said = etcd.kubectl(&["delete", "pvc", &claim, "--wait=false"]).await;
    let text = format!("claim {claim} holds the data of pod etcd-1, which runs an etcd member");
    assert!(!said.success && said.stderr.contains(&text), "{said:?}");
    assert_eq!(etcd.guard.news().await, ["DELETE denied IntentProtected"]);
}

/// Edge case 32. As the denial advises.
#[tokio::test]
async fn the_claim_of_a_member_that_was_removed_may_go() {
    let mut etcd = GuardedCluster::start().await;
    let [removed, other] = etcd.followers().await;
    let mut client = etcd.member(&other).client().await.unwrap();
    let list = client.member_list().await.unwrap();
    let id = list.members().iter().find(|it| it.name() == removed).unwrap().id();
    until("etcd removes the member", START_LIMIT, async || {
        // In its first seconds a cluster changes no membership.
        let _ = client.member_remove(id).await;
        client.member_list().await.is_ok_and(|it| it.members().iter().all(|it| it.id() != id))
    })
    .await;

    let claim = claim_of(&etcd, &removed).await;
    // The removed member may tell of itself for a moment.
    until("its claim may go", START_LIMIT, async || {
        etcd.kubectl(&["delete", "pvc", &claim, "--wait=false"]).await.success
    })
    .await;
    assert!(etcd.guard.news().await.contains(&String::from("DELETE allowed IntentHarmless")));

    let kept = claim_of(&etcd, &other).await;
    let said = etcd.kubectl(&["delete", "pvc", &kept, "--wait=false"]).await;
    assert!(!said.success && said.stderr.contains("which runs an etcd member"), "{said:?}");
}

/// Edge case 30.
#[tokio::test]
async fn scaling_down_warns_of_members_that_stay_listed_and_is_denied_below_the_quorum() {
    let mut etcd = GuardedCluster::start().await;
    let said = etcd.kubectl(&["scale", "statefulset/etcd", "--replicas=1"]).await;
    let text = "would leave 1 of 3 voters of etcd cluster";
    assert!(
        !said.success && said.stderr.contains(text) && said.stderr.contains("etcdctl member remove "),
        "{said:?}"
    );
    assert_eq!(etcd.guard.news().await, ["UPDATE denied IntentProtected"]);

    let patch = r#"{"spec":{"replicas":0}}"#;
    let said = etcd.kubectl(&["patch", "statefulset/etcd", "--type=merge", "-p", patch]).await;
    assert!(!said.success && said.stderr.contains("would leave 0 of 3 voters"), "{said:?}");
    etcd.guard.news().await;

    let said = etcd.kubectl(&["scale", "statefulset/etcd", "--replicas=2", "--dry-run=server"]).await;
    assert!(said.success && said.stderr.contains("stays a voter of etcd"), "{said:?}");
    assert_eq!(etcd.guard.news().await, ["UPDATE allowed IntentHarmless"]);

    // Growing, and whatever else changes, is nobody's business.
    let said = etcd.kubectl(&["annotate", "statefulset/etcd", "a=b"]).await;
    assert!(said.success, "{said:?}");
    assert_eq!(etcd.guard.news().await, [""; 0]);
}
