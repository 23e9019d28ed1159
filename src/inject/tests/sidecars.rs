//! What a template brings.

use serde_json::{Value, json};

use super::{Injected, config, injected, names, pod};
use crate::{
    config::{Config, Labels},
    inject::{Reason, Surroundings},
};

/// Two templates, of which the first is the default.
pub(super) fn agent() -> Config {
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

/// A pod that asks for the first.
pub(super) fn agents_pod(change: impl Fn(&mut Value)) -> Value {
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
