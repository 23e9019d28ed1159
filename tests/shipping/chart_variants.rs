//! The chart's other ways: each renders what a kustomization does.

use crate::{
    chart::assert_same,
    kustomize, objects, path_of,
    support::{child::mortal, testbed::program},
};

#[test]
fn the_chart_with_cert_manager_gives_every_part_its_bundle() {
    let config = format!("--set-file=config={}", path_of("deploy/components/config/config.yaml").display());
    let flags = ["--set=parts.inject=true,parts.nodes=true,parts.rules=true", &config];
    let folder = "tests/data/kustomizations/with-cert-manager";
    assert_same(folder, "cert-manager", &flags);
    let mut objects = objects(&kustomize(folder));
    objects.retain(|it| it["kind"].as_str().unwrap().ends_with("WebhookConfiguration"));
    assert_eq!(objects.len(), 4);
    for object in objects {
        let from = &object["metadata"]["annotations"]["cert-manager.io/inject-ca-from"];
        assert_eq!(from, "etcd-guard/etcd-guard-ca", "{object}");
    }
}

#[test]
fn the_chart_with_a_client_ca_is_the_same_objects() {
    let flags = ["--set=clientCaConfigMap=etcd-guard-client-ca"];
    assert_same("tests/data/kustomizations/with-client-ca", "files", &flags);
    assert_same("tests/data/kustomizations/self-managed-with-client-ca", "self-managed", &flags);
}

#[test]
fn the_chart_with_monitoring_is_the_same_objects() {
    assert_same(
        "tests/data/kustomizations/with-monitoring",
        "self-managed",
        &["--set=monitoring.enabled=true"],
    );
}

/// By which a Prometheus of the operator's selects what it takes.
#[test]
fn the_charts_monitors_carry_the_labels_that_are_asked_for() {
    let mut all = objects(&crate::helm_template(&[
        "--set=monitoring.enabled=true,monitoring.labels.release=prometheus",
    ]));
    all.retain(|it| it["apiVersion"] == "monitoring.coreos.com/v1");
    assert_eq!(all.len(), 2);
    for object in all {
        assert_eq!(object["metadata"]["labels"]["release"], "prometheus", "{object}");
    }
}

#[test]
fn the_chart_sends_traces_where_it_is_told_to_and_by_default_nowhere() {
    let arguments = |flags: &[&str]| {
        let all = objects(&crate::helm_template(flags));
        let deployment = all.iter().find(|it| it["kind"] == "Deployment").unwrap();
        deployment["spec"]["template"]["spec"]["containers"][0]["args"].to_string()
    };
    let url = "http://collector.observability:4317";
    let said = arguments(&[&format!("--set=tracing.otlpEndpoint={url}")]);
    assert!(said.contains(&format!("\"--otlp-endpoint={url}\"")), "{said}");
    assert!(!arguments(&[]).contains("otlp"));
}

#[test]
fn the_chart_and_the_overlays_for_trying_it_out_are_the_same_objects() {
    assert_same("deploy/overlays/audit-only", "self-managed", &["--set=webhooks.failurePolicy=Ignore"]);
    assert_same(
        "deploy/overlays/minikube",
        "self-managed",
        &["--set=image.pullPolicy=Never,extraArgs={--survey-interval=5s}"],
    );
}

#[test]
fn the_chart_that_has_the_guard_register_itself_is_the_same_objects() {
    assert_same("deploy/overlays/register", "self-managed", &["--set=register=true"]);
}

/// The guard applies what it carries, and has no bundle to write where it does not make its certificates.
#[test]
fn values_that_a_guard_which_registers_itself_would_not_follow_are_refused() {
    for (value, named) in [
        ("certificates.mode=files", "certificates.mode"),
        ("webhooks.failurePolicy=Ignore", "webhooks.failurePolicy"),
        ("webhooks.timeoutSeconds=5", "webhooks.timeoutSeconds"),
    ] {
        let mut template = mortal(program("helm"));
        template
            .args(["template", "x", "--kube-version=1.34.3", &format!("--set=register=true,{value}")])
            .arg(path_of("deploy/chart/etcd-guard"));
        let output = template.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(named), "{value}: {said}");
    }
}

/// Every overlay has its place in one of the comparisons.
#[test]
fn no_overlay_is_left_out() {
    let compared = [include_str!("chart.rs"), include_str!("chart_variants.rs")].concat();
    for overlay in std::fs::read_dir(path_of("deploy/overlays")).unwrap() {
        let name = overlay.unwrap().file_name().into_string().unwrap();
        assert!(compared.contains(&format!("\"deploy/overlays/{name}\"")), "{name}");
    }
}

/// For clusters that take its usual class nowhere but in kube-system.
#[test]
fn the_chart_takes_another_priority_class_or_none() {
    let render = |class: &str| objects(&crate::helm_template(&[&format!("--set=priorityClassName={class}")]));
    let class_of = |all: &[serde_json::Value]| {
        let deployment = all.iter().find(|it| it["kind"] == "Deployment").unwrap();
        deployment["spec"]["template"]["spec"]["priorityClassName"].clone()
    };
    let quota = |all: &[serde_json::Value]| all.iter().filter(|it| it["kind"] == "ResourceQuota").count();
    let own = render("mine");
    assert_eq!((class_of(&own), quota(&own)), ("mine".into(), 1));
    let none = render("");
    assert_eq!((class_of(&none), quota(&none)), (serde_json::Value::Null, 0));
}
