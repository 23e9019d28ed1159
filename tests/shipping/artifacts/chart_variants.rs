//! Variants of the chart: each renders the same objects as a kustomization.

use crate::{artifacts::chart::assert_same, kustomize, objects, project_path};
use test_support::{processes::child::scoped_command, processes::testbed::program};

#[test]
fn chart_with_cert_manager_injects_every_ca_bundle() {
    let config =
        format!("--set-file=config={}", project_path("deploy/components/config/config.yaml").display());
    let flags = ["--set=parts.inject=true,parts.nodes=true,parts.rules=true", &config];
    let folder = "tests/data/kustomizations/with-cert-manager";
    assert_same(folder, "cert-manager", &flags);
    let mut objects = objects(&kustomize(folder));
    objects.retain(|object| object["kind"].as_str().unwrap().ends_with("WebhookConfiguration"));
    assert_eq!(objects.len(), 4);
    for object in objects {
        let from = &object["metadata"]["annotations"]["cert-manager.io/inject-ca-from"];
        assert_eq!(from, "etcd-guard/etcd-guard-ca", "{object}");
    }
}

#[test]
fn chart_renders_same_objects_with_client_ca() {
    let flags = ["--set=clientCaConfigMap=etcd-guard-client-ca"];
    assert_same("tests/data/kustomizations/with-client-ca", "files", &flags);
    assert_same("tests/data/kustomizations/self-managed-with-client-ca", "self-managed", &flags);
}

#[test]
fn chart_renders_same_objects_with_monitoring() {
    assert_same(
        "tests/data/kustomizations/with-monitoring",
        "self-managed",
        &["--set=monitoring.enabled=true"],
    );
}

#[test]
fn chart_renders_same_objects_with_node_deletions() {
    let folder = "tests/data/kustomizations/with-node-deletions";
    assert_same(folder, "self-managed", &["--set=parts.nodeDeletions=true"]);
}

#[test]
fn chart_renders_same_objects_without_resources() {
    let folder = "tests/data/kustomizations/without-resources";
    assert_same(folder, "self-managed", &["--set=webhooks.resources="]);
    let objects = objects(&kustomize(folder));
    let is_configuration = |object: &&serde_json::Value| object["kind"] == "ValidatingWebhookConfiguration";
    let entries = objects.iter().find(is_configuration).unwrap()["webhooks"].as_array().unwrap();
    let names: Vec<_> = entries.iter().map(|entry| entry["name"].as_str().unwrap()).collect();
    assert_eq!(
        names,
        ["guard", "eviction.guard", "intent.guard"].map(|name| format!("{name}.etcd-guard.io"))
    );
}

/// A Prometheus of the operator selects monitors by these labels.
#[test]
fn chart_sets_configured_monitor_labels() {
    let mut all = objects(&crate::helm_template(&[
        "--set=monitoring.enabled=true,monitoring.labels.release=prometheus",
    ]));
    all.retain(|object| object["apiVersion"] == "monitoring.coreos.com/v1");
    assert_eq!(all.len(), 2);
    for object in all {
        assert_eq!(object["metadata"]["labels"]["release"], "prometheus", "{object}");
    }
}

#[test]
fn chart_exports_traces_only_if_configured() {
    let arguments = |flags: &[&str]| {
        let all = objects(&crate::helm_template(flags));
        let deployment = all.iter().find(|object| object["kind"] == "Deployment").unwrap();
        deployment["spec"]["template"]["spec"]["containers"][0]["args"].to_string()
    };
    let url = "http://collector.observability:4317";
    let output = arguments(&[&format!("--set=tracing.otlpEndpoint={url}")]);
    assert!(output.contains(&format!("\"--otlp-endpoint={url}\"")), "{output}");
    assert!(!arguments(&[]).contains("otlp"));
}

#[test]
fn chart_renders_same_objects_as_trial_overlays() {
    assert_same("deploy/overlays/audit-only", "self-managed", &["--set=webhooks.failurePolicy=Ignore"]);
    assert_same(
        "deploy/overlays/minikube",
        "self-managed",
        &["--set=image.pullPolicy=Never,extraArgs={--survey-interval=5s}"],
    );
}

#[test]
fn chart_renders_same_objects_with_self_registration() {
    assert_same("deploy/overlays/register", "self-managed", &["--set=register=true"]);
}

/// The guard applies its embedded configurations, and can write the bundle only into them if it creates its
/// certificates.
#[test]
fn rejects_values_ignored_by_self_registration() {
    for (value, named) in [
        ("certificates.mode=files", "certificates.mode"),
        ("webhooks.failurePolicy=Ignore", "webhooks.failurePolicy"),
        ("webhooks.timeoutSeconds=5", "webhooks.timeoutSeconds"),
        ("webhooks.resources=Fail", "webhooks.resources"),
    ] {
        let mut template = scoped_command(program("helm"));
        template
            .args(["template", "x", "--kube-version=1.34.3", &format!("--set=register=true,{value}")])
            .arg(project_path("deploy/chart/etcd-guard"));
        let output = template.output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && stderr.contains(named), "{value}: {stderr}");
    }
}

/// Every overlay is compared with the chart.
#[test]
fn chart_tests_cover_every_overlay() {
    let compared = [include_str!("chart.rs"), include_str!("chart_variants.rs")].concat();
    for overlay in std::fs::read_dir(project_path("deploy/overlays")).unwrap() {
        let name = overlay.unwrap().file_name().into_string().unwrap();
        assert!(compared.contains(&format!("\"deploy/overlays/{name}\"")), "{name}");
    }
}

/// For clusters that allow the default class only in kube-system.
#[test]
fn chart_accepts_other_priority_class_or_none() {
    let render = |class: &str| objects(&crate::helm_template(&[&format!("--set=priorityClassName={class}")]));
    let class_of = |all: &[serde_json::Value]| {
        let deployment = all.iter().find(|object| object["kind"] == "Deployment").unwrap();
        deployment["spec"]["template"]["spec"]["priorityClassName"].clone()
    };
    let quota =
        |all: &[serde_json::Value]| all.iter().filter(|object| object["kind"] == "ResourceQuota").count();
    let own = render("mine");
    assert_eq!((class_of(&own), quota(&own)), ("mine".into(), 1));
    let without = render("");
    assert_eq!((class_of(&without), quota(&without)), (serde_json::Value::Null, 0));
}
