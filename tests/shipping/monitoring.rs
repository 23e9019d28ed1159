//! Alerts and the dashboard, held against promtool, and against what a real Prometheus reads from a real server.

use std::{collections::BTreeSet, fs, path::Path};

use http::{Method, Request, header};
use serde_json::{Value, json};

use crate::{
    path_of, stdout,
    support::{
        child::mortal,
        guard_process::{GuardProcess, SURVEY_INTERVAL},
        http_client::Connection,
        prometheus::{DASHBOARD, Prometheus, panels},
        testbed::program,
    },
};

const RULE: &str = "deploy/components/monitoring/prometheus-rule.yaml";
const TESTS: &str = "deploy/monitoring/alerts.test.yaml";

fn yaml(file: &str) -> Value {
    serde_saphyr::from_str(&fs::read_to_string(path_of(file)).unwrap()).unwrap()
}

/// The rules as a Prometheus without the operator reads them, made as docs/monitoring.md says.
fn write_rules(folder: &Path) {
    let made = stdout(mortal("sed").arg("1,/^spec:/d; s/^  //").arg(path_of(RULE)));
    fs::write(folder.join("rules.yaml"), made).unwrap();
}

/// The alerts, by name.
fn alerts() -> Vec<Value> {
    let groups = yaml(RULE)["spec"]["groups"].take();
    let rules = groups.as_array().unwrap().iter().flat_map(|group| group["rules"].as_array().unwrap());
    rules.cloned().collect()
}

fn promtool(folder: &Path, words: &[&str]) -> String {
    stdout(mortal(program("promtool")).args(words).current_dir(folder))
}

#[test]
fn promtool_takes_the_rules_and_every_unit_test_of_them_passes() {
    let folder = tempfile::tempdir().unwrap();
    write_rules(folder.path());
    let checked = promtool(folder.path(), &["check", "rules", "rules.yaml"]);
    assert!(checked.contains(&format!("{} rules found", alerts().len())), "{checked}");
    fs::copy(path_of(TESTS), folder.path().join("tests.yaml")).unwrap();
    let tested = promtool(folder.path(), &["test", "rules", "tests.yaml"]);
    assert!(tested.contains("SUCCESS"), "{tested}");
}

#[test]
fn every_alert_is_seen_to_fire_and_seen_to_be_silent() {
    let tests = yaml(TESTS);
    let cases: Vec<&Value> = tests["tests"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|it| it["alert_rule_test"].as_array().unwrap())
        .collect();
    for alert in alerts() {
        let of_alert = || cases.iter().filter(|it| it["alertname"] == alert["alert"]);
        let fires = |it: &&&Value| !it["exp_alerts"].as_array().unwrap().is_empty();
        assert!(of_alert().any(|it| fires(&it)), "{} is not seen to fire", alert["alert"]);
        assert!(of_alert().any(|it| !fires(&it)), "{} is not seen to be silent", alert["alert"]);
    }
}

/// A guard without an apiserver, which surveys.
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

/// One denial, and one new pod that asks for nothing.
async fn ask(guard: &GuardProcess) {
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

/// The names of our metrics in an expression.
fn names(expression: &str) -> BTreeSet<String> {
    let is_word = |it: char| it.is_ascii_alphanumeric() || it == '_';
    let words = expression.split(|it| !is_word(it));
    words.filter(|it| it.starts_with("etcd_guard_")).map(str::to_owned).collect()
}

#[tokio::test]
async fn every_panel_and_every_alert_reads_what_a_real_server_shows() {
    let folder = tempfile::tempdir().unwrap();
    let guard = guard(folder.path());
    ask(&guard).await;
    let prometheus = Prometheus::scraping(guard.http(), folder.path()).await;
    let panels = panels();
    assert!(panels.len() > 15, "{panels:?}");
    for (title, query) in &panels {
        eprintln!("{title}: {query}");
        prometheus.wait_for_series(query).await;
    }
    for alert in alerts() {
        let expression = alert["expr"].as_str().unwrap();
        prometheus.query(expression).await;
        for name in names(expression) {
            prometheus.wait_for_series(&name).await;
        }
    }
    // This guard is not ready, and that is no series to be absent.
    assert_eq!(prometheus.query("absent(etcd_guard_ready == 1)").await.len(), 1);
}

/// What Grafana would not tell before somebody looks at the dashboard.
#[test]
fn the_dashboards_panels_have_numbers_of_their_own_and_do_not_overlap() {
    let dashboard: Value = serde_json::from_str(&fs::read_to_string(path_of(DASHBOARD)).unwrap()).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let ids: BTreeSet<_> = panels.iter().map(|it| it["id"].as_u64().unwrap()).collect();
    assert_eq!(ids.len(), panels.len());
    let mut taken = BTreeSet::new();
    for panel in panels {
        let [x, y, w, h] = ["x", "y", "w", "h"].map(|it| panel["gridPos"][it].as_u64().unwrap());
        assert!(x + w <= 24, "{}", panel["title"]);
        for place in (x..x + w).flat_map(|x| (y..y + h).map(move |y| (x, y))) {
            assert!(taken.insert(place), "{} lies over another panel", panel["title"]);
        }
    }
}
