//! Sends one request repeatedly on persistent connections, by the program wrk.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use crate::pinned_server::Pinned;

/// One run of wrk against a server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    pub(crate) requests: u64,
    pub(crate) per_second: u64,
    pub(crate) p50: Duration,
    pub(crate) p99: Duration,
    /// The server's processor time per request.
    pub(crate) cpu: Duration,
}

/// The request and its URL.
pub(crate) struct Load {
    script: PathBuf,
    url: String,
}

impl Load {
    pub(crate) fn new(folder: &Path, name: &str, server: SocketAddr, path: &str, body: &str) -> Self {
        let (body_file, script) = (folder.join(format!("{name}.json")), folder.join(format!("{name}.lua")));
        std::fs::write(&body_file, body).unwrap();
        let text = format!(
            r#"local file = io.open("{}", "rb")
wrk.method, wrk.body = "POST", file:read("*a")
wrk.headers["Content-Type"] = "application/json"
done = function(summary, latency)
  local failed = summary.errors
  io.stderr:write(string.format("figures %d %d %d %d %d\n", summary.requests, summary.requests * 1e6 / summary.duration,
    latency:percentile(50), latency:percentile(99),
    failed.status + failed.connect + failed.read + failed.write + failed.timeout))
end
"#,
            body_file.display()
        );
        std::fs::write(&script, text).unwrap();
        Self { script, url: format!("https://{server}{path}") }
    }

    /// Sends requests for this number of seconds.
    pub(crate) async fn run(&self, server: &Pinned, connections: usize, seconds: u64) -> Run {
        let before = server.cpu();
        let output = tokio::process::Command::from(Command::new("wrk"))
            .args(["--threads", "1", "--timeout", "10s", "--connections", &connections.to_string()])
            .args(["--duration", &format!("{seconds}s"), "--script"])
            .arg(&self.script)
            .arg(&self.url)
            .kill_on_drop(true)
            .output()
            .await
            .expect("wrk is missing: apt-get install wrk");
        let cpu = server.cpu().saturating_sub(before);
        server.truncate_log();
        let output = String::from_utf8_lossy(&output.stderr).into_owned();
        let figures = output.lines().find_map(|line| line.strip_prefix("figures "));
        let figures: Vec<u64> = figures
            .unwrap_or_else(|| panic!("wrk: {output}"))
            .split(' ')
            .map(|figure| figure.parse().unwrap())
            .collect();
        let [requests, per_second, p50, p99, 0] = figures[..] else { panic!("requests failed: {output}") };
        assert!(requests > 0, "nothing was answered within {seconds} s: the machine may be too busy");
        let [p50, p99] = [p50, p99].map(Duration::from_micros);
        Run { requests, per_second, p50, p99, cpu: cpu / u32::try_from(requests).unwrap() }
    }
}
