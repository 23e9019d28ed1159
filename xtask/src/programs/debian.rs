//! Installation of Debian packages, without starting the services that they bring.

use std::{
    env,
    ffi::OsString,
    fs::{self, File},
    io::Write as _,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use nix::{
    sys::signal::{SigSet, Signal},
    unistd::geteuid,
};

use crate::{cache::Lock, log, process};

/// Debian asks this file whether a package may start its services; those of etcd, containerd and Prometheus must not.
const POLICY: &str = "/usr/sbin/policy-rc.d";

/// Marks the file as written by this program.
const POLICY_MARK: &str = "Written by etcd-guard scripts/testbed while it installs packages.";

/// Installations exclude each other by a lock on this directory.
const LOCK: &str = "/var/lib/dpkg";

/// Limit for an installation, also for that of another process.
const INSTALL_TIMEOUT: Duration = Duration::from_secs(900);

/// Interval between two lines of progress.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(15);

/// Interval at which the end of apt-get is checked.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Removes the policy that an installation left when it was killed.
pub(super) fn remove_stale_policy() {
    if !policy_is_ours() {
        return;
    }
    if let Some(_lock) = Lock::try_acquire(Path::new(LOCK))
        && policy_is_ours()
    {
        // Without permission the file stays, as it was before.
        let _ = fs::remove_file(POLICY);
    }
}

/// Whether the policy was written by this program; then the owner of the lock may remove it.
fn policy_is_ours() -> bool {
    fs::read_to_string(POLICY).is_ok_and(|text| text.contains(POLICY_MARK))
}

/// Installs Debian packages, or returns an error with the command that installs them.
pub(super) fn install(packages: &[&str]) -> Result<()> {
    let list = packages.join(" ");
    let has_apt = env::var_os("PATH")
        .is_some_and(|path| env::split_paths(&path).any(|folder| folder.join("apt-get").exists()));
    if !geteuid().is_root() || !has_apt {
        bail!(
            "missing Debian packages: {list}; install them with: apt-get install --no-install-recommends {list}"
        );
    }
    let _lock = Lock::acquire(
        Path::new(LOCK),
        "Debian packages are being installed by another process; waiting",
        INSTALL_TIMEOUT,
    )?;
    // A signal waits until the policy is removed.
    let signals = SigSet::from_iter([Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP]);
    signals.thread_block().context("cannot block signals")?;
    log::info(format_args!("installing Debian packages: {list}"));
    let installed = install_without_services(packages);
    signals.thread_unblock().context("cannot unblock signals")?;
    installed
}

fn install_without_services(packages: &[&str]) -> Result<()> {
    let _policy = Policy::write()?;
    let log_file = tempfile::NamedTempFile::new()?;
    let install = ["-o", "DPkg::Lock::Timeout=300", "install", "-y", "--no-install-recommends"];
    let install: Vec<&str> = install.iter().chain(packages).copied().collect();
    if !update_lists(log_file.path())? || !apt_get(INSTALL_TIMEOUT, &install, log_file.path())?.success() {
        log::tail(log_file.path());
        bail!("apt-get could not install: {}", packages.join(" "));
    }
    Ok(())
}

/// Fetches the package lists. apt-get itself does not wait for another process that does the same.
fn update_lists(log_file: &Path) -> Result<bool> {
    let deadline = Instant::now() + INSTALL_TIMEOUT;
    while !apt_get(Duration::from_secs(300), &["update"], log_file)?.success() {
        let is_locked = fs::read_to_string(log_file)?.contains("Could not get lock");
        if !is_locked || Instant::now() >= deadline {
            return Ok(false);
        }
        thread::sleep(Duration::from_secs(1));
    }
    Ok(true)
}

fn apt_get(timeout: Duration, arguments: &[&str], log_file: &Path) -> Result<ExitStatus> {
    let words = ["timeout", &timeout.as_secs().to_string(), "apt-get", "-qq"];
    let words: Vec<OsString> = words.iter().chain(arguments).map(OsString::from).collect();
    let log = File::create(log_file)?;
    // The launcher removes the blocked signals, by which `timeout` ends apt-get. If this process is killed, apt-get
    // finishes: an interrupted dpkg needs repair by hand.
    let mut command = process::launch(&[], &words);
    command.env("DEBIAN_FRONTEND", "noninteractive").env("LC_ALL", "C");
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    let mut child = command.spawn().context("cannot start apt-get")?;
    let started = Instant::now();
    let mut next_progress = PROGRESS_INTERVAL;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if started.elapsed() >= next_progress {
            log::info(format_args!("  still running apt-get: {} s", next_progress.as_secs()));
            next_progress += PROGRESS_INTERVAL;
        }
        thread::sleep(POLL_INTERVAL);
    }
}

/// The policy that forbids packages to start services; removed when dropped.
struct Policy(Option<PathBuf>);

impl Policy {
    /// Writes the policy, unless the machine has one of its own.
    fn write() -> Result<Self> {
        let path = PathBuf::from(POLICY);
        if path.exists() && !policy_is_ours() {
            return Ok(Self(None));
        }
        let mut file = File::create(&path).with_context(|| format!("cannot write {POLICY}"))?;
        write!(file, "#!/bin/sh\n# {POLICY_MARK}\nexit 101\n")?;
        file.set_permissions(fs::Permissions::from_mode(0o755))?;
        Ok(Self(Some(path)))
    }
}

impl Drop for Policy {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            // Another process may have removed it.
            let _ = fs::remove_file(path);
        }
    }
}
