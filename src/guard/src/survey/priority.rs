//! Priorities of pods in guarded namespaces, compared with the priority of the guard's own pod.
//!
//! The scheduler deletes pods of lower priority to start a pod on a full node. While no replica of the guard answers, the
//! API server rejects the deletion of each pod of a guarded namespace that may run etcd. If the scheduler selects such a pod
//! to start the guard, the guard never starts.

use tokio::sync::OnceCell;

use crate::deadline::Deadline;
use etcd_guard_api::PRIORITY_WARNING;
use etcd_guard_core::{discovery::fail_closed::may_run_etcd, objects::pod::Pod};
use etcd_guard_kubernetes::{ApiReader, LookupError};

/// Maximum number of names in the warning about pods that only mention etcd, of which a namespace can contain thousands.
const MAX_NAMES: usize = 3;

/// Reads the priority of the guard's own pod.
pub(crate) struct OwnPriority {
    pods: ApiReader,
    /// Namespace and name of the pod; `None` if the guard does not run in a pod.
    pod: Option<(String, String)>,
    /// The result of the first read that succeeded: a priority cannot change.
    known: OnceCell<Option<Priority>>,
}

/// A pod's priority and its class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Priority {
    value: i32,
    class: String,
}

// === impl OwnPriority ===

impl OwnPriority {
    pub(crate) fn new(pods: ApiReader, pod: Option<(String, String)>) -> Self {
        Self { pods, pod, known: OnceCell::new() }
    }

    /// Returns the priority; `None` if the guard runs in no pod of the cluster, or if the read fails.
    pub(super) async fn read(&self, deadline: Deadline) -> Option<Priority> {
        let (namespace, name) = self.pod.as_ref()?;
        let read = async {
            match self.pods.get_pod(namespace, name).await {
                Ok(pod) => Ok(Some(Priority::from_pod(&pod))),
                // The host name is the name of no pod: the guard runs outside of the cluster.
                Err(LookupError::NotFound { .. }) => Ok(None),
                Err(error) => Err(error),
            }
        };
        let known = deadline.within("reading the guard's own pod", self.known.get_or_try_init(|| read)).await;
        known.ok()?.ok()?.clone()
    }
}

// === impl Priority ===

impl Priority {
    fn from_pod(pod: &Pod) -> Self {
        let class = pod.spec.priority_class_name.clone().unwrap_or_default();
        Self { value: pod.spec.priority.unwrap_or_default(), class }
    }

    /// Returns the number that the scheduler compares.
    pub(super) fn value(&self) -> i32 {
        self.value
    }

    /// Returns a warning if the scheduler may delete one of these members to start the guard.
    pub(super) fn warning<'a>(&self, members: impl IntoIterator<Item = &'a Pod>) -> Option<String> {
        let lower: Vec<&str> = self.lower(members).collect();
        (!lower.is_empty()).then(|| self.text(&lower.join(", ")))
    }

    /// Returns a warning if the scheduler may delete one of the other pods of a guarded namespace to start the guard.
    pub(super) fn namespace_warning<'a>(
        &self,
        namespace: &str,
        pods: impl IntoIterator<Item = &'a Pod>,
    ) -> Option<String> {
        let mut lower: Vec<&str> = self.lower(pods).collect();
        // The order of a list is not specified, and an equal warning is logged once.
        lower.sort_unstable();
        let names = lower.iter().take(MAX_NAMES).copied().collect::<Vec<_>>().join(", ");
        let rest = match lower.len().saturating_sub(MAX_NAMES) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let subject = match lower.len() {
            0 => return None,
            1 => String::from("1 pod that mentions etcd"),
            count => format!("{count} pods that mention etcd"),
        };
        Some(format!("namespace {namespace}: {subject}: {}", self.text(&format!("{names}{rest}"))))
    }

    fn lower<'a>(&self, pods: impl IntoIterator<Item = &'a Pod>) -> impl Iterator<Item = &'a str> {
        pods.into_iter()
            .filter(|pod| pod.spec.priority.unwrap_or_default() < self.value && may_run_etcd(pod))
            .map(|pod| pod.metadata.name.as_str())
    }

    fn text(&self, names: &str) -> String {
        let remedy = match self.class.as_str() {
            "" => String::from("use a PriorityClass with at least this value"),
            class => format!("set priorityClassName: {class} in the pod template"),
        };
        format!(
            "{PRIORITY_WARNING} ({}): {names}. While no replica of the guard runs, the scheduler can try to preempt such a \
             pod to start the guard, and the API server rejects that deletion: {remedy}",
            self.value
        )
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(name: &str, spec: &Value) -> Pod {
        with_image("etcd", name, spec)
    }

    fn with_image(image: &str, name: &str, spec: &Value) -> Pod {
        let mut spec = spec.clone();
        spec["containers"] = json!([{"name": "main", "image": image}]);
        serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec})).unwrap()
    }

    #[test]
    fn warns_of_pods_with_lower_priority_only() {
        let critical = json!({"priority": 2_000_000_000, "priorityClassName": "system-cluster-critical"});
        let guard = Priority::from_pod(&pod("guard", &critical));
        let pods = [
            pod("etcd-0", &critical),
            pod("etcd-1", &json!({"priority": 1000})),
            pod("etcd-2", &json!({})),
            pod("etcd-3", &json!({"priority": 2_000_001_000})),
        ];
        let warning = guard.warning(&pods).unwrap();
        assert!(
            warning.starts_with("priority below the guard's (2000000000): etcd-1, etcd-2. "),
            "{warning}"
        );
        assert!(warning.ends_with("set priorityClassName: system-cluster-critical in the pod template"));
        assert_eq!(guard.warning(&pods[..1]), None);
    }

    #[test]
    fn guard_without_class_needs_no_class() {
        let guard = Priority::from_pod(&pod("guard", &json!({})));
        assert_eq!(guard.warning(&[pod("etcd-0", &json!({}))]), None);
        let warning = guard.warning(&[pod("etcd-0", &json!({"priority": -1}))]).unwrap();
        assert!(warning.ends_with("use a PriorityClass with at least this value"), "{warning}");
    }

    #[test]
    fn warns_of_pods_that_mention_etcd_by_count_and_few_names() {
        let critical = json!({"priority": 2_000_000_000, "priorityClassName": "system-cluster-critical"});
        let guard = Priority::from_pod(&pod("guard", &critical));
        assert_eq!(guard.namespace_warning("prod", &[pod("web", &critical)]), None);
        let plain = with_image("nginx", "web", &json!({}));
        assert_eq!(guard.namespace_warning("prod", &[plain]), None, "its deletion fails open");
        let warning = guard.namespace_warning("prod", &[pod("web", &json!({}))]).unwrap();
        assert!(
            warning.starts_with(
                "namespace prod: 1 pod that mentions etcd: priority below the guard's (2000000000): web. "
            ),
            "{warning}"
        );
        let many: Vec<Pod> = (0..5_000).rev().map(|n| pod(&format!("web-{n:04}"), &json!({}))).collect();
        let warning = guard.namespace_warning("prod", &many).unwrap();
        assert!(
            warning.contains("5000 pods that mention etcd: priority below the guard's (2000000000): web-0000, web-0001, web-0002 and 4997 more. "),
            "{warning}"
        );
        assert!(warning.len() < 512, "{warning}");
    }
}
