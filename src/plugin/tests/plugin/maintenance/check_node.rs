//! `kubectl etcd-guard check node/NAME`.

use serde_json::Value;
use test_support::{
    guard::cli,
    guarded_cluster::GuardedCluster,
    kubernetes::control_plane::{PREVIEWED_NODE, PREVIEWED_NODES},
    process_node::ProcessAction,
};

/// Returns the plan for a node, and the exit code.
async fn check_node(etcd: &GuardedCluster, node: &str) -> (Option<i32>, Value) {
    cli::json(etcd, "check", &[&format!("node/{node}")]).await
}

/// Returns the members of these clusters in the order of the evictions, with the reasons. Other tests may use the node.
fn reasons<'a>(plan: &'a Value, clusters: &[&GuardedCluster]) -> Vec<(String, &'a str)> {
    let text = |entry: &'a Value, field: &str| entry[field].as_str().unwrap();
    let members = plan["members"].as_array().unwrap().iter();
    let is_selected =
        |entry: &&Value| clusters.iter().any(|etcd| entry["namespace"] == etcd.namespace.as_str());
    let name = |entry: &'a Value| format!("{}/{}", text(entry, "namespace"), text(entry, "pod"));
    members.filter(is_selected).map(|entry| (name(entry), text(entry, "reason"))).collect()
}

/// Returns the entry of a pod.
fn entry<'a>(plan: &'a Value, etcd: &GuardedCluster, pod: &str) -> &'a Value {
    let mut members = plan["members"].as_array().unwrap().iter();
    members.find(|entry| entry["namespace"] == etcd.namespace.as_str() && entry["pod"] == pod).unwrap()
}

#[tokio::test]
async fn evictions_in_the_order_of_the_preview_succeed() {
    let nodes = &PREVIEWED_NODES;
    let (first, second) = (GuardedCluster::start_on(nodes).await, GuardedCluster::start_on(nodes).await);
    // The node has the leader of the first cluster, and a follower of the second one.
    first.make_leader("etcd-0").await;
    second.make_leader("etcd-1").await;
    let (status, plan) = check_node(&first, nodes[0]).await;
    let name = |etcd: &GuardedCluster| format!("{}/etcd-0", etcd.namespace);
    let expected = [(name(&second), "SafeToDelete"), (name(&first), "LeaderTransferred")];
    assert_eq!(reasons(&plan, &[&first, &second]), expected, "{plan}");
    assert_eq!((status, &plan["completes"]), (Some(0), &true.into()), "{plan}");
    let leader = entry(&plan, &first, "etcd-0");
    assert_eq!((&leader["isDenied"], &leader["note"]), (&false.into(), &"leadership moves first".into()));
    let text = cli::run(&first, "check", &["node", nodes[0]]).await;
    assert_eq!(text.status, Some(0), "{text:?}");
    assert!(text.stdout.contains("ALLOWED SafeToDelete"), "{}", text.stdout);
    assert!(text.stdout.contains("ALLOWED LeaderTransferred"), "{}", text.stdout);

    second.evict("etcd-0", None).await.unwrap();
    first.evict("etcd-0", None).await.unwrap();
    second.wait_until_healthy().await;
    first.wait_until_healthy().await;
}

#[tokio::test]
async fn preview_has_members_that_cannot_leave() {
    let etcd = GuardedCluster::start_on(&[PREVIEWED_NODE]).await;
    etcd.make_leader("etcd-0").await;
    etcd.apply("etcd-2", ProcessAction::Pause).await;
    let (status, plan) = check_node(&etcd, PREVIEWED_NODE).await;
    assert_eq!((status, &plan["completes"]), (Some(1), &false.into()), "{plan}");
    let follower = entry(&plan, &etcd, "etcd-1");
    assert_eq!((&follower["isDenied"], &follower["reason"]), (&true.into(), &"QuorumAtRisk".into()));
    etcd.apply("etcd-2", ProcessAction::Resume).await;
    etcd.wait_until_healthy().await;

    let absent = cli::run(&etcd, "check", &["node/absent"]).await;
    assert_eq!(absent.status, Some(2), "{absent:?}");
    assert!(absent.stderr.contains("node absent does not exist; list the nodes: kubectl"), "{absent:?}");
}
