//! `kubectl drain`: the guard moves leadership before it approves the eviction of a leader. The command retries while the guard
//! denies an eviction, and prints the denial.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::DeleteOptions;

use test_support::{
    guarded_cluster::{GuardedCluster, START_TIMEOUT},
    kubernetes::control_plane::{DELETED_NODE, DRAINED_NODES, SINGLE_NODE},
    wait::wait_until,
};

#[tokio::test]
async fn drain_moves_leadership_unless_the_policy_denies_it() {
    let mut etcd = GuardedCluster::start_on(&DRAINED_NODES).await;
    set_policy(&etcd, "etcd-guard.io/leader=deny", false).await;
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
    etcd.guard.new_verdicts().await;
    let output = drain(&etcd, node_of(&follower), "60s").await;
    assert!(output.0, "{}", output.1);
    assert!(output.1.contains(&format!("pod/{follower} evicted")), "{}", output.1);
    let verdicts = etcd.guard.new_verdicts().await;
    assert!(verdicts.contains(&String::from("CREATE allowed SafeToDelete")), "{verdicts:?}");

    uncordon(&etcd, node_of(&follower)).await;
    etcd.wait_until_replaced(&follower, &uid).await;

    // The default needs no person.
    set_policy(&etcd, "etcd-guard.io/leader-", true).await;
    let (leader, uid) = (etcd.leader().await, etcd.uid(&etcd.leader().await).await);
    etcd.guard.new_verdicts().await;
    let output = drain(&etcd, node_of(&leader), "60s").await;
    assert!(output.0 && output.1.contains(&format!("pod/{leader} evicted")), "{}", output.1);
    let warning = format!("Warning: leadership of etcd {}/etcd was moved to etcd-", etcd.namespace);
    assert!(output.1.contains(&warning), "{}", output.1);
    let verdicts = etcd.guard.new_verdicts().await;
    assert!(verdicts.contains(&String::from("CREATE allowed LeaderTransferred")), "{verdicts:?}");
    uncordon(&etcd, node_of(&leader)).await;
    etcd.wait_until_replaced(&leader, &uid).await;
    assert_ne!(etcd.leader().await, leader);
}

/// Annotates the StatefulSet, and waits until the guard approves or denies the eviction of its leader.
async fn set_policy(etcd: &GuardedCluster, annotation: &str, is_approved: bool) {
    let output = etcd.kubectl(&["annotate", "statefulset/etcd", annotation]).await;
    assert!(output.success, "{output:?}");
    let dry_run =
        || Some(DeleteOptions { dry_run: Some(vec![String::from("All")]), ..DeleteOptions::default() });
    wait_until("the policy applies", START_TIMEOUT, async || {
        etcd.evict(&etcd.leader().await, dry_run()).await.is_ok() == is_approved
    })
    .await;
}

#[tokio::test]
async fn drain_of_all_members_evicts_one() {
    let mut etcd = GuardedCluster::start_on(&[SINGLE_NODE]).await;
    let (success, text) = drain(&etcd, SINGLE_NODE, "8s").await;
    assert!(!success, "{text}");
    let names = GuardedCluster::names();
    let evicted: Vec<&&str> =
        names.iter().filter(|name| text.contains(&format!("pod/{name} evicted"))).collect();
    let [evicted_pod] = evicted[..] else { panic!("one member is evicted, not {evicted:?}: {text}") };
    for name in names.iter().filter(|name| *name != evicted_pod) {
        assert!(text.contains(&format!("error when evicting pods/\"{name}\"")), "{text}");
        assert!(etcd.member(name).serves().await, "{name}");
    }
    let verdicts = etcd.guard.new_verdicts().await;
    assert!(verdicts.iter().any(|verdict| verdict.starts_with("CREATE allowed ")), "{verdicts:?}");
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
