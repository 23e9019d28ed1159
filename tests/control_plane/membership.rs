//! Who counts: every voter in the member list, started or not, and no learner.

use etcd_client::MemberAddOptions;

use crate::support::{
    fourth_member::{FOURTH, add, start_a_learner},
    guarded_cluster::{GuardedCluster, START_LIMIT},
    wait::until,
};

#[tokio::test]
async fn a_voter_that_never_started_keeps_every_pod_in_place() {
    let mut etcd = GuardedCluster::start().await;
    let leader = etcd.leader().await;
    let mut client = etcd.member(&leader).client().await.unwrap();
    let id = add(&etcd, MemberAddOptions::new()).await;

    for name in GuardedCluster::names() {
        let denial = etcd.delete(name).await.unwrap_err();
        let text = format!(
            "without pod {name} etcd cluster {}/etcd would have 2 of 4 voters healthy, quorum 3; not healthy: member \
             {id:x} (it has never started)",
            etcd.namespace
        );
        assert!(denial.contains(&text), "{denial}");
    }
    assert_eq!(etcd.guard.news().await, ["DELETE denied QuorumAtRisk"]);

    client.member_remove(id).await.unwrap();
    let [follower, _] = etcd.followers().await;
    until("a follower's deletion passes again", START_LIMIT, async || etcd.delete(&follower).await.is_ok())
        .await;
    assert!(etcd.guard.news().await.contains(&String::from("DELETE allowed SafeToDelete")));
}

#[tokio::test]
async fn a_learners_pod_may_go() {
    let mut etcd = GuardedCluster::start().await;
    start_a_learner(&etcd).await;
    let uid = etcd.uid(FOURTH).await;

    let said = etcd.kubectl(&["delete", "pod", FOURTH]).await;
    assert!(said.success, "{}", said.stderr);
    assert_eq!(etcd.guard.news().await, ["DELETE allowed NotAVoter"]);

    until("the learner is back", START_LIMIT, async || {
        let pod = etcd.pods.get_opt(FOURTH).await.unwrap();
        pod.is_some_and(|pod| pod.metadata.uid.is_some_and(|it| it != uid))
            && etcd.member(FOURTH).status().await.is_some_and(|status| status.is_learner())
    })
    .await;
}
