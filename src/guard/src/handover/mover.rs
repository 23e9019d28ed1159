//! One handover: the probe rounds, the entry in the ledger, the transfer and its verification.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tokio::time::{Instant, sleep};
use tracing::{Instrument, field::Empty, info_span};

use crate::{
    deadline::{ANSWER_RESERVE, Deadline},
    handover::{
        choice::{Choice, Order, choose},
        doomed_nodes::DoomedNodes,
        report::{Moved, Outcome, Reporter},
        signals::signals,
    },
    observe::namespace_pods::NamespacePods,
    reserve::store::{Ledger, ReserveError},
    services::Services,
};
use etcd_guard_core::{
    cluster_key::ClusterKey,
    etcd::{
        endpoint::Endpoint,
        member::{ClusterId, MemberId},
    },
    handover::{Handover, HandoverState, Signal, Trigger},
    membership::Membership,
    objects::pod::Pod,
    snapshot::{MemberPod, Snapshot},
    spans::SPAN_TARGET,
};
use etcd_guard_etcd as etcd;
use etcd_guard_kubernetes::{LookupError, NodeReader};

/// Time limit of one handover: probe rounds of a healthy cluster take milliseconds, a transfer 100 ms and at most 2 s.
const HANDOVER_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum number of attempts. Another attempt follows a conflict with another replica, or an election.
const MAX_ATTEMPTS: usize = 10;

/// Pause before another attempt without a proven leader: an election takes about a second.
const ELECTION_PAUSE: Duration = Duration::from_millis(400);

/// Maximum number of probe rounds that verify the new leader: one second of heartbeats.
const MAX_VERIFICATIONS: usize = 20;

/// Pause between two of these rounds.
const VERIFICATION_PAUSE: Duration = Duration::from_millis(50);

/// Time limit for recording that a handover has ended. If the write fails, another replica finishes the handover.
const END_TIMEOUT: Duration = Duration::from_secs(3);

/// Performs handovers.
pub(super) struct Mover {
    pub(super) services: Arc<Services>,
    pub(super) doomed: DoomedNodes,
    /// Reads the node of a signal before the transfer; absent without the watch of nodes.
    pub(super) nodes: Option<NodeReader>,
    pub(super) reporter: Reporter,
}

/// The cause of a handover, and its scope.
pub(super) struct Task<'a> {
    pub(super) cluster_key: &'a ClusterKey,
    pub(super) signal: &'a Signal,
    /// The pod that becomes the leader; `None` for the best voter.
    pub(super) transferee: Option<&'a str>,
    /// Whether leadership has to leave the pod with this name, given the current pods of the namespace.
    pub(super) leaves: &'a (dyn Fn(&[Pod], &str) -> bool + Send + Sync),
    /// The node that shows the signal.
    pub(super) node: Option<&'a str>,
}

/// A transfer of leadership that the ledger announces.
struct PlannedMove<'a> {
    leader: &'a MemberPod,
    transferee: &'a MemberPod,
    member: MemberId,
    term: u64,
}

/// Result of one attempt.
enum Attempt {
    Done(Outcome),
    /// Another replica has changed the ledger.
    Conflict,
    /// No leader is proven. Contains the cause.
    Unproven(String),
}

// === impl Mover ===

impl Mover {
    /// Performs the handover, unless the ledger shows that its signal was handled. Returns the outcome.
    pub(super) async fn hand_over(&self, task: &Task<'_>) -> Outcome {
        let trigger = task.signal.trigger.as_str();
        let span = info_span!(target: SPAN_TARGET, "handover", trigger, result = Empty);
        let outcome = self.try_hand_over(task).instrument(span.clone()).await;
        span.record("result", outcome.label());
        outcome
    }

    async fn try_hand_over(&self, task: &Task<'_>) -> Outcome {
        let deadline = Deadline::from_timeout(Some(HANDOVER_TIMEOUT));
        let mut id = None;
        let mut cause =
            String::from("another replica changed the ledger of the namespace during each attempt");
        for _ in 0..MAX_ATTEMPTS {
            let attempt = self.attempt(task, &mut id, deadline).await;
            match attempt {
                Ok(Attempt::Done(outcome)) => return outcome,
                Ok(Attempt::Conflict) => {}
                Ok(Attempt::Unproven(unproven)) => {
                    cause = unproven;
                    sleep(ELECTION_PAUSE).await;
                }
                Err(error) => return Outcome::Failed { leader: None, cause: error },
            }
        }
        Outcome::Failed { leader: None, cause }
    }

    /// Makes one attempt. The first probe round finds the cluster id, and ends most handovers of signals, because the leader
    /// runs on another node. The transfer rests on a second round, which begins after the ledger was read.
    async fn attempt(
        &self,
        task: &Task<'_>,
        known: &mut Option<ClusterId>,
        deadline: Deadline,
    ) -> Result<Attempt, String> {
        let id = match *known {
            Some(id) => id,
            None => {
                let (pods, _, snapshot) = self.observe(task.cluster_key, None, deadline).await?;
                if let Some(outcome) = Self::early_outcome(task, &pods, &snapshot) {
                    return Ok(Attempt::Done(outcome));
                }
                let Some(id) = snapshot.cluster_id() else {
                    return Ok(Attempt::Unproven(format!(
                        "no member of {} reports the cluster ID",
                        snapshot.cluster
                    )));
                };
                *known.insert(id)
            }
        };
        let mut ledger = self.read_ledger(task.cluster_key.namespace(), deadline).await?;
        let earlier = ledger.handover_state(id, &task.signal.id);
        match earlier {
            Some(HandoverState::Ended) => return Ok(Attempt::Done(Outcome::Handled)),
            Some(HandoverState::InProgress(rest)) => return Ok(Attempt::Done(Outcome::InProgress(rest))),
            Some(HandoverState::Expired { .. }) | None => {}
        }
        // Whoever may annotate a StatefulSet can request moves without end, and each stops writes for a moment.
        let now = self.services.policies.wall_clock.now();
        if task.signal.trigger == Trigger::Request
            && let Some(rest) = ledger.pause_between_requests(id, now)
        {
            return Ok(Attempt::Done(Outcome::InProgress(rest)));
        }
        let (pods, listed, snapshot) = self.observe(task.cluster_key, Some(&ledger), deadline).await?;
        let nodes = nodes_of(&pods);
        let (leaves, obstacle) = (|pod: &MemberPod| (task.leaves)(&pods, &pod.name), self.obstacle(&nodes));
        let rollout = match task.transferee {
            Some(_) => None,
            None => self.services.observer.rollout_revision(&listed, deadline).await,
        };
        let order = Order {
            leaves: &leaves,
            transferee: task.transferee,
            rollout: rollout.as_deref(),
            obstacle: &obstacle,
        };
        let choice = choose(&snapshot, &order);
        let moved = outcome_of_move(task, earlier, &choice, &snapshot.cluster);
        let (outcome, transfer) = match choice {
            _ if moved.is_some() => (moved, None),
            Choice::NotNeeded(text) => (Some(Outcome::NotNeeded(text)), None),
            Choice::Unproven(cause) => return Ok(Attempt::Unproven(cause)),
            Choice::Move { leader, transferee, member, term } => {
                if self.is_withdrawn(task, deadline).await? {
                    return Ok(Attempt::Done(Outcome::Withdrawn));
                }
                (None, Some(PlannedMove { leader, transferee, member, term }))
            }
            Choice::NoTransferee { leader, cause } => {
                (Some(Outcome::NoTransferee { leader: leader.name.clone(), cause }), None)
            }
            Choice::Rejected(cause) => (Some(Outcome::Rejected(cause)), None),
        };
        // A request is answered once. A signal that requires no move now may require one later.
        if outcome.is_some() && task.signal.trigger != Trigger::Request {
            return Ok(outcome.map_or(Attempt::Conflict, Attempt::Done));
        }
        let endpoint = transfer.as_ref().and_then(|transfer| listed.endpoint(&transfer.leader.name));
        if let (Some(PlannedMove { leader, .. }), None) = (&transfer, endpoint) {
            let cause = format!(
                "the leader {0} has another owner: annotate the StatefulSet of {0} instead",
                leader.name
            );
            return Ok(Attempt::Done(Outcome::Rejected(cause)));
        }
        let entry = Handover {
            signal: task.signal.id.clone(),
            cluster: id.to_string(),
            uid: transfer.as_ref().map(|transfer| transfer.transferee.uid.clone()).unwrap_or_default(),
            pod: transfer.as_ref().map(|transfer| transfer.transferee.name.clone()).unwrap_or_default(),
            term: transfer.as_ref().map(|transfer| transfer.term).unwrap_or_default(),
            at: self.services.policies.wall_clock.now().to_string(),
            ended: transfer.is_none(),
        };
        let add = self.services.reservations.add_handover(&mut ledger, entry.clone());
        match deadline.within("writing the handover to the API server", add).await {
            Ok(Ok(())) => {}
            Ok(Err(ReserveError::StartAgain)) => return Ok(Attempt::Conflict),
            Ok(Err(error)) => return Err(error.to_string()),
            Err(late) => return Err(late.to_string()),
        }
        let (Some(transfer), Some(endpoint)) = (transfer, endpoint) else {
            return Ok(outcome.map_or(Attempt::Conflict, Attempt::Done));
        };
        let outcome = self.transfer(task, &transfer, endpoint, &pods, deadline).await;
        // A move of a signal ends without another write: the term of the cluster shows that leadership was moved.
        if task.signal.trigger == Trigger::Request || !matches!(outcome, Outcome::Moved(_)) {
            self.end(id, task.cluster_key.namespace(), ledger, entry).await;
        }
        Ok(Attempt::Done(outcome))
    }

    /// Transfers leadership, and verifies the new leader.
    async fn transfer(
        &self,
        task: &Task<'_>,
        transfer: &PlannedMove<'_>,
        endpoint: &Endpoint,
        pods: &[Pod],
        deadline: Deadline,
    ) -> Outcome {
        let PlannedMove { leader, transferee, member, term } = *transfer;
        let started = Instant::now();
        let until = deadline.minus(ANSWER_RESERVE);
        let failed = |cause| Outcome::Failed { leader: Some(leader.name.clone()), cause };
        if let Err(cause) =
            etcd::move_leader(&self.services.observer.connections, endpoint, member, until).await
        {
            return failed(format!("{} did not become the leader: {cause}", transferee.name));
        }
        let taken = started.elapsed();
        match self.verify(task, pods, member, term, deadline).await {
            Some(next) => Outcome::Moved(Moved {
                from: leader.name.clone(),
                to: transferee.name.clone(),
                terms: (term, next),
                taken,
            }),
            None => failed(format!("no probe proves that {} leads", transferee.name)),
        }
    }

    /// Records that no other replica has to act on the signal of this entry.
    async fn end(&self, id: ClusterId, namespace: &str, mut ledger: Ledger, entry: Handover) {
        let deadline = Deadline::from_timeout(Some(END_TIMEOUT));
        let is_request = entry.signal.starts_with(Trigger::Request.as_str());
        let ended = Handover { ended: true, ..entry };
        for _ in 0..MAX_ATTEMPTS {
            let add = self.services.reservations.add_handover(&mut ledger, ended.clone());
            match deadline.within("writing the end of the handover", add).await {
                Ok(Err(ReserveError::StartAgain)) => {}
                _ => return,
            }
            let Ok(current) = self.read_ledger(namespace, deadline).await else { return };
            // The signal was withdrawn, and its entry removed: the next signal of the same node is a new one.
            if !is_request && !current.has_signal(id, &ended.signal) {
                return;
            }
            ledger = current;
        }
    }

    /// Returns the outcome of a signal whose node does not run the leader.
    fn early_outcome(task: &Task<'_>, pods: &[Pod], snapshot: &Snapshot) -> Option<Outcome> {
        let leaves = |pod: &MemberPod| (task.leaves)(pods, &pod.name);
        let order =
            Order { leaves: &leaves, transferee: task.transferee, rollout: None, obstacle: &|_| None };
        match choose(snapshot, &order) {
            Choice::NotNeeded(text) if task.signal.trigger != Trigger::Request => {
                Some(Outcome::NotNeeded(text))
            }
            _ => None,
        }
    }

    /// Lists the pods of the namespace, and probes the members of the cluster.
    pub(super) async fn observe(
        &self,
        cluster_key: &ClusterKey,
        ledger: Option<&Ledger>,
        deadline: Deadline,
    ) -> Result<(Vec<Pod>, NamespacePods, Snapshot), String> {
        let pods = self.services.observer.list_pods(cluster_key.namespace(), deadline).await;
        let pods = pods.map_err(|error| error.to_string())?;
        let reserved = ledger.map(Ledger::active).unwrap_or_default();
        let observe = self.services.observer.observe_cluster(cluster_key, &pods, reserved, deadline);
        let (listed, snapshot) = observe.await;
        Ok((pods, listed, snapshot))
    }

    pub(super) async fn read_ledger(&self, namespace: &str, deadline: Deadline) -> Result<Ledger, String> {
        let read = self.services.reservations.read_namespace(namespace);
        let read = deadline.within("reading the reservations from the API server", read).await;
        let ledgers = read.map_err(|late| late.to_string())?.map_err(|error| error.to_string())?;
        ledgers.into_first().ok_or_else(|| format!("the reservations of namespace {namespace} were not read"))
    }

    /// Returns the function that finds the signal of a pod's node.
    fn obstacle<'a>(&'a self, nodes: &'a BTreeMap<&str, &str>) -> impl Fn(&MemberPod) -> Option<String> + 'a {
        |pod| {
            let node = nodes.get(pod.uid.as_str())?;
            self.doomed.signal(node).map(|signal| signal.text)
        }
    }

    /// Whether the node no longer shows the signal.
    async fn is_withdrawn(&self, task: &Task<'_>, deadline: Deadline) -> Result<bool, String> {
        let (Some(name), Some(nodes)) = (task.node, &self.nodes) else { return Ok(false) };
        let read = deadline.within("reading the node from the API server", nodes.get(name)).await;
        match read.map_err(|late| late.to_string())? {
            Ok(node) => {
                let configured = self.configured_taints();
                Ok(!signals(&node, &configured).iter().any(|signal| signal.id == task.signal.id))
            }
            Err(LookupError::NotFound { .. }) => Ok(true),
            Err(error) => Err(error.to_string()),
        }
    }

    /// The taints of the configuration.
    pub(super) fn configured_taints(&self) -> Vec<String> {
        self.services.observer.config.borrow().handover.taints.clone()
    }

    /// Probes the members until they agree on the new leader. Returns the new term.
    async fn verify(
        &self,
        task: &Task<'_>,
        pods: &[Pod],
        member: MemberId,
        term: u64,
        deadline: Deadline,
    ) -> Option<u64> {
        for _ in 0..MAX_VERIFICATIONS {
            let listed = self.services.observer.observe_listed(task.cluster_key, pods, &[], deadline);
            let snapshot = listed.await;
            let leadership = Membership::new(&snapshot).ok().map(|membership| membership.leadership());
            if let Some(now) = leadership.filter(|now| now.leader == Some(member) && now.term >= term) {
                return Some(now.term);
            }
            deadline.within("waiting for the new leader", sleep(VERIFICATION_PAUSE)).await.ok()?;
        }
        None
    }
}

/// Returns the names of the pods' nodes by the uid of the pod.
fn nodes_of(pods: &[Pod]) -> BTreeMap<&str, &str> {
    pods.iter().map(|pod| (pod.metadata.uid.as_str(), pod.spec.node_name.as_str())).collect()
}

/// Returns the outcome if the replica that wrote an expired entry has moved leadership, which the change of the term shows. A
/// second move could revert a later one.
fn outcome_of_move(
    task: &Task<'_>,
    earlier: Option<HandoverState>,
    choice: &Choice<'_>,
    cluster: &str,
) -> Option<Outcome> {
    let (Some(HandoverState::Expired { term: former }), Choice::Move { leader, term, .. }) =
        (earlier, choice)
    else {
        return None;
    };
    if *term == former {
        return None;
    }
    Some(match (task.signal.trigger, task.transferee) {
        (Trigger::Request, Some(_)) => Outcome::Failed {
            leader: None,
            cause: format!(
                "leadership changed from term {former} to term {term} before the request was completed, and {} leads",
                leader.name
            ),
        },
        (Trigger::Request, None) => {
            Outcome::NotNeeded(format!("{} leads {cluster} (term {term})", leader.name))
        }
        _ => Outcome::Handled,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use etcd_guard_core::snapshot::fixture::cluster;

    /// The replica that wrote the entry has moved leadership and ended, and leadership has moved again since.
    #[test]
    fn handover_with_a_changed_term_is_not_repeated() {
        let snapshot = cluster(3);
        let [leader, transferee, ..] = snapshot.pods.as_slice() else { panic!("three pods") };
        let choice = |term| Choice::Move { leader, transferee, member: MemberId(1), term };
        let key = ClusterKey::from_stateful_set("prod", String::from("etcd"), String::from("u"));
        let outcome = |trigger, pod: Option<&str>, state, term| {
            let signal = Signal { trigger, id: String::from("a"), text: String::from("a") };
            let leaves = |_: &[Pod], _: &str| true;
            let task =
                Task { cluster_key: &key, signal: &signal, transferee: pod, leaves: &leaves, node: None };
            outcome_of_move(&task, state, &choice(term), "prod/etcd")
        };
        let expired = Some(HandoverState::Expired { term: 7 });
        for trigger in [Trigger::Cordon, Trigger::Request] {
            assert_eq!(outcome(trigger, None, expired, 7), None, "the replica ended before the transfer");
            assert_eq!(outcome(trigger, None, None, 8), None, "the signal is new");
        }
        assert_eq!(outcome(Trigger::Cordon, None, expired, 8), Some(Outcome::Handled));
        let request = |pod| outcome(Trigger::Request, pod, expired, 9);
        assert!(matches!(request(None), Some(Outcome::NotNeeded(text)) if text.contains("(term 9)")));
        assert!(
            matches!(request(Some("etcd-1")), Some(Outcome::Failed { cause, .. }) if cause.contains("to term 9"))
        );
    }
}
