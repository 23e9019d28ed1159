//! `kubectl etcd-guard inject` without a cluster: its output for pods that a cluster would deny.

use std::process::{Command, Output};

use test_support::project::plugin_program;

/// Runs the command for a pod with a configuration.
fn inject(pod: &str, config: &str) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let (file, settings) = (folder.path().join("pod.yaml"), folder.path().join("config.yaml"));
    std::fs::write(&file, format!("apiVersion: v1\nkind: Pod\n{pod}")).unwrap();
    std::fs::write(&settings, format!("apiVersion: etcd-guard.io/v1alpha1\n{config}")).unwrap();
    let mut plugin = Command::new(plugin_program());
    plugin.arg("inject").arg("-f").arg(&file).arg("--config").arg(&settings).output().unwrap()
}

#[track_caller]
fn assert_rejected(output: &Output, expected: &str) {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains(expected), "{stderr}");
    assert!(output.stdout.is_empty(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn denies_forbidden_name_like_the_cluster() {
    let rule = "podNames: {forbiddenWords: [offensive]}";
    for metadata in ["name: an-offensive-pod", "generateName: offensive-"] {
        let name = metadata.split_once(": ").unwrap().1;
        let denial =
            format!("the pod would be denied: pod name {name:?} contains the forbidden word \"offensive\"");
        assert_rejected(&inject(&format!("metadata: {{{metadata}}}"), rule), &denial);
    }
    let fine = inject("metadata: {name: web}", rule);
    assert!(fine.status.success(), "{}", String::from_utf8_lossy(&fine.stderr));
}

#[test]
fn denies_invalid_lifespan_like_the_cluster() {
    let output = inject("metadata: {labels: {acme.com/lifespan-requested: '0'}}", "lifespan: {}");
    assert_rejected(&output, "the pod would be denied: label acme.com/lifespan-requested: \"0\"");
}

#[test]
fn rejects_labels_and_annotations_that_are_no_text() {
    for (metadata, expected) in [
        ("labels: {acme.com/lifespan-requested: 12}", "label acme.com/lifespan-requested is 12,"),
        ("annotations: {etcd-guard.io/inject: true}", "annotation etcd-guard.io/inject is true,"),
    ] {
        let output = inject(&format!("metadata: {{name: web, {metadata}}}"), "lifespan: {}");
        assert_rejected(&output, expected);
    }
    // Go reads null as an empty string.
    let empty = inject("metadata: {name: web, labels: {a: , b: null}}", "lifespan: {}");
    assert!(empty.status.success(), "{}", String::from_utf8_lossy(&empty.stderr));
}
