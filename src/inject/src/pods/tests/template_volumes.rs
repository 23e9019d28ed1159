//! The volumes of templates and their names in the pod.

use serde_json::{Value, json};

use super::{
    config, injected, names, pod,
    sidecars::{agent, agents_pod},
};
use crate::pods::Reason;

#[test]
fn renames_template_volume_on_conflict() {
    let before =
        agents_pod(|pod| pod["spec"]["volumes"] = json!([{"name": "data", "hostPath": {"path": "/"}}]));
    let (after, _) = injected(&before, &[], &agent());
    assert_eq!(names(&after["spec"]["volumes"]), ["data", "agent-data"]);
    assert_eq!(after["spec"]["initContainers"][0]["volumeMounts"][0]["name"], "agent-data");
    assert_eq!(after["spec"]["containers"][0]["volumeMounts"][0]["name"], "agent-data");
}

#[test]
fn ignores_defaults_set_between_two_passes() {
    let template = config(
        "sidecars: {templates: [{name: agent, onConflict: skip, volumes: [{name: c, configMap: {name: x}}, {name: h, hostPath: {path: /h}}]}]}",
    );
    let (mut after, _) = injected(&agents_pod(|_| {}), &[], &template);
    after["spec"]["volumes"][0]["configMap"]["defaultMode"] = json!(420);
    after["spec"]["volumes"][1]["hostPath"]["type"] = json!("");
    assert_eq!(injected(&after, &[], &template), (after, vec![Reason::AlreadyInjected]));
}

#[test]
fn never_assigns_one_name_to_two_volumes() {
    // The pod has a different `buf`: the template's volume would become `log-buf`, the name of its other volume.
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
        mounts.iter().map(|mount| mount["name"].as_str().unwrap().to_owned()).collect()
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

    // Two volumes with equal content remain two volumes.
    let (after, _) = injected(&before, &[], &log("{name: buf, emptyDir: {}}, {name: log-buf, emptyDir: {}}"));
    assert_eq!(mounted(&after), ["log-buf", "log-log-buf"]);

    // In the other order no name is available: the template is skipped and the pod admitted.
    let other_order = log("{name: log-buf, emptyDir: {}}, {name: buf, emptyDir: {}}");
    assert_eq!(injected(&before, &[], &other_order), (before, vec![Reason::Conflict]));
}

#[test]
fn never_assigns_equal_truncated_names() {
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
fn renames_devices_with_their_volume() {
    let block = config(
        "sidecars: {templates: [{name: agent, volumes: [{name: raw, persistentVolumeClaim: {claimName: c}}], \
         containers: [{name: a, image: i, volumeDevices: [{name: raw, devicePath: /dev/raw}]}]}]}",
    );
    let before = agents_pod(|pod| pod["spec"]["volumes"] = json!([{"name": "raw", "emptyDir": {}}]));
    let (after, _) = injected(&before, &[], &block);
    assert_eq!(after["spec"]["initContainers"][0]["volumeDevices"][0]["name"], "agent-raw");
}
