//! Records the verdicts on the members of real clusters after faults. The simulation must give the same verdicts
//! (`tests/simulation/recordings.rs`).

use std::{collections::BTreeMap, net::Ipv4Addr, time::Duration};

use etcd_client::MemberAddOptions;
use etcd_guard_core::{assess::assess, policy::Policy};
use etcd_guard_etcd::{Connections, move_leader};
use futures::stream::{self, StreamExt};
use serde_json::Value;
use tokio::time::{Instant, sleep};

use crate::cluster::{Cluster, Layout, START_TIMEOUT};
use test_support::etcd::{
    peer_links::{Peer, PeerLinks},
    raft_scenarios::{Added, Fault, RAFT_SCENARIOS, RaftScenario},
};

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/raft-recordings.json");

/// The release whose behaviour is recorded.
const VERSION: &str = "3.6";

/// The time of the elections that follow a fault.
const ELECTION_TIME: Duration = Duration::from_secs(4);

/// The time after which etcd accepts changes of the membership.
const STABLE_TIME: Duration = Duration::from_secs(6);

/// The pause between two snapshots, and the number of equal snapshots that are recorded.
const PAUSE: Duration = Duration::from_millis(700);
const EQUAL_SNAPSHOTS: usize = 4;

/// Clusters that run at the same time.
const CONCURRENT: usize = 3;

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes minutes, and changes tests/data/raft-recordings.json"]
async fn record_verdicts_after_faults() {
    let recordings = stream::iter(&RAFT_SCENARIOS).map(async |scenario| {
        let verdicts = Box::pin(record(scenario)).await;
        eprintln!("{}: {verdicts}", scenario.name);
        (scenario.name, verdicts)
    });
    let recordings: BTreeMap<&str, Value> = recordings.buffer_unordered(CONCURRENT).collect().await;
    let text = serde_json::to_string_pretty(&recordings).unwrap();
    std::fs::write(FILE, text + "\n").unwrap();
}

async fn record(scenario: &RaftScenario) -> Value {
    let spare = scenario.members() - scenario.voters;
    let layout = Layout { version: VERSION, members: scenario.voters, spare, tls: false };
    let (mut cluster, links) = if scenario.cuts_links() {
        let (cluster, links) = Cluster::start_linked(layout).await;
        (cluster, Some(links))
    } else {
        (Cluster::start(layout).await, None)
    };
    let leader = cluster.leader().await;
    let followers = (0..scenario.voters).filter(|member| *member != leader);
    let labels: Vec<usize> =
        [leader].into_iter().chain(followers).chain(scenario.voters..scenario.members()).collect();
    let mut ids = Vec::new();
    let snapshot = cluster.snapshot(&Connections::new()).await;
    for member in &labels {
        ids.push(snapshot.pods[*member].reply.status().map_or(0, |status| status.member_id.0));
    }
    match scenario.added {
        Some(Added::StoppedVoter) => cluster.add(&mut cluster.client(leader).await, scenario.voters).await,
        Some(Added::Learner) => {
            let options = MemberAddOptions::new().with_is_learner();
            let url = cluster.peer_url(scenario.voters);
            // etcd refuses changes of the membership during the first five seconds of a cluster.
            sleep(STABLE_TIME).await;
            cluster.client(leader).await.member_add([url], Some(options)).await.unwrap();
            cluster.restart(scenario.voters);
            cluster.wait_until_serving(scenario.voters).await;
        }
        None => {}
    }
    for fault in scenario.faults {
        inject(&mut cluster, links.as_ref(), &labels, &ids, *fault).await;
    }
    settled_verdicts(&cluster, scenario, &labels).await
}

async fn inject(
    cluster: &mut Cluster,
    links: Option<&PeerLinks>,
    labels: &[usize],
    ids: &[u64],
    fault: Fault,
) {
    let peer = |cluster: &Cluster, label: usize| -> Peer {
        (ids[label], cluster.address(labels[label]).parse::<Ipv4Addr>().unwrap())
    };
    match fault {
        Fault::Kill(label) => cluster.kill(labels[label]),
        Fault::Start(label) => {
            sleep(ELECTION_TIME).await;
            cluster.restart(labels[label]);
            cluster.wait_until_serving(labels[label]).await;
        }
        Fault::Pause(label) => cluster.freeze(labels[label]).await,
        Fault::Cut(one, other) => links.unwrap().cut(peer(cluster, one), peer(cluster, other)),
        Fault::Lose(from, to) => links.unwrap().lose(peer(cluster, from), peer(cluster, to)),
        Fault::Transfer(label) => {
            let snapshot = cluster.healthy_snapshot(&Connections::new()).await;
            let id = snapshot.pods[labels[label]].reply.status().unwrap().member_id;
            let deadline = Instant::now() + START_TIMEOUT;
            move_leader(&Connections::new(), &cluster.endpoint(labels[0]), id, deadline).await.unwrap();
        }
        Fault::Remove(label) => {
            sleep(STABLE_TIME).await;
            cluster.client(labels[0]).await.member_remove(ids[label]).await.unwrap();
            sleep(ELECTION_TIME).await;
            cluster.kill(labels[label]);
        }
    }
}

/// Returns the verdicts once several snapshots in a row agree.
async fn settled_verdicts(cluster: &Cluster, scenario: &RaftScenario, labels: &[usize]) -> Value {
    sleep(ELECTION_TIME).await;
    let deadline = Instant::now() + START_TIMEOUT;
    let mut last = (Value::Null, 0);
    while last.1 < EQUAL_SNAPSHOTS {
        assert!(Instant::now() < deadline, "{}: the verdicts change: {}", scenario.name, last.0);
        let snapshot = cluster.snapshot(&Connections::new()).await;
        let verdict = |label: &usize| {
            assess(&snapshot, &snapshot.pods[*label], &Policy::default()).reason.as_str().to_owned()
        };
        let verdicts = scenario.summarize(&labels.iter().map(verdict).collect::<Vec<_>>());
        last = if last.0 == verdicts { (verdicts, last.1 + 1) } else { (verdicts, 1) };
        sleep(PAUSE).await;
    }
    last.0
}
