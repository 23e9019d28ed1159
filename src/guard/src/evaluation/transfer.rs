//! Moves leadership to another voter and takes a new snapshot before the leader's pod may be deleted. A failed transfer results in
//! a denial and has no other effect, because etcd itself aborts an unfinished transfer.
//!
//! Reviews can be forged, and each transfer stops writes for a moment. The reservation therefore records the move, and until
//! [`HANDOVER_TTL`](etcd_guard_core::ledger::HANDOVER_TTL) has passed, no replica moves leadership of this cluster for another one.
//!
//! The second snapshot is required also where etcd would hand leadership over by itself. In the first snapshot every read
//! passed through the leader that is about to be deleted, so nothing proves that the other voters can reach each other.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use tokio::time::{Instant, sleep_until};

use crate::{
    deadline::ANSWER_RESERVE,
    evaluation::{Assessed, Evaluation, Inputs, Probed, Step, Target, ledger, ledger::Written},
    observe::{namespace_pods::NamespacePods, observer::Observation},
    reserve::store::Ledgers,
};
use etcd_guard_core::{
    annotations::AUTH_SECRET,
    assess::{Assessment, transferee},
    escape::to_shell_word,
    etcd::{
        endpoint::Endpoint,
        error::MemberError,
        member::{ClusterId, Status},
    },
    explain::annotated_object,
    handover::{Handover, REVIEW},
    membership::single_member::SingleMemberEvidence,
    mistakes::Mistake,
    reason::Reason,
    request::Requester,
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

/// A move of leadership that is to be made.
pub(super) struct PlannedMove<'a> {
    leader: &'a MemberPod,
    endpoint: &'a Endpoint,
    transferee: &'a MemberPod,
    status: &'a Status,
}

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
    Failed(Failure),
}

/// Why a transfer does not make a deletion safe.
struct Failure {
    cause: String,
    /// Whether the guard lacks the permission to move leadership.
    is_forbidden: bool,
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

/// Chooses the voter that takes over leadership from the target.
///
/// # Errors
///
/// Fails with a denial if no voter can take over.
pub(super) async fn plan<'a>(
    on: &Evaluation<'_>,
    pods: &'a NamespacePods,
    snapshot: &'a Snapshot,
    leader: &'a MemberPod,
) -> Result<PlannedMove<'a>, Step> {
    let rollout = on.services.observer.rollout_revision(pods, on.deadline).await;
    let best = transferee(snapshot, leader, rollout.as_deref());
    if let (Some((transferee, status)), Some(endpoint)) = (best, pods.endpoint(&leader.name)) {
        return Ok(PlannedMove { leader, endpoint, transferee, status });
    }
    if !on.request.dry_run {
        on.services.observer.metrics.record_transfer(false);
    }
    let failure = Failure::new("no other healthy voter can become the leader");
    Err(Step::Answer(Box::new(failure.into_verdict(snapshot, leader))))
}

/// Moves leadership away from the target, whose deletion the caller has reserved in `ledgers`. After a failure the
/// reservation is withdrawn, unless it existed before this request: the deletion of an earlier request for the same pod may
/// be in progress.
pub(super) async fn transfer(
    on: &Evaluation<'_>,
    target: &Target,
    snapshot: &Snapshot,
    planned: &PlannedMove<'_>,
    ledgers: &mut Ledgers,
    had_reservation: bool,
) -> Result<Verdict, Step> {
    let leader = planned.leader;
    let result = move_and_verify(on, target, planned).await;
    let is_moved = matches!(result, Ok(Transfer::Moved { .. }));
    on.services.observer.metrics.record_transfer(is_moved);
    if !is_moved && !had_reservation {
        ledger::withdraw(on, ledgers, &leader.uid).await;
    }
    match result? {
        Transfer::Moved { snapshot, assessment, transferee } => {
            let mut verdict = on.explain(&snapshot, leader, &assessment);
            verdict.warn(&format!("leadership of etcd {} was moved to {transferee}", snapshot.cluster));
            if target.is_auto && on.requester() == Requester::ServiceAccount {
                let account = on.request.user.trim_start_matches("system:serviceaccount:");
                verdict.warn(&format!(
                    "the guard moved leadership without asking, because you use a service account: {account}"
                ));
            }
            Ok(verdict)
        }
        Transfer::Failed(failure) => Ok(failure.into_verdict(snapshot, leader)),
    }
}

/// Moves leadership, and evaluates the deletion again with the pods, the
/// reservations and the members after the transfer. The target is reserved already, so that no other evaluation counts it
/// as serving. This function reserves it again with the reservations that the new snapshot includes, so that a reservation
/// of another replica causes a conflict.
async fn move_and_verify(
    on: &Evaluation<'_>,
    target: &Target,
    planned: &PlannedMove<'_>,
) -> Result<Transfer, Step> {
    let deadline = on.deadline;
    let &PlannedMove { leader, endpoint, transferee, status } = planned;
    deadline
        .ensure_remaining(MIN_TRANSFER_TIME, ANSWER_RESERVE, "to move leadership")
        .map_err(|late| on.fail(late.into()))?;
    let cluster_id = status.cluster_id;
    let until = deadline.minus(ANSWER_RESERVE);
    let requested = Instant::now();
    let connections = &on.services.observer.connections;
    if let Err(cause) = etcd::move_leader(connections, endpoint, status.member_id, until).await {
        let is_forbidden = matches!(cause, MemberError::CredentialsRejected(_));
        let cause = format!("{} did not become the leader: {cause}", transferee.name);
        return Ok(Transfer::Failed(Failure { cause, is_forbidden }));
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
    let cause = format!(
        "{} is the new leader, but the deletion of {} is still unsafe: {last_reason}",
        transferee.name, leader.name
    );
    Ok(Transfer::Failed(Failure::new(&cause)))
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
    let written = ledger::reserve(on, &mut ledgers, &snapshot, &uid, member, &pods, None).await;
    Ok(match written.map_err(|error| on.fail(error))? {
        Written::Stored => {
            AfterTransfer::Safe { snapshot: Box::new(snapshot), assessment: Box::new(assessment) }
        }
        Written::Conflict => AfterTransfer::Conflict,
    })
}

// === impl PlannedMove ===

impl PlannedMove<'_> {
    /// Returns the entry of the ledger that limits the rate of moves. It announces nothing: the deletion is reserved, and the
    /// second snapshot decides.
    pub(super) fn entry(&self, time: Timestamp) -> Handover {
        Handover {
            signal: REVIEW.to_owned(),
            cluster: self.status.cluster_id.to_string(),
            uid: self.transferee.uid.clone(),
            pod: self.transferee.name.clone(),
            term: self.status.term,
            ended: true,
            at: time.to_string(),
        }
    }
}

// === impl Failure ===

impl Failure {
    fn new(cause: &str) -> Self {
        Self { cause: cause.to_owned(), is_forbidden: false }
    }

    fn into_verdict(self, snapshot: &Snapshot, leader: &MemberPod) -> Verdict {
        let text = format!(
            "the guard could not move leadership from {} of {} safely: {}",
            leader.name, snapshot.cluster, self.cause
        );
        let namespace = to_shell_word(&snapshot.namespace);
        let remedy = match (self.is_forbidden, &leader.etcdctl.user) {
            (false, _) => format!(
                "No pod was deleted. Check the members, then retry: {}",
                leader.etcdctl_command(&snapshot.namespace, "endpoint status --cluster -w table")
            ),
            (true, Some(user)) => format!(
                "Only a user with the role root may move leadership. Give it to the user of the guard, {user}, as root: {}",
                leader.etcdctl.with_user(Some("root")).command(
                    &snapshot.namespace,
                    &leader.name,
                    &leader.container,
                    &format!("user grant-role {} root", to_shell_word(user))
                )
            ),
            (true, None) => format!(
                "Only a user with the role root may move leadership. Name the Secret with its username and password: \
                 kubectl -n {namespace} annotate --overwrite {} {AUTH_SECRET}=SECRET",
                annotated_object(snapshot, leader)
            ),
        };
        Verdict::new(Reason::TransferFailed, text).with_remedy(&remedy)
    }
}
