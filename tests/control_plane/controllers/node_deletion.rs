//! The optional webhook for deletions of nodes.

use test_support::{
    guarded_cluster::{GuardedCluster, START_TIMEOUT},
    kubernetes::{
        control_plane::{NEEDED_NODE, REMOVED_NODES, SHARED_NODE},
        kubectl::CommandOutput,
        webhook,
    },
    process_node::ProcessAction,
    wait::wait_until,
};

const LIFECYCLE_CONTROLLER: &str = "--as=system:serviceaccount:kube-system:node-controller";

async fn delete_node(etcd: &GuardedCluster, further: &[&str]) -> CommandOutput {
    let delete = ["delete", "node", NEEDED_NODE, "--dry-run=server"];
    etcd.kubectl_everywhere().run(&[&delete, further].concat()).await
}

#[tokio::test]
async fn denies_node_whose_members_the_quorum_needs() {
    let mut etcd = GuardedCluster::start_on(&[SHARED_NODE, NEEDED_NODE, NEEDED_NODE]).await;
    webhook::register_node_deletions(&etcd.client, &etcd.namespace, &etcd.guard, &[NEEDED_NODE]).await;
    let text = format!(
        "without the node, 1 of 3 voters would be healthy, quorum 2. Drain the node first: kubectl drain {NEEDED_NODE} "
    );
    wait_until("the deletion of the node is denied", START_TIMEOUT, async || {
        let output = delete_node(&etcd, &[]).await;
        !output.success && output.stderr.contains(&text)
    })
    .await;
    assert_eq!(etcd.guard.new_verdicts().await, ["DELETE denied IntentProtected"]);

    // A controller deletes nodes whose machines no longer exist.
    let output = delete_node(&etcd, &[LIFECYCLE_CONTROLLER]).await;
    assert!(output.success, "{output:?}");
    // The finalizer stands for that of Karpenter, which drains the node before it removes the finalizer.
    let patch = |finalizers: &str| format!(r#"{{"metadata":{{"finalizers":{finalizers}}}}}"#);
    let kubectl = etcd.kubectl_everywhere();
    let set = patch(r#"["test.io/termination"]"#);
    kubectl.run_checked(&["patch", "node", NEEDED_NODE, "--type=merge", "-p", &set]);
    let output = delete_node(&etcd, &[]).await;
    kubectl.run_checked(&["patch", "node", NEEDED_NODE, "--type=merge", "-p", &patch("null")]);
    assert!(output.success, "{output:?}");
    assert_eq!(etcd.guard.new_verdicts().await, [""; 0], "the API server does not call the guard");

    // Members that do not answer are not protected: the machine may be gone.
    for name in ["etcd-1", "etcd-2"] {
        etcd.apply(name, ProcessAction::Pause).await;
    }
    let output = delete_node(&etcd, &[]).await;
    assert!(output.success, "{output:?}");
    assert_eq!(etcd.guard.new_verdicts().await, ["DELETE allowed IntentHarmless"]);
    for name in ["etcd-1", "etcd-2"] {
        etcd.apply(name, ProcessAction::Resume).await;
    }

    etcd.wait_until_healthy().await;
    etcd.break_glass("statefulset/etcd").await;
    wait_until("the break-glass applies", START_TIMEOUT, async || {
        let output = delete_node(&etcd, &[]).await;
        output.success && output.stderr.contains("break-glass overrules IntentProtected")
    })
    .await;
}

/// Both nodes are deleted before pod garbage collection deletes the first pod.
#[tokio::test]
async fn denies_second_node_after_approved_first() {
    let [first, second] = REMOVED_NODES;
    let mut etcd = GuardedCluster::start_on(&[SHARED_NODE, first, second]).await;
    webhook::register_node_deletions(&etcd.client, &etcd.namespace, &etcd.guard, &REMOVED_NODES).await;
    let kubectl = etcd.kubectl_everywhere();
    // A dry run reserves nothing.
    wait_until("the API server calls the guard", START_TIMEOUT, async || {
        let output = kubectl.run(&["delete", "node", second, "--dry-run=server"]).await;
        assert!(output.success, "{output:?}");
        !etcd.guard.new_verdicts().await.is_empty()
    })
    .await;
    let output = kubectl.run(&["delete", "node", first]).await;
    assert!(output.success, "{output:?}");
    let output = kubectl.run(&["delete", "node", second]).await;
    assert!(!output.success, "{output:?}");
    assert!(output.stderr.contains("node removed-1 runs pod etcd-2 of"), "{output:?}");
    assert!(output.stderr.contains("1 of 3 voters would be healthy, quorum 2"), "{output:?}");
    // The deletion of another pod depends on the same reservation.
    let output = etcd.kubectl(&["delete", "pod", "etcd-2", "--dry-run=server"]).await;
    assert!(!output.success && output.stderr.contains("DisruptionInProgress"), "{output:?}");
    let verdicts = etcd.guard.new_verdicts().await;
    let expected = [
        "DELETE allowed IntentHarmless",
        "DELETE denied DisruptionInProgress",
        "DELETE denied IntentProtected",
    ];
    assert_eq!(verdicts, expected);
}
