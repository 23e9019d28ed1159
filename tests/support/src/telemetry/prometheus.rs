//! A real Prometheus, and the queries of the shipped dashboard.

use std::{
    fmt::Write as _,
    fs,
    net::{SocketAddr, TcpListener},
    path::Path,
    process::{Child, Stdio},
    time::Duration,
};

use serde_json::{Value, json};

use crate::{
    http_client::get,
    processes::{child::scoped_command, testbed::program},
    project,
    wait::{wait_for, wait_until},
};

/// The shipped dashboard.
pub const DASHBOARD: &str = "deploy/monitoring/dashboard.json";

/// The variables of the dashboard that select series. `.*` is the value of each for all series.
pub const VARIABLES: [&str; 3] = ["namespace", "cluster", "pod"];

/// The value of `$__rate_interval`.
const RATE_INTERVAL: &str = "1m";

/// The longest time until Prometheus starts, or until a query returns a series.
const TIMEOUT: Duration = Duration::from_secs(120);

/// A Prometheus that scrapes guards every second. It is killed when this is dropped.
pub struct Prometheus {
    child: Child,
    address: SocketAddr,
}

impl Prometheus {
    /// Starts a Prometheus that scrapes one guard.
    pub async fn start(guard: SocketAddr, folder: &Path) -> Self {
        Self::start_with_targets(&[guard], folder).await
    }

    /// Starts a Prometheus that scrapes several guards.
    pub async fn start_with_targets(guards: &[SocketAddr], folder: &Path) -> Self {
        // As the shipped PodMonitor: targets have the labels of the guard's pods, and the labels of metrics take precedence.
        let target = |(number, guard): (usize, &SocketAddr)| {
            let labels = json!({"namespace": "etcd-guard", "pod": format!("etcd-guard-{number}")});
            json!({"targets": [guard.to_string()], "labels": labels})
        };
        let targets: Vec<Value> = guards.iter().enumerate().map(target).collect();
        let config = json!({
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "scrape_configs": [{"job_name": "etcd-guard", "honor_labels": true, "static_configs": targets}],
        });
        fs::write(folder.join("prometheus.yml"), config.to_string()).unwrap();
        let binary = program("prometheus");
        wait_for("Prometheus runs", TIMEOUT, async || {
            // Prometheus does not report its port, so the port is chosen here. If another process takes the port first,
            // the next attempt uses another one.
            let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
            let mut command = scoped_command(&binary);
            command
                .arg(format!("--config.file={}", folder.join("prometheus.yml").display()))
                .arg(format!("--storage.tsdb.path={}", folder.join("data").display()))
                .arg(format!("--web.listen-address={address}"))
                .arg("--log.level=warn");
            let child = command.stdin(Stdio::null()).spawn().unwrap();
            let mut started = Self { child, address };
            wait_until("Prometheus is ready or has ended", TIMEOUT, async || {
                started.has_ended() || started.is_ready().await
            })
            .await;
            (!started.has_ended()).then_some(started)
        })
        .await
    }

    fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    async fn is_ready(&self) -> bool {
        get(self.address, "/-/ready").await.is_ok_and(|response| response.status.is_success())
    }

    /// Returns the series of a query.
    pub async fn query(&self, query: &str) -> Vec<Value> {
        let mut path = String::from("/api/v1/query?query=");
        for byte in query.bytes() {
            write!(path, "%{byte:02X}").unwrap();
        }
        let answer = get(self.address, &path).await.unwrap();
        let answer: Value = serde_json::from_str(&answer.body).unwrap();
        assert_eq!(answer["status"], "success", "{query}: {answer}");
        answer["data"]["result"].as_array().unwrap().clone()
    }

    /// Waits until a query returns at least one series.
    pub async fn wait_for_series(&self, query: &str) {
        wait_until(&format!("a series for {query}"), TIMEOUT, async || !self.query(query).await.is_empty())
            .await;
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Replaces the variables of the dashboard as Grafana does when all values are selected.
pub fn with_all_values(query: &str, rate_interval: &str) -> String {
    let query = query.replace("$__rate_interval", rate_interval);
    VARIABLES.iter().fold(query, |query, name| query.replace(&format!("${name}"), ".*"))
}

/// Returns the shipped dashboard.
fn dashboard() -> Value {
    serde_json::from_str(&fs::read_to_string(project::path(DASHBOARD)).unwrap()).unwrap()
}

/// Returns the queries of the dashboard's panels, each with the panel's title.
pub fn panels() -> Vec<(String, String)> {
    let dashboard = dashboard();
    let mut queries = Vec::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().unwrap_or(&Vec::new()) {
            let query = with_all_values(target["expr"].as_str().unwrap(), RATE_INTERVAL);
            queries.push((panel["title"].as_str().unwrap().to_owned(), query));
        }
    }
    queries
}
