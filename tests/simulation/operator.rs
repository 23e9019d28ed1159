//! People and programs that operate nodes and members: nodes are drained, and members are replaced.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{
    api::{
        admission::{ApiServer, Outcome},
        server::pod_key,
        store::{Key, key},
    },
    oracle::DryRun,
    raft::Role,
    scenario::{NAMESPACE, SERVICE, node_name},
    workload::drain,
    world::{Sim, World},
};

/// The names of the random numbers.
const MEMBERS: &str = "member operator";
const NODES: &str = "node operator";
const NODE_DELETIONS: &str = "node deletions";
const DRY_RUNS: &str = "dry runs";

/// The pause before a change of the membership is tried again.
const RETRY_MILLIS: std::ops::RangeInclusive<u64> = 500..=2_000;

/// Replaces voters until this instant, one at a time: removes a follower, adds it again as a learner without data, and
/// promotes it. The last replacement is completed.
pub(crate) async fn replace_members(sim: Sim, end: Instant) {
    loop {
        sim.pause(MEMBERS, 5_000..=20_000).await;
        if Instant::now() >= end {
            return;
        }
        let member = {
            let mut world = sim.world();
            let voters: Vec<usize> = world.cluster.voters().collect();
            voters[world.index(MEMBERS, voters.len())]
        };
        if !change(&sim, "removed", member, |world, now| world.cluster.remove_voter(member, now)) {
            continue;
        }
        *sim.world().faults.injected.entry("replaced member").or_default() += 1;
        sim.pause(MEMBERS, 2_000..=15_000).await;
        while !change(&sim, "added learner", member, |world, now| world.cluster.add_learner(member, now)) {
            sim.pause(MEMBERS, RETRY_MILLIS).await;
        }
        while !change(&sim, "promoted", member, |world, now| world.cluster.promote(member, now)) {
            sim.pause(MEMBERS, RETRY_MILLIS).await;
        }
    }
}

/// Changes the membership, and records it in the trace. Returns whether it has changed.
fn change(sim: &Sim, text: &str, member: usize, change: impl FnOnce(&mut World, Instant) -> bool) -> bool {
    let mut world = sim.world();
    world.advance();
    let has_changed = change(&mut world, Instant::now());
    if has_changed {
        let name = world.cluster.members[member].name.clone();
        world.note(&format!("raft: {text} {name}"));
    }
    has_changed
}

/// Drains the nodes of leaders and of other members until this instant: cordons a node, evicts its pod, and uncordons the
/// node. In some cases the cordon is withdrawn without an eviction.
pub(crate) async fn drain_nodes(api: ApiServer, end: Instant) {
    loop {
        api.sim.pause(NODES, 5_000..=15_000).await;
        if Instant::now() >= end {
            return;
        }
        let (pod, is_withdrawn) = {
            let mut world = api.sim.world();
            world.advance();
            let leader = world.cluster.members.iter().position(|member| member.role == Role::Leader);
            let members = world.cluster.members.len();
            let random = world.index(NODES, members);
            let member = leader.filter(|_| world.chance(NODES, 70)).unwrap_or(random);
            (world.cluster.members[member].name.clone(), world.chance(NODES, 20))
        };
        cordon(&api.sim, &pod, true);
        api.sim.pause(NODES, 100..=3_000).await;
        if !is_withdrawn {
            drain(&api, &pod).await;
            api.sim.pause(NODES, 1_000..=10_000).await;
        }
        cordon(&api.sim, &pod, false);
    }
}

/// Deletes nodes until this instant. 40 s to 60 s after a deletion, the garbage collector of pods removes the pod of the node
/// without a review: it marks the pod as failed, and the webhooks do not apply to failed pods. Later the kubelet registers the
/// node again.
pub(crate) async fn delete_nodes(api: ApiServer, end: Instant) {
    loop {
        api.sim.pause(NODE_DELETIONS, 10_000..=30_000).await;
        if Instant::now() >= end {
            return;
        }
        let (pod, targets) = {
            let mut world = api.sim.world();
            world.advance();
            let members = world.cluster.members.len();
            let member = world.index(NODE_DELETIONS, members);
            let pod = world.cluster.members[member].name.clone();
            let uid = uid_of(&world, &pod);
            (pod, uid.map(|uid| (member, uid)))
        };
        let node = node_name(&pod);
        let outcome = api.delete_node(NODE_DELETIONS, &node, targets.as_slice()).await;
        if outcome != Outcome::Done {
            continue;
        }
        api.sim.pause(NODE_DELETIONS, 40_000..=60_000).await;
        if let Some((_, uid)) = targets {
            collect_pod(&api.sim, &pod, &uid);
        }
        api.sim.pause(NODE_DELETIONS, 1_000..=20_000).await;
        let object = json!({"metadata": {}, "spec": {}, "status": {}});
        api.sim.world().store.create(node_key(&node), object).unwrap();
    }
}

/// Returns the uid of a pod that exists.
pub(crate) fn uid_of(world: &World, pod: &str) -> Option<String> {
    world.store.get(&pod_key(NAMESPACE, pod))?["metadata"]["uid"].as_str().map(str::to_owned)
}

/// Removes the pod with this uid, unless it is gone.
fn collect_pod(sim: &Sim, pod: &str, uid: &str) {
    let mut world = sim.world();
    world.advance();
    let object_key = pod_key(NAMESPACE, pod);
    if uid_of(&world, pod).as_deref() == Some(uid) {
        world.store.remove(&object_key, None).unwrap();
        world.note(&format!("garbage collector of pods: removed {pod} {uid}"));
    }
}

/// Cordons or uncordons the node of a pod.
fn cordon(sim: &Sim, pod: &str, is_cordoned: bool) {
    let mut world = sim.world();
    let node = node_name(pod);
    world.store.update(&node_key(&node), |object| object["spec"]["unschedulable"] = is_cordoned.into());
    world.note(&format!("node {node}: unschedulable {is_cordoned}"));
    if is_cordoned {
        *world.faults.injected.entry("cordon").or_default() += 1;
    }
}

/// Whether pods are scheduled to the node of this pod.
pub(crate) fn is_schedulable(world: &World, pod: &str) -> bool {
    // Only runs with handovers have nodes.
    let node = world.store.get(&node_key(&node_name(pod)));
    node.map_or(!world.scenario.has_handovers, |node| node["spec"]["unschedulable"] != Value::Bool(true))
}

/// Returns the key of a node.
pub(crate) fn node_key(name: &str) -> Key {
    key("nodes", "", name)
}

/// The longest time between the last fault and the end of the last replacement of a member.
pub(crate) const REPLACEMENT_TIME: Duration = Duration::from_secs(120);

/// Until this instant, requests dry runs of the deletion of the namespace, of claims and of the Service.
pub(crate) async fn request_dry_runs(api: ApiServer, end: Instant) {
    loop {
        api.sim.pause(DRY_RUNS, 100..=2_000).await;
        if Instant::now() >= end {
            return;
        }
        let (object, of): (Key, DryRun) = {
            let mut world = api.sim.world();
            let pods = world.scenario.pod_names();
            let random = world.index(DRY_RUNS, pods.len());
            // The guard finds the member of a claim without a pod through the StatefulSets. Such claims are therefore preferred.
            let absent = pods.iter().find(|pod| world.store.get(&pod_key(NAMESPACE, pod)).is_none());
            let pod = absent.unwrap_or(&pods[random]);
            match world.number(DRY_RUNS, 0..=3) {
                0 => (key("namespaces", "", NAMESPACE), DryRun::Namespace),
                1 => (key("services", NAMESPACE, SERVICE), DryRun::Service),
                _ => {
                    let member = world.cluster.index_of(pod).expect("each pod runs a member");
                    (key("persistentvolumeclaims", NAMESPACE, &format!("data-{pod}")), DryRun::Claim(member))
                }
            }
        };
        api.dry_run_deletion(DRY_RUNS, &object, &of).await;
    }
}
