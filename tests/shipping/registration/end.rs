//! The shutdown of a guard that applied its own configurations.

use std::{
    net::{SocketAddr, TcpListener},
    time::Duration,
};

use nix::sys::signal::Signal;

use crate::{certificates::self_managed::permit, stdout};
use test_support::{
    guard::self_managed::SelfManagedGuard, kubernetes::control_plane::ControlPlane,
    processes::child::scoped_command, wait::wait_until,
};

const CONFIGURATION: &str = "validatingwebhookconfiguration/etcd-guard";

/// The longest time for each step, on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Returns a free address, and the flag that registers it.
pub(crate) fn free_address() -> (SocketAddr, String) {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    (free, format!("--register-url=https://{free}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn stopping_guard_does_not_register_again() {
    let control_plane = ControlPlane::start(&[]);
    let kubeconfig = permit(&control_plane);
    let (address, url) = free_address();
    // With this short lifetime, the guard checks every one and a half seconds, three times before it ends.
    let flags = ["--certificate-life=30s", "--register", &url];
    let mut guard = SelfManagedGuard::launch(&kubeconfig, address, &flags);
    guard.wait_until_ready().await;

    guard.signal(Signal::SIGTERM);
    wait_until("the guard stops", TIMEOUT, async || {
        guard.has_logged("stopping: not ready, still serving requests")
    })
    .await;
    let mut unregister = scoped_command(env!("CARGO_BIN_EXE_etcd-guard"));
    stdout(unregister.args(["unregister", "--yes", "--kubeconfig"]).arg(control_plane.admin_kubeconfig()));
    guard.wait_for_end().await;

    let left =
        control_plane.kubectl().run_checked(&["get", CONFIGURATION, "--ignore-not-found", "-o", "name"]);
    assert_eq!(left.stdout, "");
}
