//! Polls the API server, and runs a sandbox for each pod of its nodes.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Debug,
    sync::Arc,
    time::Duration,
};

use futures::future::join_all;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, Service};
use kube::{Api, Client, Resource, api::ListParams, core::NamespaceResourceScope};
use serde::de::DeserializeOwned;
use tokio::{
    sync::{mpsc, oneshot, watch},
    task::JoinHandle,
    time::{sleep, timeout},
};

use super::{
    Key, NodeIdentity, Settings, Shared,
    hosts::{self, HostsFiles},
    key,
    sandbox::{PendingAction, ProcessAction, Sandbox},
    scheduling,
    status::Facts,
    translation::etcd_container,
    volumes,
};
use crate::kubernetes::api_client;

/// The polling interval. A watch would cause less load, but needs more code.
const POLL: Duration = Duration::from_millis(200);

/// The longest time for one poll before the next one starts.
const POLL_TIMEOUT: Duration = Duration::from_secs(30);

/// The longest time until a process has ended.
const END_TIMEOUT: Duration = Duration::from_secs(5);

pub(super) struct Manager {
    shared: Arc<Shared>,
    namespaces: Vec<String>,
    nodes: Vec<(String, Client)>,
    alone: bool,
    supervised: BTreeMap<Key, Supervised>,
    actions: mpsc::UnboundedReceiver<(Key, PendingAction)>,
}

/// A pod with a sandbox.
struct Supervised {
    uid: Option<String>,
    updates: watch::Sender<Option<Pod>>,
    actions: mpsc::UnboundedSender<PendingAction>,
    task: JoinHandle<()>,
}

impl Manager {
    pub(super) async fn new(
        settings: Settings,
        actions: mpsc::UnboundedReceiver<(Key, PendingAction)>,
    ) -> Self {
        let Settings { admin_kubeconfig, nodes, namespaces, addresses, dir, etcd, etcd_flags, alone } =
            settings;
        let mut identified = Vec::new();
        for NodeIdentity { name, kubeconfig } in nodes {
            identified.push((name, api_client::client(&kubeconfig).await));
        }
        let admin = api_client::client(&admin_kubeconfig).await;
        let shared = Shared { admin, addresses, dir, etcd, etcd_flags, running: std::sync::Mutex::default() };
        let supervised = BTreeMap::new();
        Self { shared: Arc::new(shared), namespaces, nodes: identified, alone, supervised, actions }
    }

    pub(super) fn shared(&self) -> Arc<Shared> {
        Arc::clone(&self.shared)
    }

    pub(super) async fn run(&mut self) {
        for (name, _) in &self.nodes {
            scheduling::register_node(&self.shared.admin, name).await.expect("a Node object");
        }
        loop {
            match timeout(POLL_TIMEOUT, self.poll()).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => eprintln!("process node: {error}"),
                Err(_) => eprintln!("process node: the API server does not answer"),
            }
            let pause = sleep(POLL);
            tokio::pin!(pause);
            loop {
                tokio::select! {
                    () = &mut pause => break,
                    Some((key, ordered)) = self.actions.recv() => self.pass_on(&key, ordered),
                }
            }
        }
    }

    /// Ends all processes, and returns when their addresses are free.
    pub(super) async fn end(self) {
        let mut waits = Vec::new();
        for supervised in self.supervised.values() {
            let (done, wait) = oneshot::channel();
            // A sandbox that has ended does not receive this, and does not need to.
            let _ = supervised.actions.send((ProcessAction::Rejoin, done));
            waits.push(wait);
            supervised.updates.send_replace(None);
        }
        let ends = self.supervised.into_values().map(|supervised| timeout(END_TIMEOUT, supervised.task));
        if join_all(ends).await.iter().any(Result::is_err) {
            eprintln!("process node: a pod did not end in time");
        }
    }

    /// Forwards an action to a sandbox. Without a sandbox the action is dropped, and its sender gets an error.
    fn pass_on(&self, key: &Key, ordered: PendingAction) {
        if let Some(supervised) = self.supervised.get(key) {
            let _ = supervised.actions.send(ordered);
        }
    }

    async fn poll(&mut self) -> Result<(), kube::Error> {
        let admin = self.shared.admin.clone();
        let pods: Vec<Pod> = self.list().await?;
        if self.alone {
            let claims: Vec<PersistentVolumeClaim> = self.list().await?;
            volumes::provision(&admin, &claims, &self.shared.dir).await?;
            let names: Vec<&str> = self.nodes.iter().map(|(name, _)| name.as_str()).collect();
            scheduling::bind(&admin, &names, &pods).await?;
        }
        self.update_hosts(&pods).await?;
        self.supervise(pods);
        Ok(())
    }

    /// Updates the hosts file of each namespace with pods that resolve names.
    async fn update_hosts(&self, pods: &[Pod]) -> Result<(), kube::Error> {
        let resolving = pods.iter().filter(|pod| hosts::resolves_names(pod));
        let namespaces: BTreeSet<&str> =
            resolving.filter_map(|pod| pod.metadata.namespace.as_deref()).collect();
        if namespaces.is_empty() {
            return Ok(());
        }
        let services: Vec<Service> = self.list().await?;
        for namespace in namespaces {
            let content = hosts::content(namespace, pods, &services, &self.shared.addresses);
            HostsFiles::new(&self.shared.dir, namespace).update(&content).expect("the hosts file is written");
        }
        Ok(())
    }

    /// Lists all objects of a kind in the namespaces of the node.
    async fn list<K>(&self) -> Result<Vec<K>, kube::Error>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + Debug + DeserializeOwned,
    {
        let parameters = ListParams::default();
        if self.namespaces.is_empty() {
            return Ok(Api::<K>::all(self.shared.admin.clone()).list(&parameters).await?.items);
        }
        let mut objects = Vec::new();
        for namespace in &self.namespaces {
            objects
                .extend(Api::<K>::namespaced(self.shared.admin.clone(), namespace).list(&parameters).await?);
        }
        Ok(objects)
    }

    /// Passes changes of pods to their sandboxes, and starts sandboxes for new pods. A successor of the same name
    /// starts after the end of its predecessor, because it uses the same address and directory.
    fn supervise(&mut self, pods: Vec<Pod>) {
        let mut seen = BTreeSet::new();
        for pod in pods {
            let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
            let Some((_, kubelet)) = self.nodes.iter().find(|(name, _)| Some(name.as_str()) == node) else {
                continue;
            };
            let key = key(&pod);
            match self.supervised.get(&key) {
                Some(supervised) if supervised.uid == pod.metadata.uid => {
                    let version = |pod: &Pod| pod.metadata.resource_version.clone();
                    supervised.updates.send_if_modified(|known| {
                        let is_new = known.as_ref().map(version) != Some(version(&pod));
                        if is_new {
                            *known = Some(pod);
                        }
                        is_new
                    });
                    seen.insert(key);
                }
                Some(_) => {}
                None => {
                    let supervised = self.take(pod, kubelet.clone());
                    self.supervised.insert(key.clone(), supervised);
                    seen.insert(key);
                }
            }
        }
        self.supervised.retain(|key, supervised| {
            if !seen.contains(key) {
                supervised.updates.send_replace(None);
            }
            // The entry of an ended sandbox remains until its pod is deleted, so that it is not started again.
            let remains = seen.contains(key) || !supervised.task.is_finished();
            if !remains {
                self.shared.addresses.release_pod(&key.0, &key.1);
            }
            remains
        });
    }

    fn take(&self, pod: Pod, kubelet: Client) -> Supervised {
        let (namespace, name) = key(&pod);
        let (updates, to_sandbox) = watch::channel(Some(pod.clone()));
        let (actions, to_carry_out) = mpsc::unbounded_channel();
        let uid = pod.metadata.uid.clone();
        let addresses = &self.shared.addresses;
        let has_process = etcd_container(&pod).is_some();
        let address =
            if has_process { addresses.pod_address(&namespace, &name) } else { addresses.idle_address() };
        let sandbox = Sandbox {
            shared: Arc::clone(&self.shared),
            kubelet,
            updates: to_sandbox,
            actions: to_carry_out,
            pod,
            facts: Facts::new(address),
            crash_loops: false,
            is_isolated: false,
        };
        Supervised { uid, updates, actions, task: tokio::spawn(sandbox.run()) }
    }
}
