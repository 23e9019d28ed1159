//! What a round of probes sees, and the product's word about it.

use std::{cell::RefCell, collections::HashMap, sync::LazyLock, time::Duration};

use tokio::time::Instant;

use super::{Held, Mistake, Phase, Pod, Uid, World};
use crate::{
    etcd::{Cause, ClusterId, ListedMember, MemberId, Reply, Status},
    guard::{
        assess::assess,
        policy::{LeaderPolicy, Policy},
        snapshot::{MemberPod, Snapshot, Storage},
        verdict::Reason,
    },
};

/// What a decision rests on.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Look {
    pub(super) listed: Vec<Pod>,
    pub(super) answers: Vec<Answer>,
    pub(super) held: Vec<Held>,
}

/// What is heard at a pod's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Answer {
    Serves,
    /// It runs, and there is no quorum.
    Starves,
    Refuses,
    /// The pod was replaced, and nobody has its address.
    Nothing,
}

/// All that a verdict makes a difference of in one pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(clippy::struct_excessive_bools, reason = "each is another thing to see")]
struct Seen {
    is_learner: bool,
    terminating: bool,
    running: bool,
    reserved: bool,
    answer: Answer,
}

static TAKEN_AT: LazyLock<Instant> = LazyLock::new(Instant::now);

thread_local! {
    /// [`assess`] is pure: what it said once it says again.
    static SAID: RefCell<HashMap<(Vec<Seen>, u8), Reason>> = RefCell::default();
}

/// Whether a yes says that the pod serves nothing.
pub(super) fn is_idle(reason: Reason) -> bool {
    reason == Reason::MemberNotServing
}

fn judge(pods: &[Seen], target: u8) -> Reason {
    let id = |pod: u8| MemberId(u64::from(pod) + 1);
    let member = |(seen, n): (&Seen, u8)| ListedMember {
        id: id(n),
        name: Uid { pod: n, incarnation: 0 }.pod_name(),
        peer_urls: Vec::new(),
        client_urls: vec![format!("http://etcd-{n}:2379")],
        is_learner: seen.is_learner,
    };
    let members: Vec<ListedMember> = pods.iter().zip(0..).map(member).collect();
    let leads = |(seen, _): &(&Seen, u8)| seen.answer == Answer::Serves && !seen.is_learner;
    let leader = pods.iter().zip(0..).find(leads).map(|(_, n)| id(n));
    let status = |seen: &Seen, n: u8| Status {
        member_id: id(n),
        cluster_id: ClusterId(1),
        leader,
        term: 1,
        applied_index: 1,
        version: String::from("3.6.16"),
        is_learner: seen.is_learner,
        alarms: Vec::new(),
    };
    let timed_out = Cause::TimedOut(Duration::from_millis(750));
    let reply = |seen: &Seen, n: u8| match seen.answer {
        Answer::Serves if seen.is_learner => {
            Reply::Answering { status: status(seen, n), cause: Cause::Learner }
        }
        Answer::Serves => Reply::Serving { status: status(seen, n), members: members.clone() },
        Answer::Starves => Reply::Answering { status: status(seen, n), cause: timed_out.clone() },
        Answer::Refuses => Reply::Silent { cause: Cause::Refused(String::from("connection refused")) },
        Answer::Nothing => Reply::Silent { cause: timed_out.clone() },
    };
    let pods = pods.iter().zip(0..).map(|(seen, n)| MemberPod {
        name: Uid { pod: n, incarnation: 0 }.pod_name(),
        uid: n.to_string(),
        container: String::from("etcd"),
        ip: format!("10.0.0.{n}"),
        member_name: None,
        terminating: seen.terminating,
        reserved: seen.reserved,
        running: seen.running,
        storage: Storage::Persistent,
        reply: reply(seen, n),
    });
    let snapshot = Snapshot {
        cluster: String::from("prod/etcd"),
        namespace: String::from("prod"),
        taken_at: *TAKEN_AT,
        pods: pods.collect(),
        elsewhere: Vec::new(),
    };
    // Who leads is another question than who may be spared.
    let policy = Policy { leader: LeaderPolicy::Allow, ..Policy::default() };
    assess(&snapshot, &snapshot.pods[usize::from(target)], &policy).reason
}

// === impl World ===

impl World {
    /// What is heard at the addresses of a list, which may be older than the pods are.
    pub(super) fn answers(&self, pods: &[Pod], listed: &[Pod]) -> Vec<Answer> {
        let running =
            pods.iter().take(usize::from(self.voters)).filter(|pod| pod.phase != Phase::Down).count();
        let answer = |(pod, listed): (&Pod, &Pod)| match pod.phase {
            _ if pod.incarnation != listed.incarnation => Answer::Nothing,
            Phase::Down => Answer::Refuses,
            Phase::Serving | Phase::Terminating if running >= self.quorum() => Answer::Serves,
            Phase::Serving | Phase::Terminating => Answer::Starves,
        };
        pods.iter().zip(listed).map(answer).collect()
    }

    /// The product's word about a look.
    pub(super) fn reason(&self, look: &Look, target: u8) -> Reason {
        let seen = |((listed, answer), n): ((&Pod, &Answer), u8)| Seen {
            is_learner: !self.is_voter(n) && !self.makes(Mistake::CountsLearners),
            terminating: listed.phase == Phase::Terminating && !self.makes(Mistake::CountsTerminating),
            running: listed.phase != Phase::Down,
            reserved: look.held.iter().any(|it| it.uid == Uid { pod: n, incarnation: listed.incarnation }),
            answer: *answer,
        };
        let pods: Vec<Seen> = look.listed.iter().zip(&look.answers).zip(0..).map(seen).collect();
        SAID.with_borrow_mut(|said| {
            let key = (pods, target);
            if let Some(reason) = said.get(&key) {
                return *reason;
            }
            let reason = judge(&key.0, target);
            said.insert(key, reason);
            reason
        })
    }
}
