//! A node whose pods are processes, for machines where no kubelet can run.
//!
//! It runs each pod's etcd on a loopback address of its own, reports status and readiness, and ends pods as a kubelet
//! does and with a kubelet's identity: SIGTERM, SIGKILL after the grace period, a terminal phase, and the final DELETE.
//! Pods without etcd are reported as running and have no process. With `alone`, it also binds pods and creates volumes.
//! A preStop hook that sleeps delays SIGTERM. A pod with the annotation [`RESOLVES_NAMES`] keeps host names in its
//! command and resolves them, so that its member list contains names of Services; other pods get addresses.
//!
//! An image with the tag [`MISSING_TAG`] cannot be pulled. An image with a tag of etcd 3.5 selects that release, every other image the release of the settings.
//! If the image of a running pod is changed, the process is restarted. A pod with the
//! annotation [`MOVES`] is bound to another node while its own is cordoned. A pod with the annotation [`IS_FRUGAL`] needs
//! less processor time.
//!
//! It knows the actual state of each process, and tests apply a [`ProcessAction`] to one.

mod addresses;
mod hosts;
mod manager;
mod process;
mod readiness;
mod sandbox;
mod scheduling;
mod status;
mod termination;
mod translation;
mod volumes;

use std::{
    collections::BTreeMap,
    net::Ipv4Addr,
    path::PathBuf,
    sync::{Arc, Mutex, OnceLock},
    thread::JoinHandle,
    time::Duration,
};

use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, timeout},
};

pub use self::{
    addresses::Addresses,
    hosts::RESOLVES_NAMES,
    sandbox::{IS_FRUGAL, MISSING_TAG, ProcessAction},
    scheduling::MOVES,
};
use self::{manager::Manager, sandbox::PendingAction};
use crate::processes::testbed;

/// The longest time until an action is applied to a process.
const ACTION_TIMEOUT: Duration = Duration::from_secs(10);

/// The identity of a node.
#[derive(Clone, Debug)]
pub struct NodeIdentity {
    /// The name of the node.
    pub name: String,
    /// A kubeconfig with a client certificate of `system:node:NAME`.
    pub kubeconfig: PathBuf,
}

/// The settings of a process node.
pub struct Settings {
    /// A kubeconfig of a user who may bind pods and create volumes.
    pub admin_kubeconfig: PathBuf,
    /// The nodes that it represents; the pods of a set are distributed over them in turn.
    pub nodes: Vec<NodeIdentity>,
    /// The namespaces of its pods; all namespaces if this is empty.
    pub namespaces: Vec<String>,
    /// The addresses that pods get.
    pub addresses: Arc<Addresses>,
    /// The folder of volumes and logs.
    pub dir: PathBuf,
    /// The etcd program.
    pub etcd: PathBuf,
    /// Flags for etcd in addition to those of the pod.
    pub etcd_flags: Vec<String>,
    /// Whether it also binds pods and creates volumes, because no scheduler and no provisioner do.
    pub alone: bool,
}

/// A running process node. When it is dropped, its processes are killed.
pub struct ProcessNode {
    shared: Arc<Shared>,
    actions: mpsc::UnboundedSender<(Key, PendingAction)>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    /// The namespaces whose addresses are released at the end.
    namespaces: Vec<String>,
}

/// The namespace and the name of a pod.
type Key = (String, String);

/// State that all sandboxes of a node share.
struct Shared {
    admin: Client,
    addresses: Arc<Addresses>,
    dir: PathBuf,
    etcd: PathBuf,
    etcd_flags: Vec<String>,
    /// The running processes: pod, uid and start time.
    running: Mutex<BTreeMap<Key, (String, Instant)>>,
}

impl ProcessNode {
    /// Starts the node on a thread of its own, because its processes end with the thread that spawned them.
    pub fn start(settings: Settings) -> Self {
        let namespaces = settings.namespaces.clone();
        let (actions, to_pods) = mpsc::unbounded_channel();
        let (stop, stopped) = oneshot::channel();
        let (started, shared) = std::sync::mpsc::channel();
        let work = move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                let mut manager = Manager::new(settings, to_pods).await;
                // The caller waits for this message.
                let _ = started.send(manager.shared());
                tokio::select! {
                    () = manager.run() => {}
                    _ = stopped => {}
                }
                manager.end().await;
            });
        };
        let thread =
            std::thread::Builder::new().name(String::from("process-node")).spawn(work).expect("a thread");
        let shared = shared.recv().expect("a process node that starts");
        Self { shared, actions, stop: Some(stop), thread: Some(thread), namespaces }
    }

    /// Returns the address of a pod, which need not exist.
    pub fn address(&self, namespace: &str, pod: &str) -> Ipv4Addr {
        self.shared.addresses.pod_address(namespace, pod)
    }

    /// Returns the pods of a namespace whose process runs now, independent of their status in the API.
    pub fn running(&self, namespace: &str) -> Vec<String> {
        let running = self.shared.running.lock().expect("the lock is not poisoned");
        running.keys().filter(|(owner, _)| owner == namespace).map(|(_, pod)| pod.clone()).collect()
    }

    /// Returns the uid and the start time of the process that runs for a pod now.
    pub fn running_since(&self, namespace: &str, pod: &str) -> Option<(String, Instant)> {
        let running = self.shared.running.lock().expect("the lock is not poisoned");
        running.get(&(namespace.to_owned(), pod.to_owned())).cloned()
    }

    /// Applies an action to the process of a pod, and returns whether it was applied.
    pub async fn try_apply(&self, namespace: &str, pod: &str, action: ProcessAction) -> bool {
        let (done, wait) = oneshot::channel();
        let key = (namespace.to_owned(), pod.to_owned());
        self.actions.send((key, (action, done))).is_ok()
            && matches!(timeout(ACTION_TIMEOUT, wait).await, Ok(Ok(())))
    }

    /// Applies an action to the process of a pod, and returns when it is applied.
    pub async fn apply(&self, namespace: &str, pod: &str, action: ProcessAction) {
        let (done, wait) = oneshot::channel();
        let key = (namespace.to_owned(), pod.to_owned());
        self.actions.send((key, (action, done))).expect("the process node runs");
        let result = timeout(ACTION_TIMEOUT, wait).await.expect("the action is applied in time");
        result.unwrap_or_else(|_| panic!("{action:?}: no process of pod {pod} runs here"));
    }
}

impl Drop for ProcessNode {
    fn drop(&mut self) {
        if let (Some(stop), Some(thread)) = (self.stop.take(), self.thread.take()) {
            // The thread may have ended with a panic, which it reported itself.
            let _ = stop.send(());
            let _ = thread.join();
            for namespace in &self.namespaces {
                self.shared.addresses.release(namespace);
            }
        }
    }
}

impl Shared {
    fn remember(&self, pod: &Pod) {
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        self.running.lock().expect("the lock is not poisoned").insert(key(pod), (uid, Instant::now()));
    }

    /// Returns the etcd program for an image.
    fn program(&self, image: Option<&str>) -> PathBuf {
        static FORMER: OnceLock<PathBuf> = OnceLock::new();
        let tag = image.and_then(|image| image.rsplit(':').next()).unwrap_or_default();
        if tag.trim_start_matches('v').starts_with("3.5.") {
            return FORMER.get_or_init(|| testbed::program("etcd-3.5")).clone();
        }
        self.etcd.clone()
    }

    fn forget(&self, pod: &Pod) {
        let mut running = self.running.lock().expect("the lock is not poisoned");
        if running.get(&key(pod)).map(|(uid, _)| uid) == pod.metadata.uid.as_ref() {
            running.remove(&key(pod));
        }
    }
}

fn key(pod: &Pod) -> Key {
    let metadata = &pod.metadata;
    (metadata.namespace.clone().unwrap_or_default(), metadata.name.clone().unwrap_or_default())
}
