//! Servers with a core of their own. All other processes of the bench use the other cores.

use std::{
    fs,
    fs::File,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread::available_parallelism,
    time::Duration,
};

use serde_json::Value;

use test_support::{processes::child::scoped_command, wait::wait_for};

/// The core of the servers.
const CORE: &str = "0";

/// The longest time until a server has started.
const START_TIMEOUT: Duration = Duration::from_secs(20);

/// A server whose processor time and memory are measured.
pub(crate) struct Pinned {
    child: Child,
    log: PathBuf,
    /// The addresses of the review server and of the admin server, if there is one.
    pub(crate) https: SocketAddr,
    pub(crate) http: Option<SocketAddr>,
}

impl Pinned {
    /// Starts a server, and waits until its log has a line with this message. The line with the message "serving" has
    /// its addresses.
    pub(crate) async fn start(program: &Path, arguments: &[&str], log: PathBuf, message: &str) -> Self {
        let mut command = scoped_command("taskset");
        command.args(["-c", CORE]).arg(program).args(arguments);
        // Opened for appending, so that the file can be truncated while it is written.
        let file = File::options().append(true).create(true).open(&log).unwrap();
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(file).spawn().unwrap();
        let addresses = wait_for("a server that serves", START_TIMEOUT, async || {
            let log = fs::read_to_string(&log).unwrap();
            let lines: Vec<Value> = log.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
            lines.iter().find(|line| line["message"] == message)?;
            let serving = lines.iter().find(|line| line["message"] == "serving")?;
            let address = |name: &str| serving[name].as_str()?.parse().ok();
            Some((address("https")?, address("http")))
        })
        .await;
        let (https, http) = addresses;
        Self { child, log, https, http }
    }

    /// Returns the processor time that the server has used.
    pub(crate) fn cpu(&self) -> Duration {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        // After the name in parentheses, user and system time are the 12th and 13th field.
        let fields: Vec<&str> = stat.rsplit(") ").next().unwrap().split(' ').collect();
        let ticks: u32 = fields[11].parse::<u32>().unwrap() + fields[12].parse::<u32>().unwrap();
        Duration::from_secs(1) * ticks / ticks_per_second()
    }

    /// Returns the resident memory in bytes.
    pub(crate) fn resident(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
    }

    /// Truncates the log, which has a line for each review.
    pub(crate) fn truncate_log(&self) {
        File::options().write(true).open(&self.log).unwrap().set_len(0).unwrap();
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Moves this process and its descendants to the cores that are not the servers'.
pub(crate) fn leave_server_core() {
    let cores = available_parallelism().unwrap().get();
    assert!(cores > 1, "this part needs two cores: one for the server, one for its clients");
    let others = format!("1-{}", cores - 1);
    for pid in descendants(std::process::id()) {
        // The process may have ended in the meantime.
        let _ = Command::new("taskset").args(["-apc", &others, &pid.to_string()]).output().unwrap();
    }
}

/// Returns the ids of a process and its descendants.
fn descendants(first: u32) -> Vec<u32> {
    let mut parents = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        let Ok(stat) = fs::read_to_string(entry.path().join("stat")) else { continue };
        let parent = stat.rsplit(") ").next().and_then(|rest| rest.split(' ').nth(1)?.parse::<u32>().ok());
        parents.extend(parent.map(|parent| (pid, parent)));
    }
    let mut processes = vec![first];
    let mut next = 0;
    while let Some(&parent_pid) = processes.get(next) {
        processes.extend(parents.iter().filter(|(_, parent)| *parent == parent_pid).map(|(pid, _)| *pid));
        next += 1;
    }
    processes
}

fn ticks_per_second() -> u32 {
    let output = Command::new("getconf").arg("CLK_TCK").output().unwrap();
    String::from_utf8(output.stdout).unwrap().trim().parse().unwrap()
}
