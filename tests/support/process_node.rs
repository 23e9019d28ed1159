//! A node whose pods are processes: where no kubelet can run, this plays its part.
//!
//! It runs each pod's etcd on a loopback address of its own, reports status and readiness, and ends pods as a kubelet
//! does, with the identity of one: SIGTERM, SIGKILL after the grace period, a terminal phase, and the last DELETE. Pods
//! without etcd are reported as running and have no process. Alone it binds pods and makes volumes as well.
//!
//! It knows what is true, and does to processes what a test wants: [`Order`].

mod addresses;
mod manager;
mod process;
mod readiness;
mod sandbox;
mod scheduling;
mod status;
mod translation;
mod volumes;

use std::{
    collections::BTreeMap,
    net::Ipv4Addr,
    path::PathBuf,
    sync::{Arc, Mutex},
    thread::JoinHandle,
    time::Duration,
};

use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, timeout},
};

pub use self::{addresses::Addresses, sandbox::Order};
use self::{manager::Manager, sandbox::Ordered};

/// Longest that an order may take to reach its pod.
const ORDER_LIMIT: Duration = Duration::from_secs(10);

/// Who a node is.
#[derive(Clone, Debug)]
pub struct NodeIdentity {
    pub name: String,
    /// With a client certificate of `system:node:NAME`.
    pub kubeconfig: PathBuf,
}

/// What a process node needs.
pub struct Settings {
    /// Of somebody who may bind pods and make volumes.
    pub admin_kubeconfig: PathBuf,
    /// It may be several nodes at once; pods of a set go round.
    pub nodes: Vec<NodeIdentity>,
    /// Whose pods it takes; all if there are none.
    pub namespaces: Vec<String>,
    pub addresses: Arc<Addresses>,
    /// For volumes and logs.
    pub dir: PathBuf,
    /// etcd's program, and flags that it gets beside those of its pod.
    pub etcd: PathBuf,
    pub etcd_flags: Vec<String>,
    /// Whether it binds pods and makes volumes too, because nobody else does.
    pub alone: bool,
}

/// A running process node. When it is dropped, its processes are killed.
pub struct ProcessNode {
    shared: Arc<Shared>,
    orders: mpsc::UnboundedSender<(Key, Ordered)>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    /// Whose addresses are given back.
    namespaces: Vec<String>,
}

/// Namespace and name of a pod.
type Key = (String, String);

/// What the parts of a node share.
struct Shared {
    admin: Client,
    addresses: Arc<Addresses>,
    dir: PathBuf,
    etcd: PathBuf,
    etcd_flags: Vec<String>,
    /// The truth: pods whose process runs, with their uids, and since when.
    running: Mutex<BTreeMap<Key, (String, Instant)>>,
}

impl ProcessNode {
    /// Starts it on a thread of its own: its processes live as long as that thread.
    pub fn start(settings: Settings) -> Self {
        let namespaces = settings.namespaces.clone();
        let (orders, to_pods) = mpsc::unbounded_channel();
        let (stop, stopped) = oneshot::channel();
        let (started, shared) = std::sync::mpsc::channel();
        let work = move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                let mut manager = Manager::new(settings, to_pods).await;
                // Whoever starts it waits for this.
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
        Self { shared, orders, stop: Some(stop), thread: Some(thread), namespaces }
    }

    /// Where a pod of this name runs, or would run.
    pub fn address(&self, namespace: &str, pod: &str) -> Ipv4Addr {
        self.shared.addresses.of(namespace, pod)
    }

    /// The pods of a namespace whose process runs at this moment, whatever the apiserver says.
    pub fn running(&self, namespace: &str) -> Vec<String> {
        let running = self.shared.running.lock().expect("nobody panics here");
        running.keys().filter(|(owner, _)| owner == namespace).map(|(_, pod)| pod.clone()).collect()
    }

    /// The uid of the pod of this name whose process runs at this moment, and since when it does.
    pub fn running_since(&self, namespace: &str, pod: &str) -> Option<(String, Instant)> {
        let running = self.shared.running.lock().expect("nobody panics here");
        running.get(&(namespace.to_owned(), pod.to_owned())).cloned()
    }

    /// Does something to a pod's process if there is one, and returns whether it was done.
    pub async fn try_order(&self, namespace: &str, pod: &str, order: Order) -> bool {
        let (done, wait) = oneshot::channel();
        let key = (namespace.to_owned(), pod.to_owned());
        self.orders.send((key, (order, done))).is_ok()
            && matches!(timeout(ORDER_LIMIT, wait).await, Ok(Ok(())))
    }

    /// Does something to a pod's process, and returns when it is done.
    pub async fn order(&self, namespace: &str, pod: &str, order: Order) {
        let (done, wait) = oneshot::channel();
        let key = (namespace.to_owned(), pod.to_owned());
        self.orders.send((key, (order, done))).expect("a process node that runs");
        let result = timeout(ORDER_LIMIT, wait).await.expect("an order that is carried out in time");
        result.unwrap_or_else(|_| panic!("{order:?}: no process of pod {pod} runs here"));
    }
}

impl Drop for ProcessNode {
    fn drop(&mut self) {
        if let (Some(stop), Some(thread)) = (self.stop.take(), self.thread.take()) {
            // It may have ended by itself, with a panic that is told at its place.
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
        self.running.lock().expect("nobody panics here").insert(key(pod), (uid, Instant::now()));
    }

    fn forget(&self, pod: &Pod) {
        let mut running = self.running.lock().expect("nobody panics here");
        if running.get(&key(pod)).map(|(uid, _)| uid) == pod.metadata.uid.as_ref() {
            running.remove(&key(pod));
        }
    }
}

fn key(pod: &Pod) -> Key {
    let metadata = &pod.metadata;
    (metadata.namespace.clone().unwrap_or_default(), metadata.name.clone().unwrap_or_default())
}
