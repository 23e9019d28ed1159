//! The real scheduler, for pods that ask for it by name: all others are bound by the process nodes.

use std::process::{Child, Stdio};

use serde_json::json;

use super::{child::mortal, control_plane::ControlPlane, testbed};

/// What a pod's `schedulerName` must be.
pub const SCHEDULER: &str = "real-scheduler";

/// A running scheduler. When it is dropped, it is killed.
pub struct Scheduler {
    child: Child,
}

impl Scheduler {
    /// Starts it; it needs a moment before it schedules.
    pub fn start(control_plane: &ControlPlane) -> Self {
        let kubeconfig = control_plane.dir.join("kube-scheduler.kubeconfig");
        let config = control_plane.dir.join("real-scheduler.yaml");
        let text = json!({
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "clientConnection": {"kubeconfig": kubeconfig},
            "leaderElection": {"leaderElect": false},
            "profiles": [{"schedulerName": SCHEDULER}],
        });
        std::fs::write(&config, text.to_string()).expect("the scheduler's configuration is written");
        let log = std::fs::File::create(control_plane.dir.join("real-scheduler.log")).expect("a log");
        let mut command = mortal(testbed::program("kube-scheduler"));
        command.arg("--config").arg(config).arg("--secure-port=0");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        Self { child: command.spawn().expect("the scheduler starts") }
    }
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
