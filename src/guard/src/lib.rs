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
//! 9. `inspect`: reports what the guard reads of a pod, for `kubectl etcd-guard inspect`. It probes nothing.
//! 10. `evaluation`: runs these steps for one request, moves leadership under the policy `transfer`, and records events.
//!     `services` holds what it reads from and writes to, and `cluster_cache` what outlives it.
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

mod claim_storage;
mod cluster_cache;
mod credentials;
pub mod deadline;
#[cfg(test)]
mod distributions;
mod evaluation;
#[cfg(any(test, feature = "fixtures"))]
pub mod fuzzing;
mod handover;
mod metrics;
pub mod observe;
#[cfg(any(test, feature = "fixtures"))]
pub mod outputs;
mod ownership;
mod policy;
mod reserve;
mod services;
mod survey;

use std::sync::Arc;

use prometheus_client::registry::Registry;

use self::{
    evaluation::{Evaluation, effective_policy::effective_policy},
    handover::Handovers,
    ownership::recorder::OwnershipRecorder,
    services::Services,
    survey::{Surveyor, cluster_metrics::ClusterMetrics, priority::OwnPriority, shares::Shares},
};
pub use self::{services::Sources, survey::background::Surveys};
pub use crate::deadline::Deadline;
use etcd_guard_api::Survey;
use etcd_guard_core::{policy::PolicySetting, request::Request, verdict::Verdict};
use etcd_guard_kubernetes::Leases;

/// The policies of the configuration file, which change when the file is reloaded.
pub type LiveConfig = tokio::sync::watch::Receiver<Arc<etcd_guard_core::config::policies::Policies>>;

/// Evaluates deletions and evictions of pods, and workload operations.
pub struct Guard {
    services: Arc<Services>,
    owners: OwnershipRecorder,
    surveyor: Surveyor,
    handovers: Handovers,
}

// === impl Guard ===

impl Guard {
    /// Creates a guard that reads from `sources`, shares its reservations with other replicas through `leases`, and
    /// registers its metrics in `registry`.
    #[must_use]
    pub fn new(sources: Sources, leases: Leases, registry: &mut Registry) -> Self {
        let (own_pod, nodes) = (sources.own_pod.clone(), sources.nodes.clone());
        let shares = own_pod.clone().map(|(_, pod)| Shares::new(&leases, pod));
        let own_priority = OwnPriority::new(sources.pods.clone(), own_pod);
        let services = Services::new(sources, leases, registry);
        let cluster_metrics = ClusterMetrics::default();
        cluster_metrics.register(registry);
        let owners = OwnershipRecorder::new(
            Arc::clone(&services.ownership),
            &services.observer.pods,
            services.observer.claims.clone(),
            services.observer.annotations.clone(),
        );
        let surveyor = Surveyor::new(services.for_surveys(), own_priority, cluster_metrics, shares);
        let services = Arc::new(services);
        let handovers = Handovers::new(&services, nodes);
        Self { services, owners, surveyor, handovers }
    }

    /// Returns the verdict on a request before the deadline.
    pub async fn evaluate(&self, request: &Request, deadline: Deadline) -> Verdict {
        Evaluation::new(&self.services, request, deadline).evaluate().await
    }

    /// Returns the verdict that a request would get as a dry run, also if its namespace is not guarded.
    pub async fn preview(&self, request: &Request, deadline: Deadline) -> Verdict {
        Evaluation::new(&self.services, request, deadline).preview().await
    }

    /// Returns the effective policy settings for a request, with the source of each setting.
    pub async fn effective_policy(&self, request: &Request, deadline: Deadline) -> Vec<PolicySetting> {
        effective_policy(&self.services, request, deadline).await
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
        let records = self.services.reservations.delete_stale_ledgers();
        tokio::join!(records, self.owners.run(), self.handovers.run(), survey);
    }
}
