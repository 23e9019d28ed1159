//! Deletions of many pods with one command: each pod is judged for itself.

use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams};

use crate::support::{
    guarded_cluster::{BYSTANDER, GuardedCluster},
    pods::uid,
    process_node::Order,
};

#[tokio::test]
async fn a_deletion_of_the_collection_takes_one_member_at_most_and_names_the_one_that_stays() {
    let mut etcd = GuardedCluster::start().await;
    etcd.let_lead("etcd-2").await;
    stay_away(&etcd).await;
    let before = members(&etcd).await;

    let members_alone = ListParams::default().labels("app=etcd");
    let error = etcd.pods.delete_collection(&DeleteParams::default(), &members_alone).await.unwrap_err();
    let kube::Error::Api(denial) = error else { panic!("the API did not answer: {error}") };
    assert_eq!((denial.code, denial.reason.as_str()), (403, "Forbidden"));

    // The apiserver goes through them by name, and stops at the first denial.
    assert!(denial.message.contains("pod etcd-1 "), "{}", denial.message);
    assert_eq!(on_their_way(&etcd, &before).await, ["etcd-0"]);
    let news = etcd.guard.news().await;
    assert_eq!(news, ["DELETE allowed SafeToDelete", "DELETE denied DisruptionInProgress"]);
}

#[tokio::test]
async fn kubectl_delete_all_takes_one_follower_and_the_pods_that_are_no_members() {
    let mut etcd = GuardedCluster::start().await;
    let leader = etcd.leader().await;
    stay_away(&etcd).await;
    let before = members(&etcd).await;

    let said = etcd.kubectl(&["delete", "pods", "--all", "--wait=false"]).await;
    assert!(!said.success, "{said:?}");
    let gone = on_their_way(&etcd, &before).await;
    assert_eq!(gone.len(), 1, "{said:?}");
    assert_ne!(gone[0], leader);
    for name in GuardedCluster::names() {
        let denied = said.stderr.contains(&format!("denied the request: pod {name} "))
            || said.stderr.contains(&format!("denied the request: without pod {name} "));
        assert_eq!(denied, name != gone[0], "{name}: {}", said.stderr);
    }
    assert!(said.stdout.contains(&format!("pod \"{BYSTANDER}\" deleted")), "{}", said.stdout);
    let news = etcd.guard.news().await;
    assert!(news.contains(&String::from("DELETE allowed NotEtcd")), "{news:?}");
    assert!(news.contains(&String::from("DELETE allowed SafeToDelete")), "{news:?}");
}

/// From now on a pod whose deletion is accepted is on its way, and never back before the next one is asked about.
async fn stay_away(etcd: &GuardedCluster) {
    for name in GuardedCluster::names() {
        etcd.order(name, Order::Isolate).await;
    }
}

async fn members(etcd: &GuardedCluster) -> Vec<Pod> {
    etcd.pods.list(&ListParams::default().labels("app=etcd")).await.unwrap().items
}

/// The members of `before` that terminate or are gone.
async fn on_their_way(etcd: &GuardedCluster, before: &[Pod]) -> Vec<String> {
    let now = members(etcd).await;
    let stays =
        |pod: &&Pod| now.iter().any(|it| uid(it) == uid(pod) && it.metadata.deletion_timestamp.is_none());
    before.iter().filter(|pod| !stays(pod)).map(|pod| pod.metadata.name.clone().unwrap()).collect()
}
