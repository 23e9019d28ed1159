//! Overrides of a template's containers by the pod, and transfers of variables and mounts.

use serde_json::{Value, json};

use super::{config, inject_with, injected, mount_paths, pod};
use crate::{config::Config, pods::Reason};

/// A template with one ordinary container and these fields.
fn agent(fields: &str) -> Config {
    config(&format!(
        "
sidecars:
  native: false
  templates:
  - name: agent
    containers:
    - name: agent
      image: agent:1
      env: [{{name: LEVEL, value: info}}, {{name: MODE, value: ours}}]
      resources: {{requests: {{cpu: 100m}}, limits: {{cpu: 200m}}}}
      volumeMounts: [{{name: data, mountPath: /data}}]
    volumes: [{{name: data, emptyDir: {{}}}}]
{fields}"
    ))
}

fn requesting_pod(annotations: &[(&str, &str)]) -> Value {
    let mut pod = pod(json!({"etcd-guard.io/inject": "agent"}));
    for (key, value) in annotations {
        pod["metadata"]["annotations"][format!("agent.inject.etcd-guard.io/{key}")] = json!(value);
    }
    pod
}

/// The container of the template.
fn template_container(after: &Value) -> &Value {
    after["spec"]["containers"]
        .as_array()
        .unwrap()
        .iter()
        .find(|container| container["name"] == "agent")
        .unwrap()
}

#[test]
fn applies_overrides_that_the_template_allows() {
    let all = agent("    overrides: {image: true, resources: true, env: [LEVEL, NEW]}\n");
    let asking = requesting_pod(&[
        ("image", "agent:2"),
        ("cpu-limit", "1"),
        ("memory-request", "64Mi"),
        ("env.LEVEL", "debug"),
        ("env.NEW", ""),
    ]);
    let (after, reasons) = injected(&asking, &[], &all);
    assert_eq!(reasons, [Reason::Sidecar], "also its image is no conflict in a second pass");
    let agent = template_container(&after);
    assert_eq!(agent["image"], "agent:2");
    assert_eq!(
        agent["resources"],
        json!({"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"cpu": "1"}})
    );
    assert_eq!(
        agent["env"],
        json!([{"name": "LEVEL", "value": "debug"}, {"name": "MODE", "value": "ours"}, {"name": "NEW", "value": ""}])
    );
}

#[test]
fn refuses_overrides_that_the_template_does_not_allow() {
    let asking =
        requesting_pod(&[("image", "evil:1"), ("env.LEVEL", "debug"), ("cpu-limit", "9"), ("colour", "red")]);
    let (after, reasons) = injected(&asking, &[], &agent(""));
    assert_eq!(
        template_container(&after),
        template_container(&injected(&self::requesting_pod(&[]), &[], &agent("")).0)
    );
    assert_eq!(reasons.iter().filter(|reason| **reason == Reason::OverrideRefused).count(), 4);
    let injection = inject_with(&self::requesting_pod(&[("image", "evil:1")]), &[], &agent("")).unwrap();
    let warning = injection.notes[0].warning.as_deref().unwrap();
    assert_eq!(warning, "container agent: image was not overridden: the template does not allow it");
}

#[test]
fn refuses_overrides_that_the_api_server_would_reject() {
    let all = agent("    overrides: {image: true, resources: true}\n");
    for (key, value) in
        [("image", ""), ("image", "a b"), ("cpu-limit", "much"), ("cpu-limit", "-1"), ("cpu-request", "300m")]
    {
        let (after, reasons) = injected(&requesting_pod(&[(key, value)]), &[], &all);
        assert_eq!(reasons, [Reason::OverrideRefused, Reason::Sidecar], "{key}: {value}");
        assert_eq!(
            template_container(&after),
            template_container(&injected(&requesting_pod(&[]), &[], &all).0),
            "{key}: {value}"
        );
    }
}

#[test]
fn transfers_variables_that_the_template_does_not_set() {
    let transfer = agent(
        "    transferEnv: [{names: [REGION, MODE, ABSENT]}, {container: second, names: [ZONE], into: [agent]}]\n",
    );
    let mut before = requesting_pod(&[]);
    let region = json!({"name": "REGION", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}});
    before["spec"]["containers"] = json!([
        {"name": "web", "env": [{"name": "MODE", "value": "theirs"}, {"name": "ZONE", "value": "first"}]},
        {"name": "second", "env": [region, {"name": "ZONE", "value": "second"}]},
    ]);
    let (after, _) = injected(&before, &[], &transfer);
    let own = json!([{"name": "LEVEL", "value": "info"}, {"name": "MODE", "value": "ours"}]);
    assert_eq!(template_container(&after)["env"].as_array().unwrap()[..2], own.as_array().unwrap()[..]);
    let passed_on = json!([region, {"name": "ZONE", "value": "second"}]);
    assert_eq!(template_container(&after)["env"].as_array().unwrap()[2..], passed_on.as_array().unwrap()[..]);
    assert_eq!(after["spec"]["containers"][0], before["spec"]["containers"][0]);
}

#[test]
fn shares_mounts_of_the_pod_except_the_token() {
    let share = agent("    shareVolumes: true\n    appContainers: {except: [secretive]}\n");
    let mut before = requesting_pod(&[]);
    let token = "/var/run/secrets/kubernetes.io/serviceaccount";
    before["spec"]["volumes"] = json!([{"name": "data", "hostPath": {"path": "/theirs"}}]);
    before["spec"]["containers"] = json!([
        {"name": "web", "volumeMounts": [
            {"name": "kube-api-access", "mountPath": token, "readOnly": true},
            {"name": "data", "mountPath": "/logs", "subPath": "web"},
            {"name": "data", "mountPath": "/data/"},
            {"name": "data", "mountPath": "/named", "subPathExpr": "$(POD_NAME)"},
            {"name": "data", "mountPath": "/both", "mountPropagation": "Bidirectional"},
            {"name": "proc", "mountPath": "/proc/meminfo"},
        ]},
        {"name": "other", "volumeMounts": [{"name": "cache", "mountPath": "/logs"}, {"name": "cache", "mountPath": "/cache"}]},
        {"name": "secretive", "volumeMounts": [{"name": "secret", "mountPath": "/secret"}]},
    ]);
    let (after, _) = injected(&before, &[], &share);
    let agent = template_container(&after);
    assert_eq!(mount_paths(agent), ["/data", "/logs", "/cache"]);
    // The template's volume was renamed; shared mounts refer to unchanged names.
    assert_eq!(agent["volumeMounts"][0]["name"], "agent-data");
    assert_eq!(agent["volumeMounts"][1], json!({"name": "data", "mountPath": "/logs", "subPath": "web"}));
}
