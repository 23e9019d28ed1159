//! The chart renders the same objects as kustomize, apart from labels and hooks, and `helm lint` reports nothing.

use serde_json::Value;

use crate::{helm_template, identity, kustomize, objects, project_path, stdout};
use test_support::processes::{child::scoped_command, testbed::program};

/// Labels that the chart adds to those of kustomize, as Helm recommends.
const RELEASE_LABELS: [&str; 5] = [
    "app.kubernetes.io/instance",
    "app.kubernetes.io/version",
    "app.kubernetes.io/managed-by",
    "app.kubernetes.io/part-of",
    "helm.sh/chart",
];

/// Asserts that the chart and a kustomization have the same objects. The chart creates its namespace only on request, has
/// further labels, and has hooks, for which kustomize has no equivalent.
pub(crate) fn assert_same(folder: &str, mode: &str, flags: &[&str]) {
    let mode = format!("--set=createNamespace=true,certificates.mode={mode}");
    let [mut chart, kustomized] =
        [helm_template(&[&["--no-hooks", mode.as_str()], flags].concat()), kustomize(folder)]
            .map(|yaml| without_namespace_of_policies(objects(&yaml)));
    let names = |objects: &[_]| objects.iter().map(identity).collect::<Vec<_>>();
    assert_eq!(names(&chart), names(&kustomized));
    for (chart, kustomized) in chart.iter_mut().zip(&kustomized) {
        remove_release_labels(chart);
        if kustomized["kind"] == "ConfigMap" {
            // The generator of kustomize sets no label.
            chart["metadata"].as_object_mut().unwrap().remove("labels");
        }
        assert_eq!(chart, kustomized, "{}", identity(chart));
    }
}

/// Removes the labels of the release, each of which must be present.
fn remove_release_labels(object: &mut Value) {
    let name = identity(object);
    let labels = object["metadata"]["labels"].as_object_mut().unwrap();
    for label in RELEASE_LABELS {
        assert!(labels.remove(label).is_some(), "{name} has no label {label}");
    }
}

/// Removes the namespace that kustomize sets on admission policies, because it does not know them. They are not in a
/// namespace, and the API server removes it as well.
fn without_namespace_of_policies(mut objects: Vec<Value>) -> Vec<Value> {
    for object in &mut objects {
        if object["kind"].as_str().is_some_and(|kind| kind.contains("AdmissionPolicy")) {
            object["metadata"].as_object_mut().unwrap().remove("namespace");
        }
    }
    objects.sort_by_key(identity);
    objects
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
    assert_same("deploy/overlays/mutating", "self-managed", &flags);
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

/// Asserts that Helm rejects the values with a message that contains `named`.
pub(crate) fn assert_rejected(values: &str, named: &str) {
    let mut template = scoped_command(program("helm"));
    template
        .args(["template", "x", "--kube-version=1.37.2", &format!("--set={values}")])
        .arg(project_path("deploy/chart/etcd-guard"));
    let output = template.output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && stderr.contains(named), "{values}: {stderr}");
}

#[test]
fn rejects_misspelled_value() {
    assert_rejected("replica=3", "replica");
    assert_rejected("monitoring.podMonitor.intervall=3s", "intervall");
    assert_rejected("optInLabel.key=a b", "optInLabel");
    assert_rejected("optInLabel.key=kubernetes.io/metadata.name", "optInLabel");
    assert_rejected("optInLabel.value=", "optInLabel");
}

/// `helm upgrade --reuse-values` passes no value that the installed chart did not have.
#[test]
fn rejects_reused_values_of_older_chart() {
    assert_rejected("replicaCount=null", "--reset-then-reuse-values");
}

#[test]
fn rejects_contradicting_values() {
    for (values, named) in [
        ("parts.nodesPolicy=true", "parts.nodes"),
        ("monitoring.dashboard.enabled=true", "monitoring.enabled"),
        ("monitoring.serviceMonitor.enabled=true", "monitoring.enabled"),
        (
            "webhooks.guard=false,webhooks.eviction=false,webhooks.intent=false,webhooks.resources=",
            "at least one",
        ),
        ("rbac.create=false", "unregister.enabled"),
        ("serviceAccount.create=false", "serviceAccount.name"),
        ("certificates.issuerRef.name=internal", "cert-manager"),
        ("monitoring.enabled=true,monitoring.prometheusRule.disabledAlerts={EtcdDown}", "EtcdDown"),
        ("hostNetwork=true,createNamespace=true", "Pod Security"),
        ("defaultMode=audit,config=[", "config is no YAML"),
    ] {
        assert_rejected(values, named);
    }
}

/// As after the installation in the README: every object remains, and pods mount only what exists.
#[test]
fn mutating_overlay_extends_installation_of_readme() {
    let [installed, mutating] = ["deploy/overlays/self-managed", "deploy/overlays/mutating"]
        .map(|folder| objects(&kustomize(folder)));
    for object in &installed {
        let name = identity(object);
        let applied = mutating.iter().find(|applied| identity(applied) == name).expect(&name);
        let is_server = object["kind"] == "Deployment" && object["metadata"]["name"] == "etcd-guard";
        if !is_server {
            assert_eq!(applied, object, "{name}");
            continue;
        }
        let added: Vec<_> = applied["spec"]["template"]["spec"]["volumes"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|volume| {
                !object["spec"]["template"]["spec"]["volumes"].as_array().unwrap().contains(volume)
            })
            .collect();
        assert_eq!(added.len(), 1, "{added:?}");
        let map = added[0]["configMap"]["name"].as_str().unwrap();
        assert!(
            mutating.iter().any(|other| other["kind"] == "ConfigMap" && other["metadata"]["name"] == map)
        );
    }
}
