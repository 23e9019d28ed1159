//! The validating webhook: decides whether a pod of an etcd cluster may be deleted now.
//!
//! # Data flow
//!
//! [`Guard::evaluate`] passes a [`Request`] through these modules. Each module depends only on modules above it in this
//! list:
//!
//! 1. [`model`]: the data types of all modules, from the request to the verdict.
//! 2. `discovery`: recognizes the pods that run etcd, and finds their members' addresses, credentials and storage.
//! 3. `policy`: merges the configuration and the annotations of namespace, owners and pod into the effective policy.
//! 4. `reserve`: reads and writes the ledger, a shared Lease per etcd cluster with the deletions approved recently.
//! 5. `ownership`: records the owners of members while both exist, to recognize cascades.
//! 6. [`observe`]: probes every member and returns a snapshot of the cluster.
//! 7. [`assess`]: evaluates a target in a snapshot. It has no I/O, no clock and no async code.
//! 8. `explain`: renders an assessment as a verdict for people.
//! 9. `inspect`: reports what the guard reads of a pod, for `etcd-guard inspect`. It probes nothing.
//! 10. `decide`: runs these steps for one request, moves leadership under the policy `transfer`, and records events.
//! 11. `handover`: moves leadership on request, and before disruptions that nodes and rollouts announce.
//! 12. `survey`: takes snapshots of all guarded clusters in the background and on demand, and reserves nothing.
//!
//! # Invariants
//!
//! - Each assessment that approves a deletion rests on its own probe round. A cached snapshot may deny a deletion, but
//!   never approves one. Only audit mode and a break-glass annotation overrule a denial.
//! - Reservations are read before the probe round and written after it, with the resource version that was read. Each
//!   approval that removes a voter is stored in the ledger before it is returned, so that all replicas count it.
//! - A review can be forged. Policies, break-glass and owners are those of live objects, and a request in a namespace that
//!   is not guarded has no effects.
//! - One replica evaluates one deletion per cluster at a time. Between replicas, a conflicting write of the ledger
//!   starts the evaluation again.
//! - Every evaluation returns a verdict before its deadline. An evaluation that fails denies the request.

pub mod assess;
mod decide;
mod discovery;
mod explain;
mod handover;
mod inspect;
mod metrics;
pub mod model;
pub mod observe;
#[cfg(test)]
pub(crate) mod outputs;
mod ownership;
mod policy;
mod reserve;
mod survey;

use std::sync::Arc;

use prometheus_client::registry::Registry;

#[cfg(any(test, fuzzing))]
pub(crate) use self::discovery::fuzzing;
use self::{
    decide::{effective_policy::effective_policy, evaluator::Evaluator},
    discovery::credentials::CredentialReader,
    handover::Handovers,
    metrics::Metrics,
    observe::{
        external::{ApiServers, ProbeGate},
        observer::ClusterObserver,
    },
    ownership::{recorder::OwnershipRecorder, store::OwnershipStore},
    policy::{owner_chain::OwnerReader, resolver::PolicyResolver},
    reserve::store::ReservationStore,
    survey::{Surveyor, cluster_metrics::ClusterMetrics, priority::OwnPriority, shares::Shares},
};
pub use self::{
    inspect::{
        AnnotatedObject, GuardAccount, InspectedCredential, InspectedObject, Inspection, ObjectContent,
        ObjectState, Relation, Suggestion, inspect,
    },
    model::{
        deadline::Deadline,
        reason::{Reason, Refusal},
        request::RequestError,
        request::{Operation, Request},
        request::{ResourceKind, WorkloadOperation},
        verdict::Verdict,
        wall_clock::WallClock,
    },
    policy::effective::{LeaderPolicy, MAX_OWNER_LEVELS, Mode, Permission, Policy, PolicySetting},
    survey::background::Surveys,
};
/// The label of guarded namespaces, as [`Survey`] reports it.
pub use crate::k8s::OptInLabel;
use crate::{
    api::Survey,
    config::LiveConfig,
    etcd::Connections,
    k8s::{AnnotationCache, ApiReader, ClaimReader, EventRecorder, Leases, NodeReader, SecretReader},
};

/// Evaluates deletions and evictions of pods, and workload operations.
pub struct Guard {
    observer: Arc<ClusterObserver>,
    policies: Arc<PolicyResolver>,
    reservations: Arc<ReservationStore>,
    owners: OwnershipRecorder,
    evaluator: Evaluator,
    surveyor: Surveyor,
    handovers: Handovers,
}

/// The sources of a guard, and the recorder of its events.
pub struct Sources {
    /// Reads pods.
    pub pods: ApiReader,
    /// Reads the claims that hold the data of members.
    pub claims: ClaimReader,
    /// Reads the credentials that members require from clients.
    pub secrets: SecretReader,
    /// Annotations of namespaces and StatefulSets.
    pub annotations: AnnotationCache,
    /// The configuration of the server.
    pub config: LiveConfig,
    /// Records events on the objects that verdicts concern.
    pub events: EventRecorder,
    /// `HOST:PORT` of the API server, at which no member is probed.
    pub api_servers: Vec<String>,
    /// Connections to members.
    pub connections: Connections,
    /// The wall clock.
    pub wall_clock: WallClock,
    /// Namespace and name of the guard's own pod, if it runs in one.
    pub own_pod: Option<(String, String)>,
    /// Reads and watches nodes, for handovers before disruptions; absent without `--handover`.
    pub nodes: Option<NodeReader>,
}

// === impl Guard ===

impl Guard {
    /// Creates a guard that reads from `sources`, shares its reservations with other replicas through `leases`, and
    /// registers its metrics in `registry`.
    #[must_use]
    pub fn new(sources: Sources, leases: Leases, registry: &mut Registry) -> Self {
        let Sources {
            pods,
            claims,
            secrets,
            annotations,
            config,
            events,
            api_servers,
            connections,
            wall_clock,
            own_pod,
            nodes,
        } = sources;
        let shares = own_pod.clone().map(|(_, pod)| Shares::new(&leases, pod));
        let own_priority = OwnPriority::new(pods.clone(), own_pod);
        let metrics = Metrics::register(registry);
        let cluster_metrics = ClusterMetrics::default();
        cluster_metrics.register(registry);
        let ownership = Arc::new(OwnershipStore::new(&leases));
        let reservations = ReservationStore::new(leases, wall_clock.clone());
        reservations.register(registry);
        let reservations = Arc::new(reservations);
        let chains = OwnerReader::new(annotations.clone(), pods.clone(), config.clone());
        let policies =
            Arc::new(PolicyResolver::new(annotations.clone(), config.clone(), chains.clone(), wall_clock));
        let gate = ProbeGate::new(config.clone(), ApiServers::new(&pods, api_servers));
        let observer = Arc::new(ClusterObserver {
            pods,
            claims,
            annotations,
            ownership: Arc::clone(&ownership),
            gate,
            config,
            credentials: CredentialReader::new(secrets),
            connections,
            metrics,
        });
        let owners = OwnershipRecorder::new(
            Arc::clone(&ownership),
            &observer.pods,
            observer.claims.clone(),
            observer.annotations.clone(),
        );
        let handovers = Handovers::new(&observer, &policies, &reservations, events.clone(), nodes);
        let evaluator = Evaluator::new(
            Arc::clone(&observer),
            Arc::clone(&policies),
            Arc::clone(&reservations),
            Arc::clone(&ownership),
            chains,
            events,
        );
        let surveying = ClusterObserver {
            connections: observer.connections.for_surveys(),
            ..ClusterObserver::clone(&observer)
        };
        let surveyor = Surveyor::new(
            Arc::new(surveying),
            Arc::clone(&policies),
            Arc::clone(&reservations),
            ownership,
            own_priority,
            cluster_metrics,
            shares,
        );
        Self { observer, policies, reservations, owners, evaluator, surveyor, handovers }
    }

    /// Returns the verdict on a request before the deadline.
    pub async fn evaluate(&self, request: &Request, deadline: Deadline) -> Verdict {
        self.evaluator.evaluate(request, deadline).await
    }

    /// Returns the verdict that a request would get as a dry run, also if its namespace is not guarded.
    pub async fn preview(&self, request: &Request, deadline: Deadline) -> Verdict {
        self.evaluator.preview(request, deadline).await
    }

    /// Returns the effective policy settings for a request, with the source of each setting.
    pub async fn effective_policy(&self, request: &Request, deadline: Deadline) -> Vec<PolicySetting> {
        effective_policy(&self.observer, &self.policies, request, deadline).await
    }

    /// Takes a snapshot of every etcd cluster in this namespace, or in all guarded namespaces.
    pub async fn survey(&self, namespace: Option<&str>, deadline: Deadline) -> Survey {
        self.surveyor.survey(namespace, deadline).await
    }

    /// Records the owners of members, deletes the reservation records of clusters that no longer exist, moves leadership on
    /// request and before disruptions, and surveys all guarded clusters periodically (`None` disables the surveys). Runs
    /// until the future is dropped.
    pub async fn run_background_tasks(&self, surveys: Option<Surveys>) {
        let survey = async {
            match surveys {
                Some(surveys) => self.surveyor.survey_periodically(surveys).await,
                None => std::future::pending().await,
            }
        };
        let records = self.reservations.delete_stale_records();
        tokio::join!(records, self.owners.run(), self.handovers.run(), survey);
    }
}
