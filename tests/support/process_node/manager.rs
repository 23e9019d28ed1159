//! Looks at the apiserver again and again, and gives each pod of its nodes a sandbox.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Debug,
    sync::Arc,
    time::Duration,
};

use futures::future::join_all;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::{Api, Client, Resource, api::ListParams, core::NamespaceResourceScope};
use serde::de::DeserializeOwned;
use tokio::{
    sync::{mpsc, oneshot, watch},
    task::JoinHandle,
    time::{sleep, timeout},
};

use super::{
    Key, NodeIdentity, Settings, Shared, key,
    sandbox::{Order, Ordered, Sandbox},
    scheduling,
    status::Facts,
    translation::etcd_container,
    volumes,
};
use crate::support::api_client;

/// How often the apiserver is asked for pods. A watch would be kinder to it, and longer to write.
const POLL: Duration = Duration::from_millis(100);

/// Longest that one look at the apiserver may take before the next is tried.
const LOOK_LIMIT: Duration = Duration::from_secs(30);

/// Longest that a process may take to die.
const END_LIMIT: Duration = Duration::from_secs(5);

pub struct Manager {
    shared: Arc<Shared>,
    namespaces: Vec<String>,
    nodes: Vec<(String, Client)>,
    alone: bool,
    kept: BTreeMap<Key, Kept>,
    orders: mpsc::UnboundedReceiver<(Key, Ordered)>,
}

/// A pod that is looked after.
struct Kept {
    uid: Option<String>,
    updates: watch::Sender<Option<Pod>>,
    orders: mpsc::UnboundedSender<Ordered>,
    task: JoinHandle<()>,
}

impl Manager {
    pub async fn new(settings: Settings, orders: mpsc::UnboundedReceiver<(Key, Ordered)>) -> Self {
        let Settings { admin_kubeconfig, nodes, namespaces, addresses, dir, etcd, etcd_flags, alone } =
            settings;
        let mut identified = Vec::new();
        for NodeIdentity { name, kubeconfig } in nodes {
            identified.push((name, api_client::client(&kubeconfig).await));
        }
        let admin = api_client::client(&admin_kubeconfig).await;
        let shared = Shared { admin, addresses, dir, etcd, etcd_flags, running: std::sync::Mutex::default() };
        let kept = BTreeMap::new();
        Self { shared: Arc::new(shared), namespaces, nodes: identified, alone, kept, orders }
    }

    pub fn shared(&self) -> Arc<Shared> {
        Arc::clone(&self.shared)
    }

    pub async fn run(&mut self) {
        for (name, _) in &self.nodes {
            scheduling::register_node(&self.shared.admin, name).await.expect("a Node object");
        }
        loop {
            match timeout(LOOK_LIMIT, self.look()).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => eprintln!("process node: {error}"),
                Err(_) => eprintln!("process node: the apiserver does not answer"),
            }
            let pause = sleep(POLL);
            tokio::pin!(pause);
            loop {
                tokio::select! {
                    () = &mut pause => break,
                    Some((key, ordered)) = self.orders.recv() => self.pass_on(&key, ordered),
                }
            }
        }
    }

    /// Ends all processes, and returns when their addresses are free.
    pub async fn end(self) {
        let mut waits = Vec::new();
        for kept in self.kept.values() {
            let (done, wait) = oneshot::channel();
            // What has ended hears nothing, and need not.
            let _ = kept.orders.send((Order::Rejoin, done));
            waits.push(wait);
            kept.updates.send_replace(None);
        }
        let ends = self.kept.into_values().map(|kept| timeout(END_LIMIT, kept.task));
        if join_all(ends).await.iter().any(Result::is_err) {
            eprintln!("process node: a pod did not end in time");
        }
    }

    /// An order for a pod that is not here is dropped, which whoever waits for it notices.
    fn pass_on(&self, key: &Key, ordered: Ordered) {
        if let Some(kept) = self.kept.get(key) {
            let _ = kept.orders.send(ordered);
        }
    }

    async fn look(&mut self) -> Result<(), kube::Error> {
        let admin = self.shared.admin.clone();
        let pods: Vec<Pod> = self.list().await?;
        if self.alone {
            let claims: Vec<PersistentVolumeClaim> = self.list().await?;
            volumes::provision(&admin, &claims, &self.shared.dir).await?;
            let names: Vec<&str> = self.nodes.iter().map(|(name, _)| name.as_str()).collect();
            scheduling::bind(&admin, &names, &pods).await?;
        }
        self.keep(pods);
        Ok(())
    }

    /// All objects of a kind in its namespaces.
    async fn list<K>(&self) -> Result<Vec<K>, kube::Error>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + Debug + DeserializeOwned,
    {
        let everything = ListParams::default();
        if self.namespaces.is_empty() {
            return Ok(Api::<K>::all(self.shared.admin.clone()).list(&everything).await?.items);
        }
        let mut objects = Vec::new();
        for namespace in &self.namespaces {
            objects
                .extend(Api::<K>::namespaced(self.shared.admin.clone(), namespace).list(&everything).await?);
        }
        Ok(objects)
    }

    /// Tells each sandbox of its pod's news, and gives new pods one. A successor waits for the end of its predecessor,
    /// whose address and directory it takes over.
    fn keep(&mut self, pods: Vec<Pod>) {
        let mut seen = BTreeSet::new();
        for pod in pods {
            let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
            let Some((_, kubelet)) = self.nodes.iter().find(|(name, _)| Some(name.as_str()) == node) else {
                continue;
            };
            let key = key(&pod);
            match self.kept.get(&key) {
                Some(kept) if kept.uid == pod.metadata.uid => {
                    let version = |pod: &Pod| pod.metadata.resource_version.clone();
                    kept.updates.send_if_modified(|known| {
                        let is_news = known.as_ref().map(version) != Some(version(&pod));
                        if is_news {
                            *known = Some(pod);
                        }
                        is_news
                    });
                    seen.insert(key);
                }
                Some(_) => {}
                None => {
                    let kept = self.take(pod, kubelet.clone());
                    self.kept.insert(key.clone(), kept);
                    seen.insert(key);
                }
            }
        }
        self.kept.retain(|key, kept| {
            if !seen.contains(key) {
                kept.updates.send_replace(None);
            }
            // A sandbox that has ended keeps its place until its pod is gone, so that it does not start again.
            seen.contains(key) || !kept.task.is_finished()
        });
    }

    fn take(&self, pod: Pod, kubelet: Client) -> Kept {
        let (namespace, name) = key(&pod);
        let (updates, to_sandbox) = watch::channel(Some(pod.clone()));
        let (orders, to_carry_out) = mpsc::unbounded_channel();
        let uid = pod.metadata.uid.clone();
        let addresses = &self.shared.addresses;
        let has_process = etcd_container(&pod).is_some();
        let address = if has_process { addresses.of(&namespace, &name) } else { addresses.of_idle_pods() };
        let sandbox = Sandbox {
            shared: Arc::clone(&self.shared),
            kubelet,
            updates: to_sandbox,
            orders: to_carry_out,
            pod,
            facts: Facts::of_new(address),
            crash_loops: false,
            is_isolated: false,
        };
        Kept { uid, updates, orders, task: tokio::spawn(sandbox.run()) }
    }
}
