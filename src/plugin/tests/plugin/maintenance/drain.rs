//! `kubectl etcd-guard drain`.

use test_support::{
    guard::cli,
    guarded_cluster::{GuardedCluster, Setup},
    kubernetes::control_plane::{BOUND_NODE, MAINTAINED_NODES},
    process_node::MOVES,
};

use super::{drain_preview::bind_volumes, evicted};

/// Adds the annotation by which the process node binds pods to another node while their node is cordoned.
fn with_moving_pods(manifest: &str) -> String {
    let labels = "    metadata:\n      labels: {app: etcd}\n    spec:\n";
    assert!(manifest.contains(labels), "the template of the shipped manifest has other metadata");
    let annotated = format!(
        "    metadata:\n      labels: {{app: etcd}}\n      annotations: {{{MOVES}: \"true\"}}\n    spec:\n"
    );
    manifest.replacen(labels, &annotated, 1)
}

async fn start() -> GuardedCluster {
    let setup = Setup { nodes: &MAINTAINED_NODES, change_manifest: with_moving_pods, ..Setup::default() };
    GuardedCluster::start_as(setup).await
}

async fn uncordon(etcd: &GuardedCluster, node: &str) {
    let output = etcd.kubectl_everywhere().run(&["uncordon", node]).await;
    assert!(output.success, "{output:?}");
}

async fn node_of(etcd: &GuardedCluster, pod: &str) -> String {
    etcd.pods.get(pod).await.unwrap().spec.unwrap().node_name.unwrap()
}

#[tokio::test]
async fn drain_moves_members_of_two_clusters() {
    let (first, second) = (start().await, start().await);
    let node = MAINTAINED_NODES[0];
    // The node has the leader of the first cluster, and a follower of the second one.
    first.make_leader("etcd-0").await;
    second.make_leader("etcd-1").await;
    let name = |etcd: &GuardedCluster| format!("{}/etcd-0", etcd.namespace);

    let output = cli::run(&first, "drain", &[node, "--dry-run"]).await;
    assert_eq!(output.status, Some(0), "{output:?}");
    assert!(output.stdout.contains("move leader, evict"), "{}", output.stdout);
    let refused = cli::run(&first, "drain", &[node, "--all"]).await;
    assert_eq!(refused.status, Some(2), "{refused:?}");
    assert!(refused.stderr.contains("pass --force"), "{refused:?}");
    assert_eq!(node_of(&first, "etcd-0").await, node);

    let output = cli::run(&first, "drain", &[node, "--timeout", "3m"]).await;
    assert_eq!(output.status, Some(0), "{output:?}");
    assert_eq!(evicted(&output.stdout), ["etcd-0", "etcd-0"], "{}", output.stdout);
    let position = |etcd| output.stdout.find(&format!("{} is evicted", name(etcd))).unwrap();
    assert!(position(&second) < position(&first), "{}", output.stdout);
    assert!(output.stdout.contains("leadership moved from etcd-0 to "), "{}", output.stdout);
    let rest = format!("drain {node} --ignore-daemonsets");
    assert!(output.stdout.contains(&rest), "{}", output.stdout);
    for etcd in [&first, &second] {
        assert_ne!(node_of(etcd, "etcd-0").await, node);
        etcd.wait_until_healthy().await;
    }
    let output = cli::run(&first, "drain", &[node, "--all", "--force", "--timeout", "2m"]).await;
    assert_eq!(output.status, Some(0), "the pods without etcd: {output:?}");
    uncordon(&first, node).await;
}

/// No node can run the successors, and the quorum needs two of the three members.
#[tokio::test]
async fn drain_reports_members_that_cannot_move() {
    let etcd = GuardedCluster::start_on(&[BOUND_NODE]).await;
    bind_volumes(&etcd, BOUND_NODE).await;
    let output = cli::run(&etcd, "drain", &[BOUND_NODE, "--timeout", "10s"]).await;
    assert_eq!(output.status, Some(1), "{output:?}");
    assert_eq!(evicted(&output.stdout), [""; 0], "{}", output.stdout);
    let text = "3 members of";
    assert!(
        output.stdout.contains(text) && output.stdout.contains("are bound to this node"),
        "{}",
        output.stdout
    );
    assert!(output.stdout.contains(&format!("uncordon {BOUND_NODE}")), "{}", output.stdout);
    uncordon(&etcd, BOUND_NODE).await;
    etcd.wait_until_healthy().await;
}
