//! The result of a probe round, and the assessment of it by the shipped code.

use std::{cell::RefCell, collections::HashMap, sync::LazyLock, time::Duration};

use tokio::time::Instant;

use crate::{
    assess::{assess, transferee},
    etcd::{
        error::MemberError,
        member::{ClusterId, DatabaseSize, ListedMember, MemberId, Scheme, Status},
        probe_result::ProbeResult,
    },
    ledger::protocol::{Defect, Pod, PodState, Reserved, State, Uid, World},
    policy::Policy,
    reason::Reason,
    snapshot::{
        ContainerState, Listener, MemberPod, OwnerState, Path, PodReport, Snapshot, Storage,
        silence::CONFIRMATION_TIME,
    },
};

/// The inputs of an assessment.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Observation {
    pub listed: Vec<Pod>,
    pub answers: Vec<Answer>,
    pub held: Vec<Reserved>,
    /// The leader, in searches with leadership.
    pub leader: Option<u8>,
}

/// The result of an assessment.
#[derive(Clone, Debug)]
pub(super) struct Judgement {
    pub reason: Reason,
    /// The voters of which one would take over leadership from the target: the most advanced one, which can be any of them.
    pub candidates: Vec<u8>,
}

/// The response from the address of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Answer {
    Serves,
    /// The member runs without a quorum.
    NoQuorum,
    Refuses,
    /// The pod was replaced, and its address is unused.
    NoResponse,
}

/// The properties of one pod that the assessment depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(clippy::struct_excessive_bools, reason = "the flags are independent")]
struct PodView {
    is_learner: bool,
    terminating: bool,
    running: bool,
    reserved: bool,
    answer: Answer,
    leads: bool,
}

static TAKEN_AT: LazyLock<Instant> = LazyLock::new(Instant::now);

thread_local! {
    /// Results of [`assess`], which is pure.
    static JUDGEMENTS: RefCell<HashMap<(Vec<PodView>, u8), Judgement>> = RefCell::default();
}

/// Whether the reason of an approval is that the pod does not serve.
pub(super) fn is_idle(reason: Reason) -> bool {
    reason == Reason::MemberNotServing
}

fn assess_pods(pods: &[PodView], target: u8) -> Judgement {
    let id = |pod: u8| MemberId(u64::from(pod) + 1);
    let member = |(seen, n): (&PodView, u8)| ListedMember {
        id: id(n),
        name: Uid { pod: n, incarnation: 0 }.pod_name(),
        peer_urls: Vec::new(),
        client_urls: vec![format!("http://etcd-{n}:2379")],
        is_learner: seen.is_learner,
    };
    let members: Vec<ListedMember> = pods.iter().zip(0..).map(member).collect();
    let leader = pods.iter().zip(0..).find(|(seen, _)| seen.leads).map(|(_, n)| id(n));
    let status = |seen: &PodView, n: u8| Status {
        member_id: id(n),
        cluster_id: ClusterId(1),
        leader,
        term: 1,
        applied_index: 1,
        database: DatabaseSize::default(),
        suffrage: None,
        downgrade: None,
        version: String::from("3.6.16"),
        is_learner: seen.is_learner,
        alarms: Vec::new(),
    };
    let timed_out = MemberError::TimedOut(Duration::from_millis(750));
    let reply = |seen: &PodView, n: u8| match seen.answer {
        Answer::Serves if seen.is_learner => {
            ProbeResult::StatusOnly { status: status(seen, n), cause: MemberError::Learner }
        }
        Answer::Serves => ProbeResult::Healthy { status: status(seen, n), members: members.clone() },
        Answer::NoQuorum => ProbeResult::StatusOnly { status: status(seen, n), cause: timed_out.clone() },
        Answer::Refuses => {
            ProbeResult::NoStatus { cause: MemberError::Refused(String::from("connection refused")) }
        }
        Answer::NoResponse => ProbeResult::NoStatus { cause: timed_out.clone() },
    };
    let pods = pods.iter().zip(0..).map(|(seen, n)| MemberPod {
        name: Uid { pod: n, incarnation: 0 }.pod_name(),
        uid: n.to_string(),
        etcdctl: crate::snapshot::EtcdctlFlags::default(),
        container: String::from("etcd"),
        ip: format!("10.0.0.{n}"),
        member_name: None,
        hostname: String::new(),
        peer_urls: Vec::new(),
        owner: OwnerState::OF_TARGET,
        owner_kind: String::from("StatefulSet"),
        revision: String::new(),
        terminating: seen.terminating,
        reserved: seen.reserved,
        report: PodReport::with_container(ContainerState::of_started(seen.running)),
        path: Path { listener: Listener::Stated, has_answered: true },
        // The model has no late reports: what a pod and its probe say need not be repeated.
        silent_since: TAKEN_AT.checked_sub(CONFIRMATION_TIME),
        other_containers: 0,
        storage: Storage::Persistent,
        stop_script: None,
        scheme: Scheme::Http,
        reply: reply(seen, n),
    });
    let snapshot = Snapshot {
        cluster: String::from("prod/etcd"),
        namespace: String::from("prod"),
        taken_at: *TAKEN_AT,
        pods: pods.collect(),
        external_members: Vec::new(),
        denied_members: Vec::new(),
        other_namespaces: std::collections::BTreeSet::new(),
        reserved_until: std::collections::BTreeMap::new(),
        without_role: std::collections::BTreeSet::new(),
    };
    let target = &snapshot.pods[usize::from(target)];
    let reason = assess(&snapshot, target, &Policy::default()).reason;
    let is_candidate = |n: &u8| {
        let mut snapshot = snapshot.clone();
        if let ProbeResult::Healthy { status, .. } = &mut snapshot.pods[usize::from(*n)].reply {
            status.applied_index += 1;
        }
        transferee(&snapshot, target, None).is_some_and(|(pod, _)| pod.uid == n.to_string())
    };
    let candidates = (0..).take(snapshot.pods.len()).filter(is_candidate).collect();
    Judgement { reason, candidates }
}

// === impl World ===

impl World {
    /// Returns the responses from the addresses of a list of pods, which can be older than the pods.
    pub(super) fn answers(&self, state: &State, listed: &[Pod]) -> Vec<Answer> {
        let answer = |((pod, listed), n): ((&Pod, &Pod), u8)| match pod.state {
            _ if pod.incarnation != listed.incarnation => Answer::NoResponse,
            PodState::Down => Answer::Refuses,
            PodState::Serving | PodState::Terminating if self.serves_reads(state, n) => Answer::Serves,
            PodState::Serving | PodState::Terminating => Answer::NoQuorum,
        };
        state.pods.iter().zip(listed).zip(0..).map(answer).collect()
    }

    /// Returns the result of the shipped assessment of an observation.
    pub(super) fn judge(&self, observation: &Observation, target: u8) -> Judgement {
        let seen = |((listed, answer), n): ((&Pod, &Answer), u8)| PodView {
            is_learner: !self.is_voter(n) && !self.has_defect(Defect::CountsLearners),
            terminating: listed.state == PodState::Terminating && !self.has_defect(Defect::CountsTerminating),
            running: listed.state != PodState::Down,
            reserved: observation
                .held
                .iter()
                .any(|reserved| reserved.uid == Uid { pod: n, incarnation: listed.incarnation }),
            answer: *answer,
            leads: false,
        };
        let mut pods: Vec<PodView> =
            observation.listed.iter().zip(&observation.answers).zip(0..).map(seen).collect();
        if let Some(leader) = self.reported_leader(&pods, observation.leader, target) {
            pods[usize::from(leader)].leads = true;
        }
        JUDGEMENTS.with_borrow_mut(|known| {
            let key = (pods, target);
            if let Some(judgement) = known.get(&key) {
                return judgement.clone();
            }
            let judgement = assess_pods(&key.0, target);
            known.insert(key, judgement.clone());
            judgement
        })
    }

    /// Returns the leader that the members report. In searches without leadership, this is a voter that is neither the
    /// target nor leaving, if there is one.
    fn reported_leader(&self, pods: &[PodView], leader: Option<u8>, target: u8) -> Option<u8> {
        let serves = |(seen, _): &(&PodView, u8)| seen.answer == Answer::Serves && !seen.is_learner;
        let is_leaving = |seen: &PodView| seen.terminating || seen.reserved;
        let is_hidden = self.has_defect(Defect::AcceptsLeavingLeader)
            && leader.is_some_and(|leader| leader != target && is_leaving(&pods[usize::from(leader)]));
        if self.leadership && !is_hidden {
            return leader;
        }
        let stays = |(seen, n): &(&PodView, u8)| *n != target && !is_leaving(seen);
        let mut serving = pods.iter().zip(0..).filter(serves);
        let first = serving.clone().next();
        serving.find(stays).or(first).map(|(_, n)| n)
    }
}
