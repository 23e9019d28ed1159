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

use super::{
    child::mortal,
    http_client::get,
    testbed::program,
    wait::{some, until},
};

/// The shipped dashboard.
pub const DASHBOARD: &str = "deploy/monitoring/dashboard.json";

/// Longest that Prometheus may take to start, or a query until it has something to tell.
const SHOWN: Duration = Duration::from_secs(120);

/// A Prometheus that scrapes guards every second. When it is dropped, it is killed.
pub struct Prometheus {
    child: Child,
    address: SocketAddr,
}

impl Prometheus {
    pub async fn scraping(guard: SocketAddr, folder: &Path) -> Self {
        Self::scraping_all(&[guard], folder).await
    }

    pub async fn scraping_all(guards: &[SocketAddr], folder: &Path) -> Self {
        let targets: Vec<String> = guards.iter().map(SocketAddr::to_string).collect();
        let config = json!({
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "scrape_configs": [{"job_name": "etcd-guard", "static_configs": [{"targets": targets}]}],
        });
        fs::write(folder.join("prometheus.yml"), config.to_string()).unwrap();
        let binary = program("prometheus");
        some("Prometheus runs", SHOWN, async || {
            // It cannot tell which port it was given. Somebody else may take this one first: then the next.
            let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
            let mut command = mortal(&binary);
            command
                .arg(format!("--config.file={}", folder.join("prometheus.yml").display()))
                .arg(format!("--storage.tsdb.path={}", folder.join("data").display()))
                .arg(format!("--web.listen-address={address}"))
                .arg("--log.level=warn");
            let child = command.stdin(Stdio::null()).spawn().unwrap();
            let mut started = Self { child, address };
            until("Prometheus is ready or has ended", SHOWN, async || {
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
        get(self.address, "/-/ready").await.is_ok_and(|it| it.status.is_success())
    }

    /// The series that a query gives.
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

    pub async fn wait_for_series(&self, query: &str) {
        until(&format!("a series for {query}"), SHOWN, async || !self.query(query).await.is_empty()).await;
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The queries of the dashboard's panels, each with the panel's title.
pub fn panels() -> Vec<(String, String)> {
    let dashboard: Value = serde_json::from_str(
        &fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(DASHBOARD)).unwrap(),
    )
    .unwrap();
    let mut queries = Vec::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().unwrap_or(&Vec::new()) {
            let query = target["expr"].as_str().unwrap().replace("$__rate_interval", "1m");
            queries.push((panel["title"].as_str().unwrap().to_owned(), query));
        }
    }
    queries
}
