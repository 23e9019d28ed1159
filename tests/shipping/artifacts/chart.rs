//! The chart renders the same objects as kustomize, and `helm lint` reports nothing.

use crate::{helm_template, identity, kustomize, objects, project_path, stdout};
use test_support::{processes::child::scoped_command, processes::testbed::program};

/// Asserts that the chart and a kustomization have the same objects. The chart creates its namespace only on request.
pub(crate) fn assert_same(folder: &str, mode: &str, flags: &[&str]) {
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
fn chart_renders_same_objects_as_base() {
    assert_same("deploy/base", "files", &[]);
}

#[test]
fn chart_renders_same_objects_as_overlays() {
    assert_same("deploy/overlays/self-managed", "self-managed", &[]);
    assert_same("deploy/overlays/cert-manager", "cert-manager", &[]);
}

#[test]
fn chart_renders_same_objects_as_mutating_overlay() {
    let config =
        format!("--set-file=config={}", project_path("deploy/components/config/config.yaml").display());
    let flags = ["--set=parts.inject=true,parts.nodes=true,parts.rules=true", &config];
    assert_same("deploy/overlays/mutating", "files", &flags);
}

#[test]
fn chart_renders_same_objects_as_lxcfs_overlay() {
    assert_same_with_config("deploy/overlays/lxcfs", "parts.inject=true,parts.lxcfs=true");
}

#[test]
fn chart_renders_same_objects_as_node_overlay() {
    assert_same_with_config("deploy/overlays/nodes", "parts.nodes=true");
}

/// Compares with these values and the configuration file of the overlay.
fn assert_same_with_config(folder: &str, values: &str) {
    let all = objects(&kustomize(folder));
    let map = all.iter().find(|object| object["kind"] == "ConfigMap").unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), map["data"]["config.yaml"].as_str().unwrap()).unwrap();
    let config = format!("--set-file=config={}", file.path().display());
    assert_same(folder, "self-managed", &[&format!("--set={values}"), &config]);
}

#[test]
fn helm_lint_reports_nothing() {
    let mut lint = scoped_command(program("helm"));
    lint.args(["lint", "--strict"]).arg(project_path("deploy/chart/etcd-guard"));
    let output = stdout(&mut lint);
    assert!(output.contains("1 chart(s) linted, 0 chart(s) failed"), "{output}");
    assert!(!output.contains("[WARNING]") && !output.contains("[ERROR]"), "{output}");
}

#[test]
fn rejects_misspelled_value() {
    let mut template = scoped_command(program("helm"));
    template
        .args(["template", "x", "--kube-version=1.34.3", "--set", "replica=3"])
        .arg(project_path("deploy/chart/etcd-guard"));
    let output = template.output().unwrap();
    assert!(!output.status.success());
    let output = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.contains("replica"), "{output}");
}
