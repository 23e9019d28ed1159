//! People and programs that operate nodes and members: nodes are drained, and members are replaced.

use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

use crate::{
    api::{
        admission::ApiServer,
        store::{Key, key},
    },
    raft::Role,
    scenario::node_name,
    workload::drain,
    world::{Sim, World},
};

/// The names of the random numbers.
const MEMBERS: &str = "member operator";
const NODES: &str = "node operator";

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
    let node = world.store.get(&node_key(&node_name(pod)));
    node.is_none_or(|node| node["spec"]["unschedulable"] != Value::Bool(true))
}

/// Returns the key of a node.
pub(crate) fn node_key(name: &str) -> Key {
    key("nodes", "", name)
}

/// The longest time between the last fault and the end of the last replacement of a member.
pub(crate) const REPLACEMENT_TIME: Duration = Duration::from_secs(120);
