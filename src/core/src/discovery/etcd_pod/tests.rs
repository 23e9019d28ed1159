use serde_json::json;

use super::*;
use crate::{discovery::member_settings::MAX_EXPANDED_BYTES, objects::data_object::Secret};

/// Returns a pod with this container, a volume `data` from a claim, and an emptyDir `tmp`.
pub(super) fn pod(container: &serde_json::Value) -> Pod {
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

pub(super) fn read_pod(pod: &Pod) -> Option<EtcdPod> {
    read(pod, &pod.metadata.annotations)
}

fn read_container(container: &serde_json::Value) -> EtcdPod {
    read_pod(&pod(container)).expect("the container runs etcd")
}

#[test]
fn reads_name_endpoint_and_storage_from_flags() {
    let member = read_container(&json!({
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
    let endpoint = member.endpoint.unwrap();
    assert_eq!(endpoint.url, "https://10.244.0.7:12379");
    assert_eq!(endpoint.tls.unwrap().server_name, "etcd-1.etcd.prod.svc");
    assert_eq!(member.member_name.as_deref(), Some("etcd-1"));
    assert_eq!(member.container, "etcd");
    assert_eq!(member.storage, Storage::Persistent);
}

#[test]
fn limits_the_length_of_variable_names() {
    let name = |length: usize| "N".repeat(length);
    let member_name = |value: &str| {
        let env = json!([{"name": name(255), "value": "long"}, {"name": name(257), "value": "too long"}]);
        read_container(&json!({"name": "etcd", "command": ["etcd"], "args": ["--name", value], "env": env}))
            .member_name
    };
    assert_eq!(member_name(&format!("a$({})b", name(255))).as_deref(), Some("alongb"));
    let too_long = format!("$({})", name(257));
    assert_eq!(member_name(&too_long), Some(displayed_name(&too_long)), "not expanded");
    for open in ["$(", "${", "$(\u{e9}"] {
        assert_eq!(member_name(open).as_deref(), Some(open), "the bracket is not closed");
    }
}

/// Without the limit, a pod with a few variables could exhaust the guard's memory.
#[test]
fn limits_the_expansion_of_nested_variables() {
    let mut env = vec![json!({"name": "V0", "value": "0123456789abcdef"})];
    env.extend((1..=20).map(|n| json!({"name": format!("V{n}"), "value": format!("$(V{0})$(V{0})", n - 1)})));
    let pod = pod(&json!({
        "name": "etcd",
        "image": "quay.io/coreos/etcd:v3.6.16",
        "args": ["--name=$(V20)", "--data-dir=/var/lib/etcd"],
        "env": env,
        "volumeMounts": [{"name": "data", "mountPath": "/var/lib/etcd"}]
    }));
    let settings = MemberSettings::read(&pod, &pod.spec.containers[1]);
    let bytes: usize = settings.values().map(str::len).sum();
    assert!(bytes < 2 * MAX_EXPANDED_BYTES, "{bytes} bytes");
    assert_eq!(
        read_pod(&pod).expect("the pod runs etcd").storage,
        Storage::Persistent,
        "other flags are read"
    );
}

#[test]
fn reads_environment_and_ignores_shared_service_url() {
    let member = read_container(&json!({
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
    assert_eq!(member.endpoint.unwrap().url, "http://10.244.0.7:3379");
    assert_eq!(member.member_name.as_deref(), Some("etcd-1"));
    assert_eq!(member.storage, Storage::Persistent);
}

#[test]
fn reads_flags_from_a_shell_script() {
    let member = read_container(&json!({
        "name": "etcd",
        "image": "etcd:3.4",
        "command": ["/bin/sh", "-ec", "ulimit -n 65536\nexec etcd --name ${HOSTNAME} \\\n  --listen-client-urls http://0.0.0.0:4001 --data-dir /data"],
        "volumeMounts": [{"name": "data", "mountPath": "/"}, {"name": "tmp", "mountPath": "/data"}]
    }));
    assert_eq!(member.member_name.as_deref(), Some("etcd-1"));
    assert_eq!(member.endpoint.unwrap().url, "http://10.244.0.7:4001");
    assert_eq!(member.storage, Storage::Ephemeral, "the longest matching mount path holds the data");
}

#[test]
fn uses_default_port_without_settings() {
    let member = read_container(&json!({"name": "etcd", "image": "registry.k8s.io/etcd:3.6.4-0"}));
    assert_eq!(
        member.endpoint.unwrap(),
        Endpoint {
            url: String::from("http://10.244.0.7:2379"),
            other_urls: Vec::new(),
            tls: None,
            user: None
        }
    );
    assert_eq!(member.storage, Storage::Ephemeral, "the container's file system is lost with the pod");
}

#[test]
fn pod_without_address_has_no_endpoint() {
    let mut pod = pod(&json!({"name": "etcd", "image": "etcd"}));
    pod.status.pod_ip = String::new();
    assert_eq!(read_pod(&pod).unwrap().endpoint, None);
    pod.status.pod_ip = String::from("fd00::7");
    assert_eq!(read_pod(&pod).unwrap().endpoint.unwrap().url, "http://[fd00::7]:2379");
}

#[test]
fn tools_and_backups_are_not_members() {
    for command in [
        json!(["etcdctl", "snapshot", "save", "/backup/etcd"]),
        json!(["sh", "-c", "cp -r /var/lib/etcd /backup"]),
        json!(["/backup", "--data-dir", "/var/lib/etcd"]),
        json!(["/backup", "--data-dir=/var/lib/etcd"]),
        json!(["/backup", "--name", "etcd"]),
    ] {
        let container = json!({"name": "backup", "image": "quay.io/coreos/etcd:v3.6.16", "command": command});
        assert_eq!(read_pod(&pod(&container)), None, "{container}");
    }
    assert_eq!(read_pod(&pod(&json!({"name": "app", "image": "nginx"}))), None);
    assert_eq!(
        read_pod(&pod(&json!({"name": "operator", "image": "quay.io/etcd-io/etcd-operator:v0.1"}))),
        None
    );
}

fn with_annotations(pairs: &[(&str, &str)]) -> Option<EtcdPod> {
    let container = json!({
        "name": "etcd",
        "image": "etcd",
        "ports": [{"name": "client", "containerPort": 4001}]
    });
    let mut pod = pod(&container);
    pod.spec.subdomain = String::from("etcd");
    let annotations = pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    read(&pod, &annotations)
}

#[test]
fn annotation_replaces_the_endpoint() {
    let endpoint = |value| with_annotations(&[("etcd-guard.io/endpoints", value)]).unwrap().endpoint.unwrap();
    let server_name = |endpoint: Endpoint| endpoint.tls.unwrap().server_name;
    assert_eq!(endpoint("https://:12379").url, "https://10.244.0.7:12379");
    assert_eq!(server_name(endpoint("https://:12379")), "etcd-1.etcd.prod.svc");
    let named = endpoint("https://$(POD_NAME).peers.$(POD_NAMESPACE).svc:12379/");
    assert_eq!(
        (named.url.as_str(), server_name(named.clone()).as_str()),
        ("https://10.244.0.7:12379", "etcd-1.peers.prod.svc")
    );
    assert_eq!(
        endpoint("http://:2379"),
        Endpoint {
            url: String::from("http://10.244.0.7:2379"),
            other_urls: Vec::new(),
            tls: None,
            user: None
        }
    );
    for wrong in ["12379", "etcd:12379", "ftp://:2379", "https://:port", "https://a b:2379", ""] {
        let member = with_annotations(&[("etcd-guard.io/endpoints", wrong)]).unwrap();
        assert_eq!(member.endpoint, None, "{wrong}");
        assert!(member.problem.unwrap().contains("is not a URL such as https://:2379"), "{wrong}");
    }
}

#[test]
fn annotation_replaces_recognition() {
    assert_eq!(with_annotations(&[("etcd-guard.io/member", "false")]), None);
    let other = pod(&json!({"name": "store", "image": "kine", "ports": [{"containerPort": 2379}]}));
    assert_eq!(read_pod(&other), None);
    let declared = BTreeMap::from([(String::from("etcd-guard.io/member"), String::from("true"))]);
    assert_eq!(read(&other, &declared).unwrap().container, "store");
}

#[test]
fn any_running_container_counts_if_the_container_is_unclear() {
    let mut pod = pod(&json!({"name": "k3s", "image": "rancher/k3s"}));
    pod.status.container_statuses = serde_json::from_value(json!([
        {"name": "sidecar", "state": {"waiting": {}}},
        {"name": "k3s", "state": {"running": {}}}
    ]))
    .unwrap();
    let member = |value: &str| {
        let annotations = BTreeMap::from([(MEMBER.to_owned(), value.to_owned())]);
        read(&pod, &annotations).unwrap()
    };
    let unclear = member("true");
    assert_eq!((unclear.container.as_str(), unclear.is_container_unclear), ("sidecar", true));
    assert!(unclear.is_running(&pod) && unclear.has_started(&pod));
    assert_eq!(unclear.count_other_running_containers(&pod), 0, "each container may run the member");
    let named = member("sidecar");
    assert!(!named.is_running(&pod) && !named.has_started(&pod));
    assert_eq!(named.count_other_running_containers(&pod), 1);
}

#[test]
fn annotations_replace_credential_sources() {
    let member = with_annotations(&[
        ("etcd-guard.io/endpoints", "https://:2379"),
        ("etcd-guard.io/client-tls-secret", "own-tls"),
        ("etcd-guard.io/auth-secret", "own-user"),
    ]);
    let credentials = member.unwrap().credentials;
    assert_eq!(
        credentials.tls.iter().map(|source| source.object.name.as_str()).collect::<Vec<_>>(),
        ["own-tls"]
    );
    let user = credentials.user.unwrap();
    let secret = Secret::from([("username", "guard"), ("password", "sesame\n")]);
    assert_eq!(
        (user.user_name(&secret), user.password(&secret)),
        (String::from("guard"), Some(String::from("sesame")))
    );
    let of_root = Secret::from([("etcd-root-password", "sesame")]);
    assert_eq!(
        (user.user_name(&of_root), user.password(&of_root)),
        (String::from("root"), Some(String::from("sesame")))
    );
    assert_eq!(user.password(&Secret::from([("token", "x")])), None);
}

#[test]
fn finds_password_in_a_mounted_file() {
    let mut pod = pod(&json!({
        "name": "etcd",
        "image": "etcd",
        "env": [{"name": "ETCD_ROOT_PASSWORD_FILE", "value": "/secrets/root/password.txt"}],
        "volumeMounts": [{"name": "files", "mountPath": "/secrets"}]
    }));
    let volume = json!({"name": "files", "projected": {"sources": [
        {"configMap": {"name": "other"}},
        {"secret": {"name": "etcd-users", "items": [{"key": "root-pw", "path": "root/password.txt"}]}}
    ]}});
    pod.spec.volumes.push(serde_json::from_value(volume).unwrap());
    let user = read_pod(&pod).unwrap().credentials.user.unwrap();
    assert_eq!((user.secret.as_str(), user.key_names().as_str()), ("etcd-users", "root-pw"));
}

#[test]
fn host_path_is_persistent_for_a_pod_bound_to_its_node() {
    let mut pod = pod(&json!({
        "name": "etcd",
        "image": "etcd",
        "args": ["--data-dir=/data"],
        "volumeMounts": [{"name": "disk", "mountPath": "/data"}]
    }));
    pod.spec
        .volumes
        .push(serde_json::from_value(json!({"name": "disk", "hostPath": {"path": "/srv/etcd"}})).unwrap());
    assert_eq!(read_pod(&pod).unwrap().storage, Storage::OnNode);
    pod.spec.node_name = String::from("node-1");
    assert_eq!(read_pod(&pod).unwrap().storage, Storage::OnNode, "every scheduled pod has a node");
    pod.spec.node_selector.insert(String::from("kubernetes.io/hostname"), String::from("node-1"));
    assert_eq!(read_pod(&pod).unwrap().storage, Storage::Persistent);
}

#[test]
fn storage_outside_of_the_node_is_persistent() {
    let storage = |volume: serde_json::Value| {
        let mut pod = pod(&json!({
            "name": "etcd",
            "image": "etcd",
            "args": ["--data-dir=/data"],
            "volumeMounts": [{"name": "disk", "mountPath": "/data"}]
        }));
        pod.spec.volumes.push(serde_json::from_value(volume).unwrap());
        read_pod(&pod).unwrap().storage
    };
    for source in
        ["nfs", "iscsi", "cephfs", "rbd", "fc", "awsElasticBlockStore", "gcePersistentDisk", "azureDisk"]
    {
        assert_eq!(storage(json!({"name": "disk", source: {"path": "/"}})), Storage::Persistent, "{source}");
    }
    for source in ["csi", "ephemeral", "emptyDir"] {
        assert_eq!(storage(json!({"name": "disk", source: {}})), Storage::Ephemeral, "{source}");
    }
}

#[test]
fn recognizes_hook_that_removes_the_member() {
    let with_hook = |command: serde_json::Value| {
        read_container(&json!({
            "name": "etcd",
            "image": "etcd",
            "volumeMounts": [{"name": "data", "mountPath": "/data"}],
            "lifecycle": {"preStop": {"exec": {"command": command}}}
        }))
        .storage
    };
    assert_eq!(with_hook(json!(["sh", "-c", "etcdctl member remove $(cat /id)"])), Storage::RemovedByHook);
    assert_eq!(with_hook(json!(["/opt/bitnami/scripts/etcd/prestop.sh"])), Storage::RemovedByHook);
    assert_eq!(with_hook(json!(["sh", "-c", "etcdctl member list; sleep 5"])), Storage::Persistent);
}

#[test]
fn etcd_image_that_runs_a_tool_is_not_a_member() {
    let with_args = |args: serde_json::Value| {
        read_pod(&pod(&json!({"name": "box", "image": "quay.io/coreos/etcd:v3.5.21", "args": args})))
    };
    assert!(with_args(json!(["etcdctl", "watch", "x"])).is_none());
    assert!(with_args(json!([])).is_some());
    assert!(with_args(json!(["--name=etcd-1"])).is_some());
    assert!(with_args(json!(["/usr/local/bin/etcd", "--name=etcd-1"])).is_some());
}

#[test]
fn prefers_claim_to_host_path_for_the_data() {
    let mut pod = pod(&json!({
        "name": "etcd",
        "image": "etcd",
        "volumeMounts": [{"name": "zone", "mountPath": "/etc/localtime"}, {"name": "data", "mountPath": "/data"}]
    }));
    let zone = json!({"name": "zone", "hostPath": {"path": "/etc/localtime"}});
    pod.spec.volumes.insert(0, serde_json::from_value(zone).unwrap());
    let member = read_pod(&pod).unwrap();
    assert_eq!((member.storage, member.claims), (Storage::Persistent, vec![String::from("data-etcd-1")]));
}

#[test]
fn overrules_exclusion_only_for_evident_members() {
    let is_included = |container: serde_json::Value| {
        let mut pod = pod(&container);
        pod.metadata.annotations.insert(MEMBER.to_owned(), String::from("false"));
        assert!(read_pod(&pod).is_none() && is_excluded(&pod));
        include_evident_member(&mut pod);
        read_pod(&pod).is_some()
    };
    assert!(is_included(json!({"name": "etcd", "image": "quay.io/coreos/etcd:v3.6.16"})));
    assert!(!is_included(json!({"name": "proxy", "image": "nginx", "ports": [{"containerPort": 2379}]})));
}

/// Returns a pod with a web server and these init containers, with the volumes of [`pod`].
fn pod_with_init_containers(init_containers: &serde_json::Value) -> Pod {
    let mut pod = pod(&json!({"name": "web", "image": "nginx", "command": ["nginx"]}));
    pod.spec.init_containers = serde_json::from_value(init_containers.clone()).unwrap();
    pod
}

#[test]
fn recognizes_etcd_in_a_native_sidecar() {
    let etcd = json!({
        "name": "etcd",
        "image": "quay.io/coreos/etcd:v3.6.16",
        "command": ["etcd"],
        "args": ["--name=etcd-1", "--data-dir=/data", "--listen-client-urls=http://0.0.0.0:4001"],
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
        "restartPolicy": "Always",
    });
    let mut pod = pod_with_init_containers(&json!([{"name": "wait", "image": "wait"}, etcd]));
    let member = read_pod(&pod).unwrap();
    assert_eq!((member.container.as_str(), member.storage), ("etcd", Storage::Persistent));
    assert_eq!(member.endpoint.unwrap().url, "http://10.244.0.7:4001");
    assert!(!pod.is_container_running("etcd"));
    pod.status.init_container_statuses =
        serde_json::from_value(json!([{"name": "etcd", "state": {"running": {}}}])).unwrap();
    assert!(pod.is_container_running("etcd"));

    let mut starts_once = etcd;
    starts_once.as_object_mut().unwrap().remove("restartPolicy");
    assert!(
        read_pod(&pod_with_init_containers(&json!([starts_once]))).is_none(),
        "it ends before the pod runs"
    );
}

#[test]
fn finds_removing_hook_in_a_native_sidecar() {
    let hook = json!({"preStop": {"exec": {"command": ["etcdctl", "member", "remove", "1"]}}});
    let mut pod = pod(&json!({
        "name": "etcd", "image": "etcd", "volumeMounts": [{"name": "data", "mountPath": "/data"}]
    }));
    let agent = json!([{"name": "agent", "image": "agent", "lifecycle": hook, "restartPolicy": "Always"}]);
    pod.spec.init_containers = serde_json::from_value(agent).unwrap();
    assert_eq!(read_pod(&pod).unwrap().storage, Storage::RemovedByHook);
}

#[test]
fn tools_and_proxies_by_command_position_are_not_members() {
    let env = json!([{"name": "ETCD_LISTEN_PEER_URLS", "value": "http://0.0.0.0:2380"}]);
    let is_member = |command: serde_json::Value, args: serde_json::Value| {
        let mut pod = pod(&json!({
            "name": "box",
            "image": "quay.io/coreos/etcd:v3.6.16",
            "command": command,
            "args": args,
            "env": env,
            "ports": [{"containerPort": 2379}],
        }));
        pod.spec.containers.remove(0);
        assert_eq!(read_pod(&pod).is_some(), is_evident_member(&pod));
        read_pod(&pod).is_some()
    };
    for (command, args) in [
        (json!(["etcd", "grpc-proxy", "start"]), json!([])),
        (json!(["/usr/local/bin/etcd"]), json!(["gateway", "start", "--endpoints=etcd:2379"])),
        (json!([]), json!(["grpc-proxy", "start"])),
        (json!(["etcdctl", "snapshot", "save", "/backup/etcd"]), json!([])),
        (json!(["/usr/local/bin/etcdutl"]), json!(["defrag", "--data-dir", "/var/lib/etcd"])),
        (json!(["sh", "-c", "exec etcd grpc-proxy start --endpoints=etcd:2379"]), json!([])),
        (json!(["/bin/sh", "-ec"]), json!([" etcdctl snapshot save /backup/etcd "])),
    ] {
        assert!(!is_member(command.clone(), args.clone()), "{command} {args}");
    }
    for (command, args) in [
        (json!(["etcd", "--name=gateway"]), json!([])),
        (json!(["etcd", "--name", "grpc-proxy"]), json!([])),
        (json!(["sh", "-c", "etcdctl endpoint health; exec /start"]), json!([])),
        (json!(["sh", "-c", "etcd & gateway"]), json!([])),
        (json!(["sh", "-c", "etcd --name=a\ngateway"]), json!([])),
        (json!(["/start"]), json!(["gateway"])),
    ] {
        assert!(is_member(command.clone(), args.clone()), "{command} {args}");
    }
}

#[test]
fn data_on_volumes_outlives_a_restart_of_the_container() {
    let outlives = |dir: &str| {
        let pod = pod(&json!({
            "name": "etcd", "image": "etcd", "args": [format!("--data-dir={dir}")],
            "volumeMounts": [{"name": "data", "mountPath": "/data"}, {"name": "tmp", "mountPath": "/tmp"}],
        }));
        outlives_restart(&pod, &pod.metadata.annotations)
    };
    assert!(outlives("/data/etcd") && outlives("/tmp/etcd"));
    assert!(!outlives("/var/lib/etcd"), "the container's file system");
}
