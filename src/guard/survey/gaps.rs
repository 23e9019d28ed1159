//! Guarded namespaces and pods in which a member may not be recognised. Deletions of unrecognised members are approved
//! without a probe.

use crate::{
    escape::to_shell_word,
    guard::{
        discovery::{
            etcd_pod,
            recognition::{recognise, unrecognised_listener},
        },
        model::{annotations::MEMBER, cluster_key::ClusterKey},
        survey::status::RecognitionGap,
    },
    k8s::pod::Pod,
};

/// Maximum number of workloads that are reported per namespace, which limits the size of a status.
const MAX_WORKLOADS: usize = 16;

/// Returns the gaps of a namespace. Each workload is reported once, by its first pod. The pods have the annotations that
/// they inherit.
pub(super) fn find(namespace: &str, pods: &[Pod]) -> Vec<RecognitionGap> {
    let mut has_member = false;
    let mut workloads: Vec<(ClusterKey, &Pod, &str)> = Vec::new();
    for pod in pods.iter().filter(|pod| !pod.is_finished() && !pod.is_mirror()) {
        if recognise(pod, &pod.metadata.annotations).container.is_some() {
            has_member = true;
            continue;
        }
        if etcd_pod::is_excluded(pod) || workloads.len() >= MAX_WORKLOADS {
            continue;
        }
        if let Some(container) = unrecognised_listener(pod) {
            let key = ClusterKey::from_pod(namespace, pod);
            if !workloads.iter().any(|(known, ..)| *known == key) {
                workloads.push((key, pod, container));
            }
        }
    }
    let in_namespace = (!has_member).then(|| without_member(namespace));
    let in_pods = workloads.iter().map(|(_, pod, container)| of_pod(namespace, pod, container));
    in_namespace.into_iter().chain(in_pods).collect()
}

fn without_member(namespace: &str) -> RecognitionGap {
    let name = to_shell_word(namespace);
    RecognitionGap {
        namespace: namespace.to_owned(),
        pod: None,
        text: format!(
            "namespace {namespace} is guarded, but no pod in it is recognized as an etcd member. If a StatefulSet runs etcd: kubectl \
             -n {name} annotate statefulset NAME {MEMBER}=CONTAINER. If the namespace contains no etcd: kubectl label \
             namespace {name} etcd-guard.io/guard-"
        ),
    }
}

fn of_pod(namespace: &str, pod: &Pod, container: &str) -> RecognitionGap {
    let name = &pod.metadata.name;
    let object = match pod.stateful_set() {
        Some(set) => format!("statefulset {}", to_shell_word(set)),
        None => format!("pod {}", to_shell_word(name)),
    };
    let command = format!("kubectl -n {} annotate --overwrite {object} {MEMBER}", to_shell_word(namespace));
    RecognitionGap {
        namespace: namespace.to_owned(),
        pod: Some(name.clone()),
        text: format!(
            "pod {namespace}/{name} declares port 2379 or 2380, but is not recognized as an etcd member. If it runs etcd: {command}={}. \
             Otherwise: {command}=false",
            to_shell_word(container)
        ),
    }
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
        find("prod", pods).into_iter().map(|gap| gap.pod).collect()
    }

    /// Edge case 76.
    #[test]
    fn reports_namespace_without_member() {
        assert_eq!(pods_of_gaps(&[]), [None]);
        assert_eq!(pods_of_gaps(&[pod("web-0", "nginx", 80, None)]), [None]);
        assert!(pods_of_gaps(&[pod("etcd-0", "etcd", 2379, None)]).is_empty());
        let text = &find("prod", &[])[0].text;
        assert!(
            text.contains("kubectl -n prod annotate statefulset NAME etcd-guard.io/member=CONTAINER"),
            "{text}"
        );
    }

    /// Edge case 76.
    #[test]
    fn reports_each_workload_with_unrecognised_port_once() {
        let pods = [
            pod("etcd-0", "etcd", 2379, None),
            pod("scheduler-0", "dapr/scheduler", 2379, None),
            pod("scheduler-1", "dapr/scheduler", 2379, None),
        ];
        assert_eq!(pods_of_gaps(&pods), [Some(String::from("scheduler-0"))]);
        let text = &find("prod", &pods)[0].text;
        let command = "kubectl -n prod annotate --overwrite statefulset set etcd-guard.io/member=main";
        assert!(text.contains(command), "{text}");
        for value in ["false", "main"] {
            let annotated = pod("scheduler-0", "dapr/scheduler", 2379, Some(value));
            let gaps = pods_of_gaps(&[pod("etcd-0", "etcd", 2379, None), annotated]);
            assert!(gaps.is_empty(), "{value}: {gaps:?}");
        }
    }
}
