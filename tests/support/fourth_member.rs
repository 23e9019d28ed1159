//! A fourth member of a cluster of three, added as the shipped manifest says.

use etcd_client::MemberAddOptions;
use k8s_openapi::api::apps::v1::StatefulSet;
use kube::{Api, api::PostParams};

use super::{
    guarded_cluster::{GuardedCluster, START_LIMIT},
    wait::{some, until},
};

/// Its pod.
pub const FOURTH: &str = "etcd-3";

/// Adds it to the member list, and returns its id. etcd wants all voters to have been connected for five seconds before that.
pub async fn add(etcd: &GuardedCluster, options: MemberAddOptions) -> u64 {
    let peer_url = format!("http://{}:2380", etcd.address(FOURTH));
    let client = etcd.member(&etcd.leader().await).client().await.expect("a leader that answers");
    let added = some("a new member", START_LIMIT, async || {
        client.clone().member_add([peer_url.as_str()], Some(options.clone())).await.ok()
    });
    added.await.member().expect("the new member").id()
}

/// Adds it as a learner and starts its pod, and returns when it answers.
pub async fn start_a_learner(etcd: &GuardedCluster) {
    add(etcd, MemberAddOptions::new().with_is_learner()).await;
    add_a_pod(etcd).await;
    until("the learner is there", START_LIMIT, async || {
        etcd.member(FOURTH).status().await.is_some_and(|status| status.is_learner())
    })
    .await;
}

/// After `member add`, the replicas and the list of members. The other pods keep theirs.
async fn add_a_pod(etcd: &GuardedCluster) {
    let sets: Api<StatefulSet> = Api::namespaced(etcd.client.clone(), &etcd.namespace);
    let mut set = sets.get("etcd").await.expect("the StatefulSet");
    let spec = set.spec.as_mut().expect("a spec");
    spec.replicas = Some(4);
    let strategy = spec.update_strategy.as_mut().expect("an update strategy");
    strategy.type_ = Some(String::from("OnDelete"));
    strategy.rolling_update = None;
    let container = &mut spec.template.spec.as_mut().expect("the pods' spec").containers[0];
    for word in container.command.as_mut().expect("a command") {
        if word.starts_with("--initial-cluster=") {
            word.push_str(",etcd-3=http://etcd-3.etcd.$(NAMESPACE).svc:2380");
        } else if word.starts_with("--initial-cluster-state=") {
            *word = String::from("--initial-cluster-state=existing");
        }
    }
    sets.replace("etcd", &PostParams::default(), &set).await.expect("a StatefulSet of four");
}
