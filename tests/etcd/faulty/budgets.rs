//! Evictions that the API server would refuse because of a `PodDisruptionBudget`.

use serde_json::{Value, json};

use crate::{
    cluster::{Cluster, Layout},
    guarded_cluster::{GuardedPods, annotated_pod, forbidden},
};

const BUDGETS: &str = "/apis/policy/v1/namespaces/prod/poddisruptionbudgets";

/// A budget for the pods of etcd that allows this number of disruptions.
fn budget(name: &str, allowed: u32) -> Value {
    json!({
        "metadata": {"name": name, "generation": 1},
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": {"app": "etcd"}}},
        "status": {"observedGeneration": 1, "disruptionsAllowed": allowed, "currentHealthy": 2, "desiredHealthy": 2},
    })
}

/// A drain repeats such an eviction every five seconds. As an approval, each of them would renew a reservation.
#[tokio::test]
async fn eviction_that_a_budget_refuses_reserves_nothing() {
    let cluster = Cluster::start(Layout { version: "3.6", members: 3, spare: 0, tls: false }).await;
    let ready_pod = |n| {
        let mut pod = annotated_pod(&cluster, n, &[("etcd-guard.io/leader", "transfer")]);
        pod["metadata"]["labels"] = json!({"app": "etcd"});
        pod["status"]["conditions"] = json!([{"type": "Ready", "status": "True"}]);
        pod
    };
    let pods: Vec<Value> = (0..3).map(ready_pod).collect();
    let guarded = GuardedPods::start(&pods).await;
    for (n, pod) in pods.iter().enumerate() {
        guarded.objects.put(&format!("/api/v1/namespaces/prod/pods/etcd-{n}"), 200, pod.clone());
    }
    let leader = cluster.leader().await;
    let [one, other]: [usize; 2] = cluster.followers().await.try_into().unwrap();
    let put = |items: &[Value]| guarded.objects.put(BUDGETS, 200, json!({"metadata": {}, "items": items}));

    put(&[budget("etcd", 0)]);
    for _ in 0..3 {
        let message = guarded.expect_eviction(&pods[one], "BudgetExhausted").await;
        assert!(message.contains("kubectl -n prod get poddisruptionbudget etcd"), "{message}");
    }
    guarded.expect_eviction(&pods[leader], "BudgetExhausted").await;
    assert_eq!(cluster.leader().await, leader, "leadership does not move");
    put(&[budget("etcd", 1), budget("second", 1)]);
    guarded.expect_eviction(&pods[one], "AmbiguousBudget").await;
    put(&[budget("etcd", 0)]);
    guarded.expect_deletion(&pods[other], "SafeToDelete").await;

    // The evaluation does not depend on the budgets.
    guarded.objects.put(BUDGETS, 403, forbidden());
    guarded.expect_eviction(&pods[other], "SafeToDelete").await;
    guarded.expect_eviction(&pods[one], "DisruptionInProgress").await;
}
