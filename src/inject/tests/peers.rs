//! Bugs of other injectors, each as a test that names where it was found.
//!
//! | where | bug | test |
//! | --- | --- | --- |
//! | crazytaxii/lxcfs-hostpath-injector, morvencao/kube-sidecar-injector, ymping/lxcfs-admission-webhook | annotations of the user's are lost | `crazytaxii_morvencao_ymping_lose_the_users_annotations` |
//! | crazytaxii, morvencao | a key that is replaced is not escaped | `crazytaxii_morvencao_do_not_escape_the_key_that_they_replace` |
//! | crazytaxii | no annotation required: nothing is injected | `crazytaxii_injects_nothing_where_no_annotation_is_required` |
//! | crazytaxii | the file is overwritten by defaults; the status is never looked at | `crazytaxii_overwrites_the_configuration_and_injects_twice` |
//! | crazytaxii, denverdino/lxcfs-admission-webhook | an answer without apiVersion and kind, v1beta1 only | `mutate` and `a_pod_that_asks_for_nothing_...` of the server's tests |
//! | denverdino | the operation " replace" | `denverdino_cannot_change_a_status_of_another_value` |
//! | denverdino, kubeservice-stack/lxcfs-webhook | a path or a volume twice | `denverdino_kubeservice_mount_a_path_twice`, `..._name_a_volume_twice` |
//! | cndoit18/lxcfs-on-kubernetes | sorts, and drops fields | `cndoit18_sorts_what_is_the_users_and_drops_what_it_does_not_know` |
//! | cndoit18 | conflicts by name, not path; every pod gets it | `cndoit18_looks_at_names_and_not_at_paths`, `cndoit18_leaves_no_pod_alone` |
//! | togettoyou/sidecar-injector | injects twice; one template, in the program | `togettoyou_injects_a_container_twice` |
//! | togettoyou | a review without a request panics | `a_review_without_a_request_...` of the server's tests |
//! | togettoyou | deletes and makes its configuration at each start, with a new certificate | `togettoyou_takes_its_configuration_away_at_each_start`, `togettoyou_makes_a_new_certificate_at_each_start` (`certificates/plan`) |
//! | tumblr/k8s-sidecar-injector | adds to lists, and replaces fields, that are not there | `tumblr_adds_to_a_list_that_is_not_there`, `tumblr_replaces_a_field_that_is_not_there` |
//! | tumblr | removes by ascending index | `tumblr_removes_items_whose_places_have_moved` |
//! | tumblr, linkerd/linkerd2 | `~` is not escaped | `tumblr_linkerd_escape_the_slash_and_not_the_tilde` |
//! | morvencao, crazytaxii | keys in camel case vanish | `morvencao_crazytaxii_lose_keys_in_camel_case` |
//! | morvencao | also asked on UPDATE, where a pod cannot change | `morvencao_changes_pods_that_cannot_change` |
//! | hashicorp/vault-k8s | each list of volumes looks at the pod as it came | `vault_overwrites_its_own_volumes` |
//! | linkerd | values in JSON by a text template | `linkerd_writes_values_into_json_as_they_are` |
//! | linkerd | an image's name makes a sidecar | `linkerd_takes_an_image_for_a_sidecar` |
//! | slackhq/simple-kubernetes-webhook | a bad label is HTTP 500 | `a_label_that_is_no_lifespan_is_denied_and_told_what_is_allowed` (`small.rs`) |
//! | BoomChao/simple-kubernetes-webhook | rounds up, doubles again, writes to maps that are not there | `src/node/tests.rs` |
//! | the same | `Fail` on nodes/status: a new node never gets ready | `boomchao_keeps_nodes_from_reporting` |

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::{config, inject_with, injected, lxcfs_pod, mount_paths, names, pod};
use crate::{config::Config, patch::Patch};

/// A template that brings an annotation whose key needs both escapes; in a file the tilde would be a mistake.
fn annotating() -> Config {
    let mut config = config("sidecars: {templates: [{name: a}]}");
    config.sidecars.templates[0].annotations.insert(String::from("ours.io/k~ey"), String::from("ours"));
    config
}

/// crazytaxii/lxcfs-hostpath-injector `pkg/webhook/webhook.go` (`updateAnnotation`), morvencao/kube-sidecar-injector
/// `cmd/webhook.go`, ymping/lxcfs-admission-webhook `cmd/webhook.go`: a map of their own takes the place of the user's.
#[test]
fn crazytaxii_morvencao_ymping_lose_the_users_annotations() {
    let before = pod(json!({"etcd-guard.io/inject": "lxcfs,a", "theirs": "1", "a/b~c": "2"}));
    let (after, _) = injected(&before, &[], &annotating());
    for (key, value) in before["metadata"]["annotations"].as_object().unwrap() {
        assert_eq!(&after["metadata"]["annotations"][key], value);
    }
    assert_eq!(after["metadata"]["annotations"]["ours.io/k~ey"], "ours");
    let skipped = pod(json!({"etcd-guard.io/inject": "none", "theirs": "1"}));
    assert_eq!(injected(&skipped, &[], &Config::default()).0, skipped, "ymping does so even when skipping");
}

/// crazytaxii, morvencao (the same functions): the key of an annotation that is there already, and has a slash.
#[test]
fn crazytaxii_morvencao_do_not_escape_the_key_that_they_replace() {
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
    let of_kind = patch.as_array().unwrap().iter().filter(|it| it["op"] == kind);
    of_kind.map(|it| it["path"].as_str().unwrap().to_owned()).collect()
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

/// The same: no look at the names of volumes.
#[test]
fn denverdino_kubeservice_name_a_volume_twice() {
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

/// cndoit18/lxcfs-on-kubernetes `pkg/admission/mutate.go`: a mount of another name at the same path is no conflict.
#[test]
fn cndoit18_looks_at_names_and_not_at_paths() {
    let mut before = lxcfs_pod();
    before["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "lxcfs-proc-uptime", "mountPath": "/elsewhere"}, {"name": "v", "mountPath": "/proc/stat/"}]);
    before["spec"]["volumes"] = json!([{"name": "lxcfs-proc-uptime", "hostPath": {"path": "/var/lib/lxcfs/proc/uptime", "type": "File"}}]);
    let (after, _) = injected(&before, &[], &config("lxcfs: {files: [uptime, stat]}"));
    let paths = mount_paths(&after["spec"]["containers"][0]);
    assert_eq!(paths, ["/elsewhere", "/proc/stat/", "/proc/uptime"]);
}

/// cndoit18: no way to leave pods alone.
#[test]
fn cndoit18_leaves_no_pod_alone() {
    let all = config("lxcfs: {match: {podSelector: {}}, never: {podSelector: {matchLabels: {raw: \"1\"}}}}");
    let mut before = pod(json!({}));
    before["metadata"]["labels"] = json!({"raw": "1"});
    assert_eq!(injected(&before, &[], &all), (before, vec![]));
    let refuses = pod(json!({"sidecar-injector.lxcfs/inject": "false"}));
    assert_eq!(injected(&refuses, &[], &all), (refuses, vec![]));
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

/// togettoyou `main.go`: deletes its webhook configuration and makes it anew, so that pods of that moment get nothing. None
/// of the shipped roles may delete one, and only those that register may create it. (The new certificate that it makes
/// at each start is a test of `certificates/plan`.)
#[test]
fn togettoyou_takes_its_configuration_away_at_each_start() {
    let mut seen = 0;
    for (file, text) in shipped_files() {
        for rule in text.split("apiGroups:").skip(1) {
            let list = |text: &str| text.split_once(']').map(|(list, _)| list.to_owned());
            let groups = list(rule).unwrap();
            // The rules of a webhook have operations, those of a role have verbs.
            let Some(verbs) = rule.split_once("verbs:").and_then(|(_, it)| list(it)) else { continue };
            if groups.contains("admissionregistration.k8s.io") || groups.contains('*') {
                seen += 1;
                let registers = file.ends_with("components/register/rbac.yaml")
                    || file.ends_with("templates/rbac-register.yaml");
                let creates = verbs.contains("create") && !registers;
                assert!(!creates && !verbs.contains("delete") && !verbs.contains('*'), "{file:?}: {rule}");
            }
        }
    }
    assert!(seen >= 7, "those of the chart, of the register and of the self-managed component: {seen}");
}

/// All YAML that is shipped, the chart's templates included.
fn shipped_files() -> Vec<(PathBuf, String)> {
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy")];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|it| it == "yaml") {
                let text = std::fs::read_to_string(&path).unwrap();
                files.push((path, text));
            }
        }
    }
    files
}

/// tumblr/k8s-sidecar-injector `pkg/server/webhook.go`: adds to lists that are not there.
#[test]
fn tumblr_adds_to_a_list_that_is_not_there() {
    let bare =
        json!({"metadata": {"annotations": {"etcd-guard.io/inject": "lxcfs"}}, "spec": {"containers": [{}]}});
    let (after, _) = injected(&bare, &[], &Config::default());
    assert_eq!(after["spec"]["volumes"].as_array().unwrap().len(), 8);
}

/// tumblr: replaces fields that are not there, which no apiserver takes.
#[test]
fn tumblr_replaces_a_field_that_is_not_there() {
    let longer = config("sidecars: {templates: [{name: a, terminationGracePeriodSeconds: 60}]}");
    let before = pod(json!({"etcd-guard.io/inject": "a"}));
    let injection = inject_with(&before, &[], &longer).unwrap();
    assert_eq!(operations(&injection.patch, "replace"), [""; 0]);
    assert!(
        operations(&injection.patch, "add").contains(&String::from("/spec/terminationGracePeriodSeconds"))
    );
}

/// tumblr: takes mounts out one by one, each by an index that was true before the first.
#[test]
fn tumblr_removes_items_whose_places_have_moved() {
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
fn tumblr_linkerd_escape_the_slash_and_not_the_tilde() {
    let before = pod(json!({"etcd-guard.io/inject": "a"}));
    let injection = inject_with(&before, &[], &annotating()).unwrap();
    let added = operations(&injection.patch, "add");
    assert!(added.contains(&String::from("/metadata/annotations/ours.io~1k~0ey")), "{added:?}");
}

/// morvencao `cmd/webhookconfig.go`: registers UPDATE, so that a changed label of a running pod fails.
#[test]
fn morvencao_changes_pods_that_cannot_change() {
    let shipped: Value =
        serde_saphyr::from_str(include_str!("../../../deploy/components/inject/webhook.yaml")).unwrap();
    for rule in shipped["webhooks"][0]["rules"].as_array().unwrap() {
        assert_eq!(rule["operations"], json!(["CREATE"]));
    }
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

/// linkerd/linkerd2 `charts/patch/templates/patch.json`: values of annotations are put into JSON as they are.
#[test]
fn linkerd_writes_values_into_json_as_they_are() {
    let value = "\"},{\"op\":\"remove\",\"path\":\"/spec\"\n";
    let mut quoting = annotating();
    quoting.sidecars.templates[0].annotations.insert(String::from("quoted"), String::from(value));
    let (after, _) = injected(&pod(json!({"etcd-guard.io/inject": "a"})), &[], &quoting);
    assert_eq!(after["metadata"]["annotations"]["quoted"], value);
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

/// BoomChao/simple-kubernetes-webhook: `Fail` with two seconds on nodes/status, so that without the webhook no new node
/// can say that it is ready.
#[test]
fn boomchao_keeps_nodes_from_reporting() {
    let shipped: Value =
        serde_saphyr::from_str(include_str!("../../../deploy/components/over-commit/webhook.yaml")).unwrap();
    let webhook = &shipped["webhooks"][0];
    assert_eq!(webhook["failurePolicy"], "Ignore");
    assert!(webhook["timeoutSeconds"].as_u64().unwrap() <= 2);
    assert_eq!(webhook["rules"][0]["operations"], json!(["UPDATE"]));
    assert_eq!(webhook["rules"][0]["resources"], json!(["nodes/status"]));
}
