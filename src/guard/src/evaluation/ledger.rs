//! The ledgers as evaluations use them: read before the probe round, and written after it with the versions that were read.
//!
//! No other file of an evaluation of pods reads or writes reservations.

use std::{collections::BTreeSet, time::Duration};

use k8s_openapi::jiff::Timestamp;

use crate::{
    evaluation::{Evaluation, Why},
    observe::{error::EvaluationError, external::voters_without_pod, namespace_pods::NamespacePods},
    reserve::{
        ledger_error::{LedgerError, LedgerFault},
        store::{Facts, LedgerName, Ledgers, ReserveError},
    },
};
use etcd_guard_core::{
    assess::assess,
    cluster_key::ClusterKey,
    handover::Handover,
    membership::Membership,
    objects::pod::Pod,
    policy::Policy,
    request::{Operation, PodUpdate, Request, WorkloadOperation},
    reservation::{LivePod, Reservation},
    snapshot::Snapshot,
};

/// Maximum number of attempts to write the reservations of one cluster after an accepted deletion of its owner. Each
/// conflict means that another evaluation made progress.
const MAX_ATTEMPTS: usize = 5;

/// Maximum length of a stored image id. Runtimes report the name of a repository and a digest.
const MAX_IMAGE_ID: usize = 512;

/// The reservations that an evaluation read before its probe round. If they cannot be read, approvals are not possible,
/// but a denial for another reason takes precedence over the error.
pub(super) struct Ledger(Result<Ledgers, EvaluationError>);

/// Result of writing a reservation.
pub(super) enum Written {
    /// The reservation is stored.
    Stored,
    /// Another replica has approved a deletion since the ledger was read: the evaluation must start again.
    Conflict,
}

// === impl Ledger ===

impl Ledger {
    /// Reads the ledger of the namespace, and the others that the last evaluation of this cluster needed.
    pub(super) async fn read(on: &Evaluation<'_>, cluster_key: &ClusterKey) -> Self {
        let names = names(on, [cluster_key]);
        Self(read(on, on.services.reservations.read(names)).await)
    }

    /// Returns the reservations that have not expired.
    pub(super) fn active(&self) -> Vec<Reservation> {
        self.0.as_ref().map(Ledgers::active).unwrap_or_default()
    }

    /// Records for each reserved pod of a snapshot when its reservation expires.
    pub(super) fn add_expiries(&self, snapshot: &mut Snapshot) {
        let Ok(ledgers) = &self.0 else { return };
        for (reservation, expires) in ledgers.expiries() {
            if snapshot.pod(&reservation.pod).is_some_and(|pod| pod.reserved)
                && reservation.namespace == snapshot.namespace
            {
                let until = snapshot.reserved_until.entry(reservation.pod).or_insert(expires);
                *until = expires.max(*until);
            }
        }
    }

    /// Whether the ledger may be newer than these pods, which were read in parallel: it may reserve a pod that was created
    /// after the list.
    pub(super) fn may_be_newer_than(&self, namespace: &str, pods: &NamespacePods) -> bool {
        let may_concern = |known: &Reservation| pods.may_concern(known);
        self.0
            .as_ref()
            .is_ok_and(|ledgers| ledgers.may_be_newer_than(namespace, &pods.live_pods(), may_concern))
    }

    /// Records which reserved pods are missing in a list that was read after the ledger.
    pub(super) fn observe_pods(&self, namespace: &str, pods: &NamespacePods) {
        if let Ok(ledgers) = &self.0 {
            ledgers.observe_pods(namespace, &pods.live_pods());
        }
    }

    /// Whether leadership is being handed over to the pod with this uid.
    pub(super) fn is_transferee(&self, uid: &str, time: Timestamp) -> bool {
        self.0.as_ref().is_ok_and(|ledgers| ledgers.is_transferee(uid, time))
    }

    /// Returns the time until leadership of the cluster may move for another deletion, if it moved for one recently.
    pub(super) fn pause_between_moves(&self, snapshot: &Snapshot, time: Timestamp) -> Option<Duration> {
        let ledgers = self.0.as_ref().ok()?;
        ledgers.pause_between_moves(snapshot.cluster_id()?, time)
    }

    /// Returns the ledgers for a reservation after the probe round of this snapshot. `is_proven` means that the snapshot
    /// proves a member list.
    ///
    /// # Errors
    ///
    /// Fails if the cluster needs further ledgers, which must be read before a probe round. The inner error states that no
    /// reservation is possible.
    pub(super) fn select(
        self,
        on: &Evaluation<'_>,
        cluster_key: &ClusterKey,
        snapshot: &Snapshot,
        is_proven: bool,
    ) -> Result<Result<Ledgers, EvaluationError>, Why> {
        let ledgers = match self.0 {
            Ok(ledgers) => ledgers,
            Err(error) => return Ok(Err(error)),
        };
        if snapshot.cluster_id().is_none() && is_proven {
            // Voters in other namespaces have no common ledger.
            return Ok(Err(on.services.reservations.error(LedgerFault::NoClusterId).into()));
        }
        if has_read_all(on, &ledgers, cluster_key, snapshot) {
            Ok(Ok(ledgers))
        } else {
            Err(Why::MoreLedgers)
        }
    }
}

/// Returns the ledgers of the namespaces of these clusters, and the others that their last evaluations needed.
pub(super) fn names<'a>(
    on: &Evaluation<'_>,
    clusters: impl IntoIterator<Item = &'a ClusterKey>,
) -> BTreeSet<LedgerName> {
    let mut names = BTreeSet::new();
    for cluster_key in clusters {
        names.append(&mut on.services.cache.other_ledgers(cluster_key));
        names.insert(LedgerName::Namespace(cluster_key.namespace().to_owned()));
    }
    names
}

/// Whether all ledgers were read that a reservation after the probe round of this snapshot needs. The next evaluation reads
/// them at once.
pub(super) fn has_read_all(
    on: &Evaluation<'_>,
    ledgers: &Ledgers,
    cluster_key: &ClusterKey,
    snapshot: &Snapshot,
) -> bool {
    let cache = &on.services.cache;
    let known = cache.other_ledgers(cluster_key);
    let mut others = other_ledgers(snapshot, &known);
    let is_complete = ledgers.contain(&others);
    if !is_complete {
        // What this evaluation needed once, it reads until its end: it could otherwise alternate between two sets.
        others.extend(known);
    }
    cache.store_other_ledgers(cluster_key, others);
    is_complete
}

/// Stores the ledgers that an evaluation of this cluster needs after a probe round.
fn store_other_ledgers(on: &Evaluation<'_>, cluster_key: &ClusterKey, snapshot: &Snapshot) {
    let cache = &on.services.cache;
    cache.store_other_ledgers(cluster_key, other_ledgers(snapshot, &cache.other_ledgers(cluster_key)));
}

/// Returns the ledgers of a cluster beside that of its namespace: those of other namespaces with pods of its voters, and that
/// of the cluster while a voter runs in no pod of the namespace. Its deletion can be approved in another namespace, whose
/// members may not find the pods of this one. `known` are those that the last evaluation needed: without a proven list of
/// voters, they remain.
fn other_ledgers(snapshot: &Snapshot, known: &BTreeSet<LedgerName>) -> BTreeSet<LedgerName> {
    let Some(id) = snapshot.cluster_id() else { return known.clone() };
    let of_cluster = LedgerName::Cluster(id);
    if Membership::new(snapshot).is_err() {
        return known.iter().cloned().chain([of_cluster]).collect();
    }
    if voters_without_pod(snapshot).is_empty() {
        return BTreeSet::new();
    }
    let namespaces = snapshot.other_namespaces.iter().cloned().map(LedgerName::Namespace);
    namespaces.chain([of_cluster]).collect()
}

/// Writes the reservation of the request's pod to the ledgers that [`Ledger::select`] returned, with the move of leadership that
/// precedes the deletion. The uid is that of the live
/// pod, because the request may lack it.
pub(super) async fn reserve(
    on: &Evaluation<'_>,
    ledgers: &mut Ledgers,
    snapshot: &Snapshot,
    uid: &str,
    member: String,
    pods: &NamespacePods,
    handover: Option<&Handover>,
) -> Result<Written, EvaluationError> {
    let mut new = reservation(on.request, uid, member);
    if on.request.operation == Operation::Update(PodUpdate::Restart) {
        new.image_id = image_id(pods, uid);
    }
    let new = [new];
    let membership = Membership::new(snapshot);
    let voters: Option<Vec<&str>> = membership.as_ref().ok().map(|known| known.pod_names().collect());
    let pods: Vec<LivePod<'_>> =
        pods.live_pods().into_iter().map(|pod| LivePod { serves: serves(snapshot, &pod), ..pod }).collect();
    let facts = Facts { cluster: snapshot.cluster_id(), pods: &pods, voters: voters.as_deref(), handover };
    let reserve = on.services.reservations.reserve(ledgers, &new, &facts);
    written(on.deadline.within("writing the reservation to the API server", reserve).await?)
}

/// Returns the id of the image that etcd's container runs in the pod with this uid. It is not stored if it is unknown or very long.
fn image_id(pods: &NamespacePods, uid: &str) -> Option<String> {
    let pods = pods.live_pods();
    let pod = pods.iter().find(|pod| pod.uid == uid)?;
    let is_stored = !pod.image_id.is_empty() && pod.image_id.len() <= MAX_IMAGE_ID;
    is_stored.then(|| pod.image_id.to_owned())
}

/// Whether the pod's own container runs, and its member passed the probe.
fn serves(snapshot: &Snapshot, live: &LivePod<'_>) -> bool {
    snapshot.pods.iter().any(|pod| pod.uid == live.uid && pod.is_running() && pod.reply.is_healthy())
}

/// Withdraws the reservation of this pod. If this fails as well, the reservation expires.
pub(super) async fn withdraw(on: &Evaluation<'_>, ledgers: &mut Ledgers, uid: &str) {
    let withdraw = on.services.reservations.withdraw(ledgers, uid);
    let _ = on.deadline.within("withdrawing the reservation", withdraw).await;
}

/// Reserves a deletion that is approved in either case: break-glass or audit mode overrules its denial, or it follows from
/// another deletion. Other evaluations then do not count the pod as serving. Returns whether the reservation is stored.
pub(super) async fn reserve_overruled(
    on: &Evaluation<'_>,
    cluster_key: &ClusterKey,
    policy: &Policy,
) -> bool {
    let cache = &on.services.cache;
    let mut snapshot = cache.snapshot(cluster_key, Duration::MAX).map(|cached| cached.snapshot);
    let known = cache.member_pods.get(cluster_key);
    // If all voters run in known pods of the namespace, its ledger is the only one, and each of them is found by its uid.
    if snapshot.is_none() && known.is_none() {
        // The members of another namespace find the reservation in the ledger of the cluster.
        let pods = on.services.observer.list_pods(&on.request.namespace, on.deadline).await;
        if let Ok(pods) = pods {
            let observe = on.services.observer.observe_listed(cluster_key, &pods, &[], on.deadline);
            cache.store_snapshot(cluster_key, Box::pin(observe).await);
            snapshot = cache.snapshot(cluster_key, Duration::MAX).map(|cached| cached.snapshot);
        }
    }
    if let Some(snapshot) = &snapshot {
        store_other_ledgers(on, cluster_key, snapshot);
    }
    let id = snapshot.as_ref().map_or(known.map(|known| known.cluster), |snapshot| snapshot.cluster_id());
    let member = snapshot.and_then(|snapshot| {
        let target = snapshot.pod(&on.request.name)?;
        assess(&snapshot, target, policy).member
    });
    let member = member.map(|id| id.to_string()).unwrap_or_default();
    let facts = Facts { cluster: id, ..Facts::default() };
    let is_stored = loop {
        match try_reserve_overruled(on, cluster_key, member.clone(), &facts).await {
            Ok(Some(Written::Conflict)) => {}
            Ok(Some(Written::Stored)) => break true,
            Ok(None) | Err(_) => break false,
        }
    };
    cache.invalidate_snapshot(cluster_key);
    is_stored
}

/// Makes one attempt of [`reserve_overruled`]. Returns `None` if the pod is gone, or stops already.
async fn try_reserve_overruled(
    on: &Evaluation<'_>,
    cluster_key: &ClusterKey,
    member: String,
    facts: &Facts<'_>,
) -> Result<Option<Written>, EvaluationError> {
    let &Evaluation { services, request, deadline } = on;
    let mut ledgers = read(on, services.reservations.read(names(on, [cluster_key]))).await?;
    let live = services.observer.live_pod(request, deadline).await?;
    // The uid is read from the API server, because the request may contain another one.
    let Some(pod) = live.filter(|pod| on.ended(Some(pod)).is_none()) else { return Ok(None) };
    let new = [reservation(request, &pod.metadata.uid, member)];
    let reserve = services.reservations.reserve(&mut ledgers, &new, facts);
    written(deadline.within("writing the reservation to the API server", reserve).await?).map(Some)
}

/// Reserves the name of a pod that is gone, terminating or finished. Returns false if a pod of this name lives: its eviction
/// costs a voter. That no pod lives is read after the ledgers, so that an approval that counts on a successor causes a conflict.
pub(super) async fn reserve_ended(
    on: &Evaluation<'_>,
    cluster_key: &ClusterKey,
) -> Result<bool, EvaluationError> {
    let &Evaluation { services, request, deadline } = on;
    let cluster = services.cache.member_pods.get(cluster_key).map(|known| known.cluster);
    let facts = Facts { cluster, ..Facts::default() };
    loop {
        let mut ledgers = read(on, services.reservations.read(names(on, [cluster_key]))).await?;
        let live = services.observer.live_pod(request, deadline).await?;
        if on.ended(live.as_ref()).is_none() {
            return Ok(false);
        }
        // While no pod has the name, the name stands for its uid.
        let uid = live.as_ref().map_or(&request.name, |pod| &pod.metadata.uid);
        let new = [reservation(request, uid, String::new())];
        let reserve = services.reservations.reserve(&mut ledgers, &new, &facts);
        match written(deadline.within("writing the reservation to the API server", reserve).await?)? {
            Written::Stored => return Ok(true),
            Written::Conflict => {}
        }
    }
}

/// Takes a snapshot of a cluster with all reservations that concern it. A pod whose deletion was approved leaves, also before the
/// API server has executed the deletion.
pub(super) async fn observe(
    on: &Evaluation<'_>,
    cluster_key: &ClusterKey,
    pods: &[Pod],
) -> Result<Snapshot, EvaluationError> {
    let &Evaluation { services, deadline, .. } = on;
    loop {
        let ledgers = read(on, services.reservations.read(names(on, [cluster_key]))).await?;
        let reserved = ledgers.active();
        let snapshot = services.observer.observe_listed(cluster_key, pods, &reserved, deadline).await;
        if has_read_all(on, &ledgers, cluster_key, &snapshot) {
            return Ok(snapshot);
        }
    }
}

/// Creates the reservation of the request's pod.
fn reservation(request: &Request, uid: &str, member: String) -> Reservation {
    Reservation {
        uid: uid.to_owned(),
        namespace: request.namespace.clone(),
        pod: request.name.clone(),
        member,
        // The store sets the time and the cluster.
        at: String::new(),
        by: request.user.clone(),
        of_node: false,
        cluster: None,
        by_name: request.is_by_name(),
        image_id: None,
    }
}

/// Creates the reservation of a member pod that is deleted with another object: its owner, its namespace or its node.
pub(super) fn member_reservation(request: &Request, pod: &Pod, snapshot: &Snapshot) -> Reservation {
    let target = snapshot.pod(&pod.metadata.name);
    let member = target.and_then(|target| assess(snapshot, target, &Policy::default()).member);
    Reservation {
        uid: pod.metadata.uid.clone(),
        namespace: pod.metadata.namespace.clone(),
        pod: pod.metadata.name.clone(),
        member: member.map(|id| id.to_string()).unwrap_or_default(),
        // The store sets the time.
        at: String::new(),
        by: request.user.clone(),
        of_node: matches!(request.operation, Operation::Workload(WorkloadOperation::DeleteNode { .. })),
        cluster: snapshot.cluster_id().map(|id| id.to_string()),
        by_name: false,
        image_id: None,
    }
}

/// Reserves members of one cluster that are deleted with their owner or namespace.
pub(super) async fn reserve_members(
    on: &Evaluation<'_>,
    cluster_key: &ClusterKey,
    snapshot: &Snapshot,
    new: &[Reservation],
) -> Result<(), EvaluationError> {
    let store = &on.services.reservations;
    store_other_ledgers(on, cluster_key, snapshot);
    let facts = Facts::default();
    for _ in 0..MAX_ATTEMPTS {
        let mut ledgers = read(on, store.read(names(on, [cluster_key]))).await?;
        let reserve = store.reserve(&mut ledgers, new, &facts);
        match written(on.deadline.within("writing the reservations to the API server", reserve).await?)? {
            Written::Stored => return Ok(()),
            Written::Conflict => {}
        }
    }
    Err(store.error(LedgerFault::Conflict(MAX_ATTEMPTS)).into())
}

/// Returns what a write of reservations means for its evaluation.
pub(super) fn written(result: Result<(), ReserveError>) -> Result<Written, EvaluationError> {
    match result {
        Ok(()) => Ok(Written::Stored),
        Err(ReserveError::StartAgain) => Ok(Written::Conflict),
        Err(ReserveError::Unavailable(error)) => Err(error.into()),
    }
}

/// Waits for a read of reservations until the deadline.
pub(super) async fn read<T>(
    on: &Evaluation<'_>,
    read: impl Future<Output = Result<T, LedgerError>>,
) -> Result<T, EvaluationError> {
    Ok(on.deadline.within("reading the reservations from the API server", read).await??)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        deadline::Deadline,
        evaluation::fixture::{FakeServer, member_pod, request},
        services::Services,
    };
    use etcd_guard_core::{etcd::member::ClusterId, snapshot::fixture::cluster};

    fn namespace(name: &str) -> LedgerName {
        LedgerName::Namespace(name.to_owned())
    }

    #[test]
    fn known_ledgers_remain_without_a_proven_list_of_voters() {
        let known = BTreeSet::from([namespace("other")]);
        let of_cluster = LedgerName::Cluster(ClusterId(0xc1));
        assert_eq!(other_ledgers(&cluster(3), &known), BTreeSet::new());
        let without_quorum = cluster(3).starve(0).starve(1).starve(2);
        let both = BTreeSet::from([namespace("other"), of_cluster.clone()]);
        assert_eq!(other_ledgers(&without_quorum, &known), both);
        assert_eq!(other_ledgers(&without_quorum, &BTreeSet::new()), BTreeSet::from([of_cluster.clone()]));
        assert_eq!(other_ledgers(&cluster(1).silence(0), &known), known);

        let mut over_two_namespaces = cluster(3);
        over_two_namespaces.pods.pop();
        over_two_namespaces.other_namespaces.insert(String::from("third"));
        let needed = BTreeSet::from([namespace("third"), of_cluster]);
        assert_eq!(other_ledgers(&over_two_namespaces, &known), needed);
    }

    #[tokio::test]
    async fn further_ledgers_accumulate_within_one_evaluation() {
        let services = Services::of_client(&FakeServer::default().client());
        let request = request(Operation::Delete, "prod", "etcd-0");
        let on = Evaluation::new(&services, &request, Deadline::from_timeout(None));
        let key = ClusterKey::from_stateful_set("prod", String::from("etcd"), String::from("set"));
        let has_read_all = async |snapshot: &Snapshot| {
            let ledgers = read(&on, services.reservations.read(names(&on, [&key]))).await.unwrap();
            has_read_all(&on, &ledgers, &key, snapshot)
        };
        let over = |other: &str| {
            let mut snapshot = cluster(3);
            snapshot.pods.pop();
            snapshot.other_namespaces.insert(other.to_owned());
            snapshot
        };
        assert!(!has_read_all(&over("a")).await);
        assert!(!has_read_all(&over("b")).await);
        assert!(has_read_all(&over("a")).await, "it was read once");
        assert!(has_read_all(&cluster(1).silence(0)).await);
        assert!(has_read_all(&over("a")).await, "an unproven list forgets nothing");
        assert!(has_read_all(&cluster(3)).await);
        assert_eq!(names(&on, [&key]), BTreeSet::from([namespace("prod")]));
    }

    #[tokio::test]
    async fn overruled_deletion_of_a_known_cluster_needs_no_probe() {
        let server = FakeServer::default();
        let services = Services::of_client(&server.client());
        let pod = member_pod("a");
        let key = ClusterKey::from_pod("a", &pod);
        let pods = NamespacePods::new(&key, vec![pod]);
        assert!(services.cache.member_pods.update(&key, &cluster(1), &pods));
        let request = request(Operation::Delete, "a", "etcd-0");
        let on = Evaluation::new(&services, &request, Deadline::from_timeout(None));
        assert!(reserve_overruled(&on, &key, &Policy::default()).await);
        let stored = server.reservations("a");
        assert_eq!(stored.len(), 1);
        assert_eq!(stored[0].cluster, Some(ClusterId(0xc1).to_string()), "no member answers a probe");
    }
}
