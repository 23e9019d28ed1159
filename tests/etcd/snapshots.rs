//! Snapshots of a cluster on machines of any speed.
//!
//! A probe has one second. On a busy machine a healthy member may need longer, or an election may take place at any
//! time. Both prove nothing, so these snapshots are repeated. Every other result is final, and a test that does not
//! expect it fails at once.

use std::{
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use etcd_guard_core::{
    etcd::{endpoint::Endpoint, error::MemberError, probe_result::ProbeResult},
    snapshot::{
        ContainerState, EtcdctlFlags, Listener, MemberPod, OwnerState, Path, PodReport, Snapshot, Storage,
        silence::CONFIRMATION_TIME,
    },
};
use etcd_guard_etcd as etcd;
use etcd_guard_etcd::Connections;

use crate::cluster::{Cluster, START_TIMEOUT};
use test_support::deadline::within_deadline;

/// The pause between two snapshots.
const PAUSE: Duration = Duration::from_millis(50);

impl Cluster {
    /// Returns a snapshot as the guard would take it of the pods `etcd-0`, `etcd-1` and so on.
    pub(crate) async fn snapshot(&self, connections: &Connections) -> Snapshot {
        let results = etcd::probe(connections, &self.endpoints(), probe_deadline()).await;
        let taken_at = tokio::time::Instant::now();
        let pods = self.members.iter().zip(results).enumerate().map(|(n, (member, reply))| MemberPod {
            name: format!("etcd-{n}"),
            uid: format!("uid-{n}"),
            container: String::from("etcd"),
            etcdctl: EtcdctlFlags::default(),
            ip: member.address.clone(),
            member_name: None,
            hostname: String::new(),
            peer_urls: Vec::new(),
            owner: OwnerState::OF_TARGET,
            owner_kind: String::from("StatefulSet"),
            terminating: false,
            reserved: false,
            report: PodReport::with_container(ContainerState::of_started(member.running)),
            path: Path { listener: Listener::Stated, has_answered: true },
            silent_since: taken_at.checked_sub(CONFIRMATION_TIME),
            other_containers: 0,
            storage: Storage::Persistent,
            stop_script: None,
            revision: String::new(),
            scheme: self.endpoint(n).scheme(),
            reply,
        });
        Snapshot {
            cluster: String::from("test/etcd"),
            namespace: String::from("test"),
            taken_at,
            pods: pods.collect(),
            external_members: Vec::new(),
            denied_members: Vec::new(),
            other_namespaces: std::collections::BTreeSet::new(),
            reserved_until: std::collections::BTreeMap::new(),
            without_role: std::collections::BTreeSet::new(),
        }
    }

    /// Returns the first snapshot without late members.
    pub(crate) async fn settled_snapshot(&self, connections: &Connections) -> Snapshot {
        self.settle(async || self.snapshot(connections).await).await
    }

    /// Repeats a snapshot while a member that must answer is late, or the members disagree about the leader.
    pub(crate) async fn settle(&self, mut take: impl AsyncFnMut() -> Snapshot) -> Snapshot {
        let deadline = Instant::now() + START_TIMEOUT;
        loop {
            let snapshot = take().await;
            if !self.is_late(&snapshot) && !is_in_election(&snapshot) {
                return snapshot;
            }
            assert!(Instant::now() < deadline, "members are late: {:?}", snapshot.pods);
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Returns the first snapshot without late members, each within the deadline of a verdict.
    pub(crate) async fn settle_in_time(&self, mut connections: impl FnMut() -> Connections) -> Snapshot {
        self.settle(async || within_deadline(async || self.snapshot(&connections()).await).await).await
    }

    /// Returns a snapshot in which all members serve.
    pub(crate) async fn healthy_snapshot(&self, connections: &Connections) -> Snapshot {
        let deadline = Instant::now() + START_TIMEOUT;
        loop {
            let snapshot = self.snapshot(connections).await;
            let all_serve = snapshot.pods.iter().all(|pod| matches!(pod.reply, ProbeResult::Healthy { .. }));
            if all_serve && !is_in_election(&snapshot) {
                return snapshot;
            }
            assert!(Instant::now() < deadline, "not all members serve: {:?}", snapshot.pods);
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Returns the index of the leader, once there is one.
    pub(crate) async fn leader(&self) -> usize {
        let connections = Connections::new();
        let deadline = Instant::now() + START_TIMEOUT;
        loop {
            let snapshot = self.snapshot(&connections).await;
            if let Some(leader) = leader_of(&snapshot) {
                return leader;
            }
            assert!(Instant::now() < deadline, "no leader: {:?}", snapshot.pods);
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Returns the indices of the running members that are not the leader.
    pub(crate) async fn followers(&self) -> Vec<usize> {
        let leader = self.leader().await;
        (0..self.members.len()).filter(|n| *n != leader && self.members[*n].running).collect()
    }

    /// Whether a member that must answer has not proved its state. Without a quorum, its status is all that it can
    /// return.
    pub(crate) fn is_late(&self, snapshot: &Snapshot) -> bool {
        let must_answer: Vec<bool> =
            self.members.iter().map(|member| member.must_answer.load(Ordering::Relaxed)).collect();
        let has_quorum = 2 * must_answer.iter().filter(|must| **must).count() > self.initial;
        let is_late = |reply: &ProbeResult| match reply {
            ProbeResult::NoStatus { cause: MemberError::TimedOut(_) } => true,
            _ if !has_quorum => false,
            reply => is_transient(reply),
        };
        snapshot.pods.iter().zip(must_answer).any(|(pod, must_answer)| must_answer && is_late(&pod.reply))
    }
}

/// Repeats a probe round while a result is transient. Each round uses new connections.
pub(crate) async fn probe_until_settled(endpoints: &[Endpoint]) -> Vec<ProbeResult> {
    let deadline = Instant::now() + START_TIMEOUT;
    loop {
        let results = etcd::probe(&Connections::new(), endpoints, probe_deadline()).await;
        if !results.iter().any(is_transient) {
            return results;
        }
        assert!(Instant::now() < deadline, "members are late: {results:?}");
        tokio::time::sleep(PAUSE).await;
    }
}

/// Whether a member of a cluster with a quorum returns another result later.
fn is_transient(result: &ProbeResult) -> bool {
    matches!(
        result.cause(),
        Some(MemberError::TimedOut(_) | MemberError::LoginTimedOut(_) | MemberError::NoLeader)
    )
}

/// Returns the index of the member that serves as the leader.
pub(crate) fn leader_of(snapshot: &Snapshot) -> Option<usize> {
    snapshot.pods.iter().position(|pod| match &pod.reply {
        ProbeResult::Healthy { status, .. } => status.leader == Some(status.member_id),
        _ => false,
    })
}

/// Returns the indices of all other pods than that of the leader; none during an election.
pub(crate) fn followers_in(snapshot: &Snapshot) -> Vec<usize> {
    let Some(leader) = leader_of(snapshot).filter(|_| !is_in_election(snapshot)) else { return Vec::new() };
    (0..snapshot.pods.len()).filter(|n| *n != leader).collect()
}

/// Whether the serving members name no leader, or different leaders.
pub(crate) fn is_in_election(snapshot: &Snapshot) -> bool {
    let mut leaders = snapshot.pods.iter().filter_map(|pod| match &pod.reply {
        ProbeResult::Healthy { status, .. } => Some((status.leader, status.term)),
        _ => None,
    });
    leaders.next().is_some_and(|first| first.0.is_none() || leaders.any(|other| other != first))
}

/// Returns a deadline that is later than every timeout for a single member.
pub(crate) fn probe_deadline() -> tokio::time::Instant {
    tokio::time::Instant::now() + Duration::from_secs(5)
}
