//! Workload operations that delete the data of members which do not run.

use test_support::{
    guarded_cluster::{GuardedCluster, START_TIMEOUT},
    process_node::ProcessAction,
    wait::wait_until,
};

/// Patches a StatefulSet so that its claims are deleted or retained with it, and waits for the StatefulSet controller.
async fn set_retention(etcd: &GuardedCluster, when_deleted: &str, owner: &str) {
    let patch = format!(
        r#"{{"spec":{{"persistentVolumeClaimRetentionPolicy":{{"whenDeleted":"{when_deleted}"}}}}}}"#
    );
    let output = etcd.kubectl(&["patch", "statefulset/etcd", "--type=merge", "-p", &patch]).await;
    assert!(output.success, "{output:?}");
    let owners = "jsonpath={.items[*].metadata.ownerReferences[*].kind}";
    wait_until("the claims have the owner", START_TIMEOUT, async || {
        etcd.kubectl(&["get", "pvc", "-o", owners]).await.stdout == owner
    })
    .await;
}

pub(super) async fn crash_all(etcd: &GuardedCluster) {
    for name in GuardedCluster::names() {
        etcd.apply(name, ProcessAction::CrashLoop).await;
    }
    wait_until("kubectl shows that all pods crash", START_TIMEOUT, async || {
        etcd.kubectl(&["get", "pods"]).await.stdout.matches("CrashLoopBackOff").count() == 3
    })
    .await;
}

#[tokio::test]
async fn crash_looping_cluster_keeps_claims_that_follow_its_set() {
    let mut etcd = GuardedCluster::start().await;
    set_retention(&etcd, "Delete", "StatefulSet StatefulSet StatefulSet").await;
    crash_all(&etcd).await;
    etcd.guard.new_verdicts().await;

    let delete = ["delete", "statefulset", "etcd", "--wait=false"];
    let output = etcd.kubectl(&delete).await;
    let text = "IntentProtected: StatefulSet etcd owns the data of etcd members (3 PersistentVolumeClaims";
    assert!(!output.success && output.stderr.contains(text), "{output:?}");
    assert!(output.stderr.contains(r#""whenDeleted":"Retain""#), "{output:?}");
    assert_eq!(etcd.guard.new_verdicts().await, ["DELETE denied IntentProtected"]);

    // The printed remedy. The data then stays, and nothing that runs is lost.
    set_retention(&etcd, "Retain", "").await;
    let output = etcd.kubectl(&delete).await;
    assert!(output.success, "{output:?}");
    assert!(etcd.guard.new_verdicts().await.contains(&String::from("DELETE allowed IntentHarmless")));
    let claims = etcd.kubectl(&["get", "pvc", "-o", "name"]).await.stdout;
    assert_eq!(claims.lines().count(), 3, "{claims}");
}

#[tokio::test]
async fn scaled_down_cluster_keeps_its_claims() {
    let mut etcd = GuardedCluster::start().await;
    etcd.break_glass("statefulset/etcd").await;
    wait_until("the break-glass applies", START_TIMEOUT, async || {
        etcd.kubectl(&["scale", "statefulset/etcd", "--replicas=0"]).await.success
    })
    .await;
    wait_until("no member is left", START_TIMEOUT, async || {
        let pods = etcd.kubectl(&["get", "pods", "-l", "app=etcd", "-o", "name"]).await;
        pods.success && pods.stdout.is_empty()
    })
    .await;
    etcd.guard.new_verdicts().await;

    let output = etcd.kubectl(&["delete", "pvc", "data-etcd-1", "--wait=false"]).await;
    let text = "no pod mounts claim data-etcd-1 of etcd StatefulSet etcd";
    assert!(!output.success && output.stderr.contains(text), "{output:?}");
    let output =
        etcd.kubectl_everywhere().run(&["delete", "namespace", &etcd.namespace, "--wait=false"]).await;
    let text = "contains the data of etcd StatefulSet etcd (3 PersistentVolumeClaims, including data-etcd-0)";
    assert!(!output.success && output.stderr.contains(text), "{output:?}");
    assert_eq!(etcd.guard.new_verdicts().await, ["DELETE denied IntentProtected"]);
}

#[tokio::test]
async fn break_glass_on_claim_applies_to_that_claim_only() {
    let mut etcd = GuardedCluster::start().await;
    let delete =
        |claim: &str| ["delete", "pvc", claim, "--wait=false", "--dry-run=server"].map(str::to_owned);
    let run = async |claim: &str| {
        let arguments = delete(claim);
        etcd.kubectl(&arguments.each_ref().map(String::as_str)).await
    };
    let output = run("data-etcd-1").await;
    let advice = format!("kubectl annotate --overwrite -n {} pvc data-etcd-1 ", etcd.namespace);
    assert!(!output.success && output.stderr.contains(&advice), "{output:?}");

    etcd.break_glass("pvc/data-etcd-1").await;
    // Claims are read live, so that the break-glass applies at once.
    let output = run("data-etcd-1").await;
    assert!(output.success && output.stderr.contains("break-glass overrules IntentProtected"), "{output:?}");
    let output = run("data-etcd-2").await;
    assert!(!output.success && output.stderr.contains("IntentProtected"), "{output:?}");
    assert_eq!(
        etcd.guard.new_verdicts().await,
        ["DELETE allowed BreakGlass", "DELETE denied IntentProtected"]
    );
}
