//! Garbage collection of pods whose node is gone: it declares them failed before it deletes them.

use crate::support::{
    control_plane::{SHARED_NODE, VANISHING_NODE},
    guarded_cluster::{GuardedCluster, START_LIMIT},
    wait::{some, until},
};

const COLLECTOR: &str = "system:serviceaccount:kube-system:pod-garbage-collector";
/// It deletes a failed pod of its set as well: either of the two may be the first.
const SET: &str = "system:serviceaccount:kube-system:statefulset-controller";

#[tokio::test]
async fn pod_gc_takes_the_pod_of_a_node_that_is_gone() {
    // Of three members, the one with ordinal 1 is there.
    let mut etcd = GuardedCluster::start_on(&[SHARED_NODE, VANISHING_NODE]).await;
    etcd.let_lead("etcd-0").await;
    // By the shipped configuration the apiserver answers it alone.
    etcd.register_webhook(|webhook| drop(webhook.as_object_mut().unwrap().remove("matchConditions"))).await;
    let uid = etcd.uid("etcd-1").await;

    let said = etcd.kubectl_everywhere().run(&["delete", "node", VANISHING_NODE]).await;
    assert!(said.success, "{said:?}");
    until("the set has a new pod", START_LIMIT, async || {
        let pod = etcd.pods.get_opt("etcd-1").await;
        pod.is_ok_and(|pod| pod.is_some_and(|pod| pod.metadata.uid.is_some_and(|it| it != uid)))
    })
    .await;
    let told = some("a line on its deletion", START_LIMIT, async || {
        Some(etcd.guard.deletions_of("etcd-1")).filter(|lines| !lines.is_empty())
    })
    .await;
    assert!(told.iter().all(|line| line["verdict"] == "allowed"), "{told:?}");
    assert!(told.iter().all(|line| line["user"] == COLLECTOR || line["user"] == SET), "{told:?}");
    let first = (told[0]["reason"].as_str(), told[0]["grace_period_seconds"].as_i64());
    assert_eq!(first, (Some("PodFinished"), Some(0)));

    // It waits for its node, and the others stay.
    let denial = etcd.delete("etcd-2").await.unwrap_err();
    assert!(denial.contains("would have 1 of 3 voters healthy, quorum 2"), "{denial}");
}
