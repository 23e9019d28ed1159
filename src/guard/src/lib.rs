//! Decides whether a pod of an etcd cluster may go now.
//!
//! The rules are in the crate `core`. This crate reads what they need, at the right time, and makes sure that two approvals never
//! rest on the same healthy voter.
//!
//! # One request
//!
//! [`Guard::evaluate`] runs `evaluation`, one file that reads from top to bottom in the order of its stages: scope, target, lock,
//! read, probe, assess, reserve, answer. It uses:
//!
//! - `policy`: the annotations of the pod, of its owners and of its namespace, as one effective policy.
//! - `ownership`: the owners of members, recorded while both exist, so that cascades are recognized.
//! - `credentials` and `claim_storage`: the Secrets and claims that a member's settings name.
//! - [`observe`]: from the pods of a namespace to the snapshot of a cluster. Voters without a pod of the namespace are searched in
//!   the other guarded namespaces.
//! - `reserve`: the ledgers, one Lease per guarded namespace with the deletions that were approved a moment ago.
//! - `services` owns the clients and caches of all evaluations. `cluster_cache` is what is remembered of a cluster between them.
//!
//! # In the background
//!
//! - `handover` moves leadership on request, and away from nodes and pods that are about to stop.
//! - `survey` takes snapshots of all guarded clusters, for `status` and for metrics. It reserves nothing.
//!
//! # Invariants
//!
//! - An approval rests on a probe round of its own, which began after the ledgers were read. A cached snapshot may only deny.
//! - An approval that removes a voter is stored in the ledgers before it is returned. A conflicting write starts the evaluation
//!   again.
//! - A review can be forged. Policies, owners and break-glass are those of live objects, and other namespaces see no effects.
//! - Every evaluation ends before its deadline. One that fails denies the request.
//!
//! This crate must not know HTTP, TLS or admission reviews (the crate `server` does), and nothing about injection.

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
use etcd_guard_kubernetes::{Leases, LookupError};

/// The policies of the configuration file, which change when the file is reloaded.
pub type LiveConfig = tokio::sync::watch::Receiver<Arc<etcd_guard_core::config::policies::Policies>>;

/// The uid that an eviction names if its pod does not exist.
const NO_POD: &str = "no-such-pod";

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

    /// Returns the uid that an eviction of this pod must name, so that it cannot remove a successor: that of the pod that exists
    /// now. `None` if the namespace is not guarded, or if the pod cannot be read.
    pub async fn uid_for_eviction(&self, namespace: &str, name: &str, deadline: Deadline) -> Option<String> {
        let observer = &self.services.observer;
        if !observer.annotations.is_guarded(namespace) {
            return None;
        }
        let read = deadline.within("reading the pod of an eviction", observer.pods.get_pod(namespace, name));
        match read.await.ok()? {
            Ok(pod) => Some(pod.metadata.uid),
            // A pod that is created later has another uid.
            Err(LookupError::NotFound { .. }) => Some(NO_POD.to_owned()),
            Err(_) => None,
        }
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
