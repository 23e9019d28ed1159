//! Faults of machines, networks and processes.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::{
    api::admission::{ApiServer, Deletion, Outcome},
    raft::Role,
    world::{Sim, World},
};

/// The name of the random numbers.
const FAULTS: &str = "faults";

/// Injects faults until this instant, and then removes them. Delays of watches and differences of clocks remain.
pub(crate) async fn run(api: ApiServer, end: Instant) {
    while Instant::now() < end {
        api.sim.pause(FAULTS, 300..=5_000).await;
        inject(&api);
    }
    // All faults end by themselves within this time.
    sleep(Duration::from_secs(20)).await;
    remove_all(&api);
}

/// Deletes a crashed follower through replica 0, which reaches no member, and another follower through replica 1, as soon as the
/// crashed one has restarted. Replica 0 looks at the crashed one for the second time just before, and waits for the other members
/// meanwhile, with a read from before. Replica 0 has evaluated
/// the cluster before and found no cluster id, so that it reads all records at once.
pub(crate) async fn race_for_records(api: ApiServer) {
    let sim = api.sim.clone();
    let through = |replica: usize| ApiServer { through: Some(replica), ..api.clone() };
    let deletion = Deletion::Delete { grace_seconds: 30 };
    let (crashed, other, name, other_name) = {
        let mut world = sim.world();
        world.advance();
        let followers: Vec<usize> = world
            .cluster
            .voters()
            .filter(|voter| world.cluster.members[*voter].role == Role::Follower)
            .collect();
        let [crashed, other, ..] = followers[..] else { return };
        world.faults.restarts_quickly = true;
        let members = 0..world.cluster.members.len();
        world.faults.unreachable.extend(members.map(|member| (0, member)));
        *world.faults.injected.entry("race for records").or_default() += 1;
        let name = |member: usize| world.cluster.members[member].name.clone();
        let names = (name(crashed), name(other));
        world.note(&format!("fault: race for the records of {} and {}", names.0, names.1));
        (crashed, other, names.0, names.1)
    };
    through(0).delete_pod("first", &name, deletion).await;
    {
        let mut world = sim.world();
        world.advance();
        world.faults.unreachable.remove(&(0, crashed));
        world.cluster.stop(crashed);
        world.note(&format!("fault: {name} crashes"));
    }
    // The kubelet reports the crash.
    sim.pause(FAULTS, 200..=500).await;
    let first = async {
        through(0).delete_pod("first", &name, deletion).await;
    };
    let second = async {
        for _ in 0..40 {
            sim.pause("race", 50..=150).await;
            let serves = {
                let mut world = sim.world();
                world.advance();
                [crashed, other].iter().all(|member| world.cluster.serves(*member, Instant::now()))
            };
            if !serves {
                continue;
            }
            // Later than the delay for which the oracle accepts that a member was found stopped.
            sim.pause("race", 400..=700).await;
            if through(1).delete_pod("second", &other_name, deletion).await == Outcome::Done {
                break;
            }
        }
    };
    tokio::join!(first, second);
    let mut world = sim.world();
    world.faults.restarts_quickly = false;
    world.faults.unreachable.clear();
}

/// Injects the first fault of a run: cuts the followers off from each other, pauses the leader, or does nothing, with equal
/// probability.
pub(crate) async fn disturb_leader(api: ApiServer) {
    let sim = api.sim.clone();
    {
        let mut world = sim.world();
        world.advance();
        let time = world.time(FAULTS, 3_000..=8_000);
        let fault = match world.number(FAULTS, 0..=2) {
            0 => return,
            1 => {
                cut_followers_and_delete_leader(&api, &mut world, time);
                "followers cut from each other"
            }
            _ => {
                pause_leader(&api, &mut world);
                "pause of the leader"
            }
        };
        *world.faults.injected.entry(fault).or_default() += 1;
        world.note(&format!("fault: {fault} at the beginning"));
    }
    sim.sleep(Duration::from_secs(8)).await;
}

fn inject(api: &ApiServer) {
    let sim = api.sim.clone();
    let mut world = sim.world();
    world.advance();
    let kind = world.number(FAULTS, 0..=16);
    let (members, replicas) = (world.cluster.members.len(), world.scenario.replicas);
    let (member, replica) = (world.index(FAULTS, members), world.index(FAULTS, replicas));
    let name = world.cluster.members[member].name.clone();
    let short = world.time(FAULTS, 300..=8_000);
    let fault = match kind {
        0..=2 if world.cluster.members[member].takes_part() => {
            world.cluster.members[member].is_paused = true;
            after(&sim, short, move |world| {
                let World { cluster, rng, .. } = world;
                if cluster.members[member].is_paused {
                    cluster.resume(member, rng);
                }
            });
            "pause"
        }
        3 => {
            world.cluster.stop(member);
            "crash"
        }
        4..=6 => {
            cut_links(&sim, &mut world, member, short);
            "partition"
        }
        7 => {
            world.cluster.members[member].has_slow_disk = true;
            after(&sim, short, move |world| world.cluster.members[member].has_slow_disk = false);
            "slow disk"
        }
        8 => {
            world.faults.api_down_until = Some(Instant::now() + short / 2);
            "API server restart"
        }
        9 => {
            world.faults.watch_lag[replica] = short;
            "watch lag"
        }
        10 => {
            world.faults.lost_responses = 30;
            after(&sim, short, |world| world.faults.lost_responses = 0);
            "lost responses"
        }
        11 => {
            world.faults.unreachable.insert((replica, member));
            after(&sim, short, move |world| {
                world.faults.unreachable.remove(&(replica, member));
            });
            "member unreachable from a replica"
        }
        13 => {
            cut_followers_and_delete_leader(api, &mut world, short);
            "followers cut from each other"
        }
        16 if world.cluster.leader().is_some() => {
            pause_leader(api, &mut world);
            "pause of the leader"
        }
        14 => {
            world.faults.slow_calls = 40;
            after(&sim, short, |world| world.faults.slow_calls = 0);
            "slow calls of the guard"
        }
        12 => {
            let skew = i64::try_from(world.number(FAULTS, 0..=360)).unwrap() - 180;
            world.faults.skew[replica] = skew;
            "clock change"
        }
        _ => {
            drop(world);
            api.replicas.crash(&sim, replica);
            let api = api.clone();
            sim.spawn("restart of a replica", async move {
                api.sim.sleep(short).await;
                if api.replicas.get(replica).is_none() {
                    api.replicas.start(&api.sim, replica);
                }
            });
            world = sim.world();
            "guard restart"
        }
    };
    *world.faults.injected.entry(fault).or_default() += 1;
    world.note(&format!("fault: {fault} (member {name}, replica {replica}, {short:?})"));
}

/// Pauses the leader for 2.2 s to 5 s, so that the other voters usually elect another leader. Up to 0.3 s after the pause, requests
/// the deletion of a random other member, or of the leader if it is the only one. At that time, the old leader may not have received
/// the new term yet.
fn pause_leader(api: &ApiServer, world: &mut World) {
    let Some(leader) = world.cluster.leader() else { return };
    let time = world.time(FAULTS, 2_200..=5_000);
    world.cluster.members[leader].is_paused = true;
    after(&api.sim, time, move |world| {
        let World { cluster, rng, .. } = world;
        if cluster.members[leader].is_paused {
            cluster.resume(leader, rng);
        }
    });
    let members = world.cluster.members.len();
    let other = (leader + 1 + world.index(FAULTS, (members - 1).max(1))) % members;
    let time = time + world.time(FAULTS, 1..=300);
    request_after(api, time, world.cluster.members[other].name.clone());
}

/// Requests the deletion of a pod after this delay, like an operator who observes a fault.
fn request_after(api: &ApiServer, time: Duration, pod: String) {
    let (api, sim) = (api.clone(), api.sim.clone());
    sim.spawn("request after a fault", async move {
        api.sim.sleep(time).await;
        api.delete_pod("person-after-fault", &pod, Deletion::Delete { grace_seconds: 30 }).await;
    });
}

/// Cuts a member off from some of the others, in one direction or in both; or two members from each other.
fn cut_links(sim: &Sim, world: &mut World, member: usize, time: Duration) {
    let mut links = Vec::new();
    for other in 0..world.cluster.members.len() {
        if other != member && world.chance(FAULTS, 50) {
            let direction = world.number(FAULTS, 0..=2);
            if direction != 0 {
                links.push((member, other));
            }
            if direction != 1 {
                links.push((other, member));
            }
        }
    }
    cut_until(sim, world, links, time);
}

/// Cuts all followers off from each other, and requests the deletion of the leader up to 0.5 s later. The leader still confirms
/// reads. Without the leader, no follower reaches a quorum.
fn cut_followers_and_delete_leader(api: &ApiServer, world: &mut World, time: Duration) {
    let members = &world.cluster.members;
    let followers: Vec<usize> =
        (0..members.len()).filter(|member| members[*member].role == Role::Follower).collect();
    let pairs = followers.iter().flat_map(|from| followers.iter().map(move |to| (*from, *to)));
    let links: Vec<(usize, usize)> = pairs.filter(|(from, to)| from != to).collect();
    cut_until(&api.sim, world, links, time);
    if let Some(leader) = world.cluster.leader() {
        let delay = world.time(FAULTS, 50..=500);
        request_after(api, delay, world.cluster.members[leader].name.clone());
    }
}

/// Cuts links for this time.
fn cut_until(sim: &Sim, world: &mut World, links: Vec<(usize, usize)>, time: Duration) {
    for (from, to) in &links {
        world.cluster.cut_link(*from, *to);
    }
    world.note(&format!("fault: links {links:?}"));
    after(sim, time, move |world| {
        for (from, to) in links {
            world.cluster.restore_link(from, to);
        }
    });
}

/// Changes the world after this time.
fn after(sim: &Sim, time: Duration, change: impl FnOnce(&mut World) + Send + 'static) {
    let changed = sim.clone();
    sim.spawn("end of a fault", async move {
        changed.sleep(time).await;
        let mut world = changed.world();
        world.advance();
        change(&mut world);
    });
}

fn remove_all(api: &ApiServer) {
    let missing: Vec<usize> = {
        let mut world = api.sim.world();
        world.note("fault: all faults end");
        let World { cluster, rng, faults, scenario, .. } = &mut *world;
        for member in 0..cluster.members.len() {
            cluster.members[member].has_slow_disk = false;
            if cluster.members[member].is_paused {
                cluster.resume(member, rng);
            }
        }
        cluster.cut.clear();
        faults.unreachable.clear();
        (faults.lost_responses, faults.slow_calls, faults.api_down_until) = (0, 0, None);
        (0..scenario.replicas).filter(|replica| api.replicas.get(*replica).is_none()).collect()
    };
    for replica in missing {
        api.replicas.start(&api.sim, replica);
    }
}
