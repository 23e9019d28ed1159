//! Selection of templates for pods.

use serde_json::{Value, json};

use super::{
    Injected, config, inject_with, injected, names, pod,
    sidecars::{agent, agents_pod},
};
use crate::pods::{InjectionContext, Reason};
use etcd_guard_core::config::selector::Labels;

/// The labels of a namespace.
type Labelled = &'static [(&'static str, &'static str)];

#[test]
fn request_precedes_selectors_and_namespace_label() {
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
            .flat_map(|list| names(&after["spec"][*list]))
            .filter(|name| *name != "web")
            .collect();
        assert_eq!(found, expected, "{before} in {namespace:?}");
    }
}

#[test]
fn admits_unknown_template_with_a_warning() {
    let injection = inject_with(&pod(json!({"etcd-guard.io/inject": "nobody"})), &[], &agent()).unwrap();
    assert!(injection.is_empty());
    assert_eq!(injection.notes[0].warning.as_deref(), Some("there is no template \"nobody\" to inject"));
}

#[test]
fn request_without_known_name_counts_as_absent() {
    let enabled: &[_] = &[("sidecar-injector", "enabled")];
    for said in ["ture", "agnet, extar", "agent:3"] {
        let injection = inject_with(&pod(json!({"etcd-guard.io/inject": said})), enabled, &agent()).unwrap();
        let notes: Vec<Reason> = injection.notes.iter().map(|note| note.reason).collect();
        assert!(notes.contains(&Reason::UnknownTemplate), "{said}: {notes:?}");
        assert_eq!(names(&injection.pod.unwrap()["spec"]["initContainers"]), ["agent"], "{said}");
    }
    let (after, _) = injected(&pod(json!({"etcd-guard.io/inject": "extra,ture"})), enabled, &agent());
    assert_eq!(
        names(&after["spec"]["containers"]),
        ["web", "extra"],
        "one known name makes the request a list"
    );
    for no in ["none", "false"] {
        let before = pod(json!({"etcd-guard.io/inject": no}));
        assert_eq!(injected(&before, enabled, &agent()), (before, vec![]));
    }
}

#[test]
fn warns_of_a_request_for_an_empty_default_list() {
    let without = config("sidecars: {templates: [{name: a, containers: [{name: a, image: i}]}]}");
    for word in ["true", "yes"] {
        let injection = inject_with(&pod(json!({"etcd-guard.io/inject": word})), &[], &without).unwrap();
        assert!(injection.is_empty());
        let warnings: Vec<_> = injection.notes.iter().filter_map(|note| note.warning.as_deref()).collect();
        let expected = format!(
            "etcd-guard.io/inject: {word:?} requests the default list, which is empty: name templates instead"
        );
        assert_eq!(warnings, [expected.as_str()]);
        assert!(expected.len() <= 120);
    }
}

#[test]
fn denies_unknown_template_if_configured() {
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
        InjectionContext { namespace: "left-alone", namespace_labels: Ok(&labels), native_sidecars: true };
    let injection = Injected::new(asking, &left_alone, &strict).unwrap();
    assert_eq!(injection.notes[0].reason, Reason::SkippedNamespace);
}

#[test]
fn selects_template_versions_by_full_name() {
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
        let images: Vec<&str> = containers.filter_map(|container| container["image"].as_str()).collect();
        assert_eq!(images, expected, "{asked}");
    }
    let both = pod(json!({"etcd-guard.io/inject": "agent:2,agent"}));
    let (after, reasons) = injected(&both, &[], &versions);
    assert_eq!(reasons, [Reason::Sidecar, Reason::Conflict]);
    let status = after["metadata"]["annotations"]["etcd-guard.io/injected"].as_str().unwrap();
    assert!(status.contains(r#""agent":"#), "{status}");
}

#[test]
fn records_the_template_version() {
    let versions =
        config("sidecars: {templates: [{name: a, version: '2', containers: [{name: a, image: i}]}]}");
    let (after, _) = injected(&pod(json!({"etcd-guard.io/inject": "a:2"})), &[], &versions);
    let status = after["metadata"]["annotations"]["etcd-guard.io/injected"].as_str().unwrap();
    assert!(status.starts_with(r#"{"templates":{"a:2":""#), "{status}");
}

#[test]
fn selects_by_annotations_and_controller_kind() {
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
fn skips_host_network_pods_if_configured() {
    let skip = config(
        "sidecars: {templates: [{name: agent, skipHostNetwork: true, containers: [{name: a, image: i}]}]}",
    );
    let before = agents_pod(|pod| pod["spec"]["hostNetwork"] = json!(true));
    assert_eq!(injected(&before, &[], &skip), (before, vec![Reason::HostNetwork]));
}

#[test]
fn skips_template_without_its_external_volume() {
    let external = config(
        "sidecars: {templates: [{name: agent, externalVolumes: [logs], containers: [{name: a, image: i, volumeMounts: [{name: logs, mountPath: /logs}]}]}]}",
    );
    let before = agents_pod(|_| {});
    assert_eq!(injected(&before, &[], &external), (before, vec![Reason::MissingVolume]));
    let with_logs = agents_pod(|pod| pod["spec"]["volumes"] = json!([{"name": "logs", "emptyDir": {}}]));
    assert_eq!(injected(&with_logs, &[], &external).1, [Reason::Sidecar]);
}

#[test]
fn ignores_a_record_copied_from_another_pod() {
    // A pod created from the YAML of another pod has the other pod's record.
    let before = agents_pod(|pod| {
        pod["metadata"]["annotations"]["etcd-guard.io/injected"] = json!(r#"{"templates":{"agent":"0"}}"#);
    });
    let (after, reasons) = injected(&before, &[], &agent());
    assert_eq!(reasons, [Reason::Sidecar]);
    assert_ne!(after["metadata"]["annotations"]["etcd-guard.io/injected"], r#"{"templates":{"agent":"0"}}"#);
}

#[test]
fn combines_lxcfs_annotation_with_template_names() {
    let old = |ours: &str, old: &str| {
        let annotations = json!({"etcd-guard.io/inject": ours, "sidecar-injector.lxcfs/inject": old});
        injected(&pod(annotations), &[], &agent()).1
    };
    assert_eq!(old("agent", "true"), [Reason::Sidecar, Reason::Lxcfs]);
    assert_eq!(old("agent", "false"), [Reason::Sidecar]);
    assert_eq!(old("agent,lxcfs", "false"), [Reason::Sidecar, Reason::Lxcfs], "the newer word goes before");
    assert_eq!(old("false", "true"), []);
}
