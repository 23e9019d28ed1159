//! The policy `leader=transfer`: moves leadership to another voter and takes a new snapshot before the pod may be
//! deleted. A failed transfer results in a denial and has no other effect, because etcd itself aborts an unfinished
//! transfer.
//!
//! The second snapshot is required also where etcd would hand leadership over by itself. In the first snapshot every read
//! passed through the leader that is about to be deleted, so nothing proves that the other voters can reach each other.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use crate::{
    deadline::ANSWER_RESERVE,
    evaluation::{Assessed, Evaluation, Inputs, Probed, Step, Target, ledger, ledger::Written},
    observe::{namespace_pods::NamespacePods, observer::Observation},
    reserve::store::Ledgers,
};
use etcd_guard_core::{
    assess::{Assessment, transferee},
    etcd::member::ClusterId,
    membership::single_member::SingleMemberEvidence,
    mistakes::Mistake,
    reason::Reason,
    snapshot::{MemberPod, Snapshot},
    verdict::Verdict,
};
use etcd_guard_etcd as etcd;

/// Pause between two snapshots after a transfer: one heartbeat, with which the new leader reaches the other members.
const HEARTBEAT: Duration = Duration::from_millis(100);

/// Maximum number of snapshots after a transfer: half a second of heartbeats. If there is no leader by then, an
/// election is in progress, and the evaluation does not wait for its end.
const MAX_SNAPSHOTS: usize = 5;

/// Minimum remaining time for a transfer: the result must be verified with a snapshot before the deadline.
const MIN_TRANSFER_TIME: Duration = Duration::from_millis(700);

/// Result of a transfer.
enum Transfer {
    /// The pod no longer leads and may be deleted.
    Moved {
        /// The cluster after the transfer.
        snapshot: Box<Snapshot>,
        /// The assessment of the pod in that snapshot.
        assessment: Box<Assessment>,
        /// The pod that leads now.
        transferee: String,
    },
    /// The pod must not be deleted, for this reason.
    Failed(String),
}

/// Result of one evaluation after a transfer.
enum AfterTransfer {
    /// The deletion is safe and reserved.
    Safe { snapshot: Box<Snapshot>, assessment: Box<Assessment> },
    /// The deletion is not safe. Contains the reason, or `None` if the pod is not in the snapshot.
    Unsafe(Option<Reason>),
    /// The reservations belong to another cluster, or another replica changed them.
    Conflict,
}

/// Moves leadership away from the target, whose deletion the caller has reserved in `ledgers`. After a failure the
/// reservation is withdrawn, unless it existed before this request: the deletion of an earlier request for the same pod may
/// be in progress.
pub(super) async fn transfer(
    on: &Evaluation<'_>,
    target: &Target,
    pods: &NamespacePods,
    snapshot: &Snapshot,
    leader: &MemberPod,
    ledgers: &mut Ledgers,
    had_reservation: bool,
) -> Result<Verdict, Step> {
    let result = move_and_verify(on, target, pods, snapshot, leader).await;
    let is_moved = matches!(result, Ok(Transfer::Moved { .. }));
    on.services.observer.metrics.record_transfer(is_moved);
    if !is_moved && !had_reservation {
        ledger::withdraw(on, ledgers, &leader.uid).await;
    }
    match result? {
        Transfer::Moved { snapshot, assessment, transferee } => {
            let mut verdict = on.explain(&snapshot, leader, &assessment);
            verdict.warn(&format!("leadership of etcd {} was moved to {transferee}", snapshot.cluster));
            Ok(verdict)
        }
        Transfer::Failed(cause) => {
            let text = format!(
                "the transfer of leadership from {} of {} did not make the deletion safe: {cause}",
                leader.name, snapshot.cluster
            );
            let remedy = format!(
                "No pod was deleted. Check the members, then retry: {}",
                leader.etcdctl_command(&snapshot.namespace, "endpoint status --cluster -w table")
            );
            Ok(Verdict::new(Reason::TransferFailed, text).with_remedy(&remedy))
        }
    }
}

/// Moves leadership to the most advanced of the other voters, and evaluates the deletion again with the pods, the
/// reservations and the members after the transfer. The target is reserved already, so that no other evaluation counts it
/// as serving. This function reserves it again with the reservations that the new snapshot includes, so that a reservation
/// of another replica causes a conflict.
async fn move_and_verify(
    on: &Evaluation<'_>,
    target: &Target,
    pods: &NamespacePods,
    snapshot: &Snapshot,
    leader: &MemberPod,
) -> Result<Transfer, Step> {
    let deadline = on.deadline;
    let (Some((transferee, status)), Some(endpoint)) =
        (transferee(snapshot, leader), pods.endpoint(&leader.name))
    else {
        return Ok(Transfer::Failed(String::from("no other healthy voter can become the leader")));
    };
    deadline
        .ensure_remaining(MIN_TRANSFER_TIME, ANSWER_RESERVE, "to move leadership")
        .map_err(|late| on.fail(late.into()))?;
    let cluster_id = status.cluster_id;
    let until = deadline.minus(ANSWER_RESERVE);
    let requested = Instant::now();
    let connections = &on.services.observer.connections;
    if let Err(cause) = etcd::move_leader(connections, endpoint, status.member_id, until).await {
        return Ok(Transfer::Failed(format!("{} did not become the leader: {cause}", transferee.name)));
    }
    let mut last_reason = Reason::ElectionInProgress;
    for _ in 0..MAX_SNAPSHOTS {
        let started = Instant::now();
        match evaluate_after_transfer(on, target, cluster_id).await? {
            AfterTransfer::Safe { snapshot, mut assessment } => {
                on.services.observer.metrics.record_transfer_duration(requested.elapsed());
                assessment.reason = Reason::LeaderTransferred;
                return Ok(Transfer::Moved { snapshot, assessment, transferee: transferee.name.clone() });
            }
            AfterTransfer::Unsafe(reason) => last_reason = reason.unwrap_or(last_reason),
            AfterTransfer::Conflict => continue,
        }
        let pause = deadline.within("waiting for the new leader", sleep_until(started + HEARTBEAT)).await;
        pause.map_err(|late| on.fail(late.into()))?;
    }
    let text = format!(
        "{} is the new leader, but the deletion of {} is still unsafe: {last_reason}",
        transferee.name, leader.name
    );
    Ok(Transfer::Failed(text))
}

async fn evaluate_after_transfer(
    on: &Evaluation<'_>,
    target: &Target,
    cluster_id: ClusterId,
) -> Result<AfterTransfer, Step> {
    let inputs = on.read(target, None).await?;
    let Observation { snapshot, claim_error } = match on.observe(target, &inputs).await {
        Ok(observation) => observation,
        Err(Step::Retry(_)) => return Ok(AfterTransfer::Unsafe(None)),
        Err(answer) => return Err(answer),
    };
    let Some(pod) = snapshot.pod(&on.request.name) else { return Ok(AfterTransfer::Unsafe(None)) };
    let uid = pod.uid.clone();
    let probed = Probed { snapshot, claim_error, evidence: SingleMemberEvidence::default() };
    let Assessed { assessment, is_proven } = on.assess(target, &probed)?;
    if assessment.reason != Reason::SafeToDelete && !Mistake::SkipSecondProbe.is_active() {
        return Ok(AfterTransfer::Unsafe(Some(assessment.reason)));
    }
    let snapshot = probed.snapshot;
    if snapshot.cluster_id() != Some(cluster_id) {
        return Ok(AfterTransfer::Conflict);
    }
    let Inputs { pods, ledger, .. } = inputs;
    let Ok(ledgers) = ledger.select(on, &target.cluster_key, &snapshot, is_proven) else {
        return Ok(AfterTransfer::Conflict);
    };
    let mut ledgers = ledgers.map_err(|error| on.fail(error))?;
    let member = assessment.member.map(|id| id.to_string()).unwrap_or_default();
    let written = ledger::reserve(on, &mut ledgers, &snapshot, &uid, member, &pods).await;
    Ok(match written.map_err(|error| on.fail(error))? {
        Written::Stored => {
            AfterTransfer::Safe { snapshot: Box::new(snapshot), assessment: Box::new(assessment) }
        }
        Written::Conflict => AfterTransfer::Conflict,
    })
}
