//! The real scheduler, for pods that request it by name. Process nodes bind all other pods.

use std::process::{Child, Stdio};

use serde_json::json;

use crate::{
    kubernetes::control_plane::ControlPlane,
    processes::{child::scoped_command, testbed},
};

/// The `schedulerName` of pods that this scheduler binds.
pub const SCHEDULER: &str = "real-scheduler";

/// A running scheduler. When it is dropped, it is killed.
pub struct Scheduler {
    child: Child,
}

impl Scheduler {
    /// Starts the scheduler, which needs a moment before it binds pods.
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
        let mut command = scoped_command(testbed::program("kube-scheduler"));
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
