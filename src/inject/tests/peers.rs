//! Bugs of other injectors, each as a test that names where it was found.
//!
//! Those of the patch itself are in `patch/tests.rs`, those of the answer in the server's tests.

use serde_json::json;

use super::{config, inject_with, injected, lxcfs_pod, mount_paths, names, pod};
use crate::config::Config;

/// crazytaxii/lxcfs-hostpath-injector `pkg/webhook/webhook.go` (`updateAnnotation`), morvencao/kube-sidecar-injector
/// `cmd/webhook.go`, ymping/lxcfs-admission-webhook `cmd/webhook.go`: a map of their own takes the place of the user's.
#[test]
fn crazytaxii_morvencao_ymping_lose_the_users_annotations() {
    let before = pod(json!({"etcd-guard.io/inject": "lxcfs", "theirs": "1", "a/b~c": "2"}));
    let (after, _) = injected(&before, &[], &Config::default());
    for (key, value) in before["metadata"]["annotations"].as_object().unwrap() {
        assert_eq!(&after["metadata"]["annotations"][key], value);
    }
    let skipped = pod(json!({"etcd-guard.io/inject": "none", "theirs": "1"}));
    assert_eq!(injected(&skipped, &[], &Config::default()).0, skipped, "ymping does so even when skipping");
}

/// crazytaxii `webhook.go` (`mutationRequired`, `LoadWebhookServerConfig`): configured mounts are always overwritten by
/// the defaults, and a pod that was injected before gets all of it again.
#[test]
fn crazytaxii_overwrites_the_configuration_and_injects_twice() {
    let files = config("lxcfs: {files: [uptime], root: /lxcfs}");
    let (after, _) = injected(&lxcfs_pod(), &[], &files);
    assert_eq!(
        after["spec"]["volumes"],
        json!([{"name": "lxcfs-proc-uptime", "hostPath": {"path": "/lxcfs/proc/uptime", "type": "File"}}])
    );
}

/// crazytaxii `webhook.go` (`mutationRequired`): not to require the annotation switches injection off altogether.
#[test]
fn crazytaxii_injects_nothing_where_no_annotation_is_required() {
    let all = config("lxcfs: {match: {podSelector: {}}}");
    let (after, _) = injected(&pod(json!({})), &[], &all);
    assert_eq!(mount_paths(&after["spec"]["containers"][0]).len(), 8);
}

/// denverdino/lxcfs-admission-webhook `lxcfs.go` (`createPodPatch`): the operation " replace" when the status has another
/// value.
#[test]
fn denverdino_cannot_change_a_status_of_another_value() {
    let before = pod(json!({"etcd-guard.io/inject": "lxcfs", "etcd-guard.io/injected": "other"}));
    let injection = inject_with(&before, &[], &Config::default()).unwrap();
    let patch = serde_json::to_value(&injection.patch).unwrap();
    let operation = patch
        .as_array()
        .unwrap()
        .iter()
        .find(|it| it["path"] == "/metadata/annotations/etcd-guard.io~1injected")
        .unwrap();
    assert_eq!(operation["op"], "replace");
}

/// denverdino, kubeservice-stack/lxcfs-webhook `pkg/webhook/webhook.go`: no look at mounts that are there, so that the
/// apiserver refuses the pod for two mounts at one path.
#[test]
fn denverdino_kubeservice_mount_a_path_twice() {
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

/// cndoit18/lxcfs-on-kubernetes `pkg/admission/mutate.go`: sorts the user's volumes and mounts, and removes fields that
/// its library does not know.
#[test]
fn cndoit18_sorts_what_is_the_users_and_drops_what_it_does_not_know() {
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

/// togettoyou/sidecar-injector `inject.go`: injects without a look at what is there.
#[test]
fn togettoyou_injects_a_container_twice() {
    let agent = config(
        "sidecars: {default: [a], templates: [{name: a, native: false, containers: [{name: a, image: i}]}]}",
    );
    let enabled = &[("sidecar-injector", "enabled")];
    let (after, _) = injected(&pod(json!({})), enabled, &agent);
    assert_eq!(names(&after["spec"]["containers"]), ["web", "a"]);
}

/// tumblr/k8s-sidecar-injector `pkg/server/webhook.go`: adds to lists that are not there, and replaces fields that are
/// not there.
#[test]
fn tumblr_adds_to_a_list_that_is_not_there() {
    let bare =
        json!({"metadata": {"annotations": {"etcd-guard.io/inject": "lxcfs"}}, "spec": {"containers": [{}]}});
    let (after, _) = injected(&bare, &[], &Config::default());
    assert_eq!(after["spec"]["volumes"].as_array().unwrap().len(), 8);
}

/// morvencao, crazytaxii: a YAML library that ignores the names of JSON, so that keys in camel case vanish.
#[test]
fn morvencao_crazytaxii_lose_keys_in_camel_case() {
    let agent = config(
        "sidecars: {templates: [{name: a, native: false, containers: [{name: a, image: i, imagePullPolicy: Always, securityContext: {runAsNonRoot: true}}]}]}",
    );
    let (after, _) = injected(&pod(json!({"etcd-guard.io/inject": "a"})), &[], &agent);
    assert_eq!(
        after["spec"]["containers"][1],
        json!({"name": "a", "image": "i", "imagePullPolicy": "Always", "securityContext": {"runAsNonRoot": true}})
    );
}

/// hashicorp/vault-k8s `agent-inject/agent/patch.go`: each list of volumes looks at the pod as it came, so that the second
/// takes the place of the first.
#[test]
fn vault_overwrites_its_own_volumes() {
    let agent = config(
        "sidecars: {templates: [{name: a, volumes: [{name: a, emptyDir: {}}]}, {name: b, volumes: [{name: b, emptyDir: {}}]}]}",
    );
    let (after, _) = injected(&pod(json!({"etcd-guard.io/inject": "a,b,lxcfs"})), &[], &agent);
    assert_eq!(names(&after["spec"]["volumes"])[..2], ["a", "b"]);
    assert_eq!(names(&after["spec"]["volumes"]).len(), 10);
}

/// linkerd/linkerd2 `charts/patch/templates/patch.json`: whether a sidecar is there is partly judged by its image's name.
#[test]
fn linkerd_takes_an_image_for_a_sidecar() {
    let agent = config(
        "sidecars: {templates: [{name: a, native: false, containers: [{name: a, image: \"proxy:1\"}]}]}",
    );
    let mut before = pod(json!({"etcd-guard.io/inject": "a"}));
    before["spec"]["containers"][0]["image"] = json!("proxy:1");
    let (after, _) = injected(&before, &[], &agent);
    assert_eq!(names(&after["spec"]["containers"]), ["web", "a"]);
}

/// aws/amazon-eks-pod-identity-webhook#61, DataDog/datadog-agent PR #37091: a status that says "injected" hides
/// containers that came later.
#[test]
fn a_container_that_another_webhook_added_later_gets_its_mounts() {
    let (mut after, _) = injected(&lxcfs_pod(), &[], &Config::default());
    after["spec"]["containers"].as_array_mut().unwrap().push(json!({"name": "late"}));
    let (again, _) = injected(&after, &[], &Config::default());
    assert_eq!(mount_paths(&again["spec"]["containers"][1]).len(), 8);
}
