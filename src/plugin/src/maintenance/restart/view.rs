//! The state of a StatefulSet and its cluster at one moment of a restart.

use k8s_openapi::api::apps::v1::StatefulSet;

use super::{
    super::health::{PodState, cluster_obstacle, pod_obstacle},
    plan::{self, Step},
    record::{DEFAULT_STRATEGY, Record},
};
use etcd_guard_api::ClusterStatus;

/// The state of the StatefulSet and its cluster at one moment.
pub(super) struct View {
    pub(super) set: StatefulSet,
    pub(super) pods: Vec<PodState>,
    pub(super) update_revision: String,
    pub(super) cluster: Option<ClusterStatus>,
}

/// A change of the StatefulSet by another client.
pub(super) enum Interference {
    /// The record was removed. The strategy is this one.
    Ended(String),
    /// The record is invalid, for this cause.
    Invalid(String),
    /// The strategy was changed to this one.
    Strategy(String),
}

// === impl View ===

impl View {
    pub(super) fn steps(&self, record: &Record) -> Vec<Step> {
        plan::steps(record, &self.pods, &self.update_revision, self.cluster.as_ref())
    }

    /// Returns the condition to wait for before the next eviction.
    pub(super) fn obstacle(&self) -> Option<String> {
        if !is_observed(&self.set) {
            return Some(String::from("the StatefulSet controller has not observed the latest change"));
        }
        let replicas = self.set.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
        let replicas = usize::try_from(replicas).unwrap_or_default();
        let by_pods = || pod_obstacle(&self.pods, replicas);
        self.cluster.as_ref().and_then(cluster_obstacle).or_else(by_pods)
    }

    /// Returns the change by another client that ends the restart.
    pub(super) fn interference(&self) -> Option<Interference> {
        let record = match Record::read(&self.set) {
            Ok(record) => record,
            Err(error) => return Some(Interference::Invalid(error.to_string())),
        };
        let strategy = self.set.spec.as_ref().and_then(|spec| spec.update_strategy.as_ref());
        let kind = strategy.and_then(|strategy| strategy.type_.as_deref()).unwrap_or(DEFAULT_STRATEGY);
        if record.is_none() {
            return Some(Interference::Ended(kind.to_owned()));
        }
        (kind != "OnDelete").then(|| Interference::Strategy(kind.to_owned()))
    }
}

// === impl Interference ===

impl Interference {
    /// Returns the cause, and the commands that continue or end the restart. The command itself leaves the StatefulSet as
    /// the other client wants it.
    pub(super) fn text(&self, commands: &str) -> String {
        match self {
            Self::Ended(kind) => format!(
                "another client ended the restart; the remaining members were not restarted, and the update strategy is \
                 {kind}"
            ),
            Self::Invalid(cause) => cause.clone(),
            Self::Strategy(kind) => {
                format!("another client changed the update strategy to {kind}. {commands}")
            }
        }
    }
}

/// Whether the status of the StatefulSet belongs to its current content.
pub(super) fn is_observed(set: &StatefulSet) -> bool {
    set.status.as_ref().and_then(|status| status.observed_generation) >= set.metadata.generation
}

pub(super) fn update_revision(set: &StatefulSet) -> String {
    set.status.as_ref().and_then(|status| status.update_revision.clone()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::maintenance::{
        health::tests::{cluster, pod},
        restart::record::RESTART,
    };

    fn view(change: impl Fn(&mut Value)) -> View {
        let record =
            json!({"startedAt": "2026-11-24T06:00:00Z", "strategy": {"type": "RollingUpdate"}, "pods": {}});
        let mut set = json!({
            "metadata": {"name": "etcd", "generation": 2, "annotations": {RESTART: record.to_string()}},
            "spec": {
                "replicas": 3, "selector": {}, "serviceName": "etcd", "template": {},
                "updateStrategy": {"type": "OnDelete"},
            },
            "status": {"replicas": 3, "observedGeneration": 2},
        });
        change(&mut set);
        let pods = ["etcd-0", "etcd-1", "etcd-2"].map(pod).into();
        let set = serde_json::from_value(set).unwrap();
        View { set, pods, update_revision: String::from("a"), cluster: Some(cluster()) }
    }

    #[test]
    fn unobserved_change_and_unready_pods_are_obstacles() {
        assert_eq!(view(|_| {}).obstacle(), None);
        let unobserved = view(|set| set["metadata"]["generation"] = json!(3));
        assert!(unobserved.obstacle().unwrap().contains("has not observed"));
        let mut unready = view(|_| {});
        unready.pods[1].is_ready = false;
        assert_eq!(unready.obstacle().as_deref(), Some("etcd-1 is not ready"));
        let mut unhealthy = view(|_| {});
        unhealthy.cluster.as_mut().unwrap().healthy = Some(2);
        assert!(unhealthy.obstacle().unwrap().contains("2 of 3 voters"));
    }

    /// The command must not reverse the change of another client, and must not report a strategy that does not apply.
    #[test]
    fn changes_of_other_clients_end_the_restart() {
        let text = |view: View| view.interference().map(|interference| interference.text("Continue: X"));
        assert_eq!(text(view(|_| {})), None);
        let changed = view(|set| set["spec"]["updateStrategy"]["type"] = json!("RollingUpdate"));
        let expected = "another client changed the update strategy to RollingUpdate. Continue: X";
        assert_eq!(text(changed).as_deref(), Some(expected));
        let ended = view(|set| set["metadata"]["annotations"] = json!({}));
        assert!(text(ended).unwrap().starts_with("another client ended the restart"));
        let invalid = view(|set| set["metadata"]["annotations"][RESTART] = json!("{"));
        assert!(text(invalid).unwrap().contains("is invalid, so that the update strategy"));
    }
}
