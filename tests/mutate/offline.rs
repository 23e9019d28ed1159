//! `etcd-guard inject`, which needs no cluster: what it says of a pod that a cluster would refuse.

use std::process::{Command, Output};

/// What the command says of a pod.
fn inject(pod: &str, config: &str) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let (file, settings) = (folder.path().join("pod.yaml"), folder.path().join("config.yaml"));
    std::fs::write(&file, format!("apiVersion: v1\nkind: Pod\n{pod}")).unwrap();
    std::fs::write(&settings, format!("apiVersion: etcd-guard.io/v1alpha1\n{config}")).unwrap();
    let mut guard = Command::new(env!("CARGO_BIN_EXE_etcd-guard"));
    guard.arg("inject").arg("-f").arg(&file).arg("--config").arg(&settings).output().unwrap()
}

#[track_caller]
fn assert_refused(output: &Output, expected: &str) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains(expected), "{said}");
    assert!(output.stdout.is_empty(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn a_forbidden_name_is_denied_as_the_cluster_denies_it() {
    let rule = "podNames: {forbiddenWords: [offensive]}";
    for metadata in ["name: an-offensive-pod", "generateName: offensive-"] {
        let name = metadata.split_once(": ").unwrap().1;
        let denial = format!("the pod would be denied: pod name {name:?} contains \"offensive\"");
        assert_refused(&inject(&format!("metadata: {{{metadata}}}"), rule), &denial);
    }
    let fine = inject("metadata: {name: web}", rule);
    assert!(fine.status.success(), "{}", String::from_utf8_lossy(&fine.stderr));
}

#[test]
fn a_bad_lifespan_is_denied_as_the_cluster_denies_it() {
    let output = inject("metadata: {labels: {acme.com/lifespan-requested: '0'}}", "lifespan: {}");
    assert_refused(&output, "the pod would be denied: label acme.com/lifespan-requested: \"0\"");
}

#[test]
fn a_label_or_annotation_that_is_no_text_is_refused_and_its_key_named() {
    for (metadata, expected) in [
        ("labels: {acme.com/lifespan-requested: 12}", "label acme.com/lifespan-requested is 12,"),
        ("annotations: {etcd-guard.io/inject: true}", "annotation etcd-guard.io/inject is true,"),
    ] {
        let output = inject(&format!("metadata: {{name: web, {metadata}}}"), "lifespan: {}");
        assert_refused(&output, expected);
    }
    // Go reads null as an empty text.
    let empty = inject("metadata: {name: web, labels: {a: , b: null}}", "lifespan: {}");
    assert!(empty.status.success(), "{}", String::from_utf8_lossy(&empty.stderr));
}
