//! A pod that is gone, and its process, which is not yet: so it is for a while after a forced deletion.

use serde_json::{Value, json};

use crate::{
    etcd_cluster::{Cluster, Layout, START_LIMIT},
    scene::{Scene, pod},
    support::wait::until,
};

#[tokio::test]
async fn a_member_that_outlives_its_pod_is_counted_on_by_no_later_deletion() {
    let mut cluster = Cluster::start(Layout { version: "3.6", members: 5, spare: 0, tls: false }).await;
    let [forced, killed, third, _] = cluster.followers().await[..] else { panic!("four followers") };
    let mut pods: Vec<Value> = (0..5).map(|n| pod(&cluster, n)).collect();
    let scene = Scene::before(&pods).await;
    let list = |pods: &[Value]| {
        scene.objects.put("/api/v1/namespaces/prod/pods", 200, json!({"items": pods}));
    };

    assert_eq!(scene.delete(&pods[forced]).await.0, "SafeToDelete");
    // The pod is gone at once, no successor is there yet, and its process answers as before.
    let mut left = pods.clone();
    left.remove(forced);
    list(&left);

    // The next yes writes the record anew.
    cluster.kill(killed);
    pods[killed]["status"]["containerStatuses"][0]["state"] = json!({"waiting": {}});
    let mut left = pods.clone();
    left.remove(forced);
    list(&left);
    assert_eq!(scene.delete(&pods[killed]).await.0, "MemberNotServing");

    let (reason, message) = scene.delete(&pods[third]).await;
    assert_eq!(reason, "DisruptionInProgress", "{message}");
}

/// Nobody tells the cluster's id while all members are down; what is allowed then may arrive when they serve again.
#[tokio::test]
async fn a_yes_to_a_pod_that_crashed_counts_when_it_is_back_before_its_deletion() {
    let mut cluster = Cluster::of_three("3.6").await;
    let [crashed, other] = cluster.followers().await[..] else { panic!("two followers") };
    let mut pods: Vec<Value> = (0..3).map(|n| pod(&cluster, n)).collect();
    let scene = Scene::before(&pods).await;
    let show = |pods: &[Value]| {
        scene.objects.put("/api/v1/namespaces/prod/pods", 200, json!({"items": pods}));
    };
    let is_told = async |pod: &Value, reason| scene.ask(pod).await.0 == reason;
    until("all members serve", START_LIMIT, async || is_told(&pods[crashed], "SafeToDelete").await).await;

    for (n, pod) in pods.iter_mut().enumerate() {
        cluster.kill(n);
        pod["status"]["containerStatuses"][0]["state"] = json!({"waiting": {}});
    }
    show(&pods);
    assert_eq!(scene.delete(&pods[crashed]).await.0, "MemberNotServing");

    for (n, pod) in pods.iter_mut().enumerate() {
        cluster.restart(n);
        pod["status"]["containerStatuses"][0]["state"] = json!({"running": {}});
    }
    show(&pods);
    let reserved = async || is_told(&pods[other], "DisruptionInProgress").await;
    until("all serve again, and one is on its way", START_LIMIT, reserved).await;
}

/// It may be back before its deletion arrives, and then nobody else would know that it is on its way.
#[tokio::test]
async fn a_pod_that_crashed_goes_unreserved_only_where_no_member_ever_told_of_a_cluster() {
    let mut cluster = Cluster::of_three("3.6").await;
    let [crashed, _] = cluster.followers().await[..] else { panic!("two followers") };
    let mut pods: Vec<Value> = (0..3).map(|n| pod(&cluster, n)).collect();
    let crash = |pods: &mut [Value], n: usize| {
        pods[n]["status"]["containerStatuses"][0]["state"] = json!({"waiting": {}});
    };
    cluster.kill(crashed);
    crash(&mut pods, crashed);
    let scene = Scene::before(&pods).await;
    scene.objects.fail_writes(true);
    let (reason, message) = scene.delete(&pods[crashed]).await;
    assert_eq!(reason, "LedgerUnavailable", "{message}");
    scene.objects.fail_writes(false);
    assert_eq!(scene.delete(&pods[crashed]).await.0, "MemberNotServing");

    for n in 0..3 {
        cluster.kill(n);
        crash(&mut pods, n);
    }
    let scene = Scene::before(&pods).await;
    scene.objects.fail_writes(true);
    assert_eq!(scene.delete(&pods[crashed]).await.0, "MemberNotServing", "there is nothing to reserve in");
}
