//! The inputs of an evaluation: the cluster's pods, its reservations and a snapshot.

use std::sync::Arc;

use crate::etcd::{ClusterId, EarlyConnections, ProbeResult};
use crate::guard::{
    assess::stray::cluster_of_stray,
    decide::{
        cluster_cache::ClusterCache,
        context::{EvaluationContext, EvaluationError},
    },
    model::{
        cluster_key::ClusterKey,
        deadline::Deadline,
        membership::{Membership, single_member::SingleMemberEvidence},
        request::Request,
        reservation::Reservation,
        snapshot::Snapshot,
    },
    observe::{
        observer::{ClusterObserver, Observation},
        siblings::Siblings,
    },
    ownership::store::OwnershipStore,
    policy::effective::Permission,
    reserve::store::{Record, Records, ReservationStore},
};
use crate::k8s::{LookupError, pod::Pod};

/// Reads the inputs of evaluations.
pub(super) struct InputReader {
    pub(super) observer: Arc<ClusterObserver>,
    pub(super) reservations: Arc<ReservationStore>,
    pub(super) ownership: Arc<OwnershipStore>,
    pub(super) cache: Arc<ClusterCache>,
}

/// Pods and reservations as the API server returned them.
pub(super) struct RawInputs {
    /// The pods of the namespace, or only the known member pods of the cluster.
    pub(super) pods: Vec<Pod>,
    /// Whether `pods` are the known member pods, each read by its name.
    pub(super) are_read_by_name: bool,
    /// The reservations. `None` if they were not read, because the pod may run no etcd.
    pub(super) records: Option<Result<Records, EvaluationError>>,
    /// Connections to the members that are opened until the probe round. The addresses of the probe round do not depend on them.
    pub(super) connecting: Option<EarlyConnections>,
}

/// The inputs of a probe round and of the assessment after it.
pub(super) struct EvaluationInputs {
    /// The pods of the cluster and the other etcd pods of the namespace.
    pub(super) siblings: Siblings,
    /// The records of reservations. If they cannot be read, approvals are not possible, but a denial for another reason
    /// takes precedence over the error.
    pub(super) records: Result<Records, EvaluationError>,
    /// The reservations of these records that have not expired.
    pub(super) reserved: Vec<Reservation>,
}

// === impl InputReader ===

impl InputReader {
    /// Reads the pods and the reservations in parallel, and starts to connect to the members at the stored addresses.
    pub(super) async fn read_raw(
        &self,
        request: &Request,
        cluster_key: &ClusterKey,
        deadline: Deadline,
    ) -> Result<RawInputs, EvaluationError> {
        let endpoints = self.cache.member_pods.endpoints(cluster_key);
        let connecting = endpoints.map(|endpoints| self.observer.connections.connect_early(&endpoints));
        let records = self.read_records_of(cluster_key, deadline);
        let (pods, records) = tokio::join!(self.read_pods(request, cluster_key, deadline), records);
        let (pods, are_read_by_name) = pods?;
        Ok(RawInputs { pods, are_read_by_name, records: Some(records), connecting })
    }

    /// Returns the current inputs. `raw` contains pods and reservations that the caller has just read, if any.
    pub(super) async fn read(
        &self,
        context: &EvaluationContext<'_>,
        raw: Option<RawInputs>,
    ) -> Result<EvaluationInputs, EvaluationError> {
        let &EvaluationContext { request, cluster_key, deadline, .. } = context;
        let RawInputs { pods, are_read_by_name, records, connecting } = match raw {
            Some(raw) => raw,
            None => self.read_raw(request, cluster_key, deadline).await?,
        };
        let mut siblings = self.observer.group_siblings(pods, cluster_key, request, deadline).await?;
        siblings.are_read_by_name = are_read_by_name;
        let records = match records {
            Some(records) => records,
            None => self.read_records_of(cluster_key, deadline).await,
        };
        let reserved = records.as_ref().map(Records::active).unwrap_or_default();
        // Pods and records were read in parallel. The records may reserve a pod that was created after the list.
        if let Ok(records) = &records
            && records.may_be_newer_than(&request.namespace, &siblings.live_pods())
        {
            siblings = self.observer.siblings(cluster_key, request, deadline).await?;
            records.observe_pods(&request.namespace, &siblings.live_pods());
        }
        // The probe round opens the connections that are still missing, at the addresses that were just read.
        if let Some(connecting) = connecting {
            connecting.abandon();
        }
        Ok(EvaluationInputs { siblings, records, reserved })
    }

    /// Probes the members and updates the member pod cache. For a stray pod, the snapshot shows only its own cluster.
    /// Returns `None` if the pods were read by the cached names and the evaluation requires further pods.
    pub(super) async fn observe(
        &self,
        context: &EvaluationContext<'_>,
        siblings: &Siblings,
        reserved: &[Reservation],
    ) -> Result<Option<Observation>, EvaluationError> {
        let &EvaluationContext { request, cluster_key, deadline, .. } = context;
        let mut observation = self.observer.observe(request, siblings, reserved, deadline).await?;
        let is_complete = self.cache.member_pods.update(cluster_key, &observation.snapshot, siblings);
        if let Some(part) = cluster_of_stray(&observation.snapshot, &request.name) {
            observation.snapshot = part;
        }
        Ok(is_complete.then_some(observation))
    }

    /// Returns the evidence that the request's pod runs the only voter, for a snapshot in which no member proved a quorum.
    /// Costs two reads from the API server, and only where everything else is evidence of a single member.
    pub(super) async fn single_member_evidence(
        &self,
        context: &EvaluationContext<'_>,
        siblings: &Siblings,
        snapshot: &Snapshot,
    ) -> SingleMemberEvidence {
        let &EvaluationContext { request, cluster_key, policy, deadline } = context;
        let is_any_healthy = snapshot.replies().any(ProbeResult::is_healthy);
        if policy.single_member == Permission::Deny || is_any_healthy {
            return SingleMemberEvidence::default();
        }
        let evidence = SingleMemberEvidence {
            had_more_voters: false,
            ..siblings.single_member_evidence(cluster_key, &request.name)
        };
        let owner = siblings.controller(&request.name).filter(|owner| owner.kind == "StatefulSet");
        let (Some(owner), true) =
            (owner, SingleMemberEvidence { replicas: Some(1), ..evidence }.is_conclusive())
        else {
            return evidence;
        };
        let replicas = self.observer.pods.stateful_set_replicas(&request.namespace, &owner.name, &owner.uid);
        let reads = Box::pin(async { tokio::join!(replicas, self.ownership.had_more_voters(cluster_key)) });
        match deadline.within("reading the StatefulSet from the API server", reads).await {
            Ok((Ok(replicas), Ok(had_more_voters))) => {
                SingleMemberEvidence { replicas, had_more_voters, ..evidence }
            }
            // Without the number of replicas, the pod does not count as a single member.
            Ok(_) | Err(_) => evidence,
        }
    }

    /// Reads the records that the next evaluation of this cluster requires before its probe round.
    async fn read_records_of(
        &self,
        cluster_key: &ClusterKey,
        deadline: Deadline,
    ) -> Result<Records, EvaluationError> {
        let id = self.cache.cluster_id(cluster_key);
        if self.cache.requires_all_records(cluster_key) {
            Box::pin(self.read_records(None, deadline)).await
        } else if id.is_some() {
            Box::pin(self.read_records(id, deadline)).await
        } else {
            Box::pin(within(deadline, self.reservations.read_provisional())).await
        }
    }

    /// Reads the record of the cluster with this id, or all records without an id.
    pub(super) async fn read_records(
        &self,
        id: Option<ClusterId>,
        deadline: Deadline,
    ) -> Result<Records, EvaluationError> {
        within(deadline, self.reservations.read(id)).await
    }

    /// Returns the record for a reservation after the probe round of this snapshot. Returns `None` if the evaluation must read the
    /// record before another probe round.
    pub(super) async fn select_record(
        &self,
        records: Records,
        snapshot: &Snapshot,
        deadline: Deadline,
    ) -> Result<Option<Record>, EvaluationError> {
        let selected = match (records, snapshot.cluster_id()) {
            (Records::Provisional(provisional), Some(id)) => {
                return Box::pin(within(deadline, self.reservations.new_record(provisional, id))).await;
            }
            (records, Some(id)) => self.reservations.select(records, id),
            // A proven member list contradicts the missing id: the decision would depend on reservations of an unknown
            // record.
            (_, None) if Membership::new(snapshot).is_ok() => {
                return Err(EvaluationError::Ledger(String::from("the members report no common cluster ID")));
            }
            // The members report no common cluster id. A crashed member may serve again before its deletion is executed,
            // so the deletion still requires a reservation.
            (records, None) => self.reservations.select_provisional(records),
        };
        selected.map_err(|error| EvaluationError::unreadable_record(&error))
    }

    /// Reads the known member pods by their names, or lists the pods of the namespace. The second value is true if the
    /// pods were read by name.
    async fn read_pods(
        &self,
        request: &Request,
        cluster_key: &ClusterKey,
        deadline: Deadline,
    ) -> Result<(Vec<Pod>, bool), EvaluationError> {
        if let Some(names) = self.cache.member_pods.get(cluster_key)
            && let Some(pods) = self.observer.read_by_name(&names, request, deadline).await?
        {
            return Ok((pods, true));
        }
        Ok((self.observer.list_pods(&request.namespace, deadline).await?, false))
    }
}

/// Waits for a read of records until the deadline.
async fn within<T>(
    deadline: Deadline,
    read: impl Future<Output = Result<T, LookupError>>,
) -> Result<T, EvaluationError> {
    let read = deadline.within("reading the reservations from the API server", read).await?;
    read.map_err(|error| EvaluationError::unreadable_record(&error))
}
