//! `kubectl etcd-guard check node/NAME`.

use serde_json::Value;
use test_support::{
    guard::cli,
    guarded_cluster::{GuardedCluster, START_TIMEOUT},
    kubernetes::control_plane::{PREVIEWED_NODE, PREVIEWED_NODES},
    process_node::ProcessAction,
    wait::wait_until,
};

/// Returns the plan for a node, and the exit code.
async fn check_node(etcd: &GuardedCluster, node: &str) -> (Option<i32>, Value) {
    cli::json(etcd, "check", &[&format!("node/{node}")]).await
}

/// Returns the members of these clusters in the order of a plan, with their actions. Other tests may use the node.
fn actions<'a>(plan: &'a Value, clusters: &[&GuardedCluster]) -> Vec<(String, &'a str)> {
    let text = |entry: &'a Value, field: &str| entry[field].as_str().unwrap();
    let members = plan["members"].as_array().unwrap().iter();
    let is_selected =
        |entry: &&Value| clusters.iter().any(|etcd| entry["namespace"] == etcd.namespace.as_str());
    let name = |entry: &'a Value| format!("{}/{}", text(entry, "namespace"), text(entry, "pod"));
    members.filter(is_selected).map(|entry| (name(entry), text(entry, "action"))).collect()
}

/// Returns the entry of a pod.
fn entry<'a>(plan: &'a Value, etcd: &GuardedCluster, pod: &str) -> &'a Value {
    let mut members = plan["members"].as_array().unwrap().iter();
    members.find(|entry| entry["namespace"] == etcd.namespace.as_str() && entry["pod"] == pod).unwrap()
}

/// Evictions in the order of the plan succeed.
#[tokio::test]
async fn drain_preview_has_the_order_that_succeeds() {
    let nodes = &PREVIEWED_NODES;
    let (first, second) = (GuardedCluster::start_on(nodes).await, GuardedCluster::start_on(nodes).await);
    // The node has the leader of the first cluster, and a follower of the second one.
    first.make_leader("etcd-0").await;
    second.make_leader("etcd-1").await;
    let (status, plan) = check_node(&first, nodes[0]).await;
    let name = |etcd: &GuardedCluster| format!("{}/etcd-0", etcd.namespace);
    let expected = [(name(&second), "evict"), (name(&first), "move-leader")];
    assert_eq!(actions(&plan, &[&first, &second]), expected, "{plan}");
    assert_eq!((status, &plan["completes"]), (Some(0), &true.into()), "{plan}");
    let (leader, follower) = (entry(&plan, &first, "etcd-0"), entry(&plan, &second, "etcd-0"));
    assert_eq!((&leader["isDenied"], &leader["reason"]), (&true.into(), &"LeaderProtected".into()), "{plan}");
    assert_eq!((&follower["isDenied"], &follower["reason"]), (&false.into(), &"SafeToDelete".into()));
    let text = cli::run(&first, "check", &["node", nodes[0]]).await;
    assert_eq!(text.status, Some(0), "{text:?}");
    assert!(text.stdout.contains("ALLOWED SafeToDelete"), "{}", text.stdout);
    assert!(text.stdout.contains("DENIED LeaderProtected"), "{}", text.stdout);

    second.evict("etcd-0", None).await.unwrap();
    let denial = first.evict("etcd-0", None).await.unwrap_err();
    assert!(denial.message.contains("LeaderProtected"), "{denial:?}");
    let transferee = leader["transferee"].as_str().unwrap();
    first.make_leader(transferee).await;
    // A snapshot from before the move denies for a moment.
    let evict = async || first.evict("etcd-0", None).await.is_ok();
    wait_until("the eviction of the former leader is approved", START_TIMEOUT, evict).await;
    second.wait_until_healthy().await;
    first.wait_until_healthy().await;
}

#[tokio::test]
async fn drain_preview_has_members_that_cannot_leave() {
    let etcd = GuardedCluster::start_on(&[PREVIEWED_NODE]).await;
    etcd.make_leader("etcd-0").await;
    etcd.apply("etcd-2", ProcessAction::Pause).await;
    let (status, plan) = check_node(&etcd, PREVIEWED_NODE).await;
    assert_eq!((status, &plan["completes"]), (Some(1), &false.into()), "{plan}");
    let follower = entry(&plan, &etcd, "etcd-1");
    assert_eq!((&follower["isDenied"], &follower["reason"]), (&true.into(), &"QuorumAtRisk".into()));
    etcd.apply("etcd-2", ProcessAction::Resume).await;
    etcd.wait_until_healthy().await;

    bind_volumes(&etcd, PREVIEWED_NODE).await;
    let (status, plan) = check_node(&etcd, PREVIEWED_NODE).await;
    assert_eq!((status, &plan["completes"]), (Some(1), &false.into()), "{plan}");
    let found = actions(&plan, &[&etcd]);
    assert!(found.iter().all(|(_, action)| *action == "stay"), "{plan}");
    let note = entry(&plan, &etcd, "etcd-1")["note"].as_str().unwrap();
    assert!(note.contains("is bound to node previewed; 3 members of"), "{note}");
    let absent = cli::run(&etcd, "check", &["node/absent"]).await;
    assert_eq!(absent.status, Some(2), "{absent:?}");
    assert!(absent.stderr.contains("node absent does not exist; list the nodes: kubectl"), "{absent:?}");
}

/// Restricts the members of the cluster to this node, as local volumes do.
pub(super) async fn bind_volumes(etcd: &GuardedCluster, node: &str) {
    let claims = etcd.kubectl(&["get", "pvc", "-o", "jsonpath={.items[*].spec.volumeName}"]).await;
    assert!(claims.success, "{claims:?}");
    let requirement =
        format!("{{\"key\": \"kubernetes.io/hostname\", \"operator\": \"In\", \"values\": [\"{node}\"]}}");
    let patch = format!(
        "{{\"spec\": {{\"nodeAffinity\": {{\"required\": {{\"nodeSelectorTerms\": [{{\"matchExpressions\": [{requirement}]}}]}}}}}}}}"
    );
    for volume in claims.stdout.split_whitespace() {
        let output =
            etcd.kubectl_everywhere().run(&["patch", "pv", volume, "--type=merge", "-p", &patch]).await;
        assert!(output.success, "{output:?}");
    }
}
