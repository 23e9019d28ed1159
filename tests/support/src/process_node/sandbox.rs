//! The life cycle of a pod on the process node: its process, its status and its end.

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
    hosts::{HostsFiles, resolves_names},
    process::{Process, Program},
    readiness::Probe,
    status::{self, Facts, State},
    termination::pre_stop_delay,
    translation::{Translation, etcd_container},
    volumes,
};

/// The annotation of pods whose member sends fewer heartbeats and is probed less often, for tests with many members. The value
/// is ignored.
pub const IS_FRUGAL: &str = "process-node.test/is-frugal";

/// The end of an image that does not exist.
pub const MISSING_TAG: &str = ":missing";

/// The flags of a member with [`IS_FRUGAL`]: a fifth of the default number of heartbeats. A follower starts an election at the
/// earliest five seconds after the last heartbeat.
const FRUGAL_FLAGS: [&str; 2] = ["--heartbeat-interval=500", "--election-timeout=5000"];

/// The interval of the readiness probe, much shorter than in the pod because tests wait for readiness.
const READINESS_PERIOD: Duration = Duration::from_millis(200);

/// The same for pods with [`IS_FRUGAL`]: each probe is a linearizable read.
const FRUGAL_READINESS_PERIOD: Duration = Duration::from_secs(2);

/// The pause before a process that ended is restarted; a kubelet waits ten seconds or more from the second restart on.
const RESTART_PAUSE: Duration = Duration::from_secs(1);

/// The number of these pauses after a process that has failed soon after its start, twice or more: as long as a kubelet waits.
const PAUSES_AFTER_FAILURES: u32 = 10;

/// The time within which a process that fails counts as failed soon after its start.
const SHORT_RUN: Duration = Duration::from_secs(2);

/// The pause between attempts, for example while a claim is not bound or after a failed call.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// The longest time in which a process stops before its restart with another image.
const RESTART_TIMEOUT: Duration = Duration::from_secs(30);

/// The grace period of pods that do not specify one, in seconds.
const DEFAULT_GRACE: i64 = 30;

/// An action on a pod's process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessAction {
    /// Freezes the process: its connections stay open, and it does not respond.
    Pause,
    /// Resumes a frozen process. Without a process, ends the crash loop.
    Resume,
    /// Disconnects the pod's kubelet: the process continues, and the kubelet does not learn of a deletion.
    Isolate,
    /// Reconnects the kubelet.
    Rejoin,
    /// Kills the process, which is restarted like every container.
    Kill,
    /// Kills the process and prevents restarts until `Resume` or the end of this pod.
    CrashLoop,
}

/// An action and the sender that reports its completion. A closed receiver cancels the action, because the caller
/// treats it as not applied.
pub(super) type PendingAction = (ProcessAction, oneshot::Sender<()>);

/// A pod on the node.
pub(super) struct Sandbox {
    pub(super) shared: Arc<Shared>,
    /// A client with the identity of the node.
    pub(super) kubelet: Client,
    /// The pod in the API; `None` once it is deleted.
    pub(super) updates: watch::Receiver<Option<Pod>>,
    pub(super) actions: mpsc::UnboundedReceiver<PendingAction>,
    pub(super) pod: Pod,
    pub(super) facts: Facts,
    pub(super) crash_loops: bool,
    pub(super) is_isolated: bool,
}

/// The event that ends the supervision of a process.
enum Event {
    Ended {
        exit_code: i32,
    },
    /// The pod's deletion was accepted, with this grace period between SIGTERM and SIGKILL.
    Deleted(Duration),
    /// Another image of etcd is specified.
    Updated(Box<Pod>),
    /// The pod no longer exists in the API.
    Gone,
}

impl Sandbox {
    pub(super) async fn run(mut self) {
        if let Some(exit_code) = self.run_process().await {
            self.report(&State::Ended { exit_code }).await;
            self.delete().await;
        }
        self.shared.forget(&self.pod);
        // The directory need not exist.
        let _ = std::fs::remove_dir_all(self.dir());
    }

    /// Runs the pod's process and restarts it until the pod is deleted. Returns its last exit code, or `None` if the
    /// pod no longer exists.
    async fn run_process(&mut self) -> Option<i32> {
        if self.lacks_image() {
            self.report(&State::ImagePull).await;
        }
        let mut program = loop {
            if let Some(program) = self.prepare().await {
                break program;
            }
            match self.pause(RETRY_PAUSE).await {
                None => {}
                Some(Event::Gone) => return None,
                Some(_) => return Some(0),
            }
        };
        let mut failures = 0;
        loop {
            let started = Instant::now();
            let mut process = program.as_ref().map(|program| program.start(&self.dir().join("log")));
            if process.is_some() {
                self.shared.remember(&self.pod);
            }
            let exit_code = match self.watch(process.as_mut(), program.as_ref()).await {
                Event::Gone => {
                    kill(process).await;
                    return None;
                }
                Event::Deleted(grace) => return self.terminate(process, grace).await,
                Event::Updated(pod) => {
                    stop(process).await;
                    self.shared.forget(&self.pod);
                    self.pod = *pod;
                    self.facts.restarts += 1;
                    program = self.prepare().await.unwrap_or(program);
                    continue;
                }
                Event::Ended { exit_code } => exit_code,
            };
            self.shared.forget(&self.pod);
            self.facts.restarts += 1;
            self.report(&State::CrashLoop { exit_code }).await;
            let has_failed = (1..128).contains(&exit_code) && started.elapsed() < SHORT_RUN;
            failures = if has_failed { failures + 1 } else { 0 };
            let mut pauses = if failures > 1 { PAUSES_AFTER_FAILURES } else { 1 };
            loop {
                let event = self.pause(RESTART_PAUSE).await;
                while let Ok(ordered) = self.actions.try_recv() {
                    self.handle_action(ordered, None).await;
                }
                pauses = pauses.saturating_sub(1);
                match event {
                    None if self.crash_loops || pauses > 0 => {}
                    None => break,
                    Some(Event::Gone) => return None,
                    Some(_) => return Some(exit_code),
                }
            }
        }
    }

    /// Whether the image of the pod's etcd has the tag [`MISSING_TAG`].
    fn lacks_image(&self) -> bool {
        let image = etcd_container(&self.pod).and_then(|container| container.image.as_deref());
        image.is_some_and(|image| image.ends_with(MISSING_TAG))
    }

    /// Returns the program to run, `Some(None)` for a pod without a process, or `None` while its volumes are not
    /// available, and for an image that does not exist.
    async fn prepare(&self) -> Option<Option<Program>> {
        if self.lacks_image() {
            return None;
        }
        let Some(container) = etcd_container(&self.pod) else { return Some(None) };
        let mounts = volumes::mounts(&self.shared.admin, &self.pod, container, &self.dir()).await;
        let mounts = mounts.unwrap_or_else(|error| {
            eprintln!("process node: volumes of {}: {error}", self.name());
            None
        })?;
        let (address, addresses) = (self.facts.address, &*self.shared.addresses);
        let mut words = Translation { pod: &self.pod, address, addresses, mounts }.words(container);
        words.arguments.extend(self.shared.etcd_flags.iter().cloned());
        let is_frugal = self
            .pod
            .metadata
            .annotations
            .as_ref()
            .is_some_and(|annotations| annotations.contains_key(IS_FRUGAL));
        if is_frugal {
            words.arguments.extend(FRUGAL_FLAGS.map(str::to_owned));
        }
        let period = if is_frugal { FRUGAL_READINESS_PERIOD } else { READINESS_PERIOD };
        let probe = Probe::from_container(container, address, period);
        let namespace = self.pod.metadata.namespace.as_deref().unwrap_or_default();
        let hosts = resolves_names(&self.pod).then(|| HostsFiles::new(&self.shared.dir, namespace));
        let path = self.shared.program(container.image.as_deref());
        Some(Some(Program { path, words, hosts, probe }))
    }

    /// Reports the status of the running process and applies actions, until the process ends or the pod is deleted.
    async fn watch(&mut self, mut process: Option<&mut Process>, program: Option<&Program>) -> Event {
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
                exit_code = exit_code_of(process.as_deref_mut()) => return Event::Ended { exit_code },
                next_event = next_event(&mut self.updates, Some(&self.pod)), if !self.is_isolated => return next_event,
                Ok(()) = is_ready.changed() => {
                    let ready = *is_ready.borrow_and_update();
                    self.report(&State::Running { since, ready }).await;
                }
                Some(ordered) = self.actions.recv() => self.handle_action(ordered, process.as_deref()).await,
            }
        }
    }

    async fn handle_action(&mut self, (action, done): PendingAction, process: Option<&Process>) {
        if !done.is_closed() {
            self.apply(action, process).await;
            // An error means that the caller gave up in the meantime.
            let _ = done.send(());
        }
    }

    async fn apply(&mut self, action: ProcessAction, process: Option<&Process>) {
        match (action, process) {
            (ProcessAction::Isolate | ProcessAction::Rejoin, _) => {
                self.is_isolated = action == ProcessAction::Isolate;
            }
            (ProcessAction::Pause, Some(process)) => process.freeze().await,
            (ProcessAction::Resume, Some(process)) => process.signal(Signal::SIGCONT),
            (ProcessAction::Resume, None) => self.crash_loops = false,
            (ProcessAction::Kill | ProcessAction::CrashLoop, Some(process)) => {
                self.crash_loops |= action == ProcessAction::CrashLoop;
                process.signal(Signal::SIGKILL);
            }
            (_, None) => {}
        }
    }

    /// Sends SIGTERM after the preStop hook, and SIGKILL at the end of the grace period or as soon as the pod no longer
    /// exists.
    async fn terminate(&mut self, process: Option<Process>, grace: Duration) -> Option<i32> {
        let Some(mut process) = process else { return Some(0) };
        let deadline = Instant::now() + grace;
        let stop = Instant::now() + pre_stop_delay(&self.pod).min(grace);
        let mut is_stopping = false;
        loop {
            tokio::select! {
                exit_code = process.end() => return Some(exit_code),
                () = sleep_until(stop), if !is_stopping => {
                    is_stopping = true;
                    process.signal(Signal::SIGTERM);
                }
                () = sleep_until(deadline) => return Some(kill(Some(process)).await),
                Some(ordered) = self.actions.recv() => self.handle_action(ordered, Some(&process)).await,
                next_event = next_event(&mut self.updates, None) => if let Event::Gone = next_event {
                    kill(Some(process)).await;
                    return None;
                },
            }
        }
    }

    async fn pause(&mut self, time: Duration) -> Option<Event> {
        timeout(time, next_event(&mut self.updates, None)).await.ok()
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

    /// Sends the final delete of a kubelet: without a grace period, and only for a pod with this uid.
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

/// Waits until the pod is terminating or no longer exists, or specifies another image of etcd than that of the process.
async fn next_event(updates: &mut watch::Receiver<Option<Pod>>, running: Option<&Pod>) -> Event {
    let image = |pod: &Pod| etcd_container(pod).and_then(|container| container.image.clone());
    while updates.changed().await.is_ok() {
        match &*updates.borrow_and_update() {
            None => return Event::Gone,
            Some(pod) if pod.metadata.deletion_timestamp.is_some() => {
                let grace = pod.metadata.deletion_grace_period_seconds.unwrap_or(DEFAULT_GRACE);
                return Event::Deleted(Duration::from_secs(grace.try_into().unwrap_or(0)));
            }
            Some(pod) if running.is_some_and(|running| image(running) != image(pod)) => {
                return Event::Updated(Box::new(pod.clone()));
            }
            Some(_) => {}
        }
    }
    Event::Gone
}

/// Whether the pod does not exist, or another pod has its name.
fn is_gone(error: &kube::Error) -> bool {
    let kube::Error::Api(status) = error else { return false };
    status.code == 404 || (status.code == 409 && status.message.contains("UID"))
}

/// Stops a process and waits for its end.
async fn stop(process: Option<Process>) {
    let Some(mut process) = process else { return };
    process.signal(Signal::SIGTERM);
    if timeout(RESTART_TIMEOUT, process.end()).await.is_err() {
        kill(Some(process)).await;
    }
}

/// Kills a process and waits for its end, so that a successor can use its address.
async fn kill(process: Option<Process>) -> i32 {
    let Some(mut process) = process else { return 0 };
    process.signal(Signal::SIGKILL);
    process.end().await
}

async fn exit_code_of(process: Option<&mut Process>) -> i32 {
    match process {
        Some(process) => process.end().await,
        None => std::future::pending().await,
    }
}
