//! The chart renders what kustomize does, and the linter has nothing to say.

use crate::{
    helm_template, identity, kustomize, objects, path_of, stdout,
    support::{child::mortal, testbed::program},
};

/// The one difference that remains is none of the objects': a chart makes its namespace only if it is told to.
pub(super) fn assert_same(folder: &str, mode: &str, flags: &[&str]) {
    let mode = format!("--set=createNamespace=true,certificates.mode={mode}");
    let chart = objects(&helm_template(&[&[mode.as_str()], flags].concat()));
    let kustomized = objects(&kustomize(folder));
    let names = |objects: &[_]| objects.iter().map(identity).collect::<Vec<_>>();
    assert_eq!(names(&chart), names(&kustomized));
    for (chart, kustomized) in chart.iter().zip(&kustomized) {
        assert_eq!(chart, kustomized, "{}", identity(chart));
    }
}

#[test]
fn the_chart_and_the_base_are_the_same_objects() {
    assert_same("deploy/base", "files", &[]);
}

#[test]
fn the_chart_and_the_overlays_are_the_same_objects() {
    assert_same("deploy/overlays/self-managed", "self-managed", &[]);
    assert_same("deploy/overlays/cert-manager", "cert-manager", &[]);
}

#[test]
fn the_chart_and_the_mutating_path_are_the_same_objects() {
    let config = format!("--set-file=config={}", path_of("deploy/components/config/config.yaml").display());
    let flags = ["--set=parts.inject=true,parts.nodes=true,parts.rules=true", &config];
    assert_same("deploy/overlays/mutating", "files", &flags);
}

#[test]
fn the_chart_and_lxcfs_are_the_same_objects() {
    assert_same_with_config("deploy/overlays/lxcfs", "parts.inject=true,parts.lxcfs=true");
}

#[test]
fn the_chart_and_the_overlay_for_nodes_are_the_same_objects() {
    assert_same_with_config("deploy/overlays/nodes", "parts.nodes=true");
}

/// The same with these values, and the configuration file that the overlay has.
fn assert_same_with_config(folder: &str, values: &str) {
    let all = objects(&kustomize(folder));
    let map = all.iter().find(|it| it["kind"] == "ConfigMap").unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), map["data"]["config.yaml"].as_str().unwrap()).unwrap();
    let config = format!("--set-file=config={}", file.path().display());
    assert_same(folder, "self-managed", &[&format!("--set={values}"), &config]);
}

#[test]
fn helm_lint_has_nothing_to_say() {
    let mut lint = mortal(program("helm"));
    lint.args(["lint", "--strict"]).arg(path_of("deploy/chart/etcd-guard"));
    let said = stdout(&mut lint);
    assert!(said.contains("1 chart(s) linted, 0 chart(s) failed"), "{said}");
    assert!(!said.contains("[WARNING]") && !said.contains("[ERROR]"), "{said}");
}

#[test]
fn a_value_that_is_misspelt_is_refused() {
    let mut template = mortal(program("helm"));
    template
        .args(["template", "x", "--kube-version=1.34.3", "--set", "replica=3"])
        .arg(path_of("deploy/chart/etcd-guard"));
    let output = template.output().unwrap();
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("replica"), "{said}");
}
