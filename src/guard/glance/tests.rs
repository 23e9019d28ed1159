use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::{guard::settled, k8s::pod::Pod};

fn is_bystander(pod: &Value) -> bool {
    serde_json::from_str::<Glance<'_>>(&pod.to_string()).is_ok_and(|it| it.is_bystander())
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
fn a_pod_without_etcd_is_passed_by_with_its_names() {
    let pod = web().to_string();
    let glance: Glance<'_> = serde_json::from_str(&pod).unwrap();
    assert!(glance.is_bystander());
    assert_eq!((glance.name(), glance.namespace(), glance.stateful_set()), ("web-0", "shop", Some("web")));
}

#[test]
fn only_a_stateful_set_that_controls_it_is_its_own() {
    for owners in [
        json!([]),
        json!([{"kind": "StatefulSet", "name": "web"}]),
        json!([{"kind": "ReplicaSet", "name": "web", "controller": true}]),
    ] {
        let mut pod = web();
        pod["metadata"]["ownerReferences"] = owners;
        let pod = pod.to_string();
        assert_eq!(serde_json::from_str::<Glance<'_>>(&pod).unwrap().stateful_set(), None);
    }
}

#[test]
fn whatever_may_say_otherwise_is_looked_at_as_a_whole() {
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
    for (place, value) in changes {
        let mut pod = web();
        *pod.pointer_mut(place).unwrap() = value;
        assert!(!is_bystander(&pod), "{pod}");
    }
    let mut pod = web();
    pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    assert!(!is_bystander(&pod), "it is on its way");
    assert!(is_bystander(&web()));
}

/// What commands are made of.
const WORDS: [&str; 13] = [
    "etcd",
    "/usr/local/bin/etcd",
    "exec etcd",
    "sh",
    "-c",
    "--name",
    "--name=etcd",
    "etcdctl",
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
    let image =
        prop::sample::select(&["nginx", "etcd", "x/etcd:1", "etcd-wrapper@sha256:a", "etcd/tools"][..]);
    let variables = ["ETCD_NAME", "ETCD_LISTEN_PEER_URLS", "ETCD_INITIAL_ADVERTISE_PEER_URLS", "A"];
    let variable =
        prop::sample::select(variables.to_vec()).prop_map(|name| json!({"name": name, "value": "1"}));
    let port = prop::sample::select(vec![80, 2379, 2380]).prop_map(|port| json!({"containerPort": port}));
    let many = |it: BoxedStrategy<Value>| prop::collection::vec(it, 0..3);
    (
        image,
        prop::collection::vec(word(), 0..3),
        prop::collection::vec(word(), 0..4),
        many(variable.boxed()),
        many(port.boxed()),
    )
        .prop_map(|(image, command, args, env, ports)| {
            json!({"name": "c", "image": image, "command": command, "args": args, "env": env, "ports": ports})
        })
}

fn metadata() -> impl Strategy<Value = Value> {
    let annotation = prop::option::of(prop::sample::select(&["true", "false", "?"][..]));
    let kind = prop::sample::select(&["StatefulSet", "ReplicaSet"][..]);
    (annotation, kind, any::<bool>(), any::<bool>()).prop_map(|(member, kind, controls, goes)| {
        let mut metadata = json!({"name": "p-0", "namespace": "n"});
        metadata["ownerReferences"] =
            json!([{"kind": kind, "name": "p", "uid": "u", "controller": controls}]);
        if let Some(member) = member {
            metadata["annotations"] = json!({MEMBER_ANNOTATION: member});
        }
        if goes {
            metadata["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        }
        metadata
    })
}

proptest! {
    /// What costs a quorum is a member that is passed by.
    #[test]
    fn nobody_is_passed_by_who_read_as_a_whole_runs_etcd(
        metadata in metadata(),
        containers in prop::collection::vec(container(), 0..3),
        phase in prop::sample::select(&["Running", "Failed", ""][..]),
    ) {
        let pod = json!({"metadata": metadata, "spec": {"containers": containers}, "status": {"phase": phase}});
        let whole: Pod = serde_json::from_value(pod.clone()).unwrap();
        if is_bystander(&pod) {
            prop_assert!(etcd_pod::read(&whole, &whole.metadata.annotations).is_none());
            prop_assert!(settled(&whole).is_none());
        }
    }
}
