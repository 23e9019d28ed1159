use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::{
    guard::discovery::{etcd_pod, stopped_pod::verdict_of_stopped_pod},
    k8s::pod::Pod,
};

fn is_unrelated(pod: &Value) -> bool {
    serde_json::from_str::<PodHeader<'_>>(&pod.to_string()).is_ok_and(|header| header.is_unrelated())
}

fn web() -> Value {
    json!({
        "metadata": {
            "name": "web-0",
            "namespace": "shop",
            "annotations": {"team": "web"},
            "ownerReferences": [
                {"kind": "Tenant", "name": "shop", "uid": "1"},
                {"kind": "StatefulSet", "name": "web", "uid": "2", "controller": true},
            ],
            "managedFields": [{"fieldsV1": {"f:spec": {}}}],
        },
        "spec": {"containers": [
            {"name": "web", "image": "nginx:1", "command": ["nginx"], "args": ["-g", "daemon off;"], "env": [
                {"name": "ETCD_ENDPOINTS", "value": "http://etcd-0:2379"},
            ]},
        ]},
        "status": {"phase": "Running"},
    })
}

#[test]
fn reads_names_of_a_pod_without_etcd() {
    let pod = web().to_string();
    let header: PodHeader<'_> = serde_json::from_str(&pod).unwrap();
    assert!(header.is_unrelated());
    assert_eq!((header.name(), header.namespace(), header.stateful_set()), ("web-0", "shop", Some("web")));
}

/// Edge case 40.
#[test]
fn considers_native_sidecars_but_no_other_init_containers() {
    let mut pod = web();
    pod["spec"]["initContainers"] = json!([{"name": "etcd", "image": "quay.io/coreos/etcd:v3.6.16"}]);
    assert!(is_unrelated(&pod));
    pod["spec"]["initContainers"][0]["restartPolicy"] = json!("Always");
    assert!(!is_unrelated(&pod));
}

#[test]
fn returns_only_a_stateful_set_that_is_the_controller() {
    for owners in [
        json!([]),
        json!([{"kind": "StatefulSet", "name": "web"}]),
        json!([{"kind": "ReplicaSet", "name": "web", "controller": true}]),
    ] {
        let mut pod = web();
        pod["metadata"]["ownerReferences"] = owners;
        let pod = pod.to_string();
        assert_eq!(serde_json::from_str::<PodHeader<'_>>(&pod).unwrap().stateful_set(), None);
    }
}

#[test]
fn rejects_settled_annotated_invalid_and_etcd_pods() {
    let changes: [(&str, Value); 12] = [
        ("/metadata/annotations", json!({"etcd-guard.io/member": "true"})),
        ("/metadata/annotations", json!({"etcd-guard.io/member": "false"})),
        ("/metadata/annotations", json!({"kubernetes.io/config.mirror": "x"})),
        ("/metadata/annotations", json!({"team": 1})),
        ("/metadata/annotations", Value::Null),
        ("/status/phase", json!("Succeeded")),
        ("/status/phase", json!("Failed")),
        ("/spec/containers", Value::Null),
        ("/spec/containers/0/image", json!("registry.example/etcd@sha256:1")),
        ("/spec/containers/0/args", json!(["-c", "exec etcd --name=a"])),
        ("/spec/containers/0/env/0/name", json!("ETCD_LISTEN_PEER_URLS")),
        ("/spec/containers/0/command", json!({})),
    ];
    for (path, value) in changes {
        let mut pod = web();
        *pod.pointer_mut(path).unwrap() = value;
        assert!(!is_unrelated(&pod), "{pod}");
    }
    let mut pod = web();
    pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    assert!(!is_unrelated(&pod), "the pod is terminating");
    assert!(is_unrelated(&web()));
}

/// Words of generated commands.
const WORDS: [&str; 21] = [
    "exec /usr/bin/etcd --data-dir=/x",
    "--listen-peer-urls=http://a:2380",
    "etcdctl snapshot restore --initial-cluster-state new",
    "# etcd",
    "sleep 1d",
    "start-etcd",
    "etcd",
    "/usr/local/bin/etcd",
    "exec etcd",
    "sh",
    "-c",
    "--name",
    "--name=etcd",
    "etcdctl",
    "grpc-proxy",
    "exec etcd gateway",
    "'etcd'",
    "etcd-wrapper",
    "nginx && etcd --x",
    "e\u{0}tcd",
    "",
];

fn word() -> impl Strategy<Value = String> {
    prop_oneof![
        prop::sample::select(&WORDS[..]).prop_map(str::to_owned),
        "[a-z/ ;&|'\"-]{0,6}(etcd)?[a-z:@ -]{0,4}",
    ]
}

fn container() -> impl Strategy<Value = Value> {
    let images =
        ["nginx", "etcd", "x/etcd:1", "etcd-wrapper@sha256:a", "etcd/tools", "etcd-backup", "etcd-manager"];
    let image = prop::sample::select(images.to_vec());
    let variables =
        ["ETCD_NAME", "ETCD_DATA_DIR", "ETCD_LISTEN_PEER_URLS", "ETCD_INITIAL_ADVERTISE_PEER_URLS", "A"];
    let variable =
        prop::sample::select(variables.to_vec()).prop_map(|name| json!({"name": name, "value": "1"}));
    let port = prop::sample::select(vec![80, 2379, 2380]).prop_map(|port| json!({"containerPort": port}));
    let many = |item: BoxedStrategy<Value>| prop::collection::vec(item, 0..3);
    (
        image,
        prop::collection::vec(word(), 0..3),
        prop::collection::vec(word(), 0..4),
        many(variable.boxed()),
        many(port.boxed()),
        prop::option::of(Just("Always")),
    )
        .prop_map(|(image, command, args, env, ports, policy)| {
            let mut container = json!({
                "name": "c", "image": image, "command": command, "args": args, "env": env, "ports": ports
            });
            if let Some(policy) = policy {
                container["restartPolicy"] = json!(policy);
            }
            container
        })
}

fn metadata() -> impl Strategy<Value = Value> {
    let annotation = prop::option::of(prop::sample::select(&["true", "false", "?", "c", "d"][..]));
    let kind = prop::sample::select(&["StatefulSet", "ReplicaSet", "Job"][..]);
    (annotation, kind, any::<bool>(), any::<bool>()).prop_map(
        |(member, kind, is_controller, is_terminating)| {
            let mut metadata = json!({"name": "p-0", "namespace": "n"});
            metadata["ownerReferences"] =
                json!([{"kind": kind, "name": "p", "uid": "u", "controller": is_controller}]);
            if let Some(member) = member {
                metadata["annotations"] = json!({MEMBER: member});
            }
            if is_terminating {
                metadata["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
            }
            metadata
        },
    )
}

proptest! {
    /// Edge case 71: a member that the fast path approves could cost the quorum.
    #[test]
    fn approves_no_pod_that_the_full_parser_recognizes(
        metadata in metadata(),
        containers in prop::collection::vec(container(), 0..3),
        init_containers in prop::collection::vec(container(), 0..3),
        phase in prop::sample::select(&["Running", "Failed", ""][..]),
    ) {
        let spec = json!({"containers": containers, "initContainers": init_containers});
        let pod = json!({"metadata": metadata, "spec": spec, "status": {"phase": phase}});
        let whole: Pod = serde_json::from_value(pod.clone()).unwrap();
        if is_unrelated(&pod) {
            prop_assert!(etcd_pod::read(&whole, &whole.metadata.annotations).is_none());
            prop_assert!(verdict_of_stopped_pod(&whole).is_none());
        }
    }
}
