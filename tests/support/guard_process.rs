//! The real program, `etcd-guard serve`, and what it counts.

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Stdio},
    sync::{Arc, Mutex, mpsc},
    time::Duration,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use serde_json::Value;

use super::{
    child::mortal,
    http_client,
    wait::{some, until},
};

/// Longest that the program may take until it listens and is ready, next to compilers.
const START_LIMIT: Duration = Duration::from_secs(90);

/// Longest until a controller asks: pod garbage collection waits for 40 s and looks every 20 s.
const TOLD_LIMIT: Duration = Duration::from_secs(150);

/// How long it serves on after SIGTERM: long enough to be seen, short enough to wait for.
const LINGER: &str = "500ms";

/// The configuration file, among the guard's files.
pub const CONFIG: &str = "config.yaml";

/// The CA that callers must come from, among the guard's files.
pub const CLIENT_CA: &str = "client-ca.crt";

/// How often it surveys, among the guard's files; without this file it does not.
pub const SURVEY_INTERVAL: &str = "survey-interval";

/// Whom it sends traces to, among the guard's files; without this file nobody.
pub const OTLP_ENDPOINT: &str = "otlp-endpoint";

/// The variable that names another program than the one that was built with the tests: benches measure a release.
pub const PROGRAM: &str = "GUARD_UNDER_TEST";

/// The most lines of a guard's log that are passed on: a test that asks ten thousand times would bury all else.
const SHOWN: usize = 2000;

/// A running guard. When it is dropped, it is killed.
pub struct GuardProcess {
    child: Child,
    https: SocketAddr,
    http: SocketAddr,
    files: PathBuf,
    kubeconfig: PathBuf,
    /// What its certificate leads to: the `caBundle` of a webhook configuration.
    pub ca_pem: String,
    /// What was counted when somebody looked last.
    seen: BTreeMap<String, u64>,
    log: Log,
}

/// The lines that it wrote so far, as JSON.
pub type Log = Arc<Mutex<Vec<Value>>>;

impl GuardProcess {
    /// Starts it on ports that the system chooses, with a new certificate, and waits until it is ready.
    pub async fn start(kubeconfig: &Path, files: &Path) -> Self {
        let guard = Self::launch(kubeconfig, files);
        guard.wait_until_ready().await;
        guard
    }

    /// The same without waiting: where no apiserver answers, it never gets ready.
    pub fn launch(kubeconfig: &Path, files: &Path) -> Self {
        std::fs::create_dir_all(files).expect("a directory for the guard");
        let ca_pem = make_certificate(files);
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let log = Log::default();
        let (child, https, http) = spawn(kubeconfig, files, any, any, &log);
        let (kubeconfig, files) = (kubeconfig.to_owned(), files.to_owned());
        Self { child, https, http, files, kubeconfig, ca_pem, seen: BTreeMap::new(), log }
    }

    /// Starts it again, after it ended, at the same ports.
    pub async fn start_again(&mut self) {
        self.wait_for_end();
        let (child, https, http) = spawn(&self.kubeconfig, &self.files, self.https, self.http, &self.log);
        (self.child, self.https, self.http, self.seen) = (child, https, http, BTreeMap::new());
        self.wait_until_ready().await;
    }

    /// Where it takes reviews.
    pub fn https(&self) -> SocketAddr {
        self.https
    }

    /// Where it shows its health and its metrics.
    pub fn http(&self) -> SocketAddr {
        self.http
    }

    pub async fn wait_until_ready(&self) {
        until("the guard is ready", START_LIMIT, async || self.is_ready().await).await;
    }

    pub async fn is_ready(&self) -> bool {
        http_client::get(self.http, "/readyz").await.is_ok_and(|response| response.status.is_success())
    }

    /// What it answered since the last call: `VERB VERDICT REASON`, each once and in order.
    ///
    /// How often is not told: one API request asks the webhook once or more often, as the apiserver sees fit.
    pub async fn news(&mut self) -> Vec<String> {
        let counted = self.counted().await;
        let is_news = |(verdict, count): &(&String, &u64)| self.seen.get(*verdict).copied() < Some(**count);
        let news = counted.iter().filter(is_news).map(|(verdict, _)| verdict.clone()).collect();
        self.seen = counted;
        news
    }

    /// How often it has answered, over all verdicts.
    pub async fn requests(&self) -> u64 {
        self.counted().await.values().sum()
    }

    /// How often it has given each verdict.
    pub async fn counted(&self) -> BTreeMap<String, u64> {
        let page = http_client::get(self.http, "/metrics").await.expect("metrics");
        page.body.lines().filter_map(verdict_and_count).collect()
    }

    /// The number of a line of the metrics page, by all that stands before it; zero if there is no such line.
    pub async fn metric(&self, name: &str) -> u64 {
        let page = http_client::get(self.http, "/metrics").await.expect("metrics");
        let number =
            page.body.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok());
        number.unwrap_or_default()
    }

    /// Where a test may change the configuration file that it started with.
    pub fn config_file(&self) -> PathBuf {
        self.files.join(CONFIG)
    }

    /// Waits until it has told this user this verdict and this reason, and returns the line of its log.
    pub async fn told(&self, user: &str, verdict: &str, reason: &str) -> Value {
        let is_it =
            |line: &&Value| line["user"] == user && line["verdict"] == verdict && line["reason"] == reason;
        let find = async || self.log.lock().expect("nobody panics here").iter().find(is_it).cloned();
        some(&format!("{user}: {verdict} {reason}"), TOLD_LIMIT, find).await
    }

    /// Waits until this state is the last in which a survey has found this cluster.
    pub async fn surveyed(&self, cluster: &str, state: &str) {
        let is_told = |line: &&Value| line["message"] == "survey" && line["cluster"] == cluster;
        until(&format!("a survey finds {cluster} in state {state}"), TOLD_LIMIT, async || {
            let log = self.log.lock().expect("nobody panics here");
            log.iter().rfind(is_told).is_some_and(|line| line["state"] == state)
        })
        .await;
    }

    /// What it has told of whoever deleted this pod.
    pub fn deletions_of(&self, pod: &str) -> Vec<Value> {
        let log = self.log.lock().expect("nobody panics here");
        log.iter().filter(|line| line["operation"] == "delete" && line["pod"] == pod).cloned().collect()
    }

    /// How many lines of its log say this.
    pub fn count_lines(&self, message: &str) -> usize {
        let log = self.log.lock().expect("nobody panics here");
        log.iter().filter(|line| line["message"].as_str().is_some_and(|it| it.contains(message))).count()
    }

    pub fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).expect("a pid");
        // It is not waited for yet, so that the number is nobody else's.
        kill(Pid::from_raw(pid), signal).expect("a guard that runs");
    }

    /// Whether it has ended, and how.
    pub fn has_ended(&mut self) -> Option<std::process::ExitStatus> {
        self.child.try_wait().expect("a child that can be waited for")
    }

    /// Kills it, and leaves its port to nobody.
    pub fn kill(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        self.wait_for_end();
    }

    fn wait_for_end(&mut self) {
        self.child.wait().expect("a child that can be waited for");
    }
}

impl Drop for GuardProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Of a line of the metrics page that counts requests.
fn verdict_and_count(line: &str) -> Option<(String, u64)> {
    let labels = line.strip_prefix("etcd_guard_admission_requests_total{")?;
    let (labels, count) = labels.split_once("} ")?;
    let label = |name: &str| {
        labels.split(',').find_map(|it| it.strip_prefix(name)?.strip_prefix("=\"")?.strip_suffix('"'))
    };
    let verdict = format!("{} {} {}", label("operation")?, label("verdict")?, label("reason")?);
    Some((verdict, count.parse().ok()?))
}

/// The program that is started.
pub fn program() -> PathBuf {
    std::env::var_os(PROGRAM).map_or_else(|| env!("CARGO_BIN_EXE_etcd-guard").into(), PathBuf::from)
}

fn spawn(
    kubeconfig: &Path,
    files: &Path,
    https: SocketAddr,
    http: SocketAddr,
    lines: &Log,
) -> (Child, SocketAddr, SocketAddr) {
    let mut command = mortal(program());
    command.args(["serve", "--namespace=etcd-guard", "--log-format=json", "--linger", LINGER]);
    command.arg("--tls-reload-interval=100ms");
    command.args(["--listen", &https.to_string(), "--admin-listen", &http.to_string()]);
    command.arg("--kubeconfig").arg(kubeconfig);
    command.arg("--tls-cert").arg(files.join("tls.crt")).arg("--tls-key").arg(files.join("tls.key"));
    // What a test put there before it started the guard.
    let config = files.join(CONFIG);
    if config.exists() {
        command.arg("--config").arg(config);
    }
    let client_ca = files.join(CLIENT_CA);
    if client_ca.exists() {
        command.arg("--client-ca").arg(client_ca);
    }
    if let Ok(interval) = std::fs::read_to_string(files.join(SURVEY_INTERVAL)) {
        command.args(["--survey-interval", &interval]);
    }
    if let Ok(endpoint) = std::fs::read_to_string(files.join(OTLP_ENDPOINT)) {
        command.args(["--otlp-endpoint", &endpoint]);
    }
    spawn_and_listen(command, lines)
}

/// Starts a guard, passes on and keeps what it logs, and waits until it says where it listens: HTTPS, then plain.
pub fn spawn_and_listen(mut command: std::process::Command, lines: &Log) -> (Child, SocketAddr, SocketAddr) {
    command.stdin(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the guard starts");
    let log = BufReader::new(child.stderr.take().expect("stderr is a pipe"));
    let (said, heard) = mpsc::channel();
    let lines = Arc::clone(lines);
    // Reads to the end, or the guard would wait for somebody to read its log.
    std::thread::spawn(move || {
        for (count, line) in (1..).zip(log.lines().map_while(Result::ok)) {
            if count <= SHOWN {
                eprintln!("guard: {line}");
            }
            let Ok(line) = serde_json::from_str(&line) else { continue };
            if let Some(addresses) = addresses(&line) {
                let _ = said.send(addresses);
            }
            lines.lock().expect("nobody panics here").push(line);
        }
    });
    let (https, http) = heard.recv_timeout(START_LIMIT).expect("the guard says where it listens");
    (child, https, http)
}

/// Of the line that says where it listens.
fn addresses(line: &Value) -> Option<(SocketAddr, SocketAddr)> {
    let address = |name: &str| line[name].as_str()?.parse().ok();
    (line["message"] == "serving").then_some((address("https")?, address("http")?))
}

/// Writes a certificate for loopback and its key (`tls.crt`, `tls.key`), and returns the CA's.
pub fn make_certificate(files: &Path) -> String {
    let mut ca = CertificateParams::new(Vec::new()).expect("parameters of a CA");
    ca.distinguished_name.push(DnType::CommonName, "CA of a test");
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca_key = KeyPair::generate().expect("a key");
    let ca_pem = ca.self_signed(&ca_key).expect("a CA").pem();
    let key = KeyPair::generate().expect("a key");
    let names = vec![String::from("localhost"), String::from("127.0.0.1")];
    let certificate = CertificateParams::new(names)
        .and_then(|leaf| leaf.signed_by(&key, &Issuer::new(ca, ca_key)))
        .expect("a certificate");
    std::fs::write(files.join("tls.crt"), certificate.pem()).expect("the certificate is written");
    std::fs::write(files.join("tls.key"), key.serialize_pem()).expect("the key is written");
    ca_pem
}
