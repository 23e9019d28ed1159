//! Changes of a pod between two passes: by the API server, which sets defaults and normalizes, and by other webhooks.

use serde_json::{Value, json};

use super::{Injected, config, inject_with, injected, pod};
use crate::pods::{INJECTED, InjectionContext, Reason};

fn requesting_pod() -> Value {
    pod(json!({"etcd-guard.io/inject": "agent"}))
}

/// A template with these volumes that is skipped on conflicts.
fn volumes(volumes: &str) -> crate::config::Config {
    config(&format!("sidecars: {{templates: [{{name: agent, onConflict: skip, volumes: [{volumes}]}}]}}"))
}

/// A fuzzer found a null member in a `securityContext`.
#[test]
fn treats_null_members_of_templates_as_absent() {
    let template = "securityContext: {fsGroup: 5, runAsUser: null}, dnsConfig: {searches: [a], options: null},
        volumes: [{name: v, emptyDir: {sizeLimit: null}}], tolerations: [{key: a, operator: Exists, value: null}]";
    let config = config(&format!("sidecars: {{templates: [{{name: agent, {template}}}]}}"));
    let (after, reasons) = injected(&requesting_pod(), &[], &config);
    assert_eq!(reasons, [Reason::Sidecar]);
    assert_eq!(after["spec"]["securityContext"], json!({"fsGroup": 5}));
    assert!(!after["spec"].to_string().contains("null"), "{after}");
    assert_eq!(injected(&after, &[], &config).0, after, "a second pass");
}

#[test]
fn recognizes_volumes_that_the_api_server_normalized() {
    let cases = [
        ("{name: v}", json!({"emptyDir": {}})),
        ("{name: v, emptyDir: {sizeLimit: 1024Mi, medium: ''}}", json!({"emptyDir": {"sizeLimit": "1Gi"}})),
        (
            "{name: v, downwardAPI: {items: [{path: c, resourceFieldRef: {containerName: web, resource: limits.cpu}}]}}",
            json!({"downwardAPI": {"defaultMode": 420, "items": [
                {"path": "c", "resourceFieldRef": {"containerName": "web", "resource": "limits.cpu", "divisor": "0"}}
            ]}}),
        ),
        (
            "{name: v, ephemeral: {volumeClaimTemplate: {spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 0.5Gi}}}}}}",
            json!({"ephemeral": {"volumeClaimTemplate": {
                "metadata": {"creationTimestamp": null},
                "spec": {
                    "accessModes": ["ReadWriteOnce"],
                    "resources": {"requests": {"storage": "512Mi"}},
                    "volumeMode": "Filesystem",
                },
            }}}),
        ),
        (
            "{name: v, image: {reference: 'files:1'}}",
            json!({"image": {"reference": "files:1", "pullPolicy": "IfNotPresent"}}),
        ),
        (
            "{name: v, image: {reference: files}}",
            json!({"image": {"reference": "files", "pullPolicy": "Always"}}),
        ),
        (
            "{name: v, configMap: {name: c, items: [], optional: false}}",
            json!({"configMap": {"name": "c", "optional": false, "defaultMode": 420}}),
        ),
        (
            "{name: v, iscsi: {targetPortal: p, iqn: q, lun: 0, readOnly: false}}",
            json!({"iscsi": {"targetPortal": "p", "iqn": "q", "lun": 0, "iscsiInterface": "default"}}),
        ),
        (
            "{name: v, azureDisk: {diskName: d, diskURI: u}}",
            json!({"azureDisk": {"diskName": "d", "diskURI": "u", "cachingMode": "ReadWrite", "fsType": "ext4",
                "kind": "Shared", "readOnly": false}}),
        ),
    ];
    for (template, mut stored) in cases {
        let template = volumes(template);
        let (mut after, _) = injected(&requesting_pod(), &[], &template);
        stored["name"] = json!("v");
        after["spec"]["volumes"] = json!([stored]);
        let second = inject_with(&after, &[], &template).unwrap();
        let notes: Vec<Reason> = second.notes.iter().map(|note| note.reason).collect();
        assert!(second.is_empty(), "{stored}: {:?}", second.patch);
        assert_eq!(notes, [Reason::AlreadyInjected], "{stored}");
    }
}

#[test]
fn distinguishes_volumes_with_different_content() {
    let cases = [
        ("{name: v, emptyDir: {sizeLimit: 1Gi}}", json!({"emptyDir": {"sizeLimit": "1G"}})),
        ("{name: v, emptyDir: {}}", json!({"emptyDir": {"sizeLimit": "1Gi"}})),
        ("{name: v, emptyDir: {medium: Memory}}", json!({"emptyDir": {}})),
        ("{name: v, configMap: {name: '10'}}", json!({"configMap": {"name": "1e1"}})),
        ("{name: v, configMap: {name: c}}", json!({"emptyDir": {}})),
        (
            "{name: v, image: {reference: 'files:1'}}",
            json!({"image": {"reference": "files:1", "pullPolicy": "Never"}}),
        ),
        ("{name: v, configMap: {name: c}}", json!({"configMap": {"name": "c", "optional": true}})),
    ];
    for (template, mut theirs) in cases {
        theirs["name"] = json!("v");
        let mut before = requesting_pod();
        before["spec"]["volumes"] = json!([theirs]);
        assert_eq!(injected(&before, &[], &volumes(template)).1, [Reason::Conflict], "{theirs}");
    }
}

#[test]
fn recognizes_container_with_a_changed_image() {
    for on_conflict in ["adapt", "skip"] {
        let agent = config(&format!(
            "sidecars: {{templates: [{{name: agent, onConflict: {on_conflict}, containers: [{{name: agent, image: 'agent:1'}}]}}]}}"
        ));
        let (mut after, _) = injected(&requesting_pod(), &[], &agent);
        after["spec"]["initContainers"][0]["image"] = json!("mirror.example/agent:1");
        assert_eq!(injected(&after, &[], &agent), (after.clone(), vec![Reason::AlreadyInjected]));
        // A record of a different version of the template is no evidence.
        let record = &mut after["metadata"]["annotations"][INJECTED];
        *record = json!(record.as_str().unwrap().replace(&agent.sidecars.templates[0].hash, "000000000000"));
        assert_eq!(inject_with(&after, &[], &agent).unwrap().notes[0].reason, Reason::Conflict);
    }
}

/// While a configuration file propagates, two passes use different versions of a template.
#[test]
fn record_names_the_version_that_was_applied() {
    let version = |container: &str| {
        config(&format!(
            "sidecars: {{templates: [{{name: agent, containers: [{{name: agent, {container}}}]}}]}}"
        ))
    };
    let first = version("image: 'agent:1'");
    let (after, _) = injected(&requesting_pod(), &[], &first);
    let record = &after["metadata"]["annotations"][INJECTED];
    for second in ["image: 'agent:2'", "image: 'agent:1', env: [{name: A, value: b}]"] {
        let second = version(second);
        assert_eq!(injected(&after, &[], &second).0, after, "{second:?}");
        // A pod that was copied with the annotation, but without the container, gets the new version.
        let mut copied = requesting_pod();
        copied["metadata"]["annotations"][INJECTED] = record.clone();
        let (copied, _) = injected(&copied, &[], &second);
        let renewed = copied["metadata"]["annotations"][INJECTED].as_str().unwrap();
        assert!(renewed.contains(&second.sidecars.templates[0].hash), "{renewed}");
    }
}

#[test]
fn preserves_record_if_namespace_labels_are_unknown() {
    let templates = config(
        "\
sidecars:
  default: [agent]
  templates:
  - {name: agent, containers: [{name: agent, image: 'agent:1'}]}
  - {name: extra, match: {podSelector: {matchLabels: {extra: 'yes'}}}, containers: [{name: extra, image: 'extra:1'}]}
",
    );
    let mut before = pod(json!({"sidecar-injector.lxcfs/inject": "true"}));
    before["metadata"]["labels"] = json!({"extra": "yes"});
    let (after, _) = injected(&before, &[("sidecar-injector", "enabled")], &templates);
    let record = after["metadata"]["annotations"][INJECTED].as_str().unwrap();
    assert!(record.contains("lxcfs") && record.contains("agent") && record.contains("extra"), "{record}");

    let unread =
        InjectionContext { namespace: "prod", namespace_labels: Err("no answer"), native_sidecars: true };
    let second = Injected::new(after.clone(), &unread, &templates).unwrap();
    assert!(second.is_empty(), "{:?}", second.patch);
}
