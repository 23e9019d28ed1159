//! The signals that a node shows before its pods are disrupted. Pure.
//!
//! Sources: the documentation of the cluster autoscaler, Karpenter, `aws-node-termination-handler` (`pkg/node`), GKE, AKS
//! node auto-drain, and KEP-5683 (`node lifecycle conditions`).

use etcd_guard_core::{
    escape::{MAX_NAME_CHARS, to_bounded_line},
    handover::{Signal, Trigger},
};
use etcd_guard_kubernetes::NodeState;

/// Taints with these keys are signals.
const TAINTS: [(&str, Trigger); 6] = [
    ("ToBeDeletedByClusterAutoscaler", Trigger::ClusterAutoscaler),
    ("karpenter.sh/disrupted", Trigger::Karpenter),
    ("cloud.google.com/impending-node-termination", Trigger::Termination),
    ("remediator.kubernetes.azure.com/unschedulable", Trigger::Termination),
    ("node.kubernetes.io/out-of-service", Trigger::Shutdown),
    ("node.cloudprovider.kubernetes.io/shutdown", Trigger::Shutdown),
];

/// Taints whose keys begin with this text are signals: each event of the handler has its own key.
const AWS_TAINT_PREFIX: &str = "aws-node-termination-handler/";

/// Conditions that are signals while they are true. `MaintenancePlanned` is not a signal: it does not state when the
/// maintenance begins.
const CONDITIONS: [&str; 4] =
    ["DrainInProgress", "Drained", "MaintenanceInProgress", "GracefulNodeShutdownInProgress"];

/// Returns the signals of a node. Taints with the keys in `configured` are signals as well.
pub(super) fn signals(node: &NodeState, configured: &[String]) -> Vec<Signal> {
    let name = to_bounded_line(&node.name, MAX_NAME_CHARS);
    let signal = |trigger: Trigger, what: &str, text: String| Signal {
        trigger,
        id: format!("{}/{what}/{name}/{}", trigger.as_str(), node.uid),
        text: format!("node {name} {text}"),
    };
    let cordon = node.is_unschedulable.then(|| signal(Trigger::Cordon, "", String::from("is cordoned")));
    let taints = node.taints.iter().filter_map(|taint| {
        let trigger = trigger_of(&taint.key, configured)?;
        let key = to_bounded_line(&taint.key, MAX_NAME_CHARS);
        let time = taint.time_added.as_deref().map(|time| to_bounded_line(time, MAX_NAME_CHARS));
        let what = format!("{key}@{}", time.unwrap_or_default());
        Some(signal(trigger, &what, format!("has the taint {key}")))
    });
    let conditions = node.conditions.iter().filter(|condition| condition.is_true());
    let conditions = conditions.filter_map(|condition| {
        let kind = CONDITIONS.iter().find(|kind| **kind == condition.kind)?;
        Some(signal(Trigger::Condition, kind, format!("has the condition {kind}")))
    });
    cordon.into_iter().chain(taints).chain(conditions).collect()
}

fn trigger_of(key: &str, configured: &[String]) -> Option<Trigger> {
    let known = TAINTS.iter().find(|(known, _)| *known == key).map(|(_, trigger)| *trigger);
    known
        .or_else(|| key.starts_with(AWS_TAINT_PREFIX).then_some(Trigger::Termination))
        .or_else(|| configured.iter().any(|known| known == key).then_some(Trigger::Configured))
}

#[cfg(test)]
mod tests {
    use super::*;
    use etcd_guard_core::objects::pod::Condition;
    use etcd_guard_kubernetes::Taint;

    fn node(taints: &[(&str, Option<&str>)]) -> NodeState {
        let taint = |(key, time): &(&str, Option<&str>)| Taint {
            key: (*key).to_owned(),
            time_added: time.map(str::to_owned),
        };
        NodeState {
            name: String::from("n1"),
            uid: String::from("u1"),
            taints: taints.iter().map(taint).collect(),
            ..NodeState::default()
        }
    }

    fn triggers(node: &NodeState) -> Vec<&'static str> {
        let configured = [String::from("example.com/retiring")];
        signals(node, &configured).iter().map(|signal| signal.trigger.as_str()).collect()
    }

    #[test]
    fn recognizes_taints_of_autoscalers_and_clouds() {
        for (key, trigger) in [
            ("ToBeDeletedByClusterAutoscaler", "cluster_autoscaler"),
            ("karpenter.sh/disrupted", "karpenter"),
            ("aws-node-termination-handler/spot-itn", "termination"),
            ("aws-node-termination-handler/scheduled-maintenance", "termination"),
            ("cloud.google.com/impending-node-termination", "termination"),
            ("remediator.kubernetes.azure.com/unschedulable", "termination"),
            ("node.kubernetes.io/out-of-service", "shutdown"),
            ("node.cloudprovider.kubernetes.io/shutdown", "shutdown"),
            ("example.com/retiring", "configured"),
        ] {
            assert_eq!(triggers(&node(&[(key, None)])), [trigger], "{key}");
        }
        for key in [
            "DeletionCandidateOfClusterAutoscaler",
            "kubernetes.azure.com/scalesetpriority",
            "node.kubernetes.io/unschedulable",
            "node.kubernetes.io/not-ready",
            "example.com/other",
        ] {
            assert_eq!(triggers(&node(&[(key, None)])), [""; 0], "{key}");
        }
    }

    #[test]
    fn recognizes_cordons_and_lifecycle_conditions() {
        let cordoned = NodeState { is_unschedulable: true, ..node(&[]) };
        assert_eq!(triggers(&cordoned), ["cordon"]);
        let condition = |kind: &str, status: &str| {
            let condition =
                Condition { kind: kind.to_owned(), status: status.to_owned(), ..Condition::default() };
            NodeState { conditions: vec![condition], ..node(&[]) }
        };
        for kind in ["DrainInProgress", "Drained", "MaintenanceInProgress", "GracefulNodeShutdownInProgress"]
        {
            assert_eq!(triggers(&condition(kind, "True")), ["condition"], "{kind}");
        }
        for (kind, status) in [
            ("DrainInProgress", "False"),
            ("DrainInProgress", "Unknown"),
            ("MaintenancePlanned", "True"),
            ("Ready", "True"),
        ] {
            assert_eq!(triggers(&condition(kind, status)), [""; 0], "{kind}={status}");
        }
    }

    #[test]
    fn identifies_each_occurrence_of_a_signal() {
        let id = |node: &NodeState| signals(node, &[])[0].id.clone();
        let key = "karpenter.sh/disrupted";
        let (first, second) = (node(&[(key, Some("10:00"))]), node(&[(key, Some("11:00"))]));
        assert_ne!(id(&first), id(&second), "the taint was added twice");
        let successor = NodeState { uid: String::from("u2"), ..first.clone() };
        assert_ne!(id(&first), id(&successor), "another node of the same name");
        assert_eq!(id(&first), id(&first.clone()));
    }
}
