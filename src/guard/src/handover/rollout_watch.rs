//! The watch of rollouts: moves leadership to an updated voter before the last member, the leader, is updated.
//!
//! The controller updates the status of a StatefulSet with each pod, which the watch of StatefulSets shows. The guard
//! then reads the revision of the StatefulSet and the pods.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use futures::{StreamExt, stream};
use tokio::time::{Instant, sleep};

use crate::{
    deadline::Deadline,
    handover::{
        mover::{Mover, Task},
        report::Subject,
    },
};
use etcd_guard_core::{
    cluster_key::ClusterKey,
    discovery::etcd_pod,
    handover::{Signal, Trigger},
    objects::{pod::Pod, stateful_set::StatefulSet},
};
use etcd_guard_kubernetes::EventRecord;

/// Interval between comparisons of the watch with the last evaluation. A comparison calls no API.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Interval between evaluations of a namespace with a rollout in progress: a pod becomes ready, and leadership moves,
/// without a change of the StatefulSet.
const ROLLOUT_INTERVAL: Duration = Duration::from_secs(5);

/// Time limit for reading the StatefulSets and the pods.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum number of namespaces that are evaluated at the same time.
const MAX_CONCURRENT_NAMESPACES: usize = 4;

/// Follows rollouts.
pub(super) struct RolloutWatch {
    mover: Arc<Mover>,
}

/// The last evaluation of a namespace.
struct Evaluated {
    version: u64,
    at: Instant,
    has_rollout: bool,
}

// === impl RolloutWatch ===

impl RolloutWatch {
    pub(super) fn new(mover: Arc<Mover>) -> Self {
        Self { mover }
    }

    /// Moves leadership during rollouts until the future is dropped.
    pub(super) async fn run(&self) {
        let annotations = &self.mover.services.observer.annotations;
        let mut evaluated: BTreeMap<String, Evaluated> = BTreeMap::new();
        loop {
            let guarded: BTreeSet<String> = annotations.guarded_namespaces().borrow().clone();
            let versions = annotations.stateful_set_versions(&guarded);
            evaluated.retain(|namespace, _| guarded.contains(namespace));
            let is_due = |(namespace, version): &(&String, &u64)| match evaluated.get(*namespace) {
                None => true,
                Some(last) => {
                    last.version != **version || (last.has_rollout && last.at.elapsed() >= ROLLOUT_INTERVAL)
                }
            };
            let due: BTreeMap<String, u64> = versions
                .iter()
                .filter(is_due)
                .map(|(namespace, version)| (namespace.clone(), *version))
                .collect();
            let evaluations: Vec<_> = due
                .into_iter()
                .map(|(namespace, version)| async move {
                    let has_rollout = self.evaluate(&namespace).await;
                    (namespace, Evaluated { version, at: Instant::now(), has_rollout })
                })
                .collect();
            let mut evaluations = stream::iter(evaluations).buffer_unordered(MAX_CONCURRENT_NAMESPACES);
            while let Some((namespace, result)) = evaluations.next().await {
                evaluated.insert(namespace, result);
            }
            sleep(CHECK_INTERVAL).await;
        }
    }

    /// Moves leadership in the namespace where a rollout requires this. Returns `true` if a rollout is in progress, or
    /// if the StatefulSets or pods could not be read.
    async fn evaluate(&self, namespace: &str) -> bool {
        let deadline = Deadline::from_timeout(Some(LOOKUP_TIMEOUT));
        let reader = self.mover.services.observer.pods.for_background_tasks();
        let read = deadline.within("listing the StatefulSets", reader.list_stateful_sets(namespace)).await;
        let Ok(Ok(sets)) = read else { return true };
        let rollouts: Vec<&StatefulSet> =
            sets.iter().filter(|set| set.rollout_revision().is_some()).collect();
        if rollouts.is_empty() {
            return false;
        }
        let Ok(pods) = self.mover.services.observer.list_pods(namespace, deadline).await else { return true };
        let mut has_outdated = false;
        for set in rollouts {
            let Some(revision) = set.rollout_revision() else { continue };
            let is_in_set = |pod: &&Pod| pod.controller().is_some_and(|owner| owner.uid == set.metadata.uid);
            let outdated = pods.iter().filter(is_in_set).find(|pod| is_last_outdated(&pods, pod, revision));
            let is_member = |pod: &&Pod| etcd_pod::runs_member(pod, &pod.metadata.annotations);
            // The status of a StatefulSet without outdated members can name two revisions for ever, under OnDelete.
            has_outdated |=
                pods.iter().filter(is_in_set).filter(is_member).any(|pod| pod.revision() != revision);
            if let Some(pod) = outdated.filter(is_member) {
                self.hand_over(namespace, set, revision, pod).await;
            }
        }
        has_outdated
    }

    async fn hand_over(&self, namespace: &str, set: &StatefulSet, revision: &str, pod: &Pod) {
        let deadline = Deadline::from_timeout(Some(LOOKUP_TIMEOUT));
        let resolved = self.mover.services.policies.resolve_for_pod(namespace, pod, deadline).await;
        if resolved.has_unreadable_owner || !resolved.policy.leader.transfers() {
            return;
        }
        let (trigger, started) = (Trigger::Rollout, Instant::now());
        let signal = Signal {
            trigger,
            id: format!("{}/{}/{revision}", trigger.as_str(), set.metadata.uid),
            text: format!("the rollout of StatefulSet {} has updated all other members", set.metadata.name),
        };
        let leaves = |pods: &[Pod], leader: &str| {
            let leader = pods.iter().find(|pod| pod.metadata.name == leader);
            leader.is_some_and(|leader| is_last_outdated(pods, leader, revision))
        };
        let cluster_key = ClusterKey::from_pod(namespace, pod);
        let task = Task {
            cluster_key: &cluster_key,
            signal: &signal,
            transferee: None,
            leaves: &leaves,
            node: None,
        };
        let outcome = self.mover.hand_over(&task).await;
        let subject = Subject {
            object: EventRecord::pod(namespace, pod),
            stateful_set: EventRecord::stateful_set(namespace, pod),
        };
        let cluster = format!("{namespace}/{}", cluster_key.name());
        self.mover.reporter.report_signal(
            &cluster,
            &signal,
            &outcome,
            started.elapsed(),
            (namespace, subject),
        );
    }
}

/// Whether this pod is the only one of its StatefulSet that the rollout has not updated, and all others are ready.
fn is_last_outdated(pods: &[Pod], pod: &Pod, revision: &str) -> bool {
    let is_updated = |pod: &Pod| pod.revision() == revision;
    let Some(owner) = pod.controller() else { return false };
    let mut others = pods.iter().filter(|other| {
        other.metadata.uid != pod.metadata.uid
            && other.controller().is_some_and(|controller| controller.uid == owner.uid)
    });
    let has_others = others.clone().next().is_some();
    !is_updated(pod)
        && has_others
        && others.all(|other| is_updated(other) && other.is_ready() && !other.is_terminating())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(n: u32, revision: &str, ready: &str) -> Pod {
        serde_json::from_value(json!({
            "metadata": {
                "name": format!("etcd-{n}"), "uid": format!("u{n}"),
                "labels": {"controller-revision-hash": revision},
                "ownerReferences": [{"kind": "StatefulSet", "name": "etcd", "uid": "set", "controller": true}],
            },
            "status": {"conditions": [{"type": "Ready", "status": ready}]},
        }))
        .unwrap()
    }

    #[test]
    fn waits_until_all_other_members_are_updated_and_ready() {
        let is_last = |pods: &[Pod]| is_last_outdated(pods, &pods[0], "new");
        assert!(is_last(&[pod(0, "old", "True"), pod(1, "new", "True"), pod(2, "new", "True")]));
        assert!(!is_last(&[pod(0, "old", "True"), pod(1, "old", "True"), pod(2, "new", "True")]));
        assert!(!is_last(&[pod(0, "old", "True"), pod(1, "new", "False"), pod(2, "new", "True")]));
        assert!(!is_last(&[pod(0, "new", "True"), pod(1, "new", "True")]), "the leader is updated");
        assert!(!is_last(&[pod(0, "old", "True")]), "a set of one pod");
    }
}
