//! The injected parts of a template.

use serde_json::{Value, json};

use super::{Injected, config, injected, names, pod};
use crate::{
    config::Config,
    pods::{InjectionContext, Reason},
};
use etcd_guard_core::config::selector::Labels;

/// Two templates; the first one is the default.
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

/// A pod that requests the first template.
pub(super) fn agents_pod(change: impl Fn(&mut Value)) -> Value {
    let mut pod = pod(json!({"etcd-guard.io/inject": "agent"}));
    change(&mut pod);
    pod
}

#[test]
fn injects_all_parts_of_a_template() {
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
fn existing_parts_of_the_pod_take_precedence() {
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
fn leaves_sidecar_out_of_pod_that_would_not_end() {
    let labels = Labels::new();
    let old = InjectionContext { namespace: "prod", namespace_labels: Ok(&labels), native_sidecars: false };
    let as_init = config(
        "sidecars: {templates: [{name: agent, initContainers: [{name: agent, image: i, restartPolicy: Always}]}]}",
    );
    let ordinary = config(
        "sidecars: {templates: [{name: agent, native: false, containers: [{name: agent, image: i}]}]}",
    );
    for policy in ["Never", "OnFailure"] {
        let job = agents_pod(|pod| pod["spec"]["restartPolicy"] = json!(policy));
        for templates in [&agent(), &as_init] {
            let skipped = Injected::new(job.clone(), &old, templates).unwrap();
            assert!(skipped.is_empty(), "{:?}", skipped.patch);
            assert_eq!(skipped.notes[0].reason, Reason::NoNativeSidecars);
            assert_eq!(
                injected(&job, &[], templates).1,
                [Reason::Sidecar],
                "the cluster has native sidecars"
            );
        }
        // The configuration demands an ordinary container.
        assert!(!Injected::new(job.clone(), &old, &ordinary).unwrap().is_empty());
    }
}

#[test]
fn uses_native_sidecars_only_if_supported() {
    let (labels, agents) = (Labels::new(), agents_pod(|_| {}));
    let old = InjectionContext { namespace: "prod", namespace_labels: Ok(&labels), native_sidecars: false };
    let after = Injected::new(agents.clone(), &old, &agent()).unwrap().pod.unwrap();
    assert_eq!(names(&after["spec"]["containers"]), ["web", "agent"]);
    assert_eq!(after["spec"]["initContainers"], Value::Null);

    let explicit = config(
        "sidecars: {templates: [{name: agent, initContainers: [{name: s, image: i, restartPolicy: Always}, {name: e, image: i}]}]}",
    );
    let after = Injected::new(agents.clone(), &old, &explicit).unwrap().pod.unwrap();
    assert_eq!(after["spec"]["containers"][1], json!({"name": "s", "image": "i"}));
    let (after, _) = injected(&agents, &[], &explicit);
    assert_eq!(names(&after["spec"]["initContainers"]), ["s", "e"]);
}

#[test]
fn does_not_duplicate_container_moved_between_lists() {
    // istio/istio#56455
    let before = agents_pod(|pod| {
        pod["spec"]["containers"] = json!([{"name": "web"}, {"name": "agent", "image": "agent:1"}]);
    });
    let (after, _) = injected(&before, &[], &agent());
    assert_eq!(after["spec"]["initContainers"], Value::Null);
}

#[test]
fn preserves_user_container_with_the_same_name() {
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
fn sets_default_container_annotation_for_first_position() {
    let first = config(
        "sidecars: {templates: [{name: a, order: 1, position: first, native: false, containers: [{name: a, image: i}]},
         {name: b, order: 2, position: first, native: false, containers: [{name: b, image: i}]}]}",
    );
    let (after, _) = injected(&pod(json!({"etcd-guard.io/inject": "b,a"})), &[], &first);
    assert_eq!(names(&after["spec"]["containers"]), ["a", "b", "web"]);
    assert_eq!(after["metadata"]["annotations"]["kubectl.kubernetes.io/default-container"], "web");
}

#[test]
fn extends_user_container_named_like_a_template_container() {
    let before = agents_pod(|pod| pod["spec"]["containers"][0] = json!({"name": "extra", "image": "mine:1"}));
    let mut both = before.clone();
    both["metadata"]["annotations"]["etcd-guard.io/inject"] = json!("agent,extra");
    let (after, reasons) = injected(&both, &[], &agent());
    assert_eq!(reasons, [Reason::Sidecar, Reason::Conflict]);
    let record = after["metadata"]["annotations"][crate::pods::INJECTED].as_str().unwrap();
    assert!(record.contains("agent") && !record.contains("extra"), "{record}");
    assert_eq!(after["spec"]["containers"][0]["env"], json!([{"name": "AGENT", "value": "here"}]));
    // The existing container of the template receives no additions.
    both["spec"]["containers"][0]["image"] = json!("extra:1");
    let (after, _) = injected(&both, &[], &agent());
    assert_eq!(after["spec"]["containers"][0].get("env"), None);
}

#[test]
fn adds_field_conditions_to_each_affinity_term() {
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

/// `netbirdio/kubernetes-operator#306`, `hashicorp/vault-k8s#53`, `linkerd/linkerd2#4758`.
#[test]
fn init_container_precedes_the_sidecar_that_waits_for_it() {
    let template = |name: &str, parts: &str| format!("{{name: {name}, order: {}, {parts}}}", name.len());
    let container = |name: &str| format!("{{name: {name}, image: i}}");
    let native = |name: &str| format!("{{name: {name}, image: i, restartPolicy: Always}}");
    let pair = format!("initContainers: [{}], containers: [{}]", container("prepare"), container("agent"));
    let mixed =
        format!("initContainers: [{}, {}, {}]", container("early"), native("proxy"), container("late"));
    let alone = format!("initContainers: [{}]", container("setup"));
    let cases = [
        (vec![template("a", &pair)], vec!["prepare", "agent", "own"]),
        (vec![template("a", &mixed)], vec!["early", "proxy", "own", "late"]),
        (vec![template("a", &alone)], vec!["own", "setup"]),
        (
            vec![template("a", &pair), template("bb", &mixed), template("ccc", &alone)],
            vec!["prepare", "agent", "early", "proxy", "own", "late", "setup"],
        ),
    ];
    for (templates, expected) in cases {
        let config = config(&format!("sidecars: {{templates: [{}]}}", templates.join(", ")));
        let mut before = pod(json!({"etcd-guard.io/inject": "a,bb,ccc"}));
        before["spec"]["initContainers"] = json!([{"name": "own", "image": "own:1"}]);
        let (after, _) = injected(&before, &[], &config);
        assert_eq!(names(&after["spec"]["initContainers"]), expected);
    }
}

/// Two replicas with different versions of a template, while a file propagates.
#[test]
fn sidecar_follows_init_container_of_an_earlier_pass() {
    let version = |parts: &str| config(&format!("sidecars: {{templates: [{{name: agent, {parts}}}]}}"));
    let prepare = "initContainers: [{name: prepare, image: i}]";
    let mut before = agents_pod(|_| {});
    before["spec"]["initContainers"] = json!([{"name": "own", "image": "own:1"}]);
    let (first, _) = injected(&before, &[], &version(prepare));
    let (second, _) =
        injected(&first, &[], &version(&format!("{prepare}, containers: [{{name: agent, image: i}}]")));
    assert_eq!(names(&second["spec"]["initContainers"]), ["own", "prepare", "agent"]);
}
