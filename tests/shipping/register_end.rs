//! The end of a guard that applied its own configurations.

use std::{
    net::{SocketAddr, TcpListener},
    time::Duration,
};

use nix::sys::signal::Signal;

use crate::{
    self_managed::permit,
    stdout,
    support::{
        child::mortal, control_plane::ControlPlane, self_managed_guard::SelfManagedGuard, wait::until,
    },
};

const CONFIGURATION: &str = "validatingwebhookconfiguration/etcd-guard";

/// Longest that the guard may take for anything, next to compilers.
const LIMIT: Duration = Duration::from_secs(60);

/// An address that is free, and the flag that registers it.
pub(super) fn free() -> (SocketAddr, String) {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    (free, format!("--register-url=https://{free}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_unregistered_while_a_guard_stops_stays_away() {
    let control_plane = ControlPlane::start(&[]);
    let kubeconfig = permit(&control_plane);
    let (address, url) = free();
    // So short a life has it look every one and a half seconds, thrice while it serves on.
    let flags = ["--certificate-life=30s", "--register", &url];
    let mut guard = SelfManagedGuard::launch(&kubeconfig, address, &flags);
    guard.wait_until_ready().await;

    guard.signal(Signal::SIGTERM);
    until("it stops", LIMIT, async || guard.has_logged("stopping: not ready, serving on")).await;
    let mut unregister = mortal(env!("CARGO_BIN_EXE_etcd-guard"));
    stdout(unregister.args(["unregister", "--kubeconfig"]).arg(control_plane.admin_kubeconfig()));
    guard.wait_for_end().await;

    let left = control_plane.kubectl().must(&["get", CONFIGURATION, "--ignore-not-found", "-o", "name"]);
    assert_eq!(left.stdout, "");
}
