//! Deletions of several pods by one command: the guard evaluates each pod separately.

use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams};

use test_support::{guarded_cluster::GuardedCluster, kubernetes::pods::uid, process_node::ProcessAction};

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
