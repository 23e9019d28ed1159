//! The leader's pod is protected until leadership moves.

use k8s_openapi::jiff::Timestamp;

use test_support::{
    guarded_cluster::{GuardedCluster, START_TIMEOUT},
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

    let plugin = format!("kubectl etcd-guard move-leader -n {ns} {leader}\nWithout the plugin: kubectl ");
    let (_, rest) = output.stderr.split_once(&plugin).expect(&output.stderr);
    let (command, section) = rest.split_once('\n').expect(&output.stderr);
    assert_eq!(section.trim_end(), "See https://etcd-guard.io/reasons.html#leaderprotected");
    // The shell inserts the time.
    let now = Timestamp::now().to_string();
    let command = command.trim_end().replace("$(date -u +%FT%TZ)", &now);
    let arguments: Vec<&str> = command.split_whitespace().collect();
    let output = etcd.kubectl_everywhere().run(&arguments).await;
    assert!(output.success, "{output:?}");
    wait_until("the guard moves leadership", START_TIMEOUT, async || etcd.leader().await != leader).await;

    wait_until("the former leader's deletion passes", START_TIMEOUT, async || {
        etcd.kubectl(&["delete", "pod", &leader, "--wait=false"]).await.success
    })
    .await;
    assert!(etcd.guard.new_verdicts().await.contains(&String::from("DELETE allowed SafeToDelete")));
    etcd.wait_until_replaced(&leader, &uid).await;
}

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
