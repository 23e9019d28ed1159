//! Alerts and the dashboard, checked by promtool, and by a real Prometheus that scrapes a real guard.

use std::{collections::BTreeSet, fs, path::Path};

use http::{Method, Request, header};
use serde_json::{Value, json};

use crate::{helm_template, project_path, stdout};
use test_support::{
    guard::process::{GuardProcess, SURVEY_INTERVAL},
    http_client::Connection,
    processes::{child::scoped_command, testbed::program},
    telemetry::prometheus::{DASHBOARD, Prometheus, VARIABLES, panels, with_all_values},
};

const RULE: &str = "deploy/components/monitoring/prometheus-rule.yaml";
const TESTS: &str = "deploy/monitoring/alerts.test.yaml";

fn yaml(file: &str) -> Value {
    serde_saphyr::from_str(&fs::read_to_string(project_path(file)).unwrap()).unwrap()
}

/// Writes the rules for a Prometheus without the operator, by the command in docs/monitoring.md.
fn write_rules(folder: &Path) {
    let made = stdout(scoped_command("sed").arg("1,/^spec:/d; s/^  //").arg(project_path(RULE)));
    fs::write(folder.join("rules.yaml"), made).unwrap();
}

/// Returns the alerts.
fn alerts() -> Vec<Value> {
    let groups = yaml(RULE)["spec"]["groups"].take();
    let rules = groups.as_array().unwrap().iter().flat_map(|group| group["rules"].as_array().unwrap());
    rules.cloned().collect()
}

fn promtool(folder: &Path, arguments: &[&str]) -> String {
    stdout(scoped_command(program("promtool")).args(arguments).current_dir(folder))
}

#[test]
fn promtool_accepts_rules_and_their_unit_tests() {
    let folder = tempfile::tempdir().unwrap();
    write_rules(folder.path());
    let checked = promtool(folder.path(), &["check", "rules", "rules.yaml"]);
    assert!(checked.contains(&format!("{} rules found", alerts().len())), "{checked}");
    fs::copy(project_path(TESTS), folder.path().join("tests.yaml")).unwrap();
    let tested = promtool(folder.path(), &["test", "rules", "tests.yaml"]);
    assert!(tested.contains("SUCCESS"), "{tested}");
}

#[test]
fn alert_tests_cover_firing_and_silence() {
    let tests = yaml(TESTS);
    let cases: Vec<&Value> = tests["tests"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|test| test["alert_rule_test"].as_array().unwrap())
        .collect();
    for alert in alerts() {
        let cases_of_alert = || cases.iter().filter(|case| case["alertname"] == alert["alert"]);
        let fires = |case: &&&Value| !case["exp_alerts"].as_array().unwrap().is_empty();
        assert!(
            cases_of_alert().any(|case| fires(&case)),
            "{} has no case in which it fires",
            alert["alert"]
        );
        assert!(
            cases_of_alert().any(|case| !fires(&case)),
            "{} has no case in which it does not fire",
            alert["alert"]
        );
    }
}

/// Starts a guard without an API server that surveys.
fn guard(folder: &Path) -> GuardProcess {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let kubeconfig = folder.join("kubeconfig");
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "x",
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
    });
    fs::write(&kubeconfig, config.to_string()).unwrap();
    fs::write(folder.join(SURVEY_INTERVAL), "100ms").unwrap();
    GuardProcess::launch(&kubeconfig, folder)
}

/// Sends a request that is denied, and the creation of a pod without annotations.
async fn send_requests(guard: &GuardProcess) {
    let pod = |name: &str, image: &str| {
        json!({
            "metadata": {"name": name, "namespace": "prod", "uid": name},
            "spec": {"containers": [{"name": name, "image": image}]}, "status": {"phase": "Running"},
        })
    };
    let requests = [
        ("/validate", "DELETE", Value::Null, pod("etcd", "quay.io/coreos/etcd:v3.6.16")),
        ("/mutate", "CREATE", pod("web", "nginx"), Value::Null),
    ];
    let mut connection = Connection::tls(guard.https(), &guard.ca_pem).await.unwrap();
    for (path, operation, object, old_object) in requests {
        let review = json!({
            "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
            "request": {
                "uid": "1", "operation": operation, "namespace": "prod", "userInfo": {"username": "admin"},
                "resource": {"group": "", "version": "v1", "resource": "pods"}, "name": "etcd",
                "object": object, "oldObject": old_object, "dryRun": true,
            },
        });
        let request = Request::builder()
            .method(Method::POST)
            .uri(path)
            .header(header::HOST, "localhost")
            .header(header::CONTENT_TYPE, "application/json")
            .body(review.to_string().into())
            .unwrap();
        assert!(connection.send(request).await.unwrap().status.is_success());
    }
}

/// Whether an expression queries clusters by name. This guard knows no cluster; the test of a guarded cluster in
/// `tests/control_plane/observability/dashboard.rs` queries these series.
fn names_clusters(expression: &str) -> bool {
    expression.contains("etcd_guard_cluster_")
}

/// Returns the names of the guard's metrics in an expression.
fn names(expression: &str) -> BTreeSet<String> {
    let is_word = |character: char| character.is_ascii_alphanumeric() || character == '_';
    let words = expression.split(|character| !is_word(character));
    words.filter(|word| word.starts_with("etcd_guard_")).map(str::to_owned).collect()
}

#[tokio::test]
async fn panels_and_alerts_query_existing_metrics() {
    let folder = tempfile::tempdir().unwrap();
    let guard = guard(folder.path());
    send_requests(&guard).await;
    let prometheus = Prometheus::start(guard.http(), folder.path()).await;
    let panels = panels();
    assert!(panels.len() > 15, "{panels:?}");
    for (title, query) in panels.iter().filter(|(_, query)| !names_clusters(query)) {
        eprintln!("{title}: {query}");
        prometheus.wait_for_series(query).await;
    }
    for alert in alerts() {
        let expression = alert["expr"].as_str().unwrap();
        prometheus.query(expression).await;
        for name in names(expression).iter().filter(|name| !names_clusters(name)) {
            prometheus.wait_for_series(name).await;
        }
    }
    // This guard is not ready, and that is no series to be absent.
    assert_eq!(prometheus.query("absent(etcd_guard_ready == 1)").await.len(), 1);
}

/// A variable that no query uses has no effect, and Grafana does not replace an undefined one.
#[test]
fn dashboard_variables_are_defined_and_used() {
    let text = fs::read_to_string(project_path(DASHBOARD)).unwrap();
    let dashboard: Value = serde_json::from_str(&text).unwrap();
    let defined: Vec<&str> = dashboard["templating"]["list"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|variable| variable["type"] == "query")
        .map(|variable| {
            // The value that `panels` uses for all series.
            assert_eq!(variable["allValue"], ".*");
            variable["name"].as_str().unwrap()
        })
        .collect();
    assert_eq!(defined, VARIABLES);
    let panels = dashboard["panels"].as_array().unwrap();
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().into_iter().flatten());
    let queries: Vec<&str> = targets.map(|target| target["expr"].as_str().unwrap()).collect();
    for query in &queries {
        assert!(!with_all_values(query, "1m").contains('$'), "{query}");
    }
    for name in VARIABLES {
        let matcher = format!("{name}=~\"${name}\"");
        assert!(queries.iter().any(|query| query.contains(&matcher)), "no panel uses {name}");
    }
}

/// Without a base URL, the annotation would be a path without a server.
#[test]
fn chart_links_runbook_only_with_base_url() {
    let rendered = |flags: &[&str]| helm_template(&[&["--set=monitoring.enabled=true"], flags].concat());
    let page = rendered(&[]);
    assert_eq!(page.matches("- alert: ").count(), alerts().len());
    assert!(!page.contains("runbook_url"));
    let page = rendered(&["--set=monitoring.prometheusRule.runbookBaseUrl=https://wiki/run"]);
    assert_eq!(page.matches("runbook_url: https://wiki/run#etcdguard").count(), alerts().len());
}

/// Errors that Grafana reports only when a user opens the dashboard.
#[test]
fn dashboard_panels_are_unique_and_do_not_overlap() {
    let dashboard: Value =
        serde_json::from_str(&fs::read_to_string(project_path(DASHBOARD)).unwrap()).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let ids: BTreeSet<_> = panels.iter().map(|panel| panel["id"].as_u64().unwrap()).collect();
    assert_eq!(ids.len(), panels.len());
    let mut taken = BTreeSet::new();
    for panel in panels {
        let [x, y, w, h] = ["x", "y", "w", "h"].map(|key| panel["gridPos"][key].as_u64().unwrap());
        assert!(x + w <= 24, "{}", panel["title"]);
        for place in (x..x + w).flat_map(|x| (y..y + h).map(move |y| (x, y))) {
            assert!(taken.insert(place), "{} overlaps with another panel", panel["title"]);
        }
    }
}
