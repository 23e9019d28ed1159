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
    http_client,
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
    https: SocketAddr,
    http: SocketAddr,
}

impl SelfManagedGuard {
    /// Starts it at this address without waiting for more than its ports.
    pub fn launch(kubeconfig: &Path, https: SocketAddr, flags: &[&str]) -> Self {
        let flags: Vec<String> = flags.iter().map(|it| (*it).to_owned()).collect();
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let (child, https, http) = spawn(kubeconfig, https, any, &flags);
        Self { child, kubeconfig: kubeconfig.to_owned(), flags, https, http }
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

    /// Ends it as a kubelet does, and starts it again at the same addresses.
    pub async fn restart(&mut self) {
        let pid = i32::try_from(self.child.id()).expect("a pid");
        kill(Pid::from_raw(pid), Signal::SIGTERM).expect("a guard that runs");
        let child = &mut self.child;
        until("the guard ends", READY_LIMIT, async || child.try_wait().expect("a child").is_some()).await;
        (self.child, _, _) = spawn(&self.kubeconfig, self.https, self.http, &self.flags);
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
    kubeconfig: &Path,
    https: SocketAddr,
    http: SocketAddr,
    flags: &[String],
) -> (Child, SocketAddr, SocketAddr) {
    let mut command = mortal(env!("CARGO_BIN_EXE_etcd-guard"));
    command.args(["serve", "--log-format=json", "--linger", LINGER, "--namespace=etcd-guard"]);
    command.args(["--listen", &https.to_string(), "--admin-listen", &http.to_string()]);
    command.arg("--kubeconfig").arg(kubeconfig).arg("--self-managed-certs").args(flags);
    spawn_and_listen(command, &Log::default())
}
