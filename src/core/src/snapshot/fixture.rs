//! Snapshots for tests: `cluster(3)` is healthy and led by `etcd-0`. Methods then add faults.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::missing_panics_doc,
    reason = "values for tests: a failure is a panic"
)]

use std::time::Duration;

use tokio::time::Instant;

use crate::{
    etcd::{
        error::MemberError,
        member::{ClusterId, DatabaseSize, ListedMember, MemberId, Scheme, Status},
        probe_result::ProbeResult,
    },
    snapshot::{
        ContainerState, EtcdctlFlags, Listener, MemberPod, OwnerState, Path, PodReport, Snapshot, Storage,
        silence::CONFIRMATION_TIME,
    },
};

/// Id of the member in pod `etcd-N`.
pub fn id(n: usize) -> MemberId {
    MemberId(0xe7cd_0000 + u64::try_from(n).unwrap())
}

/// Entry of the member list for pod `etcd-N`.
pub fn listed(n: usize) -> ListedMember {
    ListedMember {
        id: id(n),
        name: format!("etcd-{n}"),
        peer_urls: vec![format!("http://etcd-{n}.etcd.prod.svc:2380")],
        client_urls: vec![format!("http://etcd-{n}.etcd.prod.svc:2379")],
        is_learner: false,
    }
}

/// Status of the member in pod `etcd-N`, with `etcd-0` as the leader.
pub fn status(n: usize) -> Status {
    Status {
        member_id: id(n),
        cluster_id: ClusterId(0xc1),
        leader: Some(id(0)),
        term: 7,
        applied_index: 100,
        database: DatabaseSize::default(),
        suffrage: None,
        downgrade: None,
        version: String::from("3.6.16"),
        is_learner: false,
        alarms: Vec::new(),
    }
}

fn pod(n: usize, list: &[ListedMember]) -> MemberPod {
    MemberPod {
        name: format!("etcd-{n}"),
        uid: format!("uid-{n}"),
        container: String::from("etcd"),
        etcdctl: EtcdctlFlags::default(),
        ip: format!("10.0.0.{n}"),
        member_name: None,
        hostname: String::new(),
        peer_urls: Vec::new(),
        owner: OwnerState::OF_TARGET,
        owner_kind: String::from("StatefulSet"),
        revision: String::new(),
        terminating: false,
        reserved: false,
        report: PodReport { is_ready: true, ..PodReport::with_container(ContainerState::Running) },
        path: Path { listener: Listener::Stated, has_answered: true },
        silent_since: None,
        other_containers: 0,
        storage: Storage::Persistent,
        stop_script: None,
        scheme: Scheme::Http,
        reply: ProbeResult::Healthy { status: status(n), members: list.to_vec() },
    }
}

/// A healthy cluster with this number of voters, led by `etcd-0`.
pub fn cluster(size: usize) -> Snapshot {
    let list: Vec<ListedMember> = (0..size).map(listed).collect();
    Snapshot {
        cluster: String::from("prod/etcd"),
        namespace: String::from("prod"),
        taken_at: Instant::now(),
        pods: (0..size).map(|n| pod(n, &list)).collect(),
        external_members: Vec::new(),
        denied_members: Vec::new(),
        other_namespaces: std::collections::BTreeSet::new(),
        reserved_until: std::collections::BTreeMap::new(),
        without_role: std::collections::BTreeSet::new(),
    }
}

/// Cause of a request that times out.
pub fn timed_out() -> MemberError {
    MemberError::TimedOut(Duration::from_millis(750))
}

impl Snapshot {
    /// No reply from this pod.
    pub fn silence(mut self, n: usize) -> Self {
        self.pods[n].reply = ProbeResult::NoStatus { cause: timed_out() };
        self
    }

    /// Connections to this pod are refused.
    pub fn refuse(mut self, n: usize) -> Self {
        self.pods[n].reply = ProbeResult::NoStatus {
            cause: MemberError::Refused(String::from("Connection refused (os error 111)")),
        };
        self
    }

    /// This pod's container has terminated, and connections are refused. Both were so before.
    pub fn crash(self, n: usize) -> Self {
        self.stop(n, ContainerState::Stopped).refuse(n)
    }

    /// This pod's container has never started, and connections are refused. Both were so before.
    pub fn never_start(self, n: usize) -> Self {
        self.stop(n, ContainerState::NeverStarted).refuse(n)
    }

    /// This pod's container does not run, and did not run before.
    pub fn stop(mut self, n: usize, container: ContainerState) -> Self {
        self.pods[n].report = PodReport::with_container(container);
        self.pods[n].silent_since = self.taken_at.checked_sub(CONFIRMATION_TIME);
        self
    }

    /// The member replies to Status, but no linearizable read succeeds.
    pub fn starve(mut self, n: usize) -> Self {
        self.pods[n].reply = ProbeResult::StatusOnly { status: status(n), cause: timed_out() };
        self
    }

    /// Changes the member list of each serving member.
    pub fn relist(mut self, change: impl Fn(&mut Vec<ListedMember>)) -> Self {
        for pod in &mut self.pods {
            if let ProbeResult::Healthy { members, .. } = &mut pod.reply {
                change(members);
            }
        }
        self
    }

    /// Changes the status of one member.
    pub fn restate(mut self, n: usize, change: impl Fn(&mut Status)) -> Self {
        match &mut self.pods[n].reply {
            ProbeResult::Healthy { status, .. } | ProbeResult::StatusOnly { status, .. } => change(status),
            ProbeResult::NoStatus { .. } => {}
        }
        self
    }

    /// Changes one pod.
    pub fn change(mut self, n: usize, change: impl Fn(&mut MemberPod)) -> Self {
        change(&mut self.pods[n]);
        self
    }
}
