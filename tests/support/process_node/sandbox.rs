//! One pod's life on the process node: its process, what is reported of it, and its end.

use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, SystemTime},
};

use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams, Preconditions},
};
use nix::sys::signal::Signal;
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::{Instant, sleep, sleep_until, timeout},
};

use super::{
    Shared,
    process::{Process, Program},
    readiness::Probe,
    status::{self, Facts, State},
    translation::{Translation, etcd_container},
    volumes,
};

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
    /// Kill it; it starts again like every container.
    Kill,
    /// Kill it, and keep it from starting again as long as this pod exists.
    CrashLoop,
}

/// An order, and whom to tell that it was carried out. Once nobody waits for that any more, it is void: whoever gave it
/// takes it for not done.
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
    Ended {
        exit_code: i32,
    },
    /// The pod's deletion was accepted; the time between SIGTERM and SIGKILL.
    Deleted(Duration),
    /// The pod is gone from the apiserver.
    Gone,
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
            let mut process = program.as_ref().map(|program| program.start(&self.dir().join("log")));
            if process.is_some() {
                self.shared.remember(&self.pod);
            }
            let exit_code = match self.watch(process.as_mut(), program.as_ref()).await {
                Turn::Gone => {
                    kill(process).await;
                    return None;
                }
                Turn::Deleted(grace) => return self.terminate(process, grace).await,
                Turn::Ended { exit_code } => exit_code,
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
        let mut words = Translation { pod: &self.pod, address, addresses, mounts }.words(container);
        words.arguments.extend(self.shared.etcd_flags.iter().cloned());
        let probe = Probe::of(container, address);
        Some(Some(Program { path: self.shared.etcd.clone(), words, probe }))
    }

    /// Reports the running process, and carries out orders, until something decisive happens.
    async fn watch(&mut self, mut process: Option<&mut Process>, program: Option<&Program>) -> Turn {
        let since = SystemTime::now();
        let (ready, mut is_ready) = watch::channel(false);
        match program.and_then(|program| program.probe.clone()) {
            Some(probe) => drop(tokio::spawn(probe.run(ready))),
            None => drop(ready.send_replace(true)),
        }
        let current = *is_ready.borrow_and_update();
        self.report(&State::Running { since, ready: current }).await;
        loop {
            tokio::select! {
                exit_code = end_of(process.as_deref_mut()) => return Turn::Ended { exit_code },
                turn = turn(&mut self.updates), if !self.is_isolated => return turn,
                Ok(()) = is_ready.changed() => {
                    let ready = *is_ready.borrow_and_update();
                    self.report(&State::Running { since, ready }).await;
                }
                Some(ordered) = self.orders.recv() => self.obey(ordered, process.as_deref()).await,
            }
        }
    }

    async fn obey(&mut self, (order, done): Ordered, process: Option<&Process>) {
        if !done.is_closed() {
            self.carry_out(order, process).await;
            // Whoever has given up meanwhile does not hear of it.
            let _ = done.send(());
        }
    }

    async fn carry_out(&mut self, order: Order, process: Option<&Process>) {
        match (order, process) {
            (Order::Isolate | Order::Rejoin, _) => self.is_isolated = order == Order::Isolate,
            (Order::Pause, Some(process)) => process.freeze().await,
            (Order::Resume, Some(process)) => process.signal(Signal::SIGCONT),
            (Order::Kill | Order::CrashLoop, Some(process)) => {
                self.crash_loops |= order == Order::CrashLoop;
                process.signal(Signal::SIGKILL);
            }
            (_, None) => {}
        }
    }

    /// SIGTERM, and SIGKILL at the end of the grace period, or as soon as the pod is gone.
    async fn terminate(&mut self, process: Option<Process>, grace: Duration) -> Option<i32> {
        let Some(mut process) = process else { return Some(0) };
        process.signal(Signal::SIGTERM);
        let deadline = Instant::now() + grace;
        loop {
            tokio::select! {
                exit_code = process.end() => return Some(exit_code),
                () = sleep_until(deadline) => return Some(kill(Some(process)).await),
                Some(ordered) = self.orders.recv() => self.obey(ordered, Some(&process)).await,
                turn = turn(&mut self.updates) => if let Turn::Gone = turn {
                    kill(Some(process)).await;
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
    let kube::Error::Api(status) = error else { return false };
    status.code == 404 || (status.code == 409 && status.message.contains("UID"))
}

/// Returns when it is dead, so that a successor can have its address.
async fn kill(process: Option<Process>) -> i32 {
    let Some(mut process) = process else { return 0 };
    process.signal(Signal::SIGKILL);
    process.end().await
}

async fn end_of(process: Option<&mut Process>) -> i32 {
    match process {
        Some(process) => process.end().await,
        None => std::future::pending().await,
    }
}
