//! Processes that outlive their pods, as after a forced deletion.

use serde_json::{Value, json};

use crate::{
    cluster::{Cluster, Layout, START_TIMEOUT},
    guarded_cluster::{GuardedPods, pod},
};
use test_support::wait::wait_until;

#[tokio::test]
async fn member_that_outlives_its_pod_does_not_count() {
    let mut cluster = Cluster::start(Layout { version: "3.6", members: 5, spare: 0, tls: false }).await;
    let [forced, killed, third, _] = cluster.followers().await[..] else { panic!("four followers") };
    let mut pods: Vec<Value> = (0..5).map(|n| pod(&cluster, n)).collect();
    let guarded = GuardedPods::start(&pods).await;
    let list = |pods: &[Value]| {
        guarded.objects.put("/api/v1/namespaces/prod/pods", 200, json!({"items": pods}));
    };

    guarded.expect_deletion(&pods[forced], "SafeToDelete").await;
    // The pod is deleted at once, without a successor, and its process still responds.
    let mut left = pods.clone();
    left.remove(forced);
    list(&left);

    // The next approval rewrites the reservations.
    cluster.kill(killed);
    pods[killed]["status"]["containerStatuses"][0]["state"] = json!({"waiting": {}});
    let mut left = pods.clone();
    left.remove(forced);
    list(&left);
    guarded.expect_deletion(&pods[killed], "MemberNotServing").await;

    guarded.expect_deletion(&pods[third], "DisruptionInProgress").await;
}

/// No member reports the cluster id while all members are down. An approval in this state may take effect after they
/// serve again.
#[tokio::test]
async fn approval_for_crashed_pod_counts_after_restart() {
    let mut cluster = Cluster::three_members("3.6").await;
    let [crashed, other] = cluster.followers().await[..] else { panic!("two followers") };
    let mut pods: Vec<Value> = (0..3).map(|n| pod(&cluster, n)).collect();
    let guarded = GuardedPods::start(&pods).await;
    let show = |pods: &[Value]| {
        guarded.objects.put("/api/v1/namespaces/prod/pods", 200, json!({"items": pods}));
    };
    let has_reason = async |pod: &Value, reason| guarded.dry_run(pod).await.0 == reason;
    wait_until("all members serve", START_TIMEOUT, async || has_reason(&pods[crashed], "SafeToDelete").await)
        .await;

    for (n, pod) in pods.iter_mut().enumerate() {
        cluster.kill(n);
        pod["status"]["containerStatuses"][0]["state"] = json!({"waiting": {}});
    }
    show(&pods);
    guarded.expect_deletion(&pods[crashed], "MemberNotServing").await;

    for (n, pod) in pods.iter_mut().enumerate() {
        cluster.restart(n);
        pod["status"]["containerStatuses"][0]["state"] = json!({"running": {}});
    }
    show(&pods);
    let reserved = async || has_reason(&pods[other], "DisruptionInProgress").await;
    wait_until("all members serve, and the approval counts", START_TIMEOUT, reserved).await;
}

/// The member may serve again before the deletion takes effect, and without a reservation no later evaluation would
/// know of the approval.
#[tokio::test]
async fn approval_without_cluster_id_requires_reservation() {
    let mut cluster = Cluster::three_members("3.6").await;
    let [crashed, _] = cluster.followers().await[..] else { panic!("two followers") };
    let mut pods: Vec<Value> = (0..3).map(|n| pod(&cluster, n)).collect();
    let crash = |pods: &mut [Value], n: usize| {
        pods[n]["status"]["containerStatuses"][0]["state"] = json!({"waiting": {}});
    };
    cluster.kill(crashed);
    crash(&mut pods, crashed);
    let guarded = GuardedPods::start(&pods).await;
    guarded.objects.fail_writes(true);
    guarded.expect_deletion(&pods[crashed], "LedgerUnavailable").await;
    guarded.objects.fail_writes(false);
    guarded.expect_deletion(&pods[crashed], "MemberNotServing").await;

    for n in 0..3 {
        cluster.kill(n);
        crash(&mut pods, n);
    }
    let guarded = GuardedPods::start(&pods).await;
    guarded.objects.fail_writes(true);
    guarded.expect_deletion(&pods[crashed], "LedgerUnavailable").await;
    guarded.objects.fail_writes(false);
    guarded.expect_deletion(&pods[crashed], "MemberNotServing").await;
}
