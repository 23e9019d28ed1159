//! The policy `leader=transfer`: moves leadership to another voter and takes a new snapshot before the pod may be
//! deleted. A failed transfer results in a denial and has no other effect, because etcd itself aborts an unfinished
//! transfer.
//!
//! The second snapshot is required also where etcd would hand leadership over by itself. In the first snapshot every read
//! passed through the leader that is about to be deleted, so nothing proves that the other voters can reach each other.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use crate::etcd::{self, ClusterId, Connections};
use crate::guard::{
    assess::{Assessment, transferee},
    decide::{
        context::{EvaluationContext, EvaluationError},
        inputs::{EvaluationInputs, InputReader},
        reservation::{ReserveOutcome, new_reservation, reserve},
        uncertain_storage::UncertainStorage,
    },
    model::{
        deadline::ANSWER_RESERVE,
        membership::single_member::SingleMemberEvidence,
        reason::Reason,
        snapshot::{MemberPod, Snapshot},
    },
    observe::{observer::Observation, siblings::Siblings},
};
use crate::mistakes::Mistake;

/// Pause between two snapshots after a transfer: one heartbeat, with which the new leader reaches the other members.
const HEARTBEAT: Duration = Duration::from_millis(100);

/// Maximum number of snapshots after a transfer: half a second of heartbeats. If there is no leader by then, an
/// election is in progress, and the evaluation does not wait for its end.
const MAX_SNAPSHOTS: usize = 5;

/// Minimum remaining time for a transfer: the result must be verified with a snapshot before the deadline.
const MIN_TRANSFER_TIME: Duration = Duration::from_millis(700);

/// Result of a transfer.
pub(super) enum Transfer {
    /// The pod no longer leads and may be deleted.
    Moved {
        /// The cluster after the transfer.
        snapshot: Box<Snapshot>,
        /// The assessment of the pod in that snapshot.
        assessment: Assessment,
        /// The pod that leads now.
        transferee: String,
    },
    /// The pod must not be deleted, for this reason.
    Failed(String),
}

/// Moves leadership from the pod `target` of `snapshot` to the most advanced of the other voters, and evaluates the
/// deletion again with the pods, the record and the members after the transfer. The caller reserves the target before
/// the transfer, so that no other evaluation counts it as serving. This function reserves it again with the record that
/// the new snapshot includes, so that a reservation of another replica causes a conflict.
pub(super) async fn transfer_leadership(
    inputs: &InputReader,
    connections: &Connections,
    context: &EvaluationContext<'_>,
    siblings: &Siblings,
    snapshot: &Snapshot,
    target: &MemberPod,
) -> Result<Transfer, EvaluationError> {
    let deadline = context.deadline;
    let (Some((transferee, status)), Some(leader)) =
        (transferee(snapshot, target), siblings.endpoint(&target.name))
    else {
        return Ok(Transfer::Failed(String::from("no other healthy voter can become the leader")));
    };
    deadline.ensure_remaining(MIN_TRANSFER_TIME, ANSWER_RESERVE, "to move leadership")?;
    let cluster_id = status.cluster_id;
    let until = deadline.minus(ANSWER_RESERVE);
    let requested = Instant::now();
    if let Err(cause) = etcd::move_leader(connections, leader, status.member_id, until).await {
        return Ok(Transfer::Failed(format!("{} did not become the leader: {cause}", transferee.name)));
    }
    let mut last_reason = Reason::ElectionInProgress;
    for _ in 0..MAX_SNAPSHOTS {
        let started = Instant::now();
        match evaluate_after_transfer(inputs, context, &target.name, cluster_id).await? {
            AfterTransfer::Safe { snapshot, assessment } => {
                inputs.observer.metrics.record_transfer_duration(requested.elapsed());
                let assessment = Assessment { reason: Reason::LeaderTransferred, ..assessment };
                return Ok(Transfer::Moved { snapshot, assessment, transferee: transferee.name.clone() });
            }
            AfterTransfer::Unsafe(reason) => last_reason = reason.unwrap_or(last_reason),
            AfterTransfer::Conflict => continue,
        }
        deadline.within("waiting for the new leader", sleep_until(started + HEARTBEAT)).await?;
    }
    let text = format!(
        "{} is the new leader, but the deletion of {} is still unsafe: {last_reason}",
        transferee.name, target.name
    );
    Ok(Transfer::Failed(text))
}

/// Result of one evaluation after a transfer.
enum AfterTransfer {
    /// The deletion is safe and reserved.
    Safe { snapshot: Box<Snapshot>, assessment: Assessment },
    /// The deletion is not safe. Contains the reason, or `None` if the pod is not in the snapshot.
    Unsafe(Option<Reason>),
    /// The record belongs to another cluster, or another replica changed it.
    Conflict,
}

async fn evaluate_after_transfer(
    inputs: &InputReader,
    context: &EvaluationContext<'_>,
    target: &str,
    cluster_id: ClusterId,
) -> Result<AfterTransfer, EvaluationError> {
    let EvaluationInputs { siblings, records, reserved } = inputs.read(context, None).await?;
    let Some(Observation { snapshot, claim_error }) = inputs.observe(context, &siblings, &reserved).await?
    else {
        return Ok(AfterTransfer::Unsafe(None));
    };
    let Some(target) = snapshot.pod(target) else { return Ok(AfterTransfer::Unsafe(None)) };
    let storage = UncertainStorage::new(claim_error);
    let evidence = SingleMemberEvidence::default();
    let assessment = storage.assess(&snapshot, target, context.policy, evidence);
    let assessment = assessment.map_err(EvaluationError::Lookup)?;
    if assessment.reason != Reason::SafeToDelete && !Mistake::SkipSecondProbe.is_active() {
        return Ok(AfterTransfer::Unsafe(Some(assessment.reason)));
    }
    if snapshot.cluster_id() != Some(cluster_id) {
        return Ok(AfterTransfer::Conflict);
    }
    let record = inputs.reservations.select(records?, cluster_id);
    let Some(mut record) = record.map_err(|error| EvaluationError::unreadable_record(&error))? else {
        return Ok(AfterTransfer::Conflict);
    };
    let new = new_reservation(context, &target.uid, &assessment);
    match reserve(&inputs.reservations, context, &mut record, new, &siblings).await? {
        ReserveOutcome::Stored => Ok(AfterTransfer::Safe { snapshot: Box::new(snapshot), assessment }),
        ReserveOutcome::Conflict => Ok(AfterTransfer::Conflict),
    }
}
