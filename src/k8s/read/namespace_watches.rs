//! Metadata of the objects of one resource in guarded namespaces. Each namespace has a watch of its own: objects of other
//! namespaces are never received, so that their writers cannot occupy the guard.

use std::{
    collections::{BTreeSet, HashMap},
    hash::{DefaultHasher, Hash, Hasher},
    sync::{Arc, PoisonError, RwLock},
};

use kube::Client;
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use super::watching::{Change, Watch, WatchedMetadata};
use crate::k8s::error::LookupError;

/// A resource in namespaces.
#[derive(Clone, Copy)]
pub(super) struct Resource {
    /// URL path of the group and version, for instance `/apis/apps/v1`.
    pub(super) group: &'static str,
    /// The plural name, for instance `statefulsets`.
    pub(super) name: &'static str,
    /// The plural kind, for log lines.
    pub(super) kind: &'static str,
    /// Returns the part of an object that is stored.
    pub(super) reduce: fn(WatchedMetadata) -> Option<WatchedMetadata>,
}

/// The objects of guarded namespaces.
#[derive(Clone, Default)]
pub(super) struct NamespaceWatches {
    watches: Arc<RwLock<HashMap<String, NamespaceWatch>>>,
    /// Changes after each list of a namespace, also if it failed.
    listed: watch::Sender<()>,
}

/// The watch of one namespace. Dropping it stops the watch.
struct NamespaceWatch {
    objects: Arc<RwLock<Objects>>,
    _task: AbortOnDropHandle<()>,
}

/// The objects of one namespace.
#[derive(Default)]
struct Objects {
    /// By name; `None` until the first list is complete.
    by_name: Option<HashMap<String, Arc<WatchedMetadata>>>,
    /// Whether no change has been missed since the last list.
    is_current: bool,
    /// The cause of the last failure.
    failure: Option<LookupError>,
}

// === impl NamespaceWatches ===

impl NamespaceWatches {
    /// Watches a resource in the namespaces in `guarded` until the sender of `guarded` is dropped.
    pub(super) fn start(
        client: &Client,
        resource: Resource,
        guarded: watch::Receiver<BTreeSet<String>>,
    ) -> Self {
        let watches = Self::default();
        tokio::spawn(watches.clone().follow_namespaces(client.clone(), resource, guarded));
        watches
    }

    /// Returns a receiver that changes after each list of a namespace, also if it failed.
    pub(super) fn listed(&self) -> watch::Receiver<()> {
        self.listed.subscribe()
    }

    /// Whether the objects of the namespace have been listed.
    pub(super) fn is_listed(&self, namespace: &str) -> bool {
        self.with_objects(namespace, |objects| objects.by_name.is_some()).unwrap_or(false)
    }

    /// Returns the reason why the objects of the namespace could not be listed.
    pub(super) fn failure(&self, namespace: &str) -> Option<LookupError> {
        self.with_objects(namespace, |objects| objects.failure.clone()).flatten()
    }

    /// Returns the last known state of an object.
    pub(super) fn get(&self, namespace: &str, name: &str) -> Option<Arc<WatchedMetadata>> {
        self.with_objects(namespace, |objects| objects.by_name.as_ref()?.get(name).cloned()).flatten()
    }

    /// Returns the last known states of the objects that `is_selected` accepts.
    pub(super) fn select(
        &self,
        namespace: &str,
        is_selected: impl Fn(&WatchedMetadata) -> bool,
    ) -> Vec<Arc<WatchedMetadata>> {
        let select = |objects: &Objects| {
            let all = objects.by_name.iter().flat_map(HashMap::values);
            all.filter(|object| is_selected(object)).cloned().collect()
        };
        self.with_objects(namespace, select).unwrap_or_default()
    }

    /// Returns the state of an object if the watch of its namespace works: it is as old as the delay of watch events.
    pub(super) fn get_current(&self, namespace: &str, name: &str) -> Option<Arc<WatchedMetadata>> {
        let get =
            |objects: &Objects| objects.by_name.as_ref().filter(|_| objects.is_current)?.get(name).cloned();
        self.with_objects(namespace, get).flatten()
    }

    /// Returns the last known states of all objects of a namespace.
    pub(super) fn last_known(&self, namespace: &str) -> Vec<Arc<WatchedMetadata>> {
        let list = |objects: &Objects| Some(objects.by_name.as_ref()?.values().cloned().collect());
        self.with_objects(namespace, list).flatten().unwrap_or_default()
    }

    /// Returns a number that changes whenever an object of the namespace changes; `None` until the first list is
    /// complete.
    pub(super) fn version(&self, namespace: &str) -> Option<u64> {
        let version = |objects: &Objects| {
            // Independent of the order of the objects.
            Some(objects.by_name.as_ref()?.values().fold(0, |version, object| {
                let mut hasher = DefaultHasher::new();
                (&object.uid, &object.resource_version).hash(&mut hasher);
                version ^ hasher.finish()
            }))
        };
        self.with_objects(namespace, version).flatten()
    }

    fn with_objects<T>(&self, namespace: &str, read: impl FnOnce(&Objects) -> T) -> Option<T> {
        let watches = self.watches.read().unwrap_or_else(PoisonError::into_inner);
        let watch = watches.get(namespace)?;
        let objects = watch.objects.read().unwrap_or_else(PoisonError::into_inner);
        Some(read(&objects))
    }

    async fn follow_namespaces(
        self,
        client: Client,
        resource: Resource,
        mut guarded: watch::Receiver<BTreeSet<String>>,
    ) {
        loop {
            let namespaces = guarded.borrow_and_update().clone();
            {
                let mut watches = self.watches.write().unwrap_or_else(PoisonError::into_inner);
                watches.retain(|namespace, _| namespaces.contains(namespace));
                for namespace in namespaces {
                    let start = || self.start_namespace(&client, resource, &namespace);
                    watches.entry(namespace.clone()).or_insert_with(start);
                }
            }
            if guarded.changed().await.is_err() {
                return;
            }
        }
    }

    fn start_namespace(&self, client: &Client, resource: Resource, namespace: &str) -> NamespaceWatch {
        let Resource { group, name, kind, reduce } = resource;
        let watch = Watch {
            client: client.clone(),
            path: format!("{group}/namespaces/{namespace}/{name}"),
            label: None,
            subject: format!("the {kind} of namespace {namespace}"),
            reduce,
        };
        let objects = Arc::<RwLock<Objects>>::default();
        let (written, listed) = (Arc::clone(&objects), self.listed.clone());
        let task = tokio::spawn(watch.follow(move |change| {
            let is_list = matches!(change, Change::Listed(_) | Change::Failed(_));
            written.write().unwrap_or_else(PoisonError::into_inner).apply(change);
            if is_list {
                listed.send_replace(());
            }
        }));
        NamespaceWatch { objects, _task: AbortOnDropHandle::new(task) }
    }
}

// === impl Objects ===

impl Objects {
    fn apply(&mut self, change: Change) {
        match change {
            Change::Listed(objects) => {
                let by_name = objects.into_iter().map(|object| (object.name.clone(), Arc::new(object)));
                *self = Self { by_name: Some(by_name.collect()), is_current: true, failure: None };
            }
            Change::Applied(object) => {
                if let Some(by_name) = &mut self.by_name {
                    by_name.insert(object.name.clone(), Arc::new(object));
                }
            }
            Change::Removed(name) => {
                if let Some(by_name) = &mut self.by_name {
                    by_name.remove(&name);
                }
            }
            Change::Failed(failure) => {
                self.is_current = false;
                self.failure = failure;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        convert::Infallible,
        sync::atomic::{AtomicUsize, Ordering},
        time::Duration,
    };

    use kube::client::Body;
    use serde_json::json;
    use tokio::time::sleep;

    use super::*;

    /// Watch calls of a fake API server.
    #[derive(Default)]
    struct Calls {
        starting: AtomicUsize,
        most_starting: AtomicUsize,
        started: AtomicUsize,
    }

    impl Calls {
        /// Responds to lists at once, and to watch calls after one second without an event.
        async fn respond(self: Arc<Self>, request: http::Request<Body>) -> http::Response<Body> {
            let is_watch = request.uri().query().is_some_and(|query| query.contains("watch=true"));
            if is_watch {
                let starting = self.starting.fetch_add(1, Ordering::Relaxed) + 1;
                self.most_starting.fetch_max(starting, Ordering::Relaxed);
                sleep(Duration::from_secs(1)).await;
                self.starting.fetch_sub(1, Ordering::Relaxed);
                self.started.fetch_add(1, Ordering::Relaxed);
                return http::Response::new(Body::empty());
            }
            let list = json!({"metadata": {"resourceVersion": "1"}, "items": []});
            http::Response::new(Body::from(list.to_string().into_bytes()))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn few_watch_calls_start_at_the_same_time() {
        let calls = Arc::<Calls>::default();
        let served = Arc::clone(&calls);
        let service = tower::service_fn(move |request| {
            let served = Arc::clone(&served);
            async move { Ok::<_, Infallible>(served.respond(request).await) }
        });
        let client = Client::new(service, "default");
        let names: BTreeSet<String> = (0..100).map(|number| format!("namespace-{number}")).collect();
        let resource =
            Resource { group: "/apis/apps/v1", name: "statefulsets", kind: "StatefulSets", reduce: Some };
        let (_guarded, receiver) = watch::channel(names);
        let _watches = NamespaceWatches::start(&client, resource, receiver);
        sleep(Duration::from_secs(20)).await;
        let (most_starting, started) = (&calls.most_starting, &calls.started);
        assert!(most_starting.load(Ordering::Relaxed) <= 8, "{most_starting:?} calls");
        assert!(started.load(Ordering::Relaxed) >= 100, "{started:?} calls");
    }
}
