//! The leader's pod is protected until leadership moves.

use std::process::Stdio;

use test_support::{
    guarded_cluster::{GuardedCluster, START_TIMEOUT},
    processes::child::scoped_command,
    processes::testbed,
    wait::wait_until,
};

#[tokio::test]
async fn denies_leader_until_printed_command_moves_leadership() {
    let mut etcd = GuardedCluster::start().await;
    let leader = etcd.leader().await;
    let (uid, member) = (etcd.uid(&leader).await, etcd.member(&leader));

    let output = etcd.kubectl(&["delete", "pod", &leader]).await;
    assert!(!output.success, "{output:?}");
    assert_eq!(etcd.guard.new_verdicts().await, ["DELETE denied LeaderProtected"]);
    let ns = &etcd.namespace;
    let (id, term) = (member.id().await, member.status().await.unwrap().raft_term());
    let denial = format!(
        "Error from server (Forbidden): admission webhook \"guard.etcd-guard.io\" denied the request: \
         LeaderProtected: {leader} leads {ns}/etcd (member {id}, term {term}; 3 of 3 voters healthy, quorum 2). "
    );
    assert!(output.stderr.contains(&denial), "{}", output.stderr);

    let printed = format!("kubectl -n {ns} exec {leader} -c etcd -- etcdctl ");
    let (_, command) = output.stderr.split_once(&printed).expect(&output.stderr);
    let arguments: Vec<&str> = command.split_whitespace().collect();
    etcdctl_in(&etcd, &leader, &arguments);
    assert_ne!(etcd.leader().await, leader);

    wait_until("the former leader's deletion passes", START_TIMEOUT, async || {
        etcd.kubectl(&["delete", "pod", &leader, "--wait=false"]).await.success
    })
    .await;
    assert!(etcd.guard.new_verdicts().await.contains(&String::from("DELETE allowed SafeToDelete")));
    etcd.wait_until_replaced(&leader, &uid).await;
}

/// Edge case 21.
#[tokio::test]
async fn denies_forced_deletion_of_leader() {
    let mut etcd = GuardedCluster::start().await;
    let leader = etcd.leader().await;
    let uid = etcd.uid(&leader).await;

    let output = etcd.kubectl(&["delete", "pod", &leader, "--force", "--grace-period=0"]).await;
    assert!(!output.success, "{output:?}");
    assert!(output.stderr.contains(&format!("LeaderProtected: {leader} leads ")), "{}", output.stderr);
    assert_eq!(etcd.guard.new_verdicts().await, ["DELETE denied LeaderProtected"]);

    let pod = etcd.pods.get(&leader).await.unwrap();
    assert_eq!((pod.metadata.uid.unwrap(), pod.metadata.deletion_timestamp), (uid, None));
    assert_eq!(etcd.leader().await, leader);
}

/// Runs `kubectl exec POD -c etcd -- etcdctl ARGUMENTS` by etcdctl on this machine, with the endpoint that it would
/// have in the pod.
fn etcdctl_in(etcd: &GuardedCluster, pod: &str, arguments: &[&str]) {
    let output = scoped_command(testbed::program("etcdctl-3.6"))
        .args(arguments)
        .env("ETCDCTL_ENDPOINTS", etcd.member(pod).url())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(output.status.success(), "etcdctl {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}
