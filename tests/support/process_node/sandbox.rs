//! One pod's life on the process node: its process, what is reported of it, and its end.

use std::{
    net::Ipv4Addr,
    os::unix::process::ExitStatusExt,
    path::PathBuf,
    process::{ExitStatus, Stdio},
    sync::Arc,
    time::{Duration, SystemTime},
};

use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams, Preconditions},
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tokio::{
    process::Child,
    sync::{mpsc, oneshot, watch},
    time::{Instant, sleep, sleep_until, timeout},
};

use super::{
    Shared,
    readiness::Probe,
    status::{self, Facts, State},
    translation::{Translation, etcd_container},
    volumes,
};
use crate::support::child::mortal;

/// Pause before a process that ended is started again; a kubelet waits ten seconds and more from the second time on.
const RESTART_PAUSE: Duration = Duration::from_secs(1);

/// Pause between attempts at something that did not work: a claim that is not bound, a call that failed.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// What a pod is given where it does not say how long its end may take.
const DEFAULT_GRACE: i64 = 30;

/// What can be done to a pod's process from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Freeze it: connections stay open, nothing is answered.
    Pause,
    /// Let it go on.
    Resume,
    /// Cut the pod's kubelet off: the process goes on, and nobody hears of a deletion.
    Isolate,
    /// Let the kubelet hear again.
    Rejoin,
    /// Kill it, and keep it from starting again as long as this pod exists.
    CrashLoop,
}

/// An order, and whom to tell that it was carried out.
pub type Ordered = (Order, oneshot::Sender<()>);

/// A pod on the node.
pub struct Sandbox {
    pub shared: Arc<Shared>,
    /// With the node's identity.
    pub kubelet: Client,
    /// The pod as the apiserver has it; `None` once it is gone.
    pub updates: watch::Receiver<Option<Pod>>,
    pub orders: mpsc::UnboundedReceiver<Ordered>,
    pub pod: Pod,
    pub facts: Facts,
    pub crash_loops: bool,
    pub is_isolated: bool,
}

/// Why a process is not watched any longer.
enum Turn {
    Ended(ExitStatus),
    /// The pod's deletion was accepted; the time between SIGTERM and SIGKILL.
    Deleted(Duration),
    /// The pod is gone from the apiserver.
    Gone,
}

/// What to run, and how to tell whether it is ready.
struct Program {
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
    probe: Option<Probe>,
}

impl Sandbox {
    pub async fn run(mut self) {
        if let Some(exit_code) = self.live().await {
            self.report(&State::Ended { exit_code }).await;
            self.delete().await;
        }
        self.shared.forget(&self.pod);
        // It may not exist.
        let _ = std::fs::remove_dir_all(self.dir());
    }

    /// Runs the pod's process, again and again, until the pod is deleted; returns its last exit code, or `None` if
    /// the pod is gone already.
    async fn live(&mut self) -> Option<i32> {
        let program = loop {
            if let Some(program) = self.prepare().await {
                break program;
            }
            match self.pause(RETRY_PAUSE).await {
                None => {}
                Some(Turn::Gone) => return None,
                Some(_) => return Some(0),
            }
        };
        loop {
            let mut child = program.as_ref().map(|program| self.spawn(program));
            let exit_code = match self.watch(child.as_mut(), program.as_ref()).await {
                Turn::Gone => {
                    end_at_once(child).await;
                    return None;
                }
                Turn::Deleted(grace) => return self.terminate(child, grace).await,
                Turn::Ended(status) => exit_code(status),
            };
            self.shared.forget(&self.pod);
            self.facts.restarts += 1;
            self.report(&State::CrashLoop { exit_code }).await;
            loop {
                match self.pause(RESTART_PAUSE).await {
                    None if self.crash_loops => {}
                    None => break,
                    Some(Turn::Gone) => return None,
                    Some(_) => return Some(exit_code),
                }
            }
        }
    }

    /// What to run, `Some(None)` if there is nothing to run, `None` while its volumes are not there.
    async fn prepare(&self) -> Option<Option<Program>> {
        let Some(container) = etcd_container(&self.pod) else { return Some(None) };
        let mounts = volumes::mounts(&self.shared.admin, &self.pod, container, &self.dir()).await;
        let mounts = mounts.unwrap_or_else(|error| {
            eprintln!("process node: volumes of {}: {error}", self.name());
            None
        })?;
        let (address, addresses) = (self.facts.address, &*self.shared.addresses);
        let process = Translation { pod: &self.pod, address, addresses, mounts }.process(container);
        let probe = Probe::of(container, address);
        Some(Some(Program { arguments: process.arguments, environment: process.environment, probe }))
    }

    fn spawn(&self, program: &Program) -> Child {
        std::fs::create_dir_all(self.dir()).expect("the pod's directory");
        let log = self.dir().join("log");
        let log = std::fs::File::options().append(true).create(true).open(log).expect("the pod's log");
        let mut command = mortal(&self.shared.etcd);
        command.args(&program.arguments).args(&self.shared.etcd_flags).stdin(Stdio::null());
        command.env_clear().envs(program.environment.iter().cloned()).env("PATH", "/usr/bin:/bin");
        command.stdout(log.try_clone().expect("the log")).stderr(log);
        let child =
            tokio::process::Command::from(command).kill_on_drop(true).spawn().expect("setpriv starts");
        self.shared.remember(&self.pod);
        child
    }

    /// Reports the running process, and carries out orders, until something decisive happens.
    async fn watch(&mut self, mut child: Option<&mut Child>, program: Option<&Program>) -> Turn {
        let since = SystemTime::now();
        let pid = child.as_ref().and_then(|child| child.id());
        let (ready, mut is_ready) = watch::channel(false);
        match program.and_then(|program| program.probe.clone()) {
            Some(probe) => drop(tokio::spawn(probe.run(ready))),
            None => drop(ready.send_replace(true)),
        }
        let current = *is_ready.borrow_and_update();
        self.report(&State::Running { since, ready: current }).await;
        loop {
            tokio::select! {
                status = wait(child.as_deref_mut()) => return Turn::Ended(status),
                turn = turn(&mut self.updates), if !self.is_isolated => return turn,
                Ok(()) = is_ready.changed() => {
                    let ready = *is_ready.borrow_and_update();
                    self.report(&State::Running { since, ready }).await;
                }
                Some((order, done)) = self.orders.recv() => {
                    match order {
                        Order::Pause => signal(pid, Signal::SIGSTOP),
                        Order::Resume => signal(pid, Signal::SIGCONT),
                        Order::Isolate => self.is_isolated = true,
                        Order::Rejoin => self.is_isolated = false,
                        Order::CrashLoop => {
                            self.crash_loops = true;
                            signal(pid, Signal::SIGKILL);
                        }
                    }
                    // Whoever does not wait for it does not care.
                    let _ = done.send(());
                }
            }
        }
    }

    /// SIGTERM, and SIGKILL at the end of the grace period, or as soon as the pod is gone.
    async fn terminate(&mut self, child: Option<Child>, grace: Duration) -> Option<i32> {
        let Some(mut child) = child else { return Some(0) };
        signal(child.id(), Signal::SIGTERM);
        let deadline = Instant::now() + grace;
        loop {
            tokio::select! {
                status = wait(Some(&mut child)) => return Some(exit_code(status)),
                () = sleep_until(deadline) => return Some(end_at_once(Some(child)).await),
                turn = turn(&mut self.updates) => if let Turn::Gone = turn {
                    end_at_once(Some(child)).await;
                    return None;
                },
            }
        }
    }

    async fn pause(&mut self, time: Duration) -> Option<Turn> {
        timeout(time, turn(&mut self.updates)).await.ok()
    }

    async fn report(&self, state: &State) {
        let patch = Patch::Strategic(status::patch(&self.pod, &self.facts, state));
        while let Err(error) = self.pods().patch_status(&self.name(), &PatchParams::default(), &patch).await {
            if is_gone(&error) || self.updates.borrow().is_none() {
                return;
            }
            eprintln!("process node: status of {}: {error}", self.name());
            sleep(RETRY_PAUSE).await;
        }
    }

    /// The kubelet's last delete: now, and this pod or none.
    async fn delete(&self) {
        let options = DeleteParams {
            grace_period_seconds: Some(0),
            preconditions: Some(Preconditions { uid: self.pod.metadata.uid.clone(), resource_version: None }),
            ..DeleteParams::default()
        };
        while let Err(error) = self.pods().delete(&self.name(), &options).await {
            if is_gone(&error) || self.updates.borrow().is_none() {
                return;
            }
            eprintln!("process node: last delete of {}: {error}", self.name());
            sleep(RESTART_PAUSE).await;
        }
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.kubelet.clone(), self.pod.metadata.namespace.as_deref().unwrap_or_default())
    }

    fn name(&self) -> String {
        self.pod.metadata.name.clone().unwrap_or_default()
    }

    fn dir(&self) -> PathBuf {
        self.shared.dir.join("pods").join(self.pod.metadata.uid.as_deref().unwrap_or_default())
    }
}

/// Waits until the pod is deleted or gone.
async fn turn(updates: &mut watch::Receiver<Option<Pod>>) -> Turn {
    while updates.changed().await.is_ok() {
        match &*updates.borrow_and_update() {
            None => return Turn::Gone,
            Some(pod) if pod.metadata.deletion_timestamp.is_some() => {
                let grace = pod.metadata.deletion_grace_period_seconds.unwrap_or(DEFAULT_GRACE);
                return Turn::Deleted(Duration::from_secs(grace.try_into().unwrap_or(0)));
            }
            Some(_) => {}
        }
    }
    Turn::Gone
}

/// Not found, or another pod of the same name by now.
fn is_gone(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if matches!(status.code, 404 | 409))
}

async fn wait(child: Option<&mut Child>) -> ExitStatus {
    match child {
        Some(child) => child.wait().await.expect("a child that can be waited for"),
        None => std::future::pending().await,
    }
}

async fn end_at_once(child: Option<Child>) -> i32 {
    let Some(mut child) = child else { return 0 };
    // It may have ended just now.
    let _ = child.start_kill();
    exit_code(wait(Some(&mut child)).await)
}

/// As a container runtime tells it.
fn exit_code(status: ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default())
}

fn signal(pid: Option<u32>, signal: Signal) {
    if let Some(pid) = pid.and_then(|pid| i32::try_from(pid).ok()) {
        // It may have ended just now; it is not waited for yet, so that the number is nobody else's.
        let _ = kill(Pid::from_raw(pid), signal);
    }
}

impl Facts {
    pub fn of_new(address: Ipv4Addr) -> Self {
        Self { address, created: SystemTime::now(), restarts: 0 }
    }
}
