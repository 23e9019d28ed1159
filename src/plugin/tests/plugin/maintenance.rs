//! The commands `restart`, `move-leader`, `defrag`, `replace`, `backup` and `check node/NAME`.

mod backup;
mod check_node;
mod defrag;
mod interruption;
mod move_leader;
mod owned;
mod permissions;
mod replace;
mod restart;
mod upgrade;

use std::collections::BTreeSet;

use k8s_openapi::api::apps::v1::StatefulSet;
use kube::Api;
use test_support::guarded_cluster::GuardedCluster;

/// The annotation that records a restart.
const RESTART: &str = "etcd-guard.io/restart";

/// Returns the type of the update strategy, and whether a restart is recorded.
async fn strategy(etcd: &GuardedCluster) -> (String, bool) {
    let sets: Api<StatefulSet> = Api::namespaced(etcd.client.clone(), &etcd.namespace);
    let set = sets.get("etcd").await.unwrap();
    let strategy = set.spec.unwrap().update_strategy.unwrap().type_.unwrap();
    (strategy, set.metadata.annotations.unwrap_or_default().contains_key(RESTART))
}

/// The state of a StatefulSet without a restart.
fn restored() -> (String, bool) {
    (String::from("RollingUpdate"), false)
}

/// Permits the guard to move leadership when the pod of a leader is evicted.
async fn permit_transfers(etcd: &GuardedCluster) {
    let output = etcd.kubectl(&["annotate", "statefulset/etcd", "etcd-guard.io/leader=transfer"]).await;
    assert!(output.success, "{output:?}");
}

/// Returns the uids of the members' pods.
async fn uids(etcd: &GuardedCluster) -> Vec<String> {
    let mut uids = Vec::new();
    for name in GuardedCluster::names() {
        uids.push(etcd.uid(name).await);
    }
    uids
}

/// Returns the pods in the order in which a command evicted them, by its output.
fn evicted(stdout: &str) -> Vec<String> {
    let line = |line: &str| {
        let text = line.split("] ").last()?.strip_suffix(" is evicted")?;
        let text = text.split_once(' ').map_or(text, |(_, rest)| rest);
        Some(text.split(' ').next()?.rsplit('/').next()?.to_owned())
    };
    stdout.lines().filter_map(line).collect()
}

/// Asserts that a restart evicted each member once, as a follower. An election of etcd can change the leader meanwhile, and then
/// also the order.
fn assert_followers_evicted(stdout: &str) {
    let order = evicted(stdout);
    let distinct: BTreeSet<&String> = order.iter().collect();
    assert_eq!((order.len(), distinct.len()), (3, 3), "{stdout}");
    assert_eq!(stdout.matches(" (follower) is evicted").count(), 3, "{stdout}");
}
