//! The quorum counts every voter of the member list, started or not, and no learner.

use etcd_client::MemberAddOptions;

use test_support::{
    etcd::fourth_member::{FOURTH, add, start_learner},
    guarded_cluster::{GuardedCluster, START_TIMEOUT},
    wait::wait_until,
};

#[tokio::test]
async fn denies_all_members_with_unstarted_voter() {
    let mut etcd = GuardedCluster::start().await;
    let leader = etcd.leader().await;
    let mut client = etcd.member(&leader).client().await.unwrap();
    let id = add(&etcd, MemberAddOptions::new()).await;

    for name in GuardedCluster::names() {
        let denial = etcd.delete(name).await.unwrap_err();
        let text = format!(
            "QuorumAtRisk: member {id:x} (it has never started) is not healthy: without {name}, {}/etcd would have 2 of 4 voters \
             healthy, quorum 3",
            etcd.namespace
        );
        assert!(denial.contains(&text), "{denial}");
    }
    assert_eq!(etcd.guard.new_verdicts().await, ["DELETE denied QuorumAtRisk"]);

    client.member_remove(id).await.unwrap();
    let [follower, _] = etcd.followers().await;
    wait_until("a follower's deletion passes again", START_TIMEOUT, async || {
        etcd.delete(&follower).await.is_ok()
    })
    .await;
    assert!(etcd.guard.new_verdicts().await.contains(&String::from("DELETE allowed SafeToDelete")));
}

#[tokio::test]
async fn allows_pod_of_learner() {
    let mut etcd = GuardedCluster::start().await;
    start_learner(&etcd).await;
    let uid = etcd.uid(FOURTH).await;

    let output = etcd.kubectl(&["delete", "pod", FOURTH]).await;
    assert!(output.success, "{}", output.stderr);
    assert_eq!(etcd.guard.new_verdicts().await, ["DELETE allowed NotAVoter"]);

    wait_until("the learner is replaced", START_TIMEOUT, async || {
        let pod = etcd.pods.get_opt(FOURTH).await.unwrap();
        pod.is_some_and(|pod| pod.metadata.uid.is_some_and(|current| current != uid))
            && etcd.member(FOURTH).status().await.is_some_and(|status| status.is_learner())
    })
    .await;
}
