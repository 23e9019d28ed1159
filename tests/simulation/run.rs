//! One run: a seed determines its scenario, its faults and its requests.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use etcd_guard_core::mistakes::Mistake;
use serde_json::Value;
use tokio::{
    task::{AbortHandle, JoinSet},
    time::{Instant, sleep},
};

use crate::{
    api::{
        admission::{ApiServer, Deletion, Outcome},
        server::pod_key,
    },
    controllers, faults, kubelet,
    operator::{self, REPLACEMENT_TIME},
    oracle::Margin,
    policies, protocol_traces,
    raft::Role,
    replicas::Replicas,
    scenario::{NAMESPACE, Scenario},
    workload,
    world::{Sim, World},
};

/// Time for the cluster and the guard to settle after the start, and after the last fault.
const SETTLE_TIME: Duration = Duration::from_secs(90);

/// A harmless deletion is approved within this time after the faults have ended.
const LIVENESS_TIME: Duration = Duration::from_secs(120);

/// Number of people that issue requests.
const PEOPLE: usize = 3;

/// Runs in several threads would share the semaphores of the guard, and influence each other.
static RUNNING: Mutex<()> = Mutex::new(());

/// The result of a run.
pub(crate) struct Report {
    pub(crate) seed: u64,
    pub(crate) scenario: String,
    pub(crate) violations: Vec<String>,
    pub(crate) hash: u64,
    pub(crate) events: usize,
    pub(crate) text: Option<String>,
    pub(crate) verdicts: BTreeMap<(&'static str, &'static str), u32>,
    pub(crate) faults: BTreeMap<&'static str, u32>,
    pub(crate) approvals: u32,
    pub(crate) unjudged: BTreeMap<&'static str, u32>,
    pub(crate) margins: Vec<Margin>,
    pub(crate) simulated: Duration,
    /// The trace for the comparison with the model; `None` if the comparison does not cover an operation of the run.
    pub(crate) protocol_trace: Option<String>,
}

/// Waits until no other thread runs a simulation.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs the simulation of a seed, with a mistake of the guard or with none.
pub(crate) fn run(seed: u64, mistake: Option<Mistake>, records_text: bool) -> Report {
    let _alone = alone();
    Mistake::activate(mistake);
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let report = runtime.block_on(simulate(seed, records_text));
    drop(runtime);
    Mistake::activate(None);
    report
}

async fn simulate(seed: u64, records_text: bool) -> Report {
    let mut rng = fastrand::Rng::with_seed(seed);
    fastrand::seed(seed);
    let scenario = Scenario::new(&mut rng, seed);
    let description = scenario.describe();
    let started = Instant::now();
    let end = started + SETTLE_TIME / 3 + Duration::from_secs(scenario.seconds);
    let world = World::new(scenario, rng, seed, records_text);
    let sim = Sim::new(world);
    let api = ApiServer { sim: sim.clone(), replicas: Replicas::default(), through: None };
    let mut tasks = JoinSet::new();
    tasks.spawn(kubelet::run(sim.clone()));
    tasks.spawn(controllers::run_set_controller(api.clone()));
    let replicas = sim.world().scenario.replicas;
    for replica in 0..replicas {
        api.replicas.start(&sim, replica);
    }
    sleep(SETTLE_TIME / 3).await;
    if sim.world().scenario.races_for_records {
        tasks.spawn(faults::race_for_records(api.clone()));
        sleep(Duration::from_secs(4)).await;
    } else {
        faults::disturb_leader(api.clone()).await;
    }
    tasks.spawn(controllers::run_garbage_collector(api.clone()));
    for person in 0..PEOPLE {
        tasks.spawn(workload::run(api.clone(), person, end));
    }
    let (replaces_members, has_handovers) = {
        let world = sim.world();
        (world.scenario.replaces_members, world.scenario.has_handovers)
    };
    let replacement = replaces_members.then(|| tasks.spawn(operator::replace_members(sim.clone(), end)));
    if has_handovers {
        tasks.spawn(operator::drain_nodes(api.clone(), end));
    }
    let deletes_nodes = sim.world().scenario.deletes_nodes;
    if deletes_nodes {
        tasks.spawn(operator::delete_nodes(api.clone(), end));
    }
    if sim.world().scenario.changes_policies {
        tasks.spawn(policies::change(sim.clone(), end));
    }
    if sim.world().scenario.has_dry_runs {
        tasks.spawn(operator::request_dry_runs(api.clone(), end));
    }
    let injected = tasks.spawn(faults::run(api.clone(), end));
    while !injected.is_finished() && sim.world().oracle.violations.is_empty() {
        sleep(Duration::from_secs(1)).await;
        fail_with_task(&mut tasks);
    }
    if let Some(replacement) = replacement {
        await_replacement(&sim, &replacement).await;
    }
    if sim.world().oracle.violations.is_empty() {
        check_liveness(&api).await;
        fail_with_task(&mut tasks);
    }
    tasks.abort_all();
    let mut world = sim.world();
    let world = &mut *world;
    world.trace.flush();
    let protocol_trace = world.scenario.is_modelled().then(|| protocol_traces::of_run(world));
    Report {
        seed,
        scenario: description,
        violations: std::mem::take(&mut world.oracle.violations),
        hash: world.trace.hash,
        events: world.trace.events,
        text: world.trace.text.take(),
        verdicts: std::mem::take(&mut world.oracle.verdicts),
        faults: std::mem::take(&mut world.faults.injected),
        approvals: world.oracle.approvals,
        unjudged: std::mem::take(&mut world.oracle.unjudged),
        margins: std::mem::take(&mut world.oracle.margins),
        simulated: started.elapsed(),
        protocol_trace,
    }
}

/// Waits until the last member is replaced.
async fn await_replacement(sim: &Sim, replacement: &AbortHandle) {
    let started = Instant::now();
    while !replacement.is_finished() && sim.world().oracle.violations.is_empty() {
        if started.elapsed() > REPLACEMENT_TIME {
            let text = format!("a member was not replaced within {REPLACEMENT_TIME:?} after the last fault");
            sim.world().oracle.violations.push(text);
        }
        sleep(Duration::from_secs(1)).await;
    }
}

/// Fails with the panic of a task that has ended.
fn fail_with_task(tasks: &mut JoinSet<()>) {
    while let Some(ended) = tasks.try_join_next() {
        if let Err(error) = ended
            && error.is_panic()
        {
            std::panic::resume_unwind(error.into_panic());
        }
    }
}

/// Checks that two harmless deletions are approved after the faults have ended: those of a follower or, if the guard moves
/// leadership, of any voter. With one voter, the policy for it permits them.
async fn check_liveness(api: &ApiServer) {
    end_policies(api);
    sleep(SETTLE_TIME).await;
    for _ in 0..2 {
        if let Err(violation) = check_deletion(api).await {
            api.sim.world().oracle.violations.push(violation);
            return;
        }
        sleep(SETTLE_TIME).await;
    }
    let mut world = api.sim.world();
    world.advance();
    let mut pods = world.scenario.pod_names();
    pods.retain(|pod| world.store.get(&pod_key(NAMESPACE, pod)).is_none());
    let stopped: Vec<&str> = world
        .cluster
        .voters()
        .filter(|voter| !world.cluster.serves(*voter, Instant::now()))
        .map(|voter| world.cluster.members[voter].name.as_str())
        .collect();
    if !pods.is_empty() || !stopped.is_empty() {
        let text = format!("at the end, pods {pods:?} are missing, and members {stopped:?} do not serve");
        world.oracle.violations.push(text);
    }
}

/// Corrects the member lists. Removes the annotations with policies, and those that permit deletions: with the latter, a denial that ends after a minute would
/// be an approval. The deletion of the only voter requires a permission.
fn end_policies(api: &ApiServer) {
    let mut world = api.sim.world();
    policies::remove_annotations(&mut world);
    for member in &mut world.cluster.members {
        member.is_listed_as_learner = None;
    }
    if world.scenario.has_single_voter() {
        policies::permit_single_member(&mut world);
    }
}

/// Whether a voter serves, and its deletion can be approved.
fn is_possible(world: &World, voter: usize) -> bool {
    let member = &world.cluster.members[voter];
    let pod = world.store.get(&pod_key(NAMESPACE, &member.name));
    let runs = |pod: &Value| {
        pod["metadata"]["deletionTimestamp"].is_null()
            && world.oracle.running.get(&voter).is_some_and(|uid| pod["metadata"]["uid"] == uid.as_str())
    };
    world.cluster.serves(voter, Instant::now())
        && pod.is_some_and(runs)
        && (world.scenario.transfers || world.scenario.has_single_voter() || member.role != Role::Leader)
}

/// Deletes a voter that serves, and repeats the request until it is approved. Returns an error if that takes too long, or if the
/// guard states that a voter does not serve that served without interruption.
async fn check_deletion(api: &ApiServer) -> Result<(), String> {
    let started = Instant::now();
    let mut outcomes = Vec::new();
    let mut chosen = None;
    while started.elapsed() < LIVENESS_TIME {
        let candidate = {
            let mut world = api.sim.world();
            world.advance();
            let voters: Vec<usize> =
                world.cluster.voters().filter(|voter| is_possible(&world, *voter)).collect();
            let known = chosen.filter(|voter| voters.contains(voter));
            let voter = match voters.len() {
                0 => None,
                count => Some(known.unwrap_or_else(|| voters[world.index("liveness", count)])),
            };
            voter.map(|voter| {
                let name = world.cluster.members[voter].name.clone();
                (voter, name, world.oracle.running[&voter].clone())
            })
        };
        if let Some((voter, name, uid)) = candidate {
            chosen = Some(voter);
            let requested_at = Instant::now();
            let outcome = api.delete_pod("liveness", &name, Deletion::Delete { grace_seconds: 30 }).await;
            if outcome == Outcome::Done {
                let mut world = api.sim.world();
                world.advance();
                let reason = world.oracle.reasons.get(&uid).copied().unwrap_or_default();
                if ["SafeToDelete", "LeaderTransferred", "SingleMemberAllowed"].contains(&reason) {
                    return Ok(());
                }
                if world.oracle.served_since(voter, requested_at) {
                    return Err(format!("the deletion of {name}, which served, was approved with {reason}"));
                }
            }
            outcomes.push(format!("{name}: {outcome:?}"));
        }
        sleep(Duration::from_secs(3)).await;
    }
    Err(format!("no harmless deletion was approved within {LIVENESS_TIME:?}: {outcomes:?}"))
}
