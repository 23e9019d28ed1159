//! `kubectl drain`: it retries while the guard denies the eviction, and prints the denial.

use test_support::{
    guarded_cluster::GuardedCluster,
    kubernetes::control_plane::{DELETED_NODE, DRAINED_NODES, SINGLE_NODE},
};

#[tokio::test]
async fn drain_retries_for_leader_and_evicts_follower() {
    let mut etcd = GuardedCluster::start_on(&DRAINED_NODES).await;
    let leader = etcd.leader().await;
    let [follower, _] = etcd.followers().await;

    // Shorter than the pause of five seconds between two attempts of a drain.
    let output = drain(&etcd, node_of(&leader), "2s").await;
    assert!(!output.0, "{}", output.1);
    let text = format!(
        "error when evicting pods/\"{leader}\" -n \"{}\" (will retry after 5s): admission webhook \
         \"eviction.guard.etcd-guard.io\" denied the request: LeaderProtected: {leader} leads ",
        etcd.namespace
    );
    assert!(output.1.contains(&text), "{}", output.1);
    let verdicts = etcd.guard.new_verdicts().await;
    assert!(verdicts.contains(&String::from("CREATE denied LeaderProtected")), "{verdicts:?}");
    uncordon(&etcd, node_of(&leader)).await;

    let uid = etcd.uid(&follower).await;
    let output = drain(&etcd, node_of(&follower), "60s").await;
    assert!(output.0, "{}", output.1);
    assert!(output.1.contains(&format!("pod/{follower} evicted")), "{}", output.1);
    let verdicts = etcd.guard.new_verdicts().await;
    assert!(verdicts.contains(&String::from("CREATE allowed SafeToDelete")), "{verdicts:?}");

    uncordon(&etcd, node_of(&follower)).await;
    etcd.wait_until_replaced(&follower, &uid).await;
}

#[tokio::test]
async fn drain_of_all_members_evicts_one() {
    let mut etcd = GuardedCluster::start_on(&[SINGLE_NODE]).await;
    let leader = etcd.leader().await;
    let followers = etcd.followers().await;

    let (success, text) = drain(&etcd, SINGLE_NODE, "8s").await;
    assert!(!success, "{text}");
    assert!(text.contains(&format!("error when evicting pods/\"{leader}\"")), "{text}");
    let evicted: Vec<&String> =
        followers.iter().filter(|follower| text.contains(&format!("pod/{follower} evicted"))).collect();
    let [evicted_pod] = evicted[..] else { panic!("one follower is evicted, not {evicted:?}: {text}") };
    for name in GuardedCluster::names().iter().filter(|name| *name != evicted_pod) {
        assert!(etcd.member(name).serves().await, "{name}");
    }
    let verdicts = etcd.guard.new_verdicts().await;
    assert!(verdicts.contains(&String::from("CREATE allowed SafeToDelete")), "{verdicts:?}");
    assert!(verdicts.iter().any(|verdict| verdict.starts_with("CREATE denied ")), "{verdicts:?}");

    uncordon(&etcd, SINGLE_NODE).await;
    etcd.wait_until_replaced(evicted_pod, "").await;
}

#[tokio::test]
async fn drain_by_deletion_stops_at_leader() {
    let mut etcd = GuardedCluster::start_on(&[DELETED_NODE]).await;
    let leader = etcd.leader().await;
    let uid = etcd.uid(&leader).await;

    let arguments = ["drain", DELETED_NODE, "--force", "--disable-eviction", "--timeout=60s"];
    let output = etcd.kubectl_everywhere().run(&arguments).await;
    assert!(!output.success, "{output:?}");
    let denial = "admission webhook \"guard.etcd-guard.io\" denied the request: ";
    assert!(output.stderr.contains(denial), "{}", output.stderr);
    let verdicts = etcd.guard.new_verdicts().await;
    assert!(verdicts.iter().any(|verdict| verdict.starts_with("DELETE denied ")), "{verdicts:?}");
    assert!(
        !verdicts.iter().any(|verdict| verdict.starts_with("CREATE ")),
        "nothing is evicted: {verdicts:?}"
    );
    assert_eq!(etcd.uid(&leader).await, uid);

    uncordon(&etcd, DELETED_NODE).await;
    etcd.wait_until_healthy().await;
}

/// Drains a node, and returns whether this succeeded and the whole output.
async fn drain(etcd: &GuardedCluster, node: &str, timeout: &str) -> (bool, String) {
    let timeout = format!("--timeout={timeout}");
    // The pod beside the members has no controller, so the drain needs `--force`.
    let output = etcd.kubectl_everywhere().run(&["drain", node, "--force", &timeout]).await;
    (output.success, output.stdout + &output.stderr)
}

async fn uncordon(etcd: &GuardedCluster, node: &str) {
    let output = etcd.kubectl_everywhere().run(&["uncordon", node]).await;
    assert!(output.success, "{}", output.stderr);
}

/// Returns the node of a member; the members are distributed over the nodes in order.
fn node_of(pod: &str) -> &'static str {
    let position = GuardedCluster::names().iter().position(|name| *name == pod).unwrap();
    DRAINED_NODES[position]
}
