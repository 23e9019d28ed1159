//! The result of a probe round, and the assessment of it by the shipped code.

use std::{cell::RefCell, collections::HashMap, sync::LazyLock, time::Duration};

use tokio::time::Instant;

use crate::guard::reserve::ledger::protocol::{Defect, Phase, Pod, Reserved, Uid, World};
use crate::{
    etcd::{ClusterId, ListedMember, MemberError, MemberId, ProbeResult, Scheme, Status},
    guard::{
        assess::assess,
        model::{
            reason::Reason,
            snapshot::{MemberPod, Snapshot, Storage},
        },
        policy::effective::{LeaderPolicy, Policy},
    },
};

/// The inputs of an assessment.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(in crate::guard) struct Observation {
    pub(in crate::guard) listed: Vec<Pod>,
    pub(in crate::guard) answers: Vec<Answer>,
    pub(in crate::guard) held: Vec<Reserved>,
}

/// The response from the address of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(in crate::guard) enum Answer {
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
}

static TAKEN_AT: LazyLock<Instant> = LazyLock::new(Instant::now);

thread_local! {
    /// Results of [`assess`], which is pure.
    static REASONS: RefCell<HashMap<(Vec<PodView>, u8), Reason>> = RefCell::default();
}

/// Whether the reason of an approval is that the pod does not serve.
pub(in crate::guard) fn is_idle(reason: Reason) -> bool {
    reason == Reason::MemberNotServing
}

fn assess_pods(pods: &[PodView], target: u8) -> Reason {
    let id = |pod: u8| MemberId(u64::from(pod) + 1);
    let member = |(seen, n): (&PodView, u8)| ListedMember {
        id: id(n),
        name: Uid { pod: n, incarnation: 0 }.pod_name(),
        peer_urls: Vec::new(),
        client_urls: vec![format!("http://etcd-{n}:2379")],
        is_learner: seen.is_learner,
    };
    let members: Vec<ListedMember> = pods.iter().zip(0..).map(member).collect();
    let leads = |(seen, _): &(&PodView, u8)| seen.answer == Answer::Serves && !seen.is_learner;
    let leader = pods.iter().zip(0..).find(leads).map(|(_, n)| id(n));
    let status = |seen: &PodView, n: u8| Status {
        member_id: id(n),
        cluster_id: ClusterId(1),
        leader,
        term: 1,
        applied_index: 1,
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
        etcdctl: crate::guard::model::snapshot::EtcdctlFlags::default(),
        container: String::from("etcd"),
        ip: format!("10.0.0.{n}"),
        member_name: None,
        terminating: seen.terminating,
        reserved: seen.reserved,
        running: seen.running,
        other_containers: 0,
        storage: Storage::Persistent,
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
    };
    // The model does not cover leadership.
    let policy = Policy { leader: LeaderPolicy::Allow, ..Policy::default() };
    assess(&snapshot, &snapshot.pods[usize::from(target)], &policy).reason
}

// === impl World ===

impl World {
    /// Returns the responses from the addresses of a list of pods, which can be older than the pods.
    pub(in crate::guard) fn answers(&self, pods: &[Pod], listed: &[Pod]) -> Vec<Answer> {
        let running =
            pods.iter().take(usize::from(self.voters)).filter(|pod| pod.phase != Phase::Down).count();
        let answer = |(pod, listed): (&Pod, &Pod)| match pod.phase {
            _ if pod.incarnation != listed.incarnation => Answer::NoResponse,
            Phase::Down => Answer::Refuses,
            Phase::Serving | Phase::Terminating if running >= self.quorum() => Answer::Serves,
            Phase::Serving | Phase::Terminating => Answer::NoQuorum,
        };
        pods.iter().zip(listed).map(answer).collect()
    }

    /// Returns the reason that the shipped assessment gives for an observation.
    pub(in crate::guard) fn reason(&self, observation: &Observation, target: u8) -> Reason {
        let seen = |((listed, answer), n): ((&Pod, &Answer), u8)| PodView {
            is_learner: !self.is_voter(n) && !self.has_defect(Defect::CountsLearners),
            terminating: listed.phase == Phase::Terminating && !self.has_defect(Defect::CountsTerminating),
            running: listed.phase != Phase::Down,
            reserved: observation
                .held
                .iter()
                .any(|reserved| reserved.uid == Uid { pod: n, incarnation: listed.incarnation }),
            answer: *answer,
        };
        let pods: Vec<PodView> =
            observation.listed.iter().zip(&observation.answers).zip(0..).map(seen).collect();
        REASONS.with_borrow_mut(|reasons| {
            let key = (pods, target);
            if let Some(reason) = reasons.get(&key) {
                return *reason;
            }
            let reason = assess_pods(&key.0, target);
            reasons.insert(key, reason);
            reason
        })
    }
}
