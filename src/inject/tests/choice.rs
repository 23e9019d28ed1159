//! Which pods get which templates.

use serde_json::{Value, json};

use super::{
    Injected, config, inject_with, injected, names, pod,
    sidecars::{agent, agents_pod},
};
use crate::{
    config::Labels,
    inject::{Reason, Surroundings},
};

/// The labels of a namespace.
type Labelled = &'static [(&'static str, &'static str)];

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
fn words_of_which_none_is_a_name_are_warned_of_and_leave_the_choice_to_the_rest() {
    let enabled: &[_] = &[("sidecar-injector", "enabled")];
    for said in ["ture", "agnet, extar", "agent:3"] {
        let injection = inject_with(&pod(json!({"etcd-guard.io/inject": said})), enabled, &agent()).unwrap();
        let notes: Vec<Reason> = injection.notes.iter().map(|it| it.reason).collect();
        assert!(notes.contains(&Reason::UnknownTemplate), "{said}: {notes:?}");
        assert_eq!(names(&injection.pod.unwrap()["spec"]["initContainers"]), ["agent"], "{said}");
    }
    let (after, _) = injected(&pod(json!({"etcd-guard.io/inject": "extra,ture"})), enabled, &agent());
    assert_eq!(names(&after["spec"]["containers"]), ["web", "extra"], "one name is known: it is a list");
    for no in ["none", "false"] {
        let before = pod(json!({"etcd-guard.io/inject": no}));
        assert_eq!(injected(&before, enabled, &agent()), (before, vec![]));
    }
}

#[test]
fn a_pod_that_asks_for_the_default_list_where_it_is_empty_is_told() {
    let without = config("sidecars: {templates: [{name: a, containers: [{name: a, image: i}]}]}");
    for word in ["true", "yes"] {
        let injection = inject_with(&pod(json!({"etcd-guard.io/inject": word})), &[], &without).unwrap();
        assert!(injection.is_empty());
        let warnings: Vec<_> = injection.notes.iter().filter_map(|it| it.warning.as_deref()).collect();
        let expected = format!(
            "etcd-guard.io/inject: {word:?} asks for the default list, which is empty: name templates instead"
        );
        assert_eq!(warnings, [expected.as_str()]);
        assert!(expected.len() <= 120);
    }
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
