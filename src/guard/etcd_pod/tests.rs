use serde_json::json;

use super::*;

/// A pod with this container, a claim named `data` and an emptyDir named `tmp`.
fn pod(container: &serde_json::Value) -> Pod {
    serde_json::from_value(json!({
        "metadata": {"name": "etcd-1", "namespace": "prod", "uid": "u1"},
        "spec": {
            "containers": [{"name": "sidecar", "image": "envoy"}, container.clone()],
            "volumes": [
                {"name": "data", "persistentVolumeClaim": {"claimName": "data-etcd-1"}},
                {"name": "tmp", "emptyDir": {}}
            ]
        },
        "status": {"phase": "Running", "podIP": "10.244.0.7"}
    }))
    .unwrap()
}

fn read_container(container: &serde_json::Value) -> EtcdPod {
    read(&pod(container)).expect("the container runs etcd")
}

#[test]
fn flags_tell_name_address_and_data() {
    let it = read_container(&json!({
        "name": "etcd",
        "image": "quay.io/coreos/etcd:v3.6.16",
        "command": ["/usr/local/bin/etcd"],
        "args": [
            "--name=$(POD_NAME)",
            "--advertise-client-urls", "https://$(POD_NAME).etcd.$(POD_NAMESPACE).svc:12379",
            "--data-dir=/var/lib/etcd/member"
        ],
        "env": [
            {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "POD_NAMESPACE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}}
        ],
        "volumeMounts": [{"name": "data", "mountPath": "/var/lib/etcd"}]
    }));
    let endpoint = it.endpoint.unwrap();
    assert_eq!(endpoint.url, "https://10.244.0.7:12379");
    assert_eq!(endpoint.tls.unwrap().server_name, "etcd-1.etcd.prod.svc");
    assert_eq!(it.member_name.as_deref(), Some("etcd-1"));
    assert_eq!(it.container, "etcd");
    assert_eq!(it.storage, Storage::Persistent);
}

#[test]
fn environment_tells_it_too_and_the_shared_service_is_passed_over() {
    let it = read_container(&json!({
        "name": "etcd",
        "image": "docker.io/bitnami/etcd:3.6.4",
        "env": [
            {"name": "MY_POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "ETCD_NAME", "value": "$(MY_POD_NAME)"},
            {"name": "ETCD_ADVERTISE_CLIENT_URLS",
             "value": "http://shared.prod.svc:2379,http://$(MY_POD_NAME).headless.prod.svc:3379"},
            {"name": "ETCD_DATA_DIR", "value": "/bitnami/etcd/data"}
        ],
        "volumeMounts": [{"name": "data", "mountPath": "/bitnami/etcd"}]
    }));
    assert_eq!(it.endpoint.unwrap().url, "http://10.244.0.7:3379");
    assert_eq!(it.member_name.as_deref(), Some("etcd-1"));
    assert_eq!(it.storage, Storage::Persistent);
}

#[test]
fn a_script_is_taken_apart() {
    let it = read_container(&json!({
        "name": "etcd",
        "image": "etcd:3.4",
        "command": ["/bin/sh", "-ec", "ulimit -n 65536\nexec etcd --name ${HOSTNAME} \\\n  --listen-client-urls http://0.0.0.0:4001 --data-dir /data"],
        "volumeMounts": [{"name": "data", "mountPath": "/"}, {"name": "tmp", "mountPath": "/data"}]
    }));
    assert_eq!(it.member_name.as_deref(), Some("etcd-1"));
    assert_eq!(it.endpoint.unwrap().url, "http://10.244.0.7:4001");
    assert_eq!(it.storage, Storage::Ephemeral, "the nearer mount holds the data");
}

#[test]
fn a_member_without_settings_listens_where_etcd_does_by_default() {
    let it = read_container(&json!({"name": "etcd", "image": "registry.k8s.io/etcd:3.6.4-0"}));
    assert_eq!(it.endpoint.unwrap(), Endpoint { url: String::from("http://10.244.0.7:2379"), tls: None });
    assert_eq!(it.storage, Storage::Ephemeral, "the container's own file system goes with it");
}

#[test]
fn a_pod_without_an_address_cannot_be_dialled() {
    let mut pod = pod(&json!({"name": "etcd", "image": "etcd"}));
    pod.status.pod_ip = String::new();
    assert_eq!(read(&pod).unwrap().endpoint, None);
    pod.status.pod_ip = String::from("fd00::7");
    assert_eq!(read(&pod).unwrap().endpoint.unwrap().url, "http://[fd00::7]:2379");
}

#[test]
fn what_only_touches_etcd_runs_none() {
    for command in [
        json!(["etcdctl", "snapshot", "save", "/backup/etcd"]),
        json!(["sh", "-c", "cp -r /var/lib/etcd /backup"]),
        json!(["/backup", "--data-dir", "/var/lib/etcd"]),
        json!(["/backup", "--data-dir=/var/lib/etcd"]),
        json!(["/backup", "--name", "etcd"]),
    ] {
        let container = json!({"name": "backup", "image": "quay.io/coreos/etcd:v3.6.16", "command": command});
        assert_eq!(read(&pod(&container)), None, "{container}");
    }
    assert_eq!(read(&pod(&json!({"name": "app", "image": "nginx"}))), None);
    assert_eq!(read(&pod(&json!({"name": "operator", "image": "quay.io/etcd-io/etcd-operator:v0.1"}))), None);
}
