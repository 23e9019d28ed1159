//! `etcd-guard serve` as a process, and its metrics and logs.

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

use crate::{
    http_client,
    processes::child::prioritized_command,
    project,
    wait::{wait_for, wait_until},
};

/// The longest time until the program listens and is ready, on a busy machine.
const START_TIMEOUT: Duration = Duration::from_secs(90);

/// The longest time until a controller deletes a pod: pod garbage collection waits for 40 s and runs every 20 s.
const VERDICT_TIMEOUT: Duration = Duration::from_secs(150);

/// How long the guard serves after SIGTERM: long enough to observe, short enough to wait for.
const LINGER: &str = "500ms";

/// The name of the configuration file in the guard's folder.
pub const CONFIG: &str = "config.yaml";

/// A configuration file without settings.
pub const CONFIG_HEADER: &str = "apiVersion: etcd-guard.io/v1alpha1\n";

/// The default configuration file of tests. Members that run as processes have loopback addresses, which the shipped
/// configuration does not probe without a pod.
pub const ALL_NETWORKS: &str =
    "apiVersion: etcd-guard.io/v1alpha1\nguard:\n  probe:\n    deniedNetworks: []\n";

/// The name of the CA file for callers in the guard's folder.
pub const CLIENT_CA: &str = "client-ca.crt";

/// The name of the file with the survey interval in the guard's folder; without it, the guard does not survey.
pub const SURVEY_INTERVAL: &str = "survey-interval";

/// The name of the file that makes the guard export metrics with the names of clusters.
pub const CLUSTER_METRICS: &str = "cluster-metrics";

/// The name of the file with the endpoint for traces in the guard's folder; without it, the guard sends no traces.
pub const OTLP_ENDPOINT: &str = "otlp-endpoint";

/// The name of the file with the name of the guard's own pod in the guard's folder; without it, the guard runs in no pod.
pub const POD_NAME: &str = "pod-name";

/// The name of the file with the label of guarded namespaces in the guard's folder; without it, the guard has its default.
pub const OPT_IN_LABEL: &str = "opt-in-label";

/// The name of the file that makes the guard write the status of nodes.
pub const WRITE_NODE_STATUS: &str = "write-node-status";

/// The name of the file that makes the guard move leadership before disruptions.
pub const HANDOVER: &str = "handover";

/// The variable with the path of another program than the one that was built with the tests: benches measure a release.
pub const PROGRAM: &str = "GUARD_UNDER_TEST";

/// The largest number of log lines that are printed, because tests with thousands of requests would hide all other
/// output.
const MAX_PRINTED_LINES: usize = 2000;

/// A running guard. When it is dropped, it is killed.
pub struct GuardProcess {
    child: Child,
    https: SocketAddr,
    http: SocketAddr,
    files: PathBuf,
    kubeconfig: PathBuf,
    /// The CA of its certificate: the `caBundle` of a webhook configuration.
    pub ca_pem: String,
    /// The verdict counts at the last call of `new_verdicts`.
    seen: BTreeMap<String, u64>,
    log: Log,
}

/// The log lines so far, as JSON.
pub type Log = Arc<Mutex<Vec<Value>>>;

impl GuardProcess {
    /// Starts a guard on free ports with a new certificate, and waits until it is ready.
    pub async fn start(kubeconfig: &Path, files: &Path) -> Self {
        let guard = Self::launch(kubeconfig, files);
        guard.wait_until_ready().await;
        guard
    }

    /// Starts a guard without waiting: without an API server, it never becomes ready. Without a configuration file in
    /// its folder, the guard gets [`ALL_NETWORKS`].
    pub fn launch(kubeconfig: &Path, files: &Path) -> Self {
        std::fs::create_dir_all(files).expect("a directory for the guard");
        let config = files.join(CONFIG);
        if !config.exists() {
            std::fs::write(config, ALL_NETWORKS).expect("the configuration is written");
        }
        let ca_pem = make_certificate(files);
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let log = Log::default();
        let (child, https, http) = spawn(kubeconfig, files, any, any, &log);
        let (kubeconfig, files) = (kubeconfig.to_owned(), files.to_owned());
        Self { child, https, http, files, kubeconfig, ca_pem, seen: BTreeMap::new(), log }
    }

    /// Starts the guard again on the same ports, after it ended.
    pub async fn restart(&mut self) {
        self.wait_for_end();
        let (child, https, http) = spawn(&self.kubeconfig, &self.files, self.https, self.http, &self.log);
        (self.child, self.https, self.http, self.seen) = (child, https, http, BTreeMap::new());
        self.wait_until_ready().await;
    }

    /// Returns the address of the webhook server.
    pub fn https(&self) -> SocketAddr {
        self.https
    }

    /// Returns the address of the admin server.
    pub fn http(&self) -> SocketAddr {
        self.http
    }

    /// Waits until the readiness probe succeeds.
    pub async fn wait_until_ready(&self) {
        wait_until("the guard is ready", START_TIMEOUT, async || self.is_ready().await).await;
    }

    /// Whether the readiness probe succeeds.
    pub async fn is_ready(&self) -> bool {
        http_client::get(self.http, "/readyz").await.is_ok_and(|response| response.status.is_success())
    }

    /// Returns the verdicts since the last call: `OPERATION VERDICT REASON`, each once and sorted.
    ///
    /// The number of calls is not part of it: the API server may call the webhook several times for one API request.
    pub async fn new_verdicts(&mut self) -> Vec<String> {
        let counted = self.verdict_counts().await;
        let is_new = |(verdict, count): &(&String, &u64)| self.seen.get(*verdict).copied() < Some(**count);
        let new = counted.iter().filter(is_new).map(|(verdict, _)| verdict.clone()).collect();
        self.seen = counted;
        new
    }

    /// Returns the number of answered reviews.
    pub async fn request_count(&self) -> u64 {
        self.verdict_counts().await.values().sum()
    }

    /// Returns the number of answered reviews for each verdict.
    pub async fn verdict_counts(&self) -> BTreeMap<String, u64> {
        let page = http_client::get(self.http, "/metrics").await.expect("metrics");
        page.body.lines().filter_map(verdict_and_count).collect()
    }

    /// Returns the value of a series of the metrics page by its name and labels; zero if there is no such series.
    pub async fn metric(&self, name: &str) -> u64 {
        let page = http_client::get(self.http, "/metrics").await.expect("metrics");
        let number =
            page.body.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok());
        number.unwrap_or_default()
    }

    /// Returns the sum of all series of the metrics page whose name and labels begin with this text.
    pub async fn sum(&self, beginning: &str) -> u64 {
        let page = http_client::get(self.http, "/metrics").await.expect("metrics");
        let series = page.body.lines().filter(|line| line.starts_with(beginning));
        series.filter_map(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok()).sum()
    }

    /// Returns the path of the configuration file that the guard was started with.
    pub fn config_file(&self) -> PathBuf {
        self.files.join(CONFIG)
    }

    /// Waits until the log has this verdict and reason for this user, and returns the log line.
    pub async fn wait_for_verdict(&self, user: &str, verdict: &str, reason: &str) -> Value {
        let matches =
            |line: &&Value| line["user"] == user && line["verdict"] == verdict && line["reason"] == reason;
        let find = async || self.log.lock().expect("the lock is not poisoned").iter().find(matches).cloned();
        wait_for(&format!("{user}: {verdict} {reason}"), VERDICT_TIMEOUT, find).await
    }

    /// Waits until the last survey of this cluster found this state.
    pub async fn wait_for_survey(&self, cluster: &str, state: &str) {
        let is_survey = |line: &&Value| line["message"] == "survey" && line["cluster"] == cluster;
        wait_until(&format!("a survey finds {cluster} in state {state}"), VERDICT_TIMEOUT, async || {
            let log = self.log.lock().expect("the lock is not poisoned");
            log.iter().rfind(is_survey).is_some_and(|line| line["state"] == state)
        })
        .await;
    }

    /// Returns the log lines about deletions of this pod.
    pub fn logged_deletions(&self, pod: &str) -> Vec<Value> {
        let log = self.log.lock().expect("the lock is not poisoned");
        log.iter().filter(|line| line["operation"] == "delete" && line["pod"] == pod).cloned().collect()
    }

    /// Returns the number of log lines whose message contains this text.
    pub fn count_lines(&self, message: &str) -> usize {
        let log = self.log.lock().expect("the lock is not poisoned");
        log.iter().filter(|line| line["message"].as_str().is_some_and(|text| text.contains(message))).count()
    }

    /// Returns the number of log lines in which this field contains this text.
    pub fn count_values(&self, field: &str, text: &str) -> usize {
        let log = self.log.lock().expect("the lock is not poisoned");
        log.iter().filter(|line| line[field].as_str().is_some_and(|value| value.contains(text))).count()
    }

    /// Returns the resident memory of the process in bytes, without mapped files such as the program itself.
    pub fn anonymous_memory(&self) -> u64 {
        self.memory("RssAnon:")
    }

    /// Returns the resident memory of the process in bytes, with the parts of the program that were read.
    pub fn resident_memory(&self) -> u64 {
        self.memory("VmRSS:")
    }

    /// Returns the processor time that the process has used.
    pub fn processor_time(&self) -> Duration {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).expect("a process");
        let (_, fields) = stat.rsplit_once(") ").expect("the name of the program in parentheses");
        let ticks = |index| fields.split(' ').nth(index)?.parse::<u64>().ok();
        // `utime` and `stime`, in hundredths of a second on all architectures of Linux (`man 5 proc`).
        let ticks = ticks(11).zip(ticks(12)).map(|(user, system)| user + system);
        Duration::from_millis(ticks.expect("two numbers") * 10)
    }

    /// Returns a figure of `/proc/PID/status` in bytes.
    fn memory(&self, field: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).expect("a process");
        let line = status.lines().find_map(|line| line.strip_prefix(field)).expect("Linux 4.5 or newer");
        let kib: u64 = line.trim().trim_end_matches(" kB").parse().expect("a number");
        kib << 10
    }

    /// Sends a signal to the process.
    pub fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).expect("a pid");
        // The child has not been waited for, so its process id cannot belong to another process.
        kill(Pid::from_raw(pid), signal).expect("the guard runs");
    }

    /// Returns the exit status, if the process has ended.
    pub fn has_ended(&mut self) -> Option<std::process::ExitStatus> {
        self.child.try_wait().expect("a child that can be waited for")
    }

    /// Kills the process and waits for its end.
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

/// Parses a line of the metrics page that counts verdicts.
fn verdict_and_count(line: &str) -> Option<(String, u64)> {
    let labels = line.strip_prefix("etcd_guard_admission_requests_total{")?;
    let (labels, count) = labels.split_once("} ")?;
    let label = |name: &str| {
        labels.split(',').find_map(|pair| pair.strip_prefix(name)?.strip_prefix("=\"")?.strip_suffix('"'))
    };
    // The mutation of an eviction is no verdict.
    if label("webhook")? == "uid.guard.etcd-guard.io" {
        return None;
    }
    let verdict = format!("{} {} {}", label("operation")?, label("verdict")?, label("reason")?);
    Some((verdict, count.parse().ok()?))
}

/// Returns the path of the program under test.
pub fn program() -> PathBuf {
    std::env::var_os(PROGRAM).map_or_else(project::guard_program, PathBuf::from)
}

fn spawn(
    kubeconfig: &Path,
    files: &Path,
    https: SocketAddr,
    http: SocketAddr,
    lines: &Log,
) -> (Child, SocketAddr, SocketAddr) {
    let mut command = prioritized_command(program());
    command.args(["serve", "--namespace=etcd-guard", "--log-format=json", "--linger", LINGER]);
    command.arg("--tls-reload-interval=100ms");
    command.args(["--listen", &https.to_string(), "--admin-listen", &http.to_string()]);
    command.arg("--kubeconfig").arg(kubeconfig);
    command.arg("--tls-cert").arg(files.join("tls.crt")).arg("--tls-key").arg(files.join("tls.key"));
    command.arg("--config").arg(files.join(CONFIG));
    // Optional files that the test wrote before it started the guard.
    let client_ca = files.join(CLIENT_CA);
    if client_ca.exists() {
        command.arg("--client-ca").arg(client_ca);
    }
    if let Ok(interval) = std::fs::read_to_string(files.join(SURVEY_INTERVAL)) {
        command.args(["--survey-interval", &interval]);
    }
    if files.join(CLUSTER_METRICS).exists() {
        command.arg("--cluster-metrics");
    }
    if let Ok(endpoint) = std::fs::read_to_string(files.join(OTLP_ENDPOINT)) {
        command.args(["--otlp-endpoint", &endpoint]);
    }
    // The host name is the name of this machine.
    command.env_remove("HOSTNAME");
    if let Ok(pod) = std::fs::read_to_string(files.join(POD_NAME)) {
        command.args(["--pod-name", &pod]);
    }
    if let Ok(label) = std::fs::read_to_string(files.join(OPT_IN_LABEL)) {
        command.args(["--opt-in-label", &label]);
    }
    if files.join(HANDOVER).exists() {
        command.arg("--handover");
    }
    if files.join(WRITE_NODE_STATUS).exists() {
        command.arg("--write-node-status");
    }
    spawn_and_listen(command, lines)
}

/// Starts a guard, prints and collects its log, and waits until it logs its addresses: HTTPS, then HTTP.
pub fn spawn_and_listen(command: std::process::Command, lines: &Log) -> (Child, SocketAddr, SocketAddr) {
    let (child, receiver) = spawn_with_log(command, lines);
    let (https, http) = receiver.recv_timeout(START_TIMEOUT).expect("the guard logs its addresses");
    (child, https, http)
}

/// Starts a process without a listener, prints and collects its log.
pub fn spawn_and_collect(command: std::process::Command, lines: &Log) -> Child {
    spawn_with_log(command, lines).0
}

fn spawn_with_log(
    mut command: std::process::Command,
    lines: &Log,
) -> (Child, mpsc::Receiver<(SocketAddr, SocketAddr)>) {
    command.stdin(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the guard starts");
    let log = BufReader::new(child.stderr.take().expect("stderr is a pipe"));
    let (sender, receiver) = mpsc::channel();
    let lines = Arc::clone(lines);
    // Reads to the end: a full pipe would block the guard.
    std::thread::spawn(move || {
        for (count, line) in (1..).zip(log.lines().map_while(Result::ok)) {
            if count <= MAX_PRINTED_LINES {
                eprintln!("guard: {line}");
            }
            let Ok(line) = serde_json::from_str(&line) else { continue };
            if let Some(addresses) = addresses(&line) {
                let _ = sender.send(addresses);
            }
            lines.lock().expect("the lock is not poisoned").push(line);
        }
    });
    (child, receiver)
}

/// Parses the log line with the addresses.
fn addresses(line: &Value) -> Option<(SocketAddr, SocketAddr)> {
    let address = |name: &str| line[name].as_str()?.parse().ok();
    (line["message"] == "serving").then_some((address("https")?, address("http")?))
}

/// Writes a certificate for loopback and its key (`tls.crt`, `tls.key`), and returns the CA as PEM.
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
