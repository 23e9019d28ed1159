//! Compares the simulated raft with recordings of real clusters: after the same faults, the guard gives the same verdicts on
//! their members (`tests/etcd/faulty/recordings.rs`).

use std::{collections::BTreeMap, time::Duration};

use etcd_guard_core::{
    assess::assess,
    etcd::endpoint::Endpoint,
    policy::Policy,
    snapshot::{
        ContainerState, EtcdctlFlags, Listener, MemberPod, OwnerState, Path, PodReport, Snapshot, Storage,
        silence::CONFIRMATION_TIME,
    },
};
use etcd_guard_etcd::{Connections, probe};
use serde_json::Value;
use test_support::etcd::raft_scenarios::{Added, Fault, RAFT_SCENARIOS, RaftScenario};
use tokio::time::{Instant, sleep};

use crate::{
    raft::{Role, TICK, service::transport},
    run::alone,
    scenario::Scenario,
    world::{Sim, World},
};

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/raft-recordings.json");

/// The time of the elections that follow a start or a fault.
const ELECTION_TIME: Duration = Duration::from_secs(6);

/// The pause between two snapshots, and the number of equal snapshots that are compared.
const PAUSE: Duration = Duration::from_millis(700);
const EQUAL_SNAPSHOTS: usize = 4;
const MAX_SNAPSHOTS: usize = 60;

#[test]
fn raft_gives_the_recorded_verdicts() {
    let _alone = alone();
    let recordings: BTreeMap<String, Value> =
        serde_json::from_str(&std::fs::read_to_string(FILE).unwrap()).unwrap();
    assert_eq!(recordings.len(), RAFT_SCENARIOS.len(), "a recording per scenario");
    let mut different = Vec::new();
    for (scenario, seed) in RAFT_SCENARIOS.iter().zip(1..) {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        let simulated = runtime.block_on(simulate(scenario, seed));
        let recorded = &recordings[scenario.name];
        if simulated != *recorded {
            different.push(format!("{}: etcd {recorded}, simulation {simulated}", scenario.name));
        }
    }
    assert!(different.is_empty(), "{}", different.join("\n"));
}

async fn simulate(scenario: &RaftScenario, seed: u64) -> Value {
    let members = scenario.members();
    let circumstances = Scenario::of_raft(members, usize::from(scenario.added == Some(Added::Learner)));
    let sim = Sim::new(World::new(circumstances, fastrand::Rng::with_seed(seed), seed, false));
    let address = |member: usize| format!("10.1.0.{}", member + 1);
    let mut running = vec![true; members];
    {
        let mut world = sim.world();
        for (member, runs) in running.iter_mut().enumerate() {
            world.addresses.insert(address(member), member);
            *runs = scenario.added != Some(Added::StoppedVoter) || member < scenario.voters;
            if *runs {
                world.cluster.start(member, &address(member));
            }
        }
    }
    advance(&sim, ELECTION_TIME).await;
    let labels = {
        let world = sim.world();
        let leads = |member: &usize| world.cluster.members[*member].role == Role::Leader;
        let (mut labels, others): (Vec<usize>, Vec<usize>) = (0..members).partition(leads);
        assert_eq!(labels.len(), 1, "{}: leaders", scenario.name);
        labels.extend(others);
        labels
    };
    for fault in scenario.faults {
        if matches!(fault, Fault::Start(_)) {
            advance(&sim, ELECTION_TIME).await;
        }
        let now = Instant::now();
        let mut world = sim.world();
        let World { cluster, rng, .. } = &mut *world;
        cluster.tick(now, rng);
        match *fault {
            Fault::Kill(label) => {
                cluster.stop(labels[label]);
                running[labels[label]] = false;
            }
            Fault::Start(label) => {
                cluster.start(labels[label], &address(labels[label]));
                running[labels[label]] = true;
            }
            Fault::Pause(label) => cluster.members[labels[label]].is_paused = true,
            Fault::Cut(one, other) => {
                cluster.cut_link(labels[one], labels[other]);
                cluster.cut_link(labels[other], labels[one]);
            }
            Fault::Lose(from, to) => cluster.cut_link(labels[from], labels[to]),
            Fault::Transfer(label) => assert!(cluster.transfer(labels[0], labels[label], now)),
            Fault::Remove(label) => {
                cluster.remove(labels[label]);
                running[labels[label]] = false;
            }
        }
    }
    settled_verdicts(&sim, scenario, &labels, &running).await
}

/// Lets the cluster run for this time.
async fn advance(sim: &Sim, time: Duration) {
    let end = Instant::now() + time;
    while Instant::now() < end {
        sleep(TICK).await;
        sim.world().advance();
    }
}

/// Returns the verdicts once several snapshots in a row agree.
async fn settled_verdicts(sim: &Sim, scenario: &RaftScenario, labels: &[usize], running: &[bool]) -> Value {
    advance(sim, ELECTION_TIME).await;
    let mut last = (Value::Null, 0);
    for _ in 0..MAX_SNAPSHOTS {
        let snapshot = snapshot(sim, running).await;
        let verdict = |label: &usize| {
            assess(&snapshot, &snapshot.pods[*label], &Policy::default()).reason.as_str().to_owned()
        };
        let verdicts = scenario.summarize(&labels.iter().map(verdict).collect::<Vec<_>>());
        last = if last.0 == verdicts { (verdicts, last.1 + 1) } else { (verdicts, 1) };
        if last.1 == EQUAL_SNAPSHOTS {
            break;
        }
        advance(sim, PAUSE).await;
    }
    assert_eq!(last.1, EQUAL_SNAPSHOTS, "the verdicts do not settle: {}", last.0);
    last.0
}

async fn snapshot(sim: &Sim, running: &[bool]) -> Snapshot {
    let address = |member: usize| format!("10.1.0.{}", member + 1);
    let endpoint = |member: usize| Endpoint {
        url: format!("http://{}:2379", address(member)),
        other_urls: Vec::new(),
        tls: None,
        user: None,
    };
    let endpoints: Vec<Endpoint> = (0..running.len()).map(endpoint).collect();
    let connections = Connections::through(transport(sim, 0));
    let replies = probe(&connections, &endpoints, Instant::now() + Duration::from_secs(5)).await;
    let pods = replies.into_iter().enumerate().map(|(member, reply)| MemberPod {
        name: format!("etcd-{member}"),
        uid: format!("uid-{member}"),
        container: String::from("etcd"),
        etcdctl: EtcdctlFlags::default(),
        ip: address(member),
        member_name: None,
        hostname: String::new(),
        peer_urls: Vec::new(),
        owner: OwnerState::OF_TARGET,
        owner_kind: String::from("StatefulSet"),
        terminating: false,
        reserved: false,
        report: PodReport::with_container(ContainerState::of_started(running[member])),
        path: Path { listener: Listener::Stated, has_answered: true },
        silent_since: Instant::now().checked_sub(CONFIRMATION_TIME),
        other_containers: 0,
        storage: Storage::Persistent,
        stop_script: None,
        revision: String::new(),
        scheme: endpoints[member].scheme(),
        reply,
    });
    Snapshot {
        cluster: String::from("test/etcd"),
        namespace: String::from("test"),
        taken_at: Instant::now(),
        pods: pods.collect(),
        external_members: Vec::new(),
        other_namespaces: std::collections::BTreeSet::new(),
        reserved_until: std::collections::BTreeMap::new(),
        without_role: std::collections::BTreeSet::new(),
        denied_members: Vec::new(),
    }
}
