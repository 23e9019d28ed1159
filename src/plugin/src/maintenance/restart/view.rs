//! The state of a StatefulSet and its cluster at one moment of a restart.

use k8s_openapi::api::apps::v1::StatefulSet;

use super::{
    super::health::{PodState, cluster_obstacle, pod_obstacle},
    plan::{self, Step, ordinal},
    record::{DEFAULT_STRATEGY, Record},
};
use etcd_guard_api::ClusterStatus;

/// The strategy under which nobody but a client replaces pods.
pub(super) const ON_DELETE: &str = "OnDelete";

/// The state of the StatefulSet and its cluster at one moment.
pub(super) struct View {
    pub(super) set: StatefulSet,
    pub(super) pods: Vec<PodState>,
    pub(super) update_revision: String,
    pub(super) cluster: Option<ClusterStatus>,
}

/// A change by another client.
pub(super) enum Interference {
    /// The StatefulSet controller replaces pods itself.
    Rollout(String),
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
    pub(super) fn interference(&self, record: &Record) -> Option<Interference> {
        let kind = strategy_type(&self.set);
        if record.only_evicts() {
            let is_pending = |pod: &PodState| record.pods.get(&pod.name) == Some(&pod.uid);
            let is_ended = self.pods.iter().all(|pod| pod.record.is_none());
            let ended =
                (is_ended && self.pods.iter().any(is_pending)).then(|| Interference::Ended(kind.to_owned()));
            return rollout(&self.set, &self.pods).map(Interference::Rollout).or(ended);
        }
        let record = match Record::read(&self.set) {
            Ok(record) => record,
            Err(error) => return Some(Interference::Invalid(error.to_string())),
        };
        if record.is_none() {
            return Some(Interference::Ended(kind.to_owned()));
        }
        (kind != ON_DELETE).then(|| Interference::Strategy(kind.to_owned()))
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
            Self::Rollout(text) | Self::Invalid(text) => text.clone(),
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

pub(super) fn strategy_type(set: &StatefulSet) -> &str {
    let strategy = set.spec.as_ref().and_then(|spec| spec.update_strategy.as_ref());
    strategy.and_then(|strategy| strategy.type_.as_deref()).unwrap_or(DEFAULT_STRATEGY)
}

/// Returns the number below which pods keep their template in a rolling update.
pub(super) fn partition(set: &StatefulSet) -> i32 {
    let strategy = set.spec.as_ref().and_then(|spec| spec.update_strategy.as_ref());
    let rolling = strategy.and_then(|strategy| strategy.rolling_update.as_ref());
    rolling.and_then(|rolling| rolling.partition).unwrap_or_default()
}

/// Returns that the StatefulSet controller is replacing pods by those of a new template, and how to wait for it.
pub(super) fn rollout(set: &StatefulSet, pods: &[PodState]) -> Option<String> {
    let (revision, partition) = (update_revision(set), u64::try_from(partition(set)).unwrap_or_default());
    let is_old = |pod: &&PodState| pod.revision != revision && ordinal(&pod.name) >= partition;
    let old = pods.iter().filter(is_old).count();
    let is_rolling = strategy_type(set) != ON_DELETE && is_observed(set) && old > 0;
    let namespace = set.metadata.namespace.as_deref().unwrap_or_default();
    let name = set.metadata.name.as_deref().unwrap_or_default();
    is_rolling.then(|| {
        format!(
            "the template of StatefulSet {name} has changed, and its controller is replacing the pods itself ({old} of {} have \
             an earlier one); wait until it has: kubectl -n {namespace} rollout status statefulset/{name}",
            pods.len()
        )
    })
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
        let record = Record::new(&view(|_| {}).set, &[], None).unwrap();
        let text =
            |view: View| view.interference(&record).map(|interference| interference.text("Continue: X"));
        assert_eq!(text(view(|_| {})), None);
        let changed = view(|set| set["spec"]["updateStrategy"]["type"] = json!("RollingUpdate"));
        let expected = "another client changed the update strategy to RollingUpdate. Continue: X";
        assert_eq!(text(changed).as_deref(), Some(expected));
        let ended = view(|set| set["metadata"]["annotations"] = json!({}));
        assert!(text(ended).unwrap().starts_with("another client ended the restart"));
        let invalid = view(|set| set["metadata"]["annotations"][RESTART] = json!("{"));
        assert!(text(invalid).unwrap().contains("is invalid, so that the update strategy"));
    }

    fn owned(change: impl Fn(&mut View)) -> Option<String> {
        let mut view = view(|set| {
            set["metadata"] = json!({"namespace": "prod", "name": "etcd", "generation": 2});
            set["spec"]["updateStrategy"]["type"] = json!("RollingUpdate");
            set["status"]["updateRevision"] = json!("a");
        });
        let record = Record::of_evictions(&view.pods);
        for pod in &mut view.pods {
            pod.record = Some(serde_json::to_string(&record).unwrap());
        }
        change(&mut view);
        view.interference(&record).map(|interference| interference.text("Continue: X"))
    }

    #[test]
    fn restart_of_an_owned_set_ends_when_the_controller_rolls_out() {
        assert_eq!(owned(|_| {}), None);
        let update = |view: &mut View| {
            view.set.status.as_mut().unwrap().update_revision = Some(String::from("b"));
            view.pods[2].revision = String::from("b");
        };
        let text = owned(update).unwrap();
        assert!(text.contains("(2 of 3 have an earlier one)"), "{text}");
        assert!(
            text.ends_with("wait until it has: kubectl -n prod rollout status statefulset/etcd"),
            "{text}"
        );
        let strategy = |view: &mut View, strategy: Value| {
            update(view);
            view.set.spec.as_mut().unwrap().update_strategy = serde_json::from_value(strategy).unwrap();
        };
        assert_eq!(owned(|view| strategy(view, json!({"type": "OnDelete"}))), None);
        let partition = json!({"type": "RollingUpdate", "rollingUpdate": {"partition": 2}});
        assert_eq!(owned(|view| strategy(view, partition.clone())), None, "the others keep their template");
    }

    #[test]
    fn restart_of_an_owned_set_ends_without_its_record() {
        let drop_records = |view: &mut View| view.pods.iter_mut().for_each(|pod| pod.record = None);
        assert!(owned(drop_records).unwrap().starts_with("another client ended the restart"));
        let after_the_last_eviction = |view: &mut View| {
            drop_records(view);
            view.pods.iter_mut().for_each(|pod| pod.uid = String::from("new"));
        };
        assert_eq!(owned(after_the_last_eviction), None);
    }
}
