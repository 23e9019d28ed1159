//! A guard that manages its own certificates, with the permissions that are shipped for that.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Child,
    time::Duration,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use super::{
    child::mortal,
    guard_process::{Log, spawn_and_listen},
    http_client, testbed,
    wait::until,
};

/// Longest until it is ready: a certificate is made, written, trusted, and known to be.
const READY_LIMIT: Duration = Duration::from_secs(60);

/// How long it serves on after SIGTERM, as shipped.
const LINGER: &str = "5s";

/// A running guard. When it is dropped, it is killed.
pub struct SelfManagedGuard {
    child: Child,
    kubeconfig: PathBuf,
    flags: Vec<String>,
    clock: Option<Clock>,
    log: Log,
    https: SocketAddr,
    http: SocketAddr,
}

/// A wall clock that a test sets: of one process, by a library that stands in for the system's. What measures how long
/// things take goes right.
#[derive(Clone)]
pub struct Clock {
    library: PathBuf,
    file: PathBuf,
}

impl Clock {
    /// A clock whose setting lies in this folder, and how it is set at first: `-30d`, `+0`.
    pub fn in_folder(folder: &Path, setting: &str) -> Self {
        testbed::program("faketime");
        let library = std::fs::read_dir("/usr/lib")
            .expect("libraries")
            .map(|it| it.expect("a folder").path().join("faketime/libfaketimeMT.so.1"))
            .find(|it| it.exists());
        let clock = Self { library: library.expect("libfaketime"), file: folder.join("clock") };
        clock.set(setting);
        clock
    }

    pub fn set(&self, setting: &str) {
        // Exchanged whole: it is read at any time.
        let next = self.file.with_extension("next");
        std::fs::write(&next, setting).expect("the clock is set");
        std::fs::rename(&next, &self.file).expect("the clock is set");
    }

    fn give(&self, command: &mut std::process::Command) {
        command.env("LD_PRELOAD", &self.library).env("FAKETIME_TIMESTAMP_FILE", &self.file);
        command.env("FAKETIME_CACHE_DURATION", "1").env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
    }
}

impl SelfManagedGuard {
    /// Starts it at this address without waiting for more than its ports.
    pub fn launch(kubeconfig: &Path, https: SocketAddr, flags: &[&str]) -> Self {
        Self::launch_by(None, kubeconfig, https, flags)
    }

    /// The same, by a clock of its own.
    pub fn launch_by(clock: Option<&Clock>, kubeconfig: &Path, https: SocketAddr, flags: &[&str]) -> Self {
        let flags: Vec<String> = flags.iter().map(|it| (*it).to_owned()).collect();
        let (any, log) = (SocketAddr::from(([127, 0, 0, 1], 0)), Log::default());
        let (child, https, http) = spawn(clock, kubeconfig, https, any, &flags, &log);
        Self { child, kubeconfig: kubeconfig.to_owned(), flags, clock: clock.cloned(), log, https, http }
    }

    /// Whether it has logged this.
    pub fn has_logged(&self, words: &str) -> bool {
        self.log.lock().expect("a log").iter().any(|line| line.to_string().contains(words))
    }

    pub fn https(&self) -> SocketAddr {
        self.https
    }

    pub fn http(&self) -> SocketAddr {
        self.http
    }

    pub async fn is_ready(&self) -> bool {
        http_client::get(self.http, "/readyz").await.is_ok_and(|it| it.status.is_success())
    }

    pub async fn wait_until_ready(&self) {
        until("the guard is ready", READY_LIMIT, async || self.is_ready().await).await;
    }

    pub fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).expect("a pid");
        kill(Pid::from_raw(pid), signal).expect("a guard that runs");
    }

    /// Waits until it has ended by itself.
    pub async fn wait_for_end(&mut self) {
        let child = &mut self.child;
        until("the guard ends", READY_LIMIT, async || child.try_wait().expect("a child").is_some()).await;
    }

    /// Ends it as a kubelet does, and starts it again at the same addresses.
    pub async fn restart(&mut self) {
        self.signal(Signal::SIGTERM);
        self.wait_for_end().await;
        (self.child, _, _) =
            spawn(self.clock.as_ref(), &self.kubeconfig, self.https, self.http, &self.flags, &self.log);
        self.wait_until_ready().await;
    }
}

impl Drop for SelfManagedGuard {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(
    clock: Option<&Clock>,
    kubeconfig: &Path,
    https: SocketAddr,
    http: SocketAddr,
    flags: &[String],
    log: &Log,
) -> (Child, SocketAddr, SocketAddr) {
    let mut command = mortal(env!("CARGO_BIN_EXE_etcd-guard"));
    command.args(["serve", "--log-format=json", "--linger", LINGER, "--namespace=etcd-guard"]);
    command.args(["--listen", &https.to_string(), "--admin-listen", &http.to_string()]);
    command.arg("--kubeconfig").arg(kubeconfig).arg("--self-managed-certs").args(flags);
    if let Some(clock) = clock {
        clock.give(&mut command);
    }
    spawn_and_listen(command, log)
}
