//! The memory of decoded pods.

use serde::de::IgnoredAny;

use super::{
    heap_size::{HeapSize, heap_size_of_fields},
    owner_reference::OwnerReference,
    pod::{
        Condition, Container, ContainerPort, ContainerState, ContainerStatus, DataVolume, EnvVar,
        EnvVarSource, ExecAction, FieldRef, Hook, KeyToPath, Lifecycle, Metadata, Pod, PodIp, PodSpec,
        PodStatus, ProjectedVolume, Projection, SecretKeyRef, Volume, VolumeClaim, VolumeMount,
    },
};

heap_size_of_fields! {
    Pod { metadata, spec, status }
    Metadata { name, namespace, uid, labels, annotations, owner_references, finalizers, deletion_timestamp }
    OwnerReference { api_version, kind, name, uid }
    PodSpec { containers, init_containers, volumes, hostname, subdomain, node_name, node_selector, affinity, priority_class_name }
    Container { name, image, command, args, env, volume_mounts, ports, lifecycle, restart_policy }
    ContainerPort { name }
    Lifecycle { pre_stop }
    Hook { exec }
    ExecAction { command }
    EnvVar { name, value, value_from }
    EnvVarSource { field_ref, secret_key_ref }
    SecretKeyRef { name, key }
    FieldRef { field_path }
    VolumeMount { name, mount_path, sub_path }
    Volume { name, persistent_volume_claim, host_path, external_storage, secret, config_map, projected }
    VolumeClaim { claim_name }
    DataVolume { name, items }
    KeyToPath { key, path }
    ProjectedVolume { sources }
    Projection { secret, config_map }
    Condition { kind, status, last_transition_time }
    PodStatus { phase, pod_ip, pod_ips, conditions, container_statuses, init_container_statuses }
    PodIp { ip }
    ContainerStatus { name, state, last_state, image_id }
    ContainerState { running, terminated }
}

impl HeapSize for IgnoredAny {
    fn heap_size(&self) -> usize {
        0
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn counts_small_values() {
        let pod = |args: usize| -> Pod {
            let value = "v".repeat(1000);
            serde_json::from_value(json!({
                "metadata": {"name": "etcd-0", "labels": {"app": "etcd"}, "annotations": {"dropped": value}},
                "spec": {"containers": [{"name": "etcd", "args": vec![""; args], "env": [{"name": "A", "value": value}]}]},
            }))
            .unwrap()
        };
        let without = pod(0).heap_size();
        assert!((1000..2000).contains(&without), "{without}");
        assert!(pod(1000).heap_size() - without >= 1000 * size_of::<String>());
    }
}
