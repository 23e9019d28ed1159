//! Properties for any pod: the patch applies and preserves the user's values, a second pass changes nothing, and the
//! bytes are deterministic.

use proptest::{collection::vec, option, prelude::*, sample::select};
use serde_json::{Map, Value, json};

use super::{inject_with, names};
use crate::pods::{
    INJECTED,
    fuzzing::{full_config, preserves},
};

/// A pod as the next webhook receives it: with defaults, normalized quantities and without empty fields
/// (`pkg/apis/core/v1/defaults.go`).
fn normalized_by_api_server(pod: &Value) -> Value {
    let mut pod = pod.clone();
    let Some(volumes) = pod["spec"]["volumes"].as_array_mut() else { return pod };
    for volume in volumes.iter_mut().filter_map(Value::as_object_mut) {
        if volume.len() == 1 {
            volume.insert("emptyDir".into(), json!({}));
        }
        for (kind, source) in volume.iter_mut().filter(|(_, source)| source.is_object()) {
            match kind.as_str() {
                "emptyDir" => {
                    let source = source.as_object_mut().unwrap();
                    source.retain(|_, value| *value != "");
                    source.entry("sizeLimit").and_modify(|limit| *limit = json!("1Gi"));
                }
                "configMap" | "secret" | "downwardAPI" | "projected" => {
                    source["defaultMode"] = json!(420);
                    for item in source.get_mut("items").and_then(Value::as_array_mut).into_iter().flatten() {
                        if let Some(field) = item.get_mut("fieldRef") {
                            field["apiVersion"] = json!("v1");
                        }
                        if let Some(resource) = item.get_mut("resourceFieldRef") {
                            resource["divisor"] = json!("0");
                        }
                    }
                    for item in source.get_mut("sources").and_then(Value::as_array_mut).into_iter().flatten()
                    {
                        item["serviceAccountToken"]["expirationSeconds"] = json!(3600);
                    }
                }
                "ephemeral" => {
                    let claim = &mut source["volumeClaimTemplate"];
                    claim["metadata"] = json!({"creationTimestamp": null});
                    claim["spec"]["volumeMode"] = json!("Filesystem");
                    claim["spec"]["resources"]["requests"]["storage"] = json!("1Gi");
                }
                "image" => source["pullPolicy"] = json!("IfNotPresent"),
                _ => {}
            }
        }
    }
    pod
}

/// A pod after another webhook that redirects images to a registry mirror.
fn with_mirrored_images(pod: &Value) -> Value {
    let mut pod = pod.clone();
    for list in ["initContainers", "containers"] {
        for container in pod["spec"].get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            if let Some(image) = container.get("image").and_then(Value::as_str) {
                container["image"] = json!(format!("mirror.example/{image}"));
            }
        }
    }
    pod
}

/// The names that several volumes of a pod have.
fn duplicate_volumes(pod: &Value) -> Vec<&str> {
    let mut names = names(&pod["spec"]["volumes"]);
    names.sort_unstable();
    names.windows(2).filter(|pair| pair[0] == pair[1]).map(|pair| pair[0]).collect()
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        select(vec!["a/b", "~1", "~0", "a~b/c", "", "-", "0", "näme", "\"quoted\"", "x.y/z"])
            .prop_map(String::from),
        "[a-z/~.-]{1,8}",
    ]
}

/// Null, an absent member, or a value.
fn optional(value: impl Strategy<Value = Value> + 'static) -> BoxedStrategy<Option<Value>> {
    prop_oneof![Just(None), Just(Some(Value::Null)), value.prop_map(Some)].boxed()
}

fn object(members: Vec<(String, BoxedStrategy<Option<Value>>)>) -> impl Strategy<Value = Value> {
    let (keys, values): (Vec<_>, Vec<_>) = members.into_iter().unzip();
    values.prop_map(move |values| {
        let present = keys.iter().cloned().zip(values).filter_map(|(key, value)| Some((key, value?)));
        Value::Object(present.collect::<Map<_, _>>())
    })
}

fn texts(keys: Vec<&'static str>, values: Vec<&'static str>) -> impl Strategy<Value = Value> {
    let pair = prop_oneof![
        (select(keys).prop_map(String::from), select(values).prop_map(String::from)),
        (text(), text())
    ];
    vec(pair, 0..5).prop_map(|pairs| pairs.into_iter().map(|(key, value)| (key, json!(value))).collect())
}

fn mount() -> impl Strategy<Value = Value> {
    let volume = select(vec!["lxcfs-proc-meminfo", "data", "agent-data", "other"]);
    let path = select(vec![
        "/proc/meminfo",
        "/proc//meminfo/",
        "/proc",
        "/",
        "/sys/devices/system/cpu",
        "/sys/devices/system/cpu/online",
        "/data",
        "/x/../data",
        "/app",
    ]);
    (volume, path).prop_map(|(name, path)| json!({"name": name, "mountPath": path}))
}

fn container() -> impl Strategy<Value = Value> {
    let name = prop_oneof![
        select(vec!["web", "agent", "proxy", "early", "strict", "prepare"]).prop_map(String::from),
        text()
    ];
    object(vec![
        ("name".into(), name.prop_map(|text| Some(json!(text))).boxed()),
        ("image".into(), optional(select(vec!["agent:1", "web:1"]).prop_map(|text| json!(text)))),
        ("volumeMounts".into(), optional(vec(mount(), 0..4).prop_map(Value::from))),
        (
            "env".into(),
            optional(Just(json!([{"name": "AGENT", "value": "theirs"}, {"name": "ELSE"}, {"name": "B"}]))),
        ),
        ("resources".into(), optional(Just(json!({"limits": {"cpu": "1"}})))),
        ("restartPolicy".into(), optional(Just(json!("Always")))),
        ("fieldOfTomorrow".into(), optional(Just(json!({"a": [1, {"b~/c": null}]})))),
    ])
}

fn volume() -> impl Strategy<Value = Value> {
    let content = select(vec![
        json!({"emptyDir": {}}),
        json!({"hostPath": {"path": "/var/lib/lxcfs/proc/meminfo", "type": "File"}}),
        json!({"configMap": {"name": "c", "defaultMode": 420}}),
        json!({"kindOfTomorrow": {}}),
    ]);
    let names = vec!["lxcfs-proc-meminfo", "etcd-guard-lxcfs-proc-meminfo", "data", "agent-data", "strict"];
    (select(names), content).prop_map(|(name, mut volume)| {
        volume["name"] = json!(name);
        volume
    })
}

fn any_pod() -> impl Strategy<Value = Value> {
    let annotations = texts(
        vec![
            "etcd-guard.io/inject",
            "sidecar-injector.lxcfs/inject",
            INJECTED,
            "cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes",
            "agent.inject.etcd-guard.io/image",
            "agent.inject.etcd-guard.io/cpu-limit",
            "agent.inject.etcd-guard.io/env.AGENT",
            "proxy.inject.etcd-guard.io/image",
        ],
        vec!["true", "false", "lxcfs", "agent,lxcfs", "nobody,native", "strict, agent", "kinds", "data"],
    );
    let labels = texts(
        vec!["selected", "never", "acme.com/lifespan-requested", "etcd-guard.io/inject"],
        vec!["yes", "1", "14", "7"],
    );
    let flag = || optional(any::<bool>().prop_map(Value::from));
    let containers = || vec(container(), 0..6).prop_map(Value::from);
    let terms = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
        {"matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd"]}]}, {}, {"matchFields": [{"key": "n"}]}
    ]}}});
    let metadata = object(vec![
        ("generateName".into(), optional(text().prop_map(Value::from))),
        ("annotations".into(), optional(annotations)),
        ("labels".into(), optional(labels)),
    ]);
    let spec = object(vec![
        ("containers".into(), containers().prop_map(Some).boxed()),
        ("initContainers".into(), optional(containers())),
        ("volumes".into(), optional(vec(volume(), 0..4).prop_map(Value::from))),
        ("hostPID".into(), flag()),
        ("shareProcessNamespace".into(), flag()),
        ("affinity".into(), optional(select(vec![json!({}), terms]))),
        ("tolerations".into(), optional(Just(json!([{"key": "a", "operator": "Exists"}])))),
        ("terminationGracePeriodSeconds".into(), optional(select(vec![json!(0), json!(30), json!(90)]))),
        (
            "dnsConfig".into(),
            optional(select(vec![
                json!({}),
                json!({"nameservers": ["192.0.2.2", "192.0.2.9", "192.0.2.8"]}),
            ])),
        ),
        (
            "hostAliases".into(),
            optional(select(vec![
                json!([]),
                json!([{"ip": "192.0.2.1", "hostnames": ["a"]}, {"ip": "192.0.2.3"}]),
            ])),
        ),
        (
            "securityContext".into(),
            optional(select(vec![json!({}), json!({"runAsNonRoot": false, "tomorrow": {}})])),
        ),
        ("tomorrow".into(), optional(Just(json!({"x": 18_446_744_073_709_551_615_u64})))),
    ]);
    (option::weighted(0.9, metadata), spec).prop_map(|(metadata, spec)| {
        let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "spec": spec, "fieldOfTomorrow": 1});
        if let Some(metadata) = metadata {
            pod["metadata"] = metadata;
        }
        pod
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn preserves_user_values_and_second_pass_is_empty(
        pod in any_pod(),
        opted_in in any::<bool>(),
    ) {
        let config = full_config();
        let namespace: &[_] = if opted_in { &[("sidecar-injector", "enabled")] } else { &[] };
        let injection = match inject_with(&pod, namespace, &config) {
            Ok(injection) => injection,
            Err(denial) => {
                prop_assert!(denial.message.contains("lifespan"), "{denial}");
                return Ok(());
            }
        };
        let failed = injection.notes.iter().any(|note| note.reason.outcome().as_str() == "failed");
        prop_assert!(!failed, "{:?}", injection.notes);
        let mut applied = pod.clone();
        json_patch::patch(&mut applied, &injection.patch).unwrap();
        prop_assert_eq!(&applied, injection.pod.as_ref().unwrap_or(&pod));
        if let Err(lost) = preserves(&applied, &pod, "") {
            prop_assert!(false, "{lost}");
        }
        let again = inject_with(&applied, namespace, &config).unwrap();
        prop_assert!(again.patch.is_empty(), "a second pass: {:#?}", again.patch);
        for between in [normalized_by_api_server(&applied), with_mirrored_images(&applied)] {
            let again = inject_with(&between, namespace, &config).unwrap();
            prop_assert!(again.patch.is_empty(), "a second pass after others: {:#?}", again.patch);
        }
        prop_assert_eq!(duplicate_volumes(&applied), duplicate_volumes(&pod));
        let same = inject_with(&pod, namespace, &config).unwrap();
        prop_assert_eq!(same.patch, injection.patch);
        for warning in injection.notes.iter().filter_map(|note| note.warning.as_ref()) {
            prop_assert!(!warning.contains('\n'), "{warning}");
        }
    }
}
