//! Deletions of several pods by one command: the guard evaluates each pod separately.

use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams};

use test_support::{
    guarded_cluster::{GuardedCluster, UNRELATED_POD},
    kubernetes::pods::uid,
    process_node::ProcessAction,
};

#[tokio::test]
async fn collection_deletion_removes_at_most_one_member() {
    let mut etcd = GuardedCluster::start().await;
    etcd.make_leader("etcd-2").await;
    disconnect_kubelets(&etcd).await;
    let before = members(&etcd).await;

    let members_alone = ListParams::default().labels("app=etcd");
    let error = etcd.pods.delete_collection(&DeleteParams::default(), &members_alone).await.unwrap_err();
    let kube::Error::Api(denial) = error else { panic!("the API did not answer: {error}") };
    assert_eq!((denial.code, denial.reason.as_str()), (403, "Forbidden"));

    // The API server deletes them in the order of their names, and stops at the first denial.
    assert!(denial.message.contains("without etcd-1, "), "{}", denial.message);
    assert_eq!(terminating(&etcd, &before).await, ["etcd-0"]);
    let verdicts = etcd.guard.new_verdicts().await;
    assert_eq!(verdicts, ["DELETE allowed SafeToDelete", "DELETE denied DisruptionInProgress"]);
}

#[tokio::test]
async fn delete_all_removes_one_follower_and_other_pods() {
    let mut etcd = GuardedCluster::start().await;
    let leader = etcd.leader().await;
    disconnect_kubelets(&etcd).await;
    let before = members(&etcd).await;

    let output = etcd.kubectl(&["delete", "pods", "--all", "--wait=false"]).await;
    assert!(!output.success, "{output:?}");
    let deleted = terminating(&etcd, &before).await;
    assert_eq!(deleted.len(), 1, "{output:?}");
    assert_ne!(deleted[0], leader);
    for name in GuardedCluster::names() {
        let denied = output.stderr.contains(&format!("denied the request: LeaderProtected: {name} "))
            || output.stderr.contains(&format!("denied the request: DisruptionInProgress: without {name}, "));
        assert_eq!(denied, name != deleted[0], "{name}: {}", output.stderr);
    }
    assert!(output.stdout.contains(&format!("pod \"{UNRELATED_POD}\" deleted")), "{}", output.stdout);
    let verdicts = etcd.guard.new_verdicts().await;
    assert!(verdicts.contains(&String::from("DELETE allowed NotEtcd")), "{verdicts:?}");
    assert!(verdicts.contains(&String::from("DELETE allowed SafeToDelete")), "{verdicts:?}");
}

/// Disconnects the kubelet, so that a deleted pod keeps terminating during the following requests.
async fn disconnect_kubelets(etcd: &GuardedCluster) {
    for name in GuardedCluster::names() {
        etcd.apply(name, ProcessAction::Isolate).await;
    }
}

async fn members(etcd: &GuardedCluster) -> Vec<Pod> {
    etcd.pods.list(&ListParams::default().labels("app=etcd")).await.unwrap().items
}

/// Returns the members of `before` that are terminating or deleted.
async fn terminating(etcd: &GuardedCluster, before: &[Pod]) -> Vec<String> {
    let now = members(etcd).await;
    let stays = |pod: &&Pod| {
        now.iter().any(|current| uid(current) == uid(pod) && current.metadata.deletion_timestamp.is_none())
    };
    before.iter().filter(|pod| !stays(pod)).map(|pod| pod.metadata.name.clone().unwrap()).collect()
}
