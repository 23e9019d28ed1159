//! Data in a directory of a pod's node: whether the pod's successor runs on the same node.

use etcd_guard_core::{discovery::etcd_pod::EtcdPod, objects::pod::Pod, snapshot::Storage};
use etcd_guard_kubernetes::{ApiReader, LookupError};

/// Returns the durability of data on the pod's node. The scheduler sets the node of every pod, and a rollout can change the
/// template since: the template of the owner decides. Without a readable template, the specification of the pod does.
pub(super) async fn with_template(
    reader: &ApiReader,
    namespace: &str,
    pod: &Pod,
    etcd_pod: &EtcdPod,
    storage: Storage,
) -> Storage {
    if !etcd_pod.is_data_on_node || !matches!(storage, Storage::OnNode | Storage::Persistent) {
        return storage;
    }
    match template(reader, namespace, pod).await {
        Some(Ok(template)) if returns_to_its_node(pod, &template) => Storage::Persistent,
        Some(Ok(_)) => Storage::OnNode,
        Some(Err(_)) | None => storage,
    }
}

/// Whether the template admits one node, and the pod runs on it: a changed template can bind the successor to another node.
fn returns_to_its_node(pod: &Pod, template: &Pod) -> bool {
    let own = [pod.spec.only_node(false), Some(pod.spec.node_name.as_str())];
    template.spec.only_node(true).is_some_and(|next| own.contains(&Some(next)))
}

/// Returns the pod as its owner would create it; `None` if the owner has another kind, or is another object than that of the
/// pod.
async fn template(reader: &ApiReader, namespace: &str, pod: &Pod) -> Option<Result<Pod, LookupError>> {
    let owner = pod.controller()?;
    let read = if owner.is_stateful_set() {
        reader.get_stateful_set(namespace, &owner.name).await.map(|set| set.template(namespace))
    } else if owner.kind == "ReplicaSet" {
        let read = reader.get_pod_template(namespace, "replicasets", &owner.name).await;
        read.map(|template| template.pod(namespace))
    } else {
        return None;
    };
    let is_owner = |template: &Pod| template.controller().is_some_and(|of| of.uid == owner.uid);
    match read {
        Ok(template) if !is_owner(&template) => None,
        read => Some(read),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use etcd_guard_core::discovery::etcd_pod;
    use etcd_guard_kubernetes::fake;

    /// Returns the durability for a pod of a StatefulSet on a node, with these fields of the pod and of the template.
    async fn storage(pod: Value, template: &Value) -> Storage {
        let owner = json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "etcd", "uid": "set", "controller": true});
        let mut spec = json!({
            "nodeName": "worker",
            "containers": [{"name": "etcd", "image": "etcd", "volumeMounts": [{"name": "data", "mountPath": "/data"}]}],
            "volumes": [{"name": "data", "hostPath": {"path": "/srv/etcd"}}],
        });
        spec.as_object_mut().unwrap().extend(pod.as_object().unwrap().clone());
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "etcd-0", "namespace": "prod", "ownerReferences": [owner]},
            "spec": spec,
        }))
        .unwrap();
        let set =
            json!({"metadata": {"name": "etcd", "uid": "set"}, "spec": {"template": {"spec": template}}});
        let path = "/apis/apps/v1/namespaces/prod/statefulsets/etcd";
        let reader = ApiReader::new(fake::api_server([(path, 200, set)]));
        let etcd_pod = etcd_pod::read(&pod, &pod.metadata.annotations).unwrap();
        with_template(&reader, "prod", &pod, &etcd_pod, etcd_pod.storage).await
    }

    #[tokio::test]
    async fn data_returns_if_the_template_binds_to_a_node() {
        let selector = json!({"nodeSelector": {"kubernetes.io/hostname": "worker"}});
        let required = json!({"nodeSelectorTerms": [{"matchExpressions": [
            {"key": "kubernetes.io/hostname", "operator": "In", "values": ["worker"]}
        ]}]});
        let affinity = json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}});
        for template in [json!({"nodeName": "worker"}), selector.clone(), affinity.clone()] {
            assert_eq!(storage(json!({}), &template).await, Storage::Persistent, "{template}");
        }
        let other = json!({"nodeSelector": {"kubernetes.io/hostname": "other"}});
        for pod in [json!({}), selector, affinity] {
            assert_eq!(storage(pod.clone(), &json!({})).await, Storage::OnNode);
            for template in [json!({"nodeName": "other"}), other.clone()] {
                assert_eq!(
                    storage(pod.clone(), &template).await,
                    Storage::OnNode,
                    "the set moves: {template}"
                );
            }
        }
        // The label of a node can differ from its name.
        let labelled = json!({"nodeSelector": {"kubernetes.io/hostname": "worker.example.com"}});
        assert_eq!(storage(labelled.clone(), &labelled).await, Storage::Persistent);
    }
}
