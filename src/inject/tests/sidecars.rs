//! Templates.

use serde_json::{Value, json};

use super::{Injected, config, inject_with, injected, names, pod};
use crate::{
    config::{Config, Labels},
    inject::{Reason, Surroundings},
};

/// The labels of a namespace.
type Labelled = &'static [(&'static str, &'static str)];

fn agent() -> Config {
    config(
        r#"
sidecars:
  default: [agent]
  templates:
  - name: agent
    containers:
    - name: agent
      image: agent:1
      livenessProbe: {httpGet: {path: /, port: 80}, initialDelaySeconds: 5}
      volumeMounts: [{name: data, mountPath: /data}]
    volumes: [{name: data, emptyDir: {sizeLimit: 1Gi}}]
    appContainers:
      env: [{name: AGENT, value: here}]
      volumeMounts: [{name: data, mountPath: /agent}]
    imagePullSecrets: [{name: pull}]
    annotations: {a: ours, b: ours}
    labels: {l: ours}
    tolerations: [{key: t, operator: Exists}]
  - name: extra
    never: {podSelector: {matchLabels: {extra: never}}}
    match: {podSelector: {matchLabels: {extra: "yes"}}}
    native: false
    containers: [{name: extra, image: "extra:1"}]
"#,
    )
}

fn agents_pod(change: impl Fn(&mut Value)) -> Value {
    let mut pod = pod(json!({"etcd-guard.io/inject": "agent"}));
    change(&mut pod);
    pod
}

#[test]
fn a_template_brings_all_its_parts() {
    let (after, reasons) = injected(&agents_pod(|_| {}), &[], &agent());
    assert_eq!(reasons, [Reason::Sidecar]);
    assert_eq!(names(&after["spec"]["initContainers"]), ["agent"]);
    assert_eq!(after["spec"]["initContainers"][0]["restartPolicy"], "Always");
    assert_eq!(after["spec"]["initContainers"][0]["livenessProbe"]["initialDelaySeconds"], 5);
    assert_eq!(after["spec"]["containers"][0]["env"], json!([{"name": "AGENT", "value": "here"}]));
    assert_eq!(
        after["spec"]["containers"][0]["volumeMounts"],
        json!([{"name": "data", "mountPath": "/agent"}])
    );
    assert_eq!(after["spec"]["volumes"], json!([{"name": "data", "emptyDir": {"sizeLimit": "1Gi"}}]));
    assert_eq!(after["spec"]["imagePullSecrets"], json!([{"name": "pull"}]));
    assert_eq!(after["metadata"]["labels"], json!({"l": "ours"}));
    let status = after["metadata"]["annotations"]["etcd-guard.io/injected"].as_str().unwrap();
    assert!(status.starts_with(r#"{"templates":{"agent":""#), "{status}");
}

#[test]
fn what_the_pod_has_of_its_own_goes_before() {
    let before = agents_pod(|pod| {
        pod["metadata"]["annotations"]["a"] = json!("theirs");
        pod["metadata"]["labels"] = json!({"l": "theirs"});
        pod["spec"]["containers"][0]["env"] = json!([{"name": "AGENT", "value": "theirs"}]);
        pod["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "v", "mountPath": "/agent/"}]);
        pod["spec"]["imagePullSecrets"] = json!([{"name": "mine"}, {"name": "pull"}]);
        pod["spec"]["tolerations"] = json!([{"key": "t", "operator": "Exists", "effect": ""}]);
    });
    let (after, _) = injected(&before, &[], &agent());
    assert_eq!(after["metadata"]["annotations"]["a"], "theirs");
    assert_eq!(after["metadata"]["annotations"]["b"], "ours");
    assert_eq!(after["metadata"]["labels"], before["metadata"]["labels"]);
    assert_eq!(after["spec"]["containers"], before["spec"]["containers"]);
    assert_eq!(after["spec"]["imagePullSecrets"], before["spec"]["imagePullSecrets"]);
    assert_eq!(after["spec"]["tolerations"], before["spec"]["tolerations"]);
}

#[test]
fn native_sidecars_are_for_clusters_that_know_them() {
    let (labels, agents) = (Labels::new(), agents_pod(|_| {}));
    let old = Surroundings { namespace: "prod", namespace_labels: Ok(&labels), native_sidecars: false };
    let after = Injected::of((&agents).into(), &old, &agent()).unwrap().pod.unwrap();
    assert_eq!(names(&after["spec"]["containers"]), ["web", "agent"]);
    assert_eq!(after["spec"]["initContainers"], Value::Null);

    let explicit = config(
        "sidecars: {templates: [{name: agent, initContainers: [{name: s, image: i, restartPolicy: Always}, {name: e, image: i}]}]}",
    );
    let after = Injected::of((&agents).into(), &old, &explicit).unwrap().pod.unwrap();
    assert_eq!(after["spec"]["containers"][1], json!({"name": "s", "image": "i"}));
    let (after, _) = injected(&agents, &[], &explicit);
    assert_eq!(names(&after["spec"]["initContainers"]), ["s", "e"]);
}

#[test]
fn a_container_that_a_template_moved_between_lists_is_not_there_twice() {
    // istio/istio#56455
    let before = agents_pod(|pod| {
        pod["spec"]["containers"] = json!([{"name": "web"}, {"name": "agent", "image": "agent:1"}]);
    });
    let (after, _) = injected(&before, &[], &agent());
    assert_eq!(after["spec"]["initContainers"], Value::Null);
}

#[test]
fn a_container_of_the_users_with_the_same_name_stays_and_is_warned_of() {
    let before = agents_pod(|pod| pod["spec"]["containers"][0] = json!({"name": "agent", "image": "mine:1"}));
    let (after, reasons) = injected(&before, &[], &agent());
    assert_eq!(reasons, [Reason::Conflict, Reason::Sidecar]);
    assert_eq!(names(&after["spec"]["containers"]), ["agent"]);
    assert_eq!(after["spec"]["containers"][0]["image"], "mine:1");
    assert_eq!(after["spec"]["initContainers"], Value::Null);

    let skip = config(
        "sidecars: {templates: [{name: agent, onConflict: skip, containers: [{name: agent, image: i}]}]}",
    );
    assert_eq!(injected(&before, &[], &skip), (before, vec![Reason::Conflict]));
}

#[test]
fn a_volume_of_another_content_keeps_its_name_and_the_template_takes_another() {
    let before =
        agents_pod(|pod| pod["spec"]["volumes"] = json!([{"name": "data", "hostPath": {"path": "/"}}]));
    let (after, _) = injected(&before, &[], &agent());
    assert_eq!(names(&after["spec"]["volumes"]), ["data", "agent-data"]);
    assert_eq!(after["spec"]["initContainers"][0]["volumeMounts"][0]["name"], "agent-data");
    assert_eq!(after["spec"]["containers"][0]["volumeMounts"][0]["name"], "agent-data");
}

#[test]
fn what_the_apiserver_fills_in_between_two_passes_is_no_difference() {
    let template = config(
        "sidecars: {templates: [{name: agent, onConflict: skip, volumes: [{name: c, configMap: {name: x}}, {name: h, hostPath: {path: /h}}]}]}",
    );
    let (mut after, _) = injected(&agents_pod(|_| {}), &[], &template);
    after["spec"]["volumes"][0]["configMap"]["defaultMode"] = json!(420);
    after["spec"]["volumes"][1]["hostPath"]["type"] = json!("");
    assert_eq!(injected(&after, &[], &template), (after, vec![Reason::AlreadyInjected]));
}

#[test]
fn the_pods_word_goes_before_selectors_and_those_before_the_namespaces_label() {
    let enabled: &[_] = &[("sidecar-injector", "enabled")];
    let ours: &[_] = &[("etcd-guard.io/inject", "enabled")];
    let cases: [(Value, Value, Labelled, &[&str]); 9] = [
        (json!({}), json!({}), &[], &[]),
        (json!({}), json!({}), enabled, &["agent"]),
        (json!({}), json!({}), ours, &["agent"]),
        (json!({"etcd-guard.io/inject": "false"}), json!({}), enabled, &[]),
        (json!({}), json!({"etcd-guard.io/inject": "false"}), enabled, &[]),
        (json!({"etcd-guard.io/inject": "true"}), json!({}), &[], &["agent"]),
        (json!({}), json!({"extra": "yes"}), enabled, &["agent", "extra"]),
        (json!({"etcd-guard.io/inject": "extra"}), json!({"extra": "never"}), enabled, &["extra"]),
        (json!({}), json!({"extra": "never"}), &[], &[]),
    ];
    for (annotations, labels, namespace, expected) in cases {
        let mut before = pod(annotations);
        before["metadata"]["labels"] = labels;
        let (after, _) = injected(&before, namespace, &agent());
        let found: Vec<&str> = ["initContainers", "containers"]
            .iter()
            .flat_map(|it| names(&after["spec"][*it]))
            .filter(|it| *it != "web")
            .collect();
        assert_eq!(found, expected, "{before} in {namespace:?}");
    }
}

#[test]
fn a_pod_that_asks_for_a_template_that_there_is_not_is_admitted_with_a_warning() {
    let injection = inject_with(&pod(json!({"etcd-guard.io/inject": "nobody"})), &[], &agent()).unwrap();
    assert!(injection.is_empty());
    assert_eq!(injection.notes[0].warning.as_deref(), Some("there is no template \"nobody\" to inject"));
}

#[test]
fn a_pod_that_asks_for_a_template_that_there_is_not_is_denied_where_the_configuration_says_so() {
    let strict = config(
        "skipNamespaces: [left-alone]\n\
         sidecars: {unknownTemplate: deny, templates: [{name: a}, {name: a, version: '2'}]}",
    );
    let asking = pod(json!({"etcd-guard.io/inject": "a,nobody"}));
    let denial = inject_with(&asking, &[], &strict).unwrap_err();
    assert_eq!(denial.reason, Reason::UnknownTemplate);
    assert_eq!(denial.message, "there is no template \"nobody\" to inject; known are: a, a:2");

    let labels = Labels::new();
    let left_alone =
        Surroundings { namespace: "left-alone", namespace_labels: Ok(&labels), native_sidecars: true };
    let injection = Injected::of(asking.into(), &left_alone, &strict).unwrap();
    assert_eq!(injection.notes[0].reason, Reason::SkippedNamespace);
}

#[test]
fn a_version_is_asked_for_by_name_and_a_bare_name_means_the_one_without() {
    let versions = config(
        r#"
sidecars:
  default: ["agent:2"]
  templates:
  - {name: agent, containers: [{name: agent, image: "agent:1"}], volumes: [{name: v, emptyDir: {}}]}
  - {name: agent, version: "2", containers: [{name: agent, image: "agent:2"}], volumes: [{name: v, configMap: {name: c}}]}
  - {name: only, version: v1.0, containers: [{name: only, image: "only:1"}]}
"#,
    );
    let cases: [(&str, &[&str]); 7] = [
        ("agent", &["agent:1"]),
        ("agent:2", &["agent:2"]),
        ("true", &["agent:2"]),
        ("agent:3", &[]),
        ("agent:", &["agent:1"]),
        ("only", &["only:1"]),
        ("only:v1.0,agent:2", &["agent:2", "only:1"]),
    ];
    for (asked, expected) in cases {
        let (after, _) = injected(&pod(json!({"etcd-guard.io/inject": asked})), &[], &versions);
        let containers = after["spec"]["initContainers"].as_array().into_iter().flatten();
        let images: Vec<&str> = containers.filter_map(|it| it["image"].as_str()).collect();
        assert_eq!(images, expected, "{asked}");
    }
    let both = pod(json!({"etcd-guard.io/inject": "agent:2,agent"}));
    let (after, reasons) = injected(&both, &[], &versions);
    assert_eq!(reasons, [Reason::Sidecar, Reason::Conflict]);
    let status = after["metadata"]["annotations"]["etcd-guard.io/injected"].as_str().unwrap();
    assert!(status.contains(r#""agent":"#), "{status}");
}

#[test]
fn the_record_names_the_version() {
    let versions =
        config("sidecars: {templates: [{name: a, version: '2', containers: [{name: a, image: i}]}]}");
    let (after, _) = injected(&pod(json!({"etcd-guard.io/inject": "a:2"})), &[], &versions);
    let status = after["metadata"]["annotations"]["etcd-guard.io/injected"].as_str().unwrap();
    assert!(status.starts_with(r#"{"templates":{"a:2":""#), "{status}");
}

#[test]
fn annotations_and_the_kind_of_the_controller_choose_as_well() {
    let chosen = config(
        "\
sidecars:
  templates:
  - name: a
    match: {annotations: {scrape: 'true'}, ownerKinds: [ReplicaSet, StatefulSet]}
    never: {ownerKinds: [Job]}
    containers: [{name: a, image: i}]
  - name: b
    match: {ownerKinds: [Job]}
    never: {annotations: {scrape: 'true'}}
    containers: [{name: b, image: i}]
",
    );
    let scraped = json!({"scrape": "true"});
    let cases: [(Value, &str, bool, &[&str]); 7] = [
        (scraped.clone(), "ReplicaSet", true, &["a"]),
        (scraped.clone(), "StatefulSet", true, &["a"]),
        (scraped.clone(), "ReplicaSet", false, &[]),
        (scraped.clone(), "DaemonSet", true, &[]),
        (json!({"scrape": "false"}), "ReplicaSet", true, &[]),
        (json!({}), "Job", true, &["b"]),
        (scraped, "Job", true, &[]),
    ];
    for (annotations, kind, controls, expected) in cases {
        let mut before = pod(annotations);
        before["metadata"]["ownerReferences"] = json!([{"kind": kind, "name": "x", "controller": controls}]);
        let (after, _) = injected(&before, &[], &chosen);
        assert_eq!(names(&after["spec"]["initContainers"]), expected, "{before}");
    }
}

#[test]
fn a_container_that_goes_first_is_not_the_one_that_kubectl_means() {
    let first = config(
        "sidecars: {templates: [{name: a, order: 1, position: first, native: false, containers: [{name: a, image: i}]},
         {name: b, order: 2, position: first, native: false, containers: [{name: b, image: i}]}]}",
    );
    let (after, _) = injected(&pod(json!({"etcd-guard.io/inject": "b,a"})), &[], &first);
    assert_eq!(names(&after["spec"]["containers"]), ["a", "b", "web"]);
    assert_eq!(after["metadata"]["annotations"]["kubectl.kubernetes.io/default-container"], "web");
}

#[test]
fn network_sidecars_leave_pods_in_the_nodes_network_alone() {
    let skip = config(
        "sidecars: {templates: [{name: agent, skipHostNetwork: true, containers: [{name: a, image: i}]}]}",
    );
    let before = agents_pod(|pod| pod["spec"]["hostNetwork"] = json!(true));
    assert_eq!(injected(&before, &[], &skip), (before, vec![Reason::HostNetwork]));
}

#[test]
fn a_volume_that_the_pod_should_bring_and_does_not_leaves_the_template_out() {
    let external = config(
        "sidecars: {templates: [{name: agent, externalVolumes: [logs], containers: [{name: a, image: i, volumeMounts: [{name: logs, mountPath: /logs}]}]}]}",
    );
    let before = agents_pod(|_| {});
    assert_eq!(injected(&before, &[], &external), (before, vec![Reason::MissingVolume]));
    let with_logs = agents_pod(|pod| pod["spec"]["volumes"] = json!([{"name": "logs", "emptyDir": {}}]));
    assert_eq!(injected(&with_logs, &[], &external).1, [Reason::Sidecar]);
}

#[test]
fn a_copied_status_is_not_believed() {
    // A pod made from another's YAML carries the other's record.
    let before = agents_pod(|pod| {
        pod["metadata"]["annotations"]["etcd-guard.io/injected"] = json!(r#"{"templates":{"agent":"0"}}"#);
    });
    let (after, reasons) = injected(&before, &[], &agent());
    assert_eq!(reasons, [Reason::Sidecar]);
    assert_ne!(after["metadata"]["annotations"]["etcd-guard.io/injected"], r#"{"templates":{"agent":"0"}}"#);
}

#[test]
fn two_new_volumes_never_get_one_name() {
    // The pod has another `buf`, so that the template's would be `log-buf`, which is the other one's name.
    let log = |volumes: &str| {
        config(&format!(
            "sidecars: {{templates: [{{name: log, volumes: [{volumes}], containers: [{{name: log, image: i, \
             volumeMounts: [{{name: buf, mountPath: /buf}}, {{name: log-buf, mountPath: /log}}]}}]}}]}}"
        ))
    };
    let mut before = pod(json!({"etcd-guard.io/inject": "log"}));
    before["spec"]["volumes"] = json!([{"name": "buf", "hostPath": {"path": "/"}}]);
    let mounted = |after: &Value| -> Vec<String> {
        let mounts = after["spec"]["initContainers"][0]["volumeMounts"].as_array().unwrap();
        mounts.iter().map(|it| it["name"].as_str().unwrap().to_owned()).collect()
    };
    let (after, reasons) = injected(
        &before,
        &[],
        &log("{name: buf, emptyDir: {}}, {name: log-buf, emptyDir: {sizeLimit: 1Gi}}"),
    );
    assert_eq!(reasons, [Reason::Sidecar]);
    assert_eq!(names(&after["spec"]["volumes"]), ["buf", "log-buf", "log-log-buf"]);
    assert_eq!(mounted(&after), ["log-buf", "log-log-buf"]);
    assert_eq!(after["spec"]["volumes"][2]["emptyDir"]["sizeLimit"], "1Gi");

    // Alike, they are two nevertheless.
    let (after, _) = injected(&before, &[], &log("{name: buf, emptyDir: {}}, {name: log-buf, emptyDir: {}}"));
    assert_eq!(mounted(&after), ["log-buf", "log-log-buf"]);

    // In the other order no name is left: the template is left out, and the pod admitted.
    let other_order = log("{name: log-buf, emptyDir: {}}, {name: buf, emptyDir: {}}");
    assert_eq!(injected(&before, &[], &other_order), (before, vec![Reason::Conflict]));
}

#[test]
fn names_that_are_cut_alike_are_not_used_twice() {
    let long = "a".repeat(60);
    let template = config(&format!(
        "sidecars: {{templates: [{{name: {long}, volumes: [{{name: one, emptyDir: {{}}}}, {{name: on, emptyDir: {{}}}}]}}]}}"
    ));
    let mut before = pod(json!({"etcd-guard.io/inject": long}));
    before["spec"]["volumes"] =
        json!([{"name": "one", "hostPath": {"path": "/"}}, {"name": "on", "hostPath": {"path": "/"}}]);
    assert_eq!(injected(&before, &[], &template), (before, vec![Reason::Conflict]));
}

#[test]
fn a_device_has_the_name_that_its_volume_got() {
    let block = config(
        "sidecars: {templates: [{name: agent, volumes: [{name: raw, persistentVolumeClaim: {claimName: c}}], \
         containers: [{name: a, image: i, volumeDevices: [{name: raw, devicePath: /dev/raw}]}]}]}",
    );
    let before = agents_pod(|pod| pod["spec"]["volumes"] = json!([{"name": "raw", "emptyDir": {}}]));
    let (after, _) = injected(&before, &[], &block);
    assert_eq!(after["spec"]["initContainers"][0]["volumeDevices"][0]["name"], "agent-raw");
}

#[test]
fn a_container_of_the_users_gets_what_is_for_the_pods_own_whatever_its_name() {
    let before = agents_pod(|pod| pod["spec"]["containers"][0] = json!({"name": "extra", "image": "mine:1"}));
    let mut both = before.clone();
    both["metadata"]["annotations"]["etcd-guard.io/inject"] = json!("agent,extra");
    let (after, reasons) = injected(&both, &[], &agent());
    assert_eq!(reasons, [Reason::Sidecar, Reason::Conflict, Reason::AlreadyInjected]);
    assert_eq!(after["spec"]["containers"][0]["env"], json!([{"name": "AGENT", "value": "here"}]));
    // The template's own, which is there already, gets nothing.
    both["spec"]["containers"][0]["image"] = json!("extra:1");
    let (after, _) = injected(&both, &[], &agent());
    assert_eq!(after["spec"]["containers"][0].get("env"), None);
}

#[test]
fn an_older_annotation_that_asks_for_lxcfs_counts_beside_names_of_templates() {
    let old = |ours: &str, old: &str| {
        let annotations = json!({"etcd-guard.io/inject": ours, "sidecar-injector.lxcfs/inject": old});
        injected(&pod(annotations), &[], &agent()).1
    };
    assert_eq!(old("agent", "true"), [Reason::Sidecar, Reason::Lxcfs]);
    assert_eq!(old("agent", "false"), [Reason::Sidecar]);
    assert_eq!(old("agent,lxcfs", "false"), [Reason::Sidecar, Reason::Lxcfs], "the newer word goes before");
    assert_eq!(old("false", "true"), []);
}

#[test]
fn nodes_that_a_template_names_by_field_are_asked_for_in_each_of_the_pods_terms() {
    let placed = config(
        r"
sidecars:
  templates:
  - name: agent
    affinity:
      nodeAffinity:
        requiredDuringSchedulingIgnoredDuringExecution:
          nodeSelectorTerms:
          - matchExpressions: [{key: disk, operator: In, values: [ssd]}]
            matchFields: [{key: metadata.name, operator: NotIn, values: [n1]}]
",
    );
    let terms = |pod: &Value| {
        let affinity = &pod["spec"]["affinity"]["nodeAffinity"];
        affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"].clone()
    };
    let disk = json!({"key": "disk", "operator": "In", "values": ["ssd"]});
    let not_n1 = json!({"key": "metadata.name", "operator": "NotIn", "values": ["n1"]});
    let (after, _) = injected(&agents_pod(|_| {}), &[], &placed);
    assert_eq!(terms(&after), json!([{"matchExpressions": [disk], "matchFields": [not_n1]}]));

    let zone = json!({"key": "zone", "operator": "Exists"});
    let before = agents_pod(|pod| {
        let required = json!({"nodeSelectorTerms": [{"matchExpressions": [zone]}, {}]});
        pod["spec"]["affinity"] =
            json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}});
    });
    let (after, _) = injected(&before, &[], &placed);
    assert_eq!(terms(&after), json!([{"matchExpressions": [zone, disk], "matchFields": [not_n1]}, {}]));
}
