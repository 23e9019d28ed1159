//! `kubectl drain`: it tries again as long as the guard says "not now", and shows what the guard says.

use crate::support::{
    control_plane::{DELETED_NODE, DRAINED_NODES, LONE_NODE},
    guarded_cluster::GuardedCluster,
};

#[tokio::test]
async fn a_drain_waits_for_the_leader_to_move_and_takes_a_follower() {
    let mut etcd = GuardedCluster::start_on(&DRAINED_NODES).await;
    let leader = etcd.leader().await;
    let [follower, _] = etcd.followers().await;

    // Shorter than drain's pause of five seconds between two tries.
    let said = drain(&etcd, node_of(&leader), "2s").await;
    assert!(!said.0, "{}", said.1);
    let text = format!(
        "error when evicting pods/\"{leader}\" -n \"{}\" (will retry after 5s): admission webhook \
         \"eviction.guard.etcd-guard.io\" denied the request: pod {leader} is the leader of etcd cluster",
        etcd.namespace
    );
    assert!(said.1.contains(&text), "{}", said.1);
    let news = etcd.guard.news().await;
    assert!(news.contains(&String::from("CREATE denied LeaderProtected")), "{news:?}");
    uncordon(&etcd, node_of(&leader)).await;

    let uid = etcd.uid(&follower).await;
    let said = drain(&etcd, node_of(&follower), "60s").await;
    assert!(said.0, "{}", said.1);
    assert!(said.1.contains(&format!("pod/{follower} evicted")), "{}", said.1);
    let news = etcd.guard.news().await;
    assert!(news.contains(&String::from("CREATE allowed SafeToDelete")), "{news:?}");

    uncordon(&etcd, node_of(&follower)).await;
    etcd.wait_until_back(&follower, &uid).await;
}

#[tokio::test]
async fn a_drain_of_the_node_of_all_members_takes_one_and_leaves_the_quorum() {
    let mut etcd = GuardedCluster::start_on(&[LONE_NODE]).await;
    let leader = etcd.leader().await;
    let followers = etcd.followers().await;

    let (success, text) = drain(&etcd, LONE_NODE, "8s").await;
    assert!(!success, "{text}");
    assert!(text.contains(&format!("error when evicting pods/\"{leader}\"")), "{text}");
    let evicted: Vec<&String> =
        followers.iter().filter(|it| text.contains(&format!("pod/{it} evicted"))).collect();
    let [gone] = evicted[..] else { panic!("one of two, not {evicted:?}: {text}") };
    for name in GuardedCluster::names().iter().filter(|name| *name != gone) {
        assert!(etcd.member(name).serves().await, "{name}");
    }
    let news = etcd.guard.news().await;
    assert!(news.contains(&String::from("CREATE allowed SafeToDelete")), "{news:?}");
    assert!(news.iter().any(|it| it.starts_with("CREATE denied ")), "{news:?}");

    uncordon(&etcd, LONE_NODE).await;
    etcd.wait_until_back(gone, "").await;
}

#[tokio::test]
async fn a_drain_by_deletion_stops_at_the_leader() {
    let mut etcd = GuardedCluster::start_on(&[DELETED_NODE]).await;
    let leader = etcd.leader().await;
    let uid = etcd.uid(&leader).await;

    let arguments = ["drain", DELETED_NODE, "--force", "--disable-eviction", "--timeout=60s"];
    let said = etcd.kubectl_everywhere().run(&arguments).await;
    assert!(!said.success, "{said:?}");
    let denial = "admission webhook \"guard.etcd-guard.io\" denied the request: ";
    assert!(said.stderr.contains(denial), "{}", said.stderr);
    let news = etcd.guard.news().await;
    assert!(news.iter().any(|it| it.starts_with("DELETE denied ")), "{news:?}");
    assert!(!news.iter().any(|it| it.starts_with("CREATE ")), "it evicts nothing: {news:?}");
    assert_eq!(etcd.uid(&leader).await, uid);

    uncordon(&etcd, DELETED_NODE).await;
    etcd.wait_until_whole().await;
}

/// Whether it succeeded, and all that it printed.
async fn drain(etcd: &GuardedCluster, node: &str, timeout: &str) -> (bool, String) {
    let timeout = format!("--timeout={timeout}");
    // The pod beside the members belongs to no controller.
    let said = etcd.kubectl_everywhere().run(&["drain", node, "--force", &timeout]).await;
    (said.success, said.stdout + &said.stderr)
}

async fn uncordon(etcd: &GuardedCluster, node: &str) {
    let said = etcd.kubectl_everywhere().run(&["uncordon", node]).await;
    assert!(said.success, "{}", said.stderr);
}

/// The members go round the nodes.
fn node_of(pod: &str) -> &'static str {
    let position = GuardedCluster::names().iter().position(|name| *name == pod).unwrap();
    DRAINED_NODES[position]
}
