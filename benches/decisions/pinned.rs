//! Servers that have a core to themselves, while all that belongs to this process has the others.

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

use crate::support::{child::mortal, wait::some};

/// The servers' core.
const CORE: &str = "0";

/// Longest that a server may take to start.
const START_LIMIT: Duration = Duration::from_secs(20);

/// A server of which the processor time and the memory are read.
pub(crate) struct Pinned {
    child: Child,
    log: PathBuf,
    /// Where it takes reviews, and where it shows what it counts, if it does.
    pub(crate) https: SocketAddr,
    pub(crate) http: Option<SocketAddr>,
}

impl Pinned {
    /// Starts it. It is there when its log has a line with this message; where it serves stands in one with "serving".
    pub(crate) async fn start(program: &Path, arguments: &[&str], log: PathBuf, message: &str) -> Self {
        let mut command = mortal("taskset");
        command.args(["-c", CORE]).arg(program).args(arguments);
        // Appended to, so that it may be cut while it is written.
        let file = File::options().append(true).create(true).open(&log).unwrap();
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(file).spawn().unwrap();
        let addresses = some("a server that serves", START_LIMIT, async || {
            let log = fs::read_to_string(&log).unwrap();
            let lines: Vec<Value> = log.lines().filter_map(|it| serde_json::from_str(it).ok()).collect();
            lines.iter().find(|line| line["message"] == message)?;
            let serving = lines.iter().find(|line| line["message"] == "serving")?;
            let address = |name: &str| serving[name].as_str()?.parse().ok();
            Some((address("https")?, address("http")))
        })
        .await;
        let (https, http) = addresses;
        Self { child, log, https, http }
    }

    /// The processor time that it has used.
    pub(crate) fn cpu(&self) -> Duration {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        // Behind the name, which stands in brackets: user and system time are the 12th and 13th.
        let fields: Vec<&str> = stat.rsplit(") ").next().unwrap().split(' ').collect();
        let ticks: u32 = fields[11].parse::<u32>().unwrap() + fields[12].parse::<u32>().unwrap();
        Duration::from_secs(1) * ticks / ticks_per_second()
    }

    /// Its resident memory, in bytes.
    pub(crate) fn resident(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
    }

    /// Empties its log, which has a line for each review.
    pub(crate) fn cut_log(&self) {
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

/// Moves this process and all that it started to the cores that are not the servers'.
pub(crate) fn leave_core() {
    let cores = available_parallelism().unwrap().get();
    assert!(cores > 1, "this part needs two cores: one for the server, one for who asks");
    let others = format!("1-{}", cores - 1);
    for pid in family_of(std::process::id()) {
        // It may have ended meanwhile.
        let _ = Command::new("taskset").args(["-apc", &others, &pid.to_string()]).output().unwrap();
    }
}

/// A process and all that descend from it.
fn family_of(first: u32) -> Vec<u32> {
    let mut parents = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|it| it.parse::<u32>().ok()) else { continue };
        let Ok(stat) = fs::read_to_string(entry.path().join("stat")) else { continue };
        let parent = stat.rsplit(") ").next().and_then(|rest| rest.split(' ').nth(1)?.parse::<u32>().ok());
        parents.extend(parent.map(|parent| (pid, parent)));
    }
    let mut family = vec![first];
    let mut next = 0;
    while let Some(&one) = family.get(next) {
        family.extend(parents.iter().filter(|(_, parent)| *parent == one).map(|(pid, _)| *pid));
        next += 1;
    }
    family
}

fn ticks_per_second() -> u32 {
    let output = Command::new("getconf").arg("CLK_TCK").output().unwrap();
    String::from_utf8(output.stdout).unwrap().trim().parse().unwrap()
}
