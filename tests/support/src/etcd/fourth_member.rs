//! A fourth member of a cluster of three, added as the shipped manifest describes.

use etcd_client::MemberAddOptions;
use k8s_openapi::api::apps::v1::StatefulSet;
use kube::{Api, api::PostParams};

use crate::{
    guarded_cluster::{GuardedCluster, START_TIMEOUT},
    wait::{wait_for, wait_until},
};

/// The pod of the fourth member.
pub const FOURTH: &str = "etcd-3";

/// Adds the member to the member list and returns its id. etcd requires that all voters have been connected for five
/// seconds, so this retries.
pub async fn add(etcd: &GuardedCluster, options: MemberAddOptions) -> u64 {
    let peer_url = format!("http://{}:2380", etcd.address(FOURTH));
    let client = etcd.member(&etcd.leader().await).client().await.expect("the leader answers");
    let added = wait_for("a new member", START_TIMEOUT, async || {
        client.clone().member_add([peer_url.as_str()], Some(options.clone())).await.ok()
    });
    added.await.member().expect("the new member").id()
}

/// Adds a learner, starts its pod, and returns when it answers.
pub async fn start_learner(etcd: &GuardedCluster) {
    add(etcd, MemberAddOptions::new().with_is_learner()).await;
    add_pod(etcd).await;
    wait_until("the learner answers", START_TIMEOUT, async || {
        etcd.member(FOURTH).status().await.is_some_and(|status| status.is_learner())
    })
    .await;
}

/// Raises the number of replicas after `member add` and changes the list of members in the template. The update
/// strategy `OnDelete` leaves the other pods unchanged.
async fn add_pod(etcd: &GuardedCluster) {
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
