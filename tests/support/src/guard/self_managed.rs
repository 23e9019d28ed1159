//! A guard with managed certificates: those that it creates itself, or the files of a mounted Secret.

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

use crate::{
    guard::process::{Log, spawn_and_listen},
    http_client,
    processes::{child::scoped_command, testbed},
    project,
    wait::wait_until,
};

/// The longest time until the guard is ready: it creates a certificate, stores it, and waits until the API server
/// trusts it.
const READY_TIMEOUT: Duration = Duration::from_secs(60);

/// How long the guard serves after SIGTERM, as shipped.
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

/// The wall clock of one process, which the test sets. The library libfaketime replaces the system's clock; the
/// monotonic clock is unchanged.
#[derive(Clone)]
pub struct Clock {
    library: PathBuf,
    file: PathBuf,
}

impl Clock {
    /// Creates a clock whose setting is stored in this folder, with an initial offset such as `-30d` or `+0`.
    pub fn in_folder(folder: &Path, setting: &str) -> Self {
        testbed::program("faketime");
        let library = std::fs::read_dir("/usr/lib")
            .expect("libraries")
            .map(|entry| entry.expect("a folder").path().join("faketime/libfaketimeMT.so.1"))
            .find(|path| path.exists());
        let clock = Self { library: library.expect("libfaketime"), file: folder.join("clock") };
        clock.set(setting);
        clock
    }

    /// Sets the clock; running processes follow within a second.
    pub fn set(&self, setting: &str) {
        // Replaced atomically, because the process may read it at any time.
        let next = self.file.with_extension("next");
        std::fs::write(&next, setting).expect("the clock is set");
        std::fs::rename(&next, &self.file).expect("the clock is set");
    }

    fn apply_to(&self, command: &mut std::process::Command) {
        command.env("LD_PRELOAD", &self.library).env("FAKETIME_TIMESTAMP_FILE", &self.file);
        command.env("FAKETIME_CACHE_DURATION", "1").env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
    }
}

impl SelfManagedGuard {
    /// Starts a guard at this address, and returns when it listens.
    pub fn launch(kubeconfig: &Path, https: SocketAddr, flags: &[&str]) -> Self {
        Self::launch_with_clock(None, kubeconfig, https, flags)
    }

    /// Starts a guard like [`Self::launch`], with its own wall clock.
    pub fn launch_with_clock(
        clock: Option<&Clock>,
        kubeconfig: &Path,
        https: SocketAddr,
        flags: &[&str],
    ) -> Self {
        let flags = [&["--self-managed-certs"], flags].concat().into_iter().map(str::to_owned).collect();
        Self::launch_with_flags(clock, kubeconfig, https, flags)
    }

    /// Starts a guard that serves the newest certificate of mounted Secrets, as shipped.
    pub fn launch_with_files(kubeconfig: &Path, https: SocketAddr, folders: &[&Path]) -> Self {
        let flag = |name: &str, file: PathBuf| format!("--{name}={}", file.display());
        let files = folders.iter().flat_map(|folder| {
            [flag("tls-cert", folder.join("tls.crt")), flag("tls-key", folder.join("tls.key"))]
        });
        let flags = files.chain([String::from("--tls-reload-interval=500ms")]).collect();
        Self::launch_with_flags(None, kubeconfig, https, flags)
    }

    /// The id of the process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    fn launch_with_flags(
        clock: Option<&Clock>,
        kubeconfig: &Path,
        https: SocketAddr,
        flags: Vec<String>,
    ) -> Self {
        let (any, log) = (SocketAddr::from(([127, 0, 0, 1], 0)), Log::default());
        let (child, https, http) = spawn(clock, kubeconfig, https, any, &flags, &log);
        Self { child, kubeconfig: kubeconfig.to_owned(), flags, clock: clock.cloned(), log, https, http }
    }

    /// Whether a log line contains this text.
    pub fn has_logged(&self, text: &str) -> bool {
        self.log.lock().expect("a log").iter().any(|line| line.to_string().contains(text))
    }

    /// The address of the webhook server.
    pub fn https(&self) -> SocketAddr {
        self.https
    }

    /// The address of the admin server.
    pub fn http(&self) -> SocketAddr {
        self.http
    }

    /// Whether the readiness probe succeeds.
    pub async fn is_ready(&self) -> bool {
        http_client::get(self.http, "/readyz").await.is_ok_and(|response| response.status.is_success())
    }

    /// Waits until the readiness probe succeeds.
    pub async fn wait_until_ready(&self) {
        wait_until("the guard is ready", READY_TIMEOUT, async || self.is_ready().await).await;
    }

    /// Sends a signal to the process.
    pub fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).expect("a pid");
        kill(Pid::from_raw(pid), signal).expect("the guard runs");
    }

    /// Waits until the process has ended.
    pub async fn wait_for_end(&mut self) {
        let child = &mut self.child;
        wait_until("the guard ends", READY_TIMEOUT, async || child.try_wait().expect("a child").is_some())
            .await;
    }

    /// Ends the guard by SIGTERM, as a kubelet does, and starts it again at the same addresses.
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
    let mut command = scoped_command(project::guard_program());
    command.args(["serve", "--log-format=json", "--linger", LINGER, "--namespace=etcd-guard"]);
    command.args(["--listen", &https.to_string(), "--admin-listen", &http.to_string()]);
    command.arg("--kubeconfig").arg(kubeconfig).args(flags);
    if let Some(clock) = clock {
        clock.apply_to(&mut command);
    }
    spawn_and_listen(command, log)
}
