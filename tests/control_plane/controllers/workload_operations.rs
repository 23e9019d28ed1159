//! Operations that cause deletions of pods are denied themselves.

use test_support::{
    guarded_cluster::{GuardedCluster, START_TIMEOUT},
    wait::wait_until,
};

#[tokio::test]
async fn denies_stateful_set_of_living_cluster() {
    let mut etcd = GuardedCluster::start().await;
    let output = etcd.kubectl(&["delete", "statefulset", "etcd", "--wait=false"]).await;
    assert!(!output.success, "{output:?}");
    assert!(
        output.stderr.contains(
            "Error from server (Forbidden): admission webhook \"intent.guard.etcd-guard.io\" denied the request: \
             IntentProtected: StatefulSet etcd runs an etcd cluster (3 pods)"
        ),
        "{output:?}"
    );
    assert!(output.stderr.contains("--cascade=orphan"), "{output:?}");
    assert!(output.stderr.contains(" etcd-guard.io/allow-delete-reason='REASON'"), "{output:?}");
    assert_eq!(etcd.guard.new_verdicts().await, ["DELETE denied IntentProtected"]);

    let output = etcd.kubectl(&["delete", "statefulset", "etcd", "--cascade=orphan"]).await;
    assert!(output.success, "{output:?}");
    assert_eq!(etcd.guard.new_verdicts().await, ["DELETE allowed IntentHarmless"]);
}

#[tokio::test]
async fn denies_namespace_of_living_cluster() {
    let mut etcd = GuardedCluster::start().await;
    let output =
        etcd.kubectl_everywhere().run(&["delete", "namespace", &etcd.namespace, "--wait=false"]).await;
    assert!(
        !output.success && output.stderr.contains("contains an etcd cluster (3 pods, including etcd-"),
        "{output:?}"
    );
    assert_eq!(etcd.guard.new_verdicts().await, ["DELETE denied IntentProtected"]);
}

/// Returns the claim with the data of a pod's member.
async fn data_claim(etcd: &GuardedCluster, pod: &str) -> String {
    let pod = etcd.pods.get(pod).await.unwrap();
    let volumes = pod.spec.unwrap().volumes.unwrap();
    volumes.into_iter().find_map(|volume| volume.persistent_volume_claim).unwrap().claim_name
}

#[tokio::test]
async fn denies_claim_of_member() {
    let mut etcd = GuardedCluster::start().await;
    let claim = data_claim(&etcd, "etcd-1").await;
    let output = etcd.kubectl(&["delete", "pvc", &claim, "--wait=false"]).await;
    let text = format!("claim {claim} holds the data of pod etcd-1, which runs an etcd member");
    assert!(!output.success && output.stderr.contains(&text), "{output:?}");
    assert_eq!(etcd.guard.new_verdicts().await, ["DELETE denied IntentProtected"]);
}

/// The denial describes this procedure.
#[tokio::test]
async fn allows_claim_of_removed_member() {
    let mut etcd = GuardedCluster::start().await;
    let [removed, other] = etcd.followers().await;
    let mut client = etcd.member(&other).client().await.unwrap();
    let list = client.member_list().await.unwrap();
    let id = list.members().iter().find(|member| member.name() == removed).unwrap().id();
    wait_until("etcd removes the member", START_TIMEOUT, async || {
        // During its first seconds a cluster rejects membership changes.
        let _ = client.member_remove(id).await;
        client.member_list().await.is_ok_and(|list| list.members().iter().all(|member| member.id() != id))
    })
    .await;

    let claim = data_claim(&etcd, &removed).await;
    // The removed member may still respond for a moment.
    wait_until("the deletion of its claim is approved", START_TIMEOUT, async || {
        etcd.kubectl(&["delete", "pvc", &claim, "--wait=false"]).await.success
    })
    .await;
    assert!(etcd.guard.new_verdicts().await.contains(&String::from("DELETE allowed IntentHarmless")));

    let other_claim = data_claim(&etcd, &other).await;
    let output = etcd.kubectl(&["delete", "pvc", &other_claim, "--wait=false"]).await;
    assert!(!output.success && output.stderr.contains("which runs an etcd member"), "{output:?}");
}

#[tokio::test]
async fn scale_down_warns_and_is_denied_below_quorum() {
    let mut etcd = GuardedCluster::start().await;
    let output = etcd.kubectl(&["scale", "statefulset/etcd", "--replicas=1"]).await;
    let text = "would leave 1 of 3 voters of ";
    assert!(
        !output.success && output.stderr.contains(text) && output.stderr.contains("etcdctl member remove "),
        "{output:?}"
    );
    assert_eq!(etcd.guard.new_verdicts().await, ["UPDATE denied IntentProtected"]);

    let patch = r#"{"spec":{"replicas":0}}"#;
    let output = etcd.kubectl(&["patch", "statefulset/etcd", "--type=merge", "-p", patch]).await;
    assert!(!output.success && output.stderr.contains("would leave 0 of 3 voters"), "{output:?}");
    etcd.guard.new_verdicts().await;

    let output = etcd.kubectl(&["scale", "statefulset/etcd", "--replicas=2", "--dry-run=server"]).await;
    assert!(output.success && output.stderr.contains("remains a voter of etcd"), "{output:?}");
    assert_eq!(etcd.guard.new_verdicts().await, ["UPDATE allowed IntentHarmless"]);

    // Scaling up and other changes are outside the guard's scope.
    let output = etcd.kubectl(&["annotate", "statefulset/etcd", "a=b"]).await;
    assert!(output.success, "{output:?}");
    assert_eq!(etcd.guard.new_verdicts().await, [""; 0]);
}

/// The pods with the ordinals below the new start are deleted, and never return.
#[tokio::test]
async fn denies_other_ordinals_for_living_cluster() {
    let mut etcd = GuardedCluster::start().await;
    let move_to = async |start: u32| {
        let patch = format!("-p={{\"spec\":{{\"ordinals\":{{\"start\":{start}}}}}}}");
        etcd.kubectl(&["patch", "statefulset/etcd", "--type=merge", &patch, "--dry-run=server"]).await
    };
    let output = move_to(3).await;
    let text = "scaling etcd down to ordinals from 3 and below 6 would leave 0 of 3 voters";
    assert!(!output.success && output.stderr.contains(text), "{output:?}");
    let output = move_to(1).await;
    assert!(output.success && output.stderr.contains("remains a voter of etcd"), "{output:?}");
    let verdicts = etcd.guard.new_verdicts().await;
    assert_eq!(verdicts, ["UPDATE allowed IntentHarmless", "UPDATE denied IntentProtected"]);
}
