//! Variants of the chart: each renders the same objects as a kustomization.

use crate::{
    artifacts::chart::{assert_rejected, assert_same},
    helm_template, kustomize, objects, project_path,
};

#[test]
fn chart_with_cert_manager_injects_every_ca_bundle() {
    let config =
        format!("--set-file=config={}", project_path("deploy/components/config/config.yaml").display());
    let flags = ["--set=parts.inject=true,parts.nodes=true,parts.rules=true", &config];
    let folder = "tests/data/kustomizations/with-cert-manager";
    assert_same(folder, "cert-manager", &flags);
    let mut objects = objects(&kustomize(folder));
    objects.retain(|object| object["kind"].as_str().unwrap().ends_with("WebhookConfiguration"));
    assert_eq!(objects.len(), 5);
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
        &["--set=monitoring.enabled=true,monitoring.prometheusRule.runbookBaseUrl=docs/alerts.md"],
    );
}

#[test]
fn chart_renders_same_objects_with_cluster_metrics() {
    assert_same(
        "tests/data/kustomizations/with-cluster-metrics",
        "self-managed",
        &[
            "--set=monitoring.enabled=true,monitoring.clusterMetrics=500",
            "--set=monitoring.prometheusRule.runbookBaseUrl=https://wiki.example.com/etcd-guard/runbook",
        ],
    );
}

#[test]
fn chart_renders_same_objects_with_node_deletions() {
    let folder = "tests/data/kustomizations/with-node-deletions";
    assert_same(folder, "self-managed", &["--set=parts.nodeDeletions=true"]);
}

#[test]
fn chart_renders_same_objects_with_handover() {
    let folder = "tests/data/kustomizations/with-handover";
    assert_same(folder, "self-managed", &["--set=parts.handover=true"]);
}

#[test]
fn chart_renders_same_objects_with_owner_kinds() {
    let folder = "tests/data/kustomizations/with-owner-kinds";
    let value = r#"--set-json=ownerKinds=[{"group":"example.com","resource":"etcdclusters"}]"#;
    assert_same(folder, "self-managed", &[value]);
}

#[test]
fn chart_renders_same_objects_with_another_opt_in_label() {
    let label = "--set=optInLabel.key=example.com/etcd,optInLabel.value=guarded";
    assert_same("tests/data/kustomizations/with-opt-in-label", "self-managed", &[label]);
    let folder = "tests/data/kustomizations/register-with-opt-in-label";
    assert_same(folder, "self-managed", &[label, "--set=register=true"]);
}

#[test]
fn chart_renders_same_objects_with_over_commit_policy() {
    let folder = "tests/data/kustomizations/with-over-commit-policy";
    let config =
        format!("--set-file=config={}", project_path("deploy/components/config/config.yaml").display());
    let values = "--set=parts.nodes=true,parts.nodesPolicy=true";
    let served = "--api-versions=admissionregistration.k8s.io/v1/MutatingAdmissionPolicy";
    assert_same(folder, "self-managed", &[values, &config, served]);
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
        ["guard", "eviction.guard", "intent.guard", "others.guard", "update.guard"]
            .map(|name| format!("{name}.etcd-guard.io"))
    );
}

#[test]
fn chart_renders_same_objects_as_trial_overlays() {
    assert_same("deploy/overlays/fail-open", "self-managed", &["--set=webhooks.failurePolicy=Ignore"]);
    assert_same(
        "deploy/overlays/minikube",
        "self-managed",
        &["--set=image.pullPolicy=Never,extraArgs={--survey-interval=5s,--cluster-metrics}"],
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
        ("webhooks.intent=false", "intent"),
        ("webhooks.excludedNamespaces={legacy}", "webhooks.excludedNamespaces"),
        ("ownerKinds[0].group=example.com,ownerKinds[0].resource=etcdclusters", "ownerKinds"),
    ] {
        assert_rejected(&format!("register=true,{value}"), named);
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
    let render = |class: &str| objects(&helm_template(&[&format!("--set=priorityClassName={class}")]));
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
