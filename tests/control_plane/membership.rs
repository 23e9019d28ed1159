//! Who counts: every voter in the member list, started or not, and no learner.

use etcd_client::{Client, MemberAddOptions};
use k8s_openapi::api::apps::v1::StatefulSet;
use kube::{Api, api::PostParams};

use crate::support::{
    guarded_cluster::{GuardedCluster, START_LIMIT},
    wait::{some, until},
};

#[tokio::test]
async fn a_voter_that_never_started_keeps_every_pod_in_place() {
    let mut etcd = GuardedCluster::start().await;
    let leader = etcd.leader().await;
    let mut client = etcd.member(&leader).client().await.unwrap();
    let peer_url = format!("http://{}:2380", etcd.address("etcd-3"));
    let id = add(&mut client, &peer_url, MemberAddOptions::new()).await;

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
    let mut client = etcd.member(&etcd.leader().await).client().await.unwrap();
    let peer_url = format!("http://{}:2380", etcd.address("etcd-3"));
    add(&mut client, &peer_url, MemberAddOptions::new().with_is_learner()).await;
    add_a_fourth_pod(&etcd).await;
    until("the learner is there", START_LIMIT, async || {
        etcd.member("etcd-3").status().await.is_some_and(|status| status.is_learner())
    })
    .await;
    let uid = etcd.uid("etcd-3").await;

    let said = etcd.kubectl(&["delete", "pod", "etcd-3"]).await;
    assert!(said.success, "{}", said.stderr);
    assert_eq!(etcd.guard.news().await, ["DELETE allowed NotAVoter"]);

    until("the learner is back", START_LIMIT, async || {
        let pod = etcd.pods.get_opt("etcd-3").await.unwrap();
        pod.is_some_and(|pod| pod.metadata.uid.is_some_and(|it| it != uid))
            && etcd.member("etcd-3").status().await.is_some_and(|status| status.is_learner())
    })
    .await;
}

/// Adds a member, and returns its id. etcd wants all voters to have been connected for five seconds before that.
async fn add(client: &mut Client, peer_url: &str, options: MemberAddOptions) -> u64 {
    let added = some("a new member", START_LIMIT, async || {
        client.clone().member_add([peer_url], Some(options.clone())).await.ok()
    });
    added.await.member().unwrap().id()
}

/// As the shipped manifest says: after `member add`, the replicas and the list of members. The other pods keep theirs.
async fn add_a_fourth_pod(etcd: &GuardedCluster) {
    let sets: Api<StatefulSet> = Api::namespaced(etcd.client.clone(), &etcd.namespace);
    let mut set = sets.get("etcd").await.unwrap();
    let spec = set.spec.as_mut().unwrap();
    spec.replicas = Some(4);
    spec.update_strategy.as_mut().unwrap().type_ = Some(String::from("OnDelete"));
    spec.update_strategy.as_mut().unwrap().rolling_update = None;
    let container = &mut spec.template.spec.as_mut().unwrap().containers[0];
    for word in container.command.as_mut().unwrap() {
        if word.starts_with("--initial-cluster=") {
            word.push_str(",etcd-3=http://etcd-3.etcd.$(NAMESPACE).svc:2380");
        } else if word.starts_with("--initial-cluster-state=") {
            *word = String::from("--initial-cluster-state=existing");
        }
    }
    sets.replace("etcd", &PostParams::default(), &set).await.unwrap();
}
