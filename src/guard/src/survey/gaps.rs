//! Guarded namespaces and pods in which a member may not be recognized. Deletions of unrecognized members are approved
//! without a probe.

use etcd_guard_api::RecognitionGap;
use etcd_guard_core::{
    annotations::MEMBER,
    cluster_key::ClusterKey,
    discovery::{
        etcd_pod,
        recognition::{recognize, unrecognized_listener},
    },
    escape::{MAX_ERROR_CHARS, to_bounded_line, to_shell_word},
    objects::pod::Pod,
    opt_in_label::OptInLabel,
};

/// Maximum number of workloads that are reported per namespace, which limits the size of a status.
const MAX_WORKLOADS: usize = 16;

/// Returns the gaps of a namespace. Each workload is reported once, by its first pod. The pods have the annotations that
/// they inherit.
pub(super) fn find(namespace: &str, pods: &[Pod], label: &OptInLabel) -> Vec<RecognitionGap> {
    let mut has_member = false;
    let mut workloads: Vec<(ClusterKey, &Pod, &str)> = Vec::new();
    for pod in pods.iter().filter(|pod| !pod.is_finished() && !pod.is_mirror()) {
        if recognize(pod, &pod.metadata.annotations).container.is_some() {
            has_member = true;
            continue;
        }
        if etcd_pod::is_excluded(pod) || workloads.len() >= MAX_WORKLOADS {
            continue;
        }
        if let Some(container) = unrecognized_listener(pod) {
            let key = ClusterKey::from_pod(namespace, pod);
            if !workloads.iter().any(|(known, ..)| *known == key) {
                workloads.push((key, pod, container));
            }
        }
    }
    let in_namespace = (!has_member).then(|| without_member(namespace, label));
    let in_pods = workloads.iter().map(|(_, pod, container)| of_pod(namespace, pod, container));
    in_namespace.into_iter().chain(in_pods).collect()
}

fn without_member(namespace: &str, label: &OptInLabel) -> RecognitionGap {
    let (name, key) = (to_shell_word(namespace), label.key());
    RecognitionGap {
        namespace: namespace.to_owned(),
        pod: None,
        text: format!(
            "namespace {namespace} is guarded, but no pod in it is recognized as an etcd member. If a StatefulSet runs etcd: kubectl \
             -n {name} annotate statefulset NAME {MEMBER}=CONTAINER. If the namespace contains no etcd: kubectl label \
             namespace {name} {key}-"
        ),
    }
}

fn of_pod(namespace: &str, pod: &Pod, container: &str) -> RecognitionGap {
    let name = &pod.metadata.name;
    let remedy = match (pod.stateful_set(), pod.controller()) {
        (Some(set), _) => {
            annotation_remedy(namespace, &format!("statefulset {}", to_shell_word(set)), container)
        }
        (None, None) => annotation_remedy(namespace, &format!("pod {}", to_shell_word(name)), container),
        // The replacement of the pod has the annotations of the template.
        (None, Some(owner)) => {
            let owner = to_bounded_line(&format!("{} {}", owner.kind, owner.name), MAX_ERROR_CHARS);
            format!(
                "If it runs etcd: kubectl annotate --overwrite namespace {} {MEMBER}={}, which applies to all pods with this \
                 container, or set this annotation in the pod template of {owner}. Otherwise set {MEMBER}=false in the template",
                to_shell_word(namespace),
                to_shell_word(container)
            )
        }
    };
    RecognitionGap {
        namespace: namespace.to_owned(),
        pod: Some(name.clone()),
        text: format!(
            "pod {namespace}/{name} declares port 2379 or 2380, but is not recognized as an etcd member. {remedy}"
        ),
    }
}

/// Returns the commands that annotate an object.
fn annotation_remedy(namespace: &str, object: &str, container: &str) -> String {
    let command = format!("kubectl -n {} annotate --overwrite {object} {MEMBER}", to_shell_word(namespace));
    format!("If it runs etcd: {command}={}. Otherwise: {command}=false", to_shell_word(container))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(name: &str, image: &str, port: u16, annotation: Option<&str>) -> Pod {
        let mut pod = json!({
            "metadata": {
                "name": name,
                "namespace": "prod",
                "ownerReferences": [{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "set", "uid": "u",
                    "controller": true}],
            },
            "spec": {"containers": [{"name": "main", "image": image, "ports": [{"containerPort": port}]}]},
        });
        if let Some(value) = annotation {
            pod["metadata"]["annotations"] = json!({MEMBER: value});
        }
        serde_json::from_value(pod).unwrap()
    }

    fn pods_of_gaps(pods: &[Pod]) -> Vec<Option<String>> {
        find("prod", pods, &OptInLabel::default()).into_iter().map(|gap| gap.pod).collect()
    }

    #[test]
    fn reports_namespace_without_member() {
        assert_eq!(pods_of_gaps(&[]), [None]);
        assert_eq!(pods_of_gaps(&[pod("web-0", "nginx", 80, None)]), [None]);
        assert!(pods_of_gaps(&[pod("etcd-0", "etcd", 2379, None)]).is_empty());
        let text = &find("prod", &[], &"example.com/guard=yes".parse().unwrap())[0].text;
        assert!(text.contains("kubectl label namespace prod example.com/guard-"), "{text}");
        assert!(
            text.contains("kubectl -n prod annotate statefulset NAME etcd-guard.io/member=CONTAINER"),
            "{text}"
        );
    }

    #[test]
    fn reports_each_workload_with_unrecognized_port_once() {
        let pods = [
            pod("etcd-0", "etcd", 2379, None),
            pod("scheduler-0", "dapr/scheduler", 2379, None),
            pod("scheduler-1", "dapr/scheduler", 2379, None),
        ];
        assert_eq!(pods_of_gaps(&pods), [Some(String::from("scheduler-0"))]);
        let text = &find("prod", &pods, &OptInLabel::default())[0].text;
        let command = "kubectl -n prod annotate --overwrite statefulset set etcd-guard.io/member=main";
        assert!(text.contains(command), "{text}");
        for value in ["false", "main"] {
            let annotated = pod("scheduler-0", "dapr/scheduler", 2379, Some(value));
            let gaps = pods_of_gaps(&[pod("etcd-0", "etcd", 2379, None), annotated]);
            assert!(gaps.is_empty(), "{value}: {gaps:?}");
        }
    }

    #[test]
    fn remedy_outlives_the_replacement_of_the_pod() {
        let text = |owners: serde_json::Value| {
            let mut pod = pod("db-0", "example/db", 2379, None);
            pod.metadata.owner_references = serde_json::from_value(owners).unwrap();
            find("prod", &[pod], &OptInLabel::default())
                .into_iter()
                .find(|gap| gap.pod.is_some())
                .unwrap()
                .text
        };
        let bare = text(json!([]));
        assert!(
            bare.ends_with(
                "Otherwise: kubectl -n prod annotate --overwrite pod db-0 etcd-guard.io/member=false"
            ),
            "{bare}"
        );
        let reference = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "db", "uid": "u", "controller": true});
        let owned = text(json!([reference]));
        assert!(
            owned.ends_with(
                "If it runs etcd: kubectl annotate --overwrite namespace prod etcd-guard.io/member=main, which applies to all \
                 pods with this container, or set this annotation in the pod template of ReplicaSet db. Otherwise set \
                 etcd-guard.io/member=false in the template"
            ),
            "{owned}"
        );
    }
}
