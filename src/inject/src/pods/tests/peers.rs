//! Bugs of other injectors. Each test asserts that this implementation does not have the bug.
//!
//! | project | bug | test |
//! | --- | --- | --- |
//! | crazytaxii/lxcfs-hostpath-injector, morvencao/kube-sidecar-injector, ymping | user annotations are lost | `preserves_user_annotations` |
//! | crazytaxii, morvencao | replaced keys are not escaped | `escapes_replaced_annotation_keys` |
//! | crazytaxii | nothing is injected if no annotation is required | `injects_by_selector_without_annotation` |
//! | crazytaxii | defaults overwrite the configuration; the record is ignored | `uses_configured_mounts_and_injects_once` |
//! | crazytaxii, denverdino/lxcfs-admission-webhook | the response lacks apiVersion and kind; only v1beta1 | `mutate` and the tests of the server |
//! | denverdino | the operation " replace" | `replaces_a_different_record` |
//! | denverdino, kubeservice-stack/lxcfs-webhook | duplicate paths or volumes | `never_mounts_a_path_twice`, `never_uses_a_volume_name_twice` |
//! | cndoit18/lxcfs-on-kubernetes | lists are sorted and fields dropped | `preserves_order_and_unknown_fields` |
//! | cndoit18 | conflicts by name instead of path; no exclusions | `detects_mount_conflicts_by_path`, `excludes_pods_by_selector_and_refusal` |
//! | togettoyou/sidecar-injector | containers are injected twice; one hard-coded template | `injects_a_container_once` |
//! | togettoyou | a review without a request panics | the tests of the server |
//! | togettoyou | each start makes a new webhook configuration | `roles_cannot_delete_webhook_configurations` |
//! | tumblr/k8s-sidecar-injector | operations on missing lists and fields | `creates_missing_lists`, `adds_missing_fields_instead_of_replacing_them` |
//! | tumblr | removals by ascending index | `never_removes_user_mounts` |
//! | tumblr, linkerd/linkerd2 | `~` is not escaped | `escapes_slash_and_tilde_in_keys` |
//! | morvencao, crazytaxii | keys in camel case are lost | `preserves_camel_case_keys_of_templates` |
//! | morvencao | registered for UPDATE, although pods are immutable | `shipped_webhook_registers_only_pod_creation` |
//! | hashicorp/vault-k8s | each list of volumes is based on the original pod | `combines_volumes_of_several_templates` |
//! | linkerd | values are inserted into JSON by a text template | `serializes_annotation_values_safely` |
//! | linkerd | sidecars are recognized by their image | `does_not_recognize_sidecars_by_image_alone` |
//! | slackhq/simple-kubernetes-webhook | an invalid label results in HTTP 500 | `denies_invalid_lifespan_with_the_allowed_range` (`tolerations.rs`) |
//! | BoomChao/simple-kubernetes-webhook | rounds up, raises twice, writes to missing maps | `src/nodes/tests.rs` |
//! | BoomChao | `Fail` on nodes/status: new nodes never become ready | `shipped_node_webhook_ignores_failures` |

use std::path::{Path, PathBuf};

use json_patch::Patch;
use serde_json::{Value, json};

use super::{config, inject_with, injected, lxcfs_pod, mount_paths, names, pod};
use crate::config::Config;

/// A template with an annotation with a key that requires both escapes. The configuration file rejects such a key.
fn annotating_config() -> Config {
    let mut config = config("sidecars: {templates: [{name: a}]}");
    config.sidecars.templates[0].annotations.insert(String::from("ours.io/k~ey"), String::from("ours"));
    config
}

/// crazytaxii/lxcfs-hostpath-injector `pkg/webhook/webhook.go` (`updateAnnotation`), morvencao/kube-sidecar-injector
/// `cmd/webhook.go`, ymping/lxcfs-admission-webhook `cmd/webhook.go`: replace the user's annotations by a new map.
#[test]
fn preserves_user_annotations() {
    let before = pod(json!({"etcd-guard.io/inject": "lxcfs,a", "theirs": "1", "a/b~c": "2"}));
    let (after, _) = injected(&before, &[], &annotating_config());
    for (key, value) in before["metadata"]["annotations"].as_object().unwrap() {
        assert_eq!(&after["metadata"]["annotations"][key], value);
    }
    assert_eq!(after["metadata"]["annotations"]["ours.io/k~ey"], "ours");
    let skipped = pod(json!({"etcd-guard.io/inject": "none", "theirs": "1"}));
    assert_eq!(
        injected(&skipped, &[], &Config::default()).0,
        skipped,
        "ymping replaces them even for skipped pods"
    );
}

/// crazytaxii, morvencao (the same functions): the key of an existing annotation, which contains a slash.
#[test]
fn escapes_replaced_annotation_keys() {
    let key = "cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes";
    let before = pod(json!({"etcd-guard.io/inject": "lxcfs", key: "theirs"}));
    let injection = inject_with(&before, &[], &config("lxcfs: {files: [uptime]}")).unwrap();
    let replaced = operations(&injection.patch, "replace");
    assert_eq!(replaced, [format!("/metadata/annotations/{}", key.replace('/', "~1"))]);
    assert_eq!(injection.pod.unwrap()["metadata"]["annotations"][key], "theirs,lxcfs-proc-uptime");
}

/// The paths of a patch's operations of one kind.
fn operations(patch: &Patch, kind: &str) -> Vec<String> {
    let patch = serde_json::to_value(patch).unwrap();
    let of_kind = patch.as_array().unwrap().iter().filter(|operation| operation["op"] == kind);
    of_kind.map(|operation| operation["path"].as_str().unwrap().to_owned()).collect()
}

/// crazytaxii `webhook.go` (`mutationRequired`, `LoadWebhookServerConfig`): the defaults always overwrite
/// configured mounts, and a second pass injects everything again.
#[test]
fn uses_configured_mounts_and_injects_once() {
    let files = config("lxcfs: {files: [uptime], root: /lxcfs}");
    let (after, _) = injected(&lxcfs_pod(), &[], &files);
    assert_eq!(
        after["spec"]["volumes"],
        json!([{"name": "lxcfs-proc-uptime", "hostPath": {"path": "/lxcfs/proc/uptime", "type": "File"}}])
    );
}

/// crazytaxii `webhook.go` (`mutationRequired`): if the annotation is not required, nothing is injected.
#[test]
fn injects_by_selector_without_annotation() {
    let all = config("lxcfs: {match: {podSelector: {}}}");
    let (after, _) = injected(&pod(json!({})), &[], &all);
    assert_eq!(mount_paths(&after["spec"]["containers"][0]).len(), 8);
}

/// denverdino/lxcfs-admission-webhook `lxcfs.go` (`createPodPatch`): the operation " replace" if the record has a
/// different value.
#[test]
fn replaces_a_different_record() {
    let before = pod(json!({"etcd-guard.io/inject": "lxcfs", "etcd-guard.io/injected": "other"}));
    let injection = inject_with(&before, &[], &Config::default()).unwrap();
    let patch = serde_json::to_value(&injection.patch).unwrap();
    let operation = patch
        .as_array()
        .unwrap()
        .iter()
        .find(|operation| operation["path"] == "/metadata/annotations/etcd-guard.io~1injected")
        .unwrap();
    assert_eq!(operation["op"], "replace");
}

/// denverdino, kubeservice-stack/lxcfs-webhook `pkg/webhook/webhook.go`: existing mounts are ignored, and the API
/// server rejects the pod because of two mounts at one path.
#[test]
fn never_mounts_a_path_twice() {
    let mut before = lxcfs_pod();
    before["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "mine", "mountPath": "/proc/uptime"}]);
    let (after, _) = injected(&before, &[], &Config::default());
    let mut paths = mount_paths(&after["spec"]["containers"][0]);
    let count = paths.len();
    paths.sort_unstable();
    paths.dedup();
    assert_eq!(paths.len(), count);
    assert_eq!(after["spec"]["containers"][0]["volumeMounts"][0]["name"], "mine");
}

/// The same projects: existing names of volumes are ignored.
#[test]
fn never_uses_a_volume_name_twice() {
    let mut before = lxcfs_pod();
    before["spec"]["volumes"] = json!([{"name": "lxcfs-proc-uptime", "emptyDir": {}}]);
    let (after, _) = injected(&before, &[], &Config::default());
    let mut volumes = names(&after["spec"]["volumes"]);
    let count = volumes.len();
    volumes.sort_unstable();
    volumes.dedup();
    assert_eq!((volumes.len(), count), (9, 9));
    assert_eq!(after["spec"]["volumes"][0], before["spec"]["volumes"][0]);
}

/// cndoit18/lxcfs-on-kubernetes `pkg/admission/mutate.go`: a mount with another name at the same path is not
/// detected as a conflict.
#[test]
fn detects_mount_conflicts_by_path() {
    let mut before = lxcfs_pod();
    before["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "lxcfs-proc-uptime", "mountPath": "/elsewhere"}, {"name": "v", "mountPath": "/proc/stat/"}]);
    before["spec"]["volumes"] = json!([{"name": "lxcfs-proc-uptime", "hostPath": {"path": "/var/lib/lxcfs/proc/uptime", "type": "File"}}]);
    let (after, _) = injected(&before, &[], &config("lxcfs: {files: [uptime, stat]}"));
    let paths = mount_paths(&after["spec"]["containers"][0]);
    assert_eq!(paths, ["/elsewhere", "/proc/stat/", "/proc/uptime"]);
}

/// cndoit18: pods cannot be excluded.
#[test]
fn excludes_pods_by_selector_and_refusal() {
    let all = config("lxcfs: {match: {podSelector: {}}, never: {podSelector: {matchLabels: {raw: \"1\"}}}}");
    let mut before = pod(json!({}));
    before["metadata"]["labels"] = json!({"raw": "1"});
    assert_eq!(injected(&before, &[], &all), (before, vec![]));
    let refuses = pod(json!({"sidecar-injector.lxcfs/inject": "false"}));
    assert_eq!(injected(&refuses, &[], &all), (refuses, vec![]));
}

/// cndoit18/lxcfs-on-kubernetes `pkg/admission/mutate.go`: sorts the user's volumes and mounts, and removes fields that
/// are unknown to its library.
#[test]
fn preserves_order_and_unknown_fields() {
    let mut before = lxcfs_pod();
    before["spec"]["volumes"] = json!([{"name": "z", "fieldOfTomorrow": {}}, {"name": "a", "emptyDir": {}}]);
    before["spec"]["containers"][0]["volumeMounts"] =
        json!([{"name": "z", "mountPath": "/z", "tomorrow": 1}, {"name": "a", "mountPath": "/a"}]);
    before["spec"]["fieldOfTomorrow"] = json!([{"x": null}]);
    let (after, _) = injected(&before, &[], &Config::default());
    let volumes = after["spec"]["volumes"].as_array().unwrap();
    assert_eq!(&volumes[..2], &before["spec"]["volumes"].as_array().unwrap()[..]);
    let mounts = after["spec"]["containers"][0]["volumeMounts"].as_array().unwrap();
    assert_eq!(&mounts[..2], &before["spec"]["containers"][0]["volumeMounts"].as_array().unwrap()[..]);
    assert_eq!(after["spec"]["fieldOfTomorrow"], before["spec"]["fieldOfTomorrow"]);
}

/// togettoyou/sidecar-injector `inject.go`: existing containers are ignored.
#[test]
fn injects_a_container_once() {
    let agent = config(
        "sidecars: {default: [a], templates: [{name: a, native: false, containers: [{name: a, image: i}]}]}",
    );
    let enabled = &[("sidecar-injector", "enabled")];
    let (after, _) = injected(&pod(json!({})), enabled, &agent);
    assert_eq!(names(&after["spec"]["containers"]), ["web", "a"]);
}

/// togettoyou `main.go`: deletes and creates its webhook configuration at each start, so that pods created in between
/// are not injected. The shipped roles cannot delete a configuration, and only those of the registration may create
/// one. The Job of `helm uninstall` has an account of its own, which exists only while that command runs. (A test of
/// `certificates/plan` covers the new certificate at each start.)
#[test]
fn roles_cannot_delete_webhook_configurations() {
    let mut count = 0;
    for (file, text) in shipped_files() {
        for rule in text.split("apiGroups:").skip(1) {
            let list = |text: &str| text.split_once(']').map(|(list, _)| list.to_owned());
            let groups = list(rule).unwrap();
            // Rules of a webhook have operations, rules of a role have verbs.
            let Some(verbs) = rule.split_once("verbs:").and_then(|(_, verbs)| list(verbs)) else { continue };
            if groups.contains("admissionregistration.k8s.io") || groups.contains('*') {
                count += 1;
                let registers = file.ends_with("components/register/rbac.yaml")
                    || file.ends_with("templates/rbac-register.yaml");
                let creates = verbs.contains("create") && !registers;
                let uninstalls = file.ends_with("templates/unregister.yaml");
                let hooks = text.matches("{{- $hook | nindent 4 }}").count();
                assert!(!uninstalls || hooks == text.matches("\nkind: ").count(), "{file:?}");
                let deletes = verbs.contains("delete") && !uninstalls;
                assert!(!creates && !deletes && !verbs.contains('*'), "{file:?}: {rule}");
            }
        }
    }
    assert!(count >= 7, "rules of the chart, the register and the self-managed component: {count}");
}

/// All shipped YAML files, including the chart's templates.
fn shipped_files() -> Vec<(PathBuf, String)> {
    let mut folders = vec![Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("deploy")];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "yaml") {
                let text = std::fs::read_to_string(&path).unwrap();
                files.push((path, text));
            }
        }
    }
    files
}

/// tumblr/k8s-sidecar-injector `pkg/server/webhook.go`: adds to missing lists.
#[test]
fn creates_missing_lists() {
    let bare =
        json!({"metadata": {"annotations": {"etcd-guard.io/inject": "lxcfs"}}, "spec": {"containers": [{}]}});
    let (after, _) = injected(&bare, &[], &Config::default());
    assert_eq!(after["spec"]["volumes"].as_array().unwrap().len(), 8);
}

/// tumblr: replaces missing fields, which the API server rejects.
#[test]
fn adds_missing_fields_instead_of_replacing_them() {
    let longer = config("sidecars: {templates: [{name: a, terminationGracePeriodSeconds: 60}]}");
    let before = pod(json!({"etcd-guard.io/inject": "a"}));
    let injection = inject_with(&before, &[], &longer).unwrap();
    assert_eq!(operations(&injection.patch, "replace"), [""; 0]);
    assert!(
        operations(&injection.patch, "add").contains(&String::from("/spec/terminationGracePeriodSeconds"))
    );
}

/// tumblr: removes mounts one by one, by indexes that were valid before the first removal.
#[test]
fn never_removes_user_mounts() {
    let mut before = pod(json!({"etcd-guard.io/inject": "a,lxcfs"}));
    let mounts = json!([{"name": "x", "mountPath": "/x"}, {"name": "y", "mountPath": "/proc/stat"}, {"name": "z", "mountPath": "/data"}]);
    before["spec"]["containers"][0]["volumeMounts"] = mounts.clone();
    let agent = config(
        "sidecars: {templates: [{name: a, volumes: [{name: d, emptyDir: {}}], appContainers: {volumeMounts: [{name: d, mountPath: /data}]}}]}",
    );
    let injection = inject_with(&before, &[], &agent).unwrap();
    assert_eq!(operations(&injection.patch, "remove"), [""; 0]);
    let after = injection.pod.unwrap();
    assert_eq!(
        after["spec"]["containers"][0]["volumeMounts"].as_array().unwrap()[..3],
        mounts.as_array().unwrap()[..]
    );
}

/// tumblr `pkg/server/webhook.go`, linkerd/linkerd2 `charts/patch/templates/patch.json`.
#[test]
fn escapes_slash_and_tilde_in_keys() {
    let before = pod(json!({"etcd-guard.io/inject": "a"}));
    let injection = inject_with(&before, &[], &annotating_config()).unwrap();
    let added = operations(&injection.patch, "add");
    assert!(added.contains(&String::from("/metadata/annotations/ours.io~1k~0ey")), "{added:?}");
}

/// morvencao `cmd/webhookconfig.go`: registers UPDATE, so that changing a label of a running pod fails.
#[test]
fn shipped_webhook_registers_only_pod_creation() {
    let shipped: Value = serde_saphyr::from_str(include_str!(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../deploy/components/inject/webhook.yaml"
    )))
    .unwrap();
    for rule in shipped["webhooks"][0]["rules"].as_array().unwrap() {
        assert_eq!(rule["operations"], json!(["CREATE"]));
    }
}

/// morvencao, crazytaxii: a YAML library that ignores JSON names, so that keys in camel case are lost.
#[test]
fn preserves_camel_case_keys_of_templates() {
    let agent = config(
        "sidecars: {templates: [{name: a, native: false, containers: [{name: a, image: i, imagePullPolicy: Always, securityContext: {runAsNonRoot: true}}]}]}",
    );
    let (after, _) = injected(&pod(json!({"etcd-guard.io/inject": "a"})), &[], &agent);
    assert_eq!(
        after["spec"]["containers"][1],
        json!({"name": "a", "image": "i", "imagePullPolicy": "Always", "securityContext": {"runAsNonRoot": true}})
    );
}

/// hashicorp/vault-k8s `agent-inject/agent/patch.go`: each list of volumes is based on the original pod, so that the
/// second list replaces the first one.
#[test]
fn combines_volumes_of_several_templates() {
    let agent = config(
        "sidecars: {templates: [{name: a, volumes: [{name: a, emptyDir: {}}]}, {name: b, volumes: [{name: b, emptyDir: {}}]}]}",
    );
    let (after, _) = injected(&pod(json!({"etcd-guard.io/inject": "a,b,lxcfs"})), &[], &agent);
    assert_eq!(names(&after["spec"]["volumes"])[..2], ["a", "b"]);
    assert_eq!(names(&after["spec"]["volumes"]).len(), 10);
}

/// linkerd/linkerd2 `charts/patch/templates/patch.json`: values of annotations are inserted into JSON without
/// escapes.
#[test]
fn serializes_annotation_values_safely() {
    let value = "\"},{\"op\":\"remove\",\"path\":\"/spec\"\n";
    let mut quoting = annotating_config();
    quoting.sidecars.templates[0].annotations.insert(String::from("quoted"), String::from(value));
    let (after, _) = injected(&pod(json!({"etcd-guard.io/inject": "a"})), &[], &quoting);
    assert_eq!(after["metadata"]["annotations"]["quoted"], value);
}

/// linkerd/linkerd2 `charts/patch/templates/patch.json`: a sidecar is partly recognized by its image's name.
#[test]
fn does_not_recognize_sidecars_by_image_alone() {
    let agent = config(
        "sidecars: {templates: [{name: a, native: false, containers: [{name: a, image: \"proxy:1\"}]}]}",
    );
    let mut before = pod(json!({"etcd-guard.io/inject": "a"}));
    before["spec"]["containers"][0]["image"] = json!("proxy:1");
    let (after, _) = injected(&before, &[], &agent);
    assert_eq!(names(&after["spec"]["containers"]), ["web", "a"]);
}

/// aws/amazon-eks-pod-identity-webhook#61, DataDog/datadog-agent PR #37091: a record of an injection hides
/// containers that were added later.
#[test]
fn mounts_into_containers_added_by_later_webhooks() {
    let (mut after, _) = injected(&lxcfs_pod(), &[], &Config::default());
    after["spec"]["containers"].as_array_mut().unwrap().push(json!({"name": "late"}));
    let (again, _) = injected(&after, &[], &Config::default());
    assert_eq!(mount_paths(&again["spec"]["containers"][1]).len(), 8);
}

/// BoomChao/simple-kubernetes-webhook: `Fail` with two seconds on nodes/status, so that without the webhook no new
/// node becomes ready.
#[test]
fn shipped_node_webhook_ignores_failures() {
    let shipped: Value = serde_saphyr::from_str(include_str!(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../deploy/components/over-commit/webhook.yaml"
    )))
    .unwrap();
    let webhook = &shipped["webhooks"][0];
    assert_eq!(webhook["failurePolicy"], "Ignore");
    assert!(webhook["timeoutSeconds"].as_u64().unwrap() <= 2);
    assert_eq!(webhook["rules"][0]["operations"], json!(["UPDATE"]));
    assert_eq!(webhook["rules"][0]["resources"], json!(["nodes/status"]));
}
