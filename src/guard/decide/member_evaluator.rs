//! The evaluation of one member pod's deletion: inputs, snapshot, assessment, reservation, verdict.
//!
//! A cached snapshot may deny a deletion, but never approves one: each approval rests on its own probe round, under the
//! cluster lock, and on a reservation that is stored before the approval is returned.

use std::{sync::Arc, time::Duration};

use tokio::{sync::OwnedMutexGuard, time::Instant};

use crate::etcd::Connections;
use crate::guard::{
    assess::{Assessment, assess},
    decide::{
        cluster_cache::{ClusterCache, SNAPSHOT_TTL, SNAPSHOT_TTL_WHILE_PROBING},
        context::{EvaluationContext, EvaluationError},
        inputs::{EvaluationInputs, InputReader, RawInputs},
        reservation::{ReserveOutcome, new_reservation, reserve},
        transfer::{Transfer, transfer_leadership},
        uncertain_storage::UncertainStorage,
    },
    explain::{explain, explain_transferee},
    metrics::Metrics,
    model::{
        membership::Membership,
        reason::Reason,
        snapshot::{MemberPod, Snapshot},
        verdict::Verdict,
        wall_clock::WallClock,
    },
    observe::{observer::Observation, siblings::Siblings},
    policy::effective::Permission,
    reserve::store::{Record, Records, ReservationStore},
};
use crate::mistakes::Mistake;

/// Evaluates deletions of member pods.
pub(in crate::guard) struct MemberEvaluator {
    pub(super) inputs: InputReader,
    pub(super) reservations: Arc<ReservationStore>,
    pub(super) cache: Arc<ClusterCache>,
    pub(super) connections: Connections,
    pub(super) metrics: Metrics,
    pub(super) wall_clock: WallClock,
}

/// The cluster lock, or the denial for which it is not required.
pub(super) enum Acquired {
    /// The last snapshot denies the deletion.
    Denied(Box<Verdict>),
    /// No other evaluation of this cluster is in progress on this replica.
    Lock(OwnedMutexGuard<()>),
}

/// Inputs that were read under the cluster lock, and the lock. They need not be read again while the lock is held: a
/// change by another replica causes a write conflict.
pub(super) struct LockedInputs {
    pub(super) lock: OwnedMutexGuard<()>,
    pub(super) raw: RawInputs,
}

// === impl MemberEvaluator ===

impl MemberEvaluator {
    /// Returns the verdict on the deletion of a member pod, under the cluster lock.
    pub(super) async fn evaluate(
        &self,
        context: &EvaluationContext<'_>,
        locked: Option<LockedInputs>,
    ) -> Result<Verdict, EvaluationError> {
        let (_lock, mut raw) = match locked {
            Some(LockedInputs { lock, raw }) => match self.cached_denial(context, SNAPSHOT_TTL) {
                Some(denial) => return Ok(denial),
                None => (lock, Some(raw)),
            },
            None => match self.acquire(context).await? {
                Acquired::Denied(denial) => return Ok(*denial),
                Acquired::Lock(lock) => (lock, None),
            },
        };
        loop {
            if let Some(verdict) = self.attempt(context, raw.take()).await? {
                return Ok(verdict);
            }
        }
    }

    /// Acquires the cluster lock, unless the last snapshot denies the deletion.
    pub(super) async fn acquire(&self, context: &EvaluationContext<'_>) -> Result<Acquired, EvaluationError> {
        if let Some(denial) = self.cached_denial(context, SNAPSHOT_TTL) {
            return Ok(Acquired::Denied(Box::new(denial)));
        }
        let lock = self.cache.lock(context.cluster_key);
        let lock = if let Ok(lock) = Arc::clone(&lock).try_lock_owned() {
            lock
        } else if let Some(denial) = self.cached_denial(context, SNAPSHOT_TTL_WHILE_PROBING) {
            return Ok(Acquired::Denied(Box::new(denial)));
        } else {
            let lock = lock.lock_owned();
            context.deadline.within("waiting for other deletions of this cluster", lock).await?
        };
        // The previous holder of the lock may have stored a new snapshot.
        Ok(match self.cached_denial(context, SNAPSHOT_TTL) {
            Some(denial) => Acquired::Denied(Box::new(denial)),
            None => Acquired::Lock(lock),
        })
    }

    /// Returns the denial that follows from the last snapshot, unless the snapshot is older than `max_age` or shows
    /// another pod of the same name.
    fn cached_denial(&self, context: &EvaluationContext<'_>, max_age: Duration) -> Option<Verdict> {
        let cached = self.cache.snapshot(context.cluster_key, max_age)?;
        let snapshot = &cached.snapshot;
        let target = snapshot.pod(&context.request.name)?;
        if context.request.object_uid().is_some_and(|uid| uid != target.uid) {
            return None;
        }
        if let Some(denial) = cached.denial(&target.name, context.policy) {
            return Some(denial);
        }
        let assessment = assess(snapshot, target, context.policy);
        // Evidence that is not part of a snapshot may approve the deletion of a single member that does not answer.
        let may_be_single = assessment.tally.is_none() && context.policy.single_member == Permission::Allow;
        let denies =
            !assessment.reason.allows() && !assessment.wants_transfer(context.policy) && !may_be_single;
        if !denies && !Mistake::ApproveFromCache.is_active() {
            return None;
        }
        let denial = explain(snapshot, target, &assessment, Instant::now(), &self.wall_clock);
        cached.store_denial(&target.name, context.policy, &denial);
        Some(denial)
    }

    /// Makes one evaluation attempt. Returns `None` if another attempt is required: the record that was read belongs to
    /// another cluster than the pods, the member pods have changed, or another replica has approved a deletion
    /// meanwhile.
    async fn attempt(
        &self,
        context: &EvaluationContext<'_>,
        raw: Option<RawInputs>,
    ) -> Result<Option<Verdict>, EvaluationError> {
        let &EvaluationContext { request, cluster_key, policy, .. } = context;
        let EvaluationInputs { siblings, records, reserved } = self.inputs.read(context, raw).await?;
        let (mut records, mut record_error) = match records {
            Ok(records) => (Some(records), None),
            Err(error) => (None, Some(error)),
        };
        let observation = self.inputs.observe(context, &siblings, &reserved).await?;
        let Some(Observation { mut snapshot, claim_error }) = observation else { return Ok(None) };
        if Mistake::ReadLedgerAfterProbe.is_active() {
            records = Some(self.inputs.read_records(None, context.deadline).await?);
        }
        let Some(target) = snapshot.pod(&request.name) else {
            return Ok(Some(changed_owner(context)));
        };
        let storage = UncertainStorage::new(claim_error);
        let evidence = self.inputs.single_member_evidence(context, &siblings, &snapshot).await;
        let assessment =
            storage.assess(&snapshot, target, policy, evidence).map_err(EvaluationError::Lookup)?;
        if let Some(tally) = &assessment.tally {
            self.inputs.ownership.voters.record(cluster_key, tally.voters);
        }
        let wants_transfer = assessment.wants_transfer(policy);
        let may_be_deleted = assessment.reason.allows() || wants_transfer;
        let removes_vote = wants_transfer || assessment.reason.removes_a_voter();

        let costs_serving_voter = wants_transfer || assessment.reason == Reason::SafeToDelete;
        let takes_over = costs_serving_voter
            && records
                .as_ref()
                .is_some_and(|records| records.is_transferee(&target.uid, self.wall_clock.now()));

        let id = snapshot.cluster_id();
        let lacks_records =
            id.is_none() && may_be_deleted && !matches!(records, None | Some(Records::All(_)));
        // After a first probe round without a common id, the next evaluation reads all records at once.
        if id.is_some() || lacks_records || matches!(records, Some(Records::Provisional(_))) {
            self.cache.store_cluster_id(cluster_key, id);
        }
        if lacks_records {
            // Without a common id, each record can belong to the cluster. The next attempt reads all records.
            return Ok(None);
        }
        let mut record = None;
        if let Some(records) = records.filter(|_| may_be_deleted) {
            match self.inputs.select_record(records, &snapshot, context.deadline).await {
                Ok(selected) => record = selected,
                Err(error) => record_error = Some(error),
            }
        }
        if takes_over {
            let now = Instant::now();
            return Ok(Some(explain_transferee(&snapshot, target, &assessment, now, &self.wall_clock)));
        }
        if may_be_deleted && record.is_none() && id.is_some() && record_error.is_none() {
            // The record that was read belongs to another cluster.
            return Ok(None);
        }
        // A dry run reserves nothing, but must not approve a deletion that could not be reserved.
        if let Some(error) = record_error.take_if(|_| may_be_deleted && request.dry_run && removes_vote) {
            return Err(error);
        }
        if !may_be_deleted || request.dry_run {
            let mut verdict = explain(&snapshot, target, &assessment, Instant::now(), &self.wall_clock);
            if wants_transfer {
                verdict.reason = Reason::LeaderTransferred;
                verdict.message =
                    format!("the guard would first move leadership away from pod {}", target.name);
                verdict.remedy = None;
            }
            self.cache.store_snapshot(cluster_key, snapshot);
            return Ok(Some(verdict));
        }

        if let Some(record) = &mut record
            && let Ok(membership) = Membership::new(&snapshot)
        {
            record.add_cluster_names(siblings.cluster_names(membership.pod_names()));
        }
        let had_reservation = reserved.iter().any(|reservation| reservation.uid == target.uid);
        let new = new_reservation(context, &target.uid, &assessment);
        let outcome = match (&mut record, record_error) {
            (Some(record), _) => reserve(&self.reservations, context, record, new, &siblings).await,
            (None, Some(error)) => Err(error),
            (None, None) => Err(EvaluationError::Ledger(String::from("no member reports the cluster ID"))),
        };
        match outcome {
            Ok(ReserveOutcome::Conflict) => return Ok(None),
            Err(error) if removes_vote => return Err(error),
            // A pod without a vote needs no reservation.
            Ok(ReserveOutcome::Stored) | Err(_) => {}
        }
        let verdict = match record {
            Some(mut record) if wants_transfer => {
                let verdict =
                    self.transfer(context, &siblings, &mut record, &snapshot, target, had_reservation).await;
                // The snapshot predates the transfer.
                self.cache.invalidate_snapshot(cluster_key);
                return verdict.map(Some);
            }
            _ => explain(&snapshot, target, &assessment, Instant::now(), &self.wall_clock),
        };
        let uid = target.uid.clone();
        snapshot.mark_reserved(&uid);
        self.cache.store_snapshot(cluster_key, snapshot);
        Ok(Some(verdict))
    }

    /// Moves leadership away from the target, whose deletion the caller has reserved. After a failure the reservation
    /// is withdrawn, unless it existed before this request: the deletion of an earlier request for the same pod may be
    /// in progress.
    async fn transfer(
        &self,
        context: &EvaluationContext<'_>,
        siblings: &Siblings,
        record: &mut Record,
        snapshot: &Snapshot,
        target: &MemberPod,
        had_reservation: bool,
    ) -> Result<Verdict, EvaluationError> {
        let result =
            transfer_leadership(&self.inputs, &self.connections, context, siblings, snapshot, target).await;
        let is_moved = matches!(result, Ok(Transfer::Moved { .. }));
        self.metrics.record_transfer(is_moved);
        if !is_moved && !had_reservation {
            // If the withdrawal fails as well, the reservation expires.
            let live_pods = siblings.live_pods();
            let withdraw = self.reservations.cancel(record, &snapshot.namespace, &target.uid, &live_pods);
            let _ = context.deadline.within("withdrawing the reservation", withdraw).await;
        }
        match result? {
            Transfer::Moved { snapshot, assessment, transferee } => {
                let mut verdict = explain(&snapshot, target, &assessment, Instant::now(), &self.wall_clock);
                verdict.warn(&format!("leadership of etcd {} was moved to {transferee}", snapshot.cluster));
                Ok(verdict)
            }
            Transfer::Failed(cause) => {
                let text = format!(
                    "the transfer of leadership from {} of {} did not make the deletion safe: {cause}",
                    target.name, snapshot.cluster
                );
                let remedy = format!(
                    "No pod was deleted. Check the members, then retry: {}",
                    target.etcdctl_command(&snapshot.namespace, "endpoint status --cluster -w table")
                );
                Ok(Verdict::new(Reason::TransferFailed, text).with_remedy(&remedy))
            }
        }
    }

    /// Reserves a deletion that follows from the deletion of an owner. A replica that has not evaluated this cluster yet
    /// probes its members first. Returns whether the reservation is stored. The deletion is approved in either case.
    pub(super) async fn reserve_cascade(&self, context: &EvaluationContext<'_>) -> bool {
        let &EvaluationContext { request, cluster_key, deadline, .. } = context;
        if self.cache.cluster_id(cluster_key).is_none() {
            let observer = &self.inputs.observer;
            let Ok(pods) = observer.list_pods(&request.namespace, deadline).await else { return false };
            let snapshot = observer.observe_listed(cluster_key, &pods, &[], deadline).await;
            self.cache.store_cluster_id(cluster_key, snapshot.cluster_id());
            self.cache.store_snapshot(cluster_key, snapshot);
        }
        self.reserve_overruled(context).await
    }

    /// Reserves a deletion that break-glass or audit mode approves, so that other evaluations do not count the pod as
    /// serving. Returns whether the reservation is stored. The deletion is approved in either case.
    pub(super) async fn reserve_overruled(&self, context: &EvaluationContext<'_>) -> bool {
        let snapshot = self.cache.snapshot(context.cluster_key, Duration::MAX).map(|cached| cached.snapshot);
        if snapshot.as_ref().is_some_and(|snapshot| snapshot.cluster_id().is_none()) {
            // The cluster can have been restored under another id.
            self.cache.store_cluster_id(context.cluster_key, None);
        }
        let member = snapshot.and_then(|snapshot| {
            let target = snapshot.pod(&context.request.name)?;
            assess(&snapshot, target, context.policy).member
        });
        let assessment = Assessment { member, ..Assessment::new(Reason::BreakGlass) };
        let is_stored = loop {
            match self.try_reserve_overruled(context, &assessment).await {
                Ok(Some(ReserveOutcome::Conflict)) => {}
                Ok(Some(ReserveOutcome::Stored)) => break true,
                Ok(None) | Err(_) => break false,
            }
        };
        self.cache.invalidate_snapshot(context.cluster_key);
        is_stored
    }

    /// Makes one attempt of [`Self::reserve_overruled`]. Returns `None` if the record or the pod is not known.
    async fn try_reserve_overruled(
        &self,
        context: &EvaluationContext<'_>,
        assessment: &Assessment,
    ) -> Result<Option<ReserveOutcome>, EvaluationError> {
        let &EvaluationContext { request, cluster_key, deadline, .. } = context;
        let known = self.cache.cluster_id(cluster_key);
        let records = self.inputs.read_records(known, deadline).await?;
        let siblings = self.inputs.observer.siblings(cluster_key, request, deadline).await?;
        let record = match known {
            Some(id) => self.reservations.select(records, id),
            None => self.reservations.select_provisional(records),
        };
        let Some(mut record) = record.map_err(|error| EvaluationError::unreadable_record(&error))? else {
            return Ok(None);
        };
        // The uid is read from the API server, because the request may contain another one.
        let Some(uid) = siblings.uid(&request.name) else { return Ok(None) };
        let new = new_reservation(context, uid, assessment);
        reserve(&self.reservations, context, &mut record, new, &siblings).await.map(Some)
    }
}

/// Returns the denial of a deletion if the pod left the cluster between two reads.
fn changed_owner(context: &EvaluationContext<'_>) -> Verdict {
    let (namespace, pod) = (&context.request.namespace, &context.request.name);
    let text = format!("owner or labels of pod {pod} changed during the evaluation");
    let remedy = format!("Check the pod and retry: kubectl -n {namespace} get pod {pod} --show-labels");
    Verdict::new(Reason::LookupFailed, text).with_remedy(&remedy)
}
