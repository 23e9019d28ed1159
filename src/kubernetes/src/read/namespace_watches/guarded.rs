//! The objects of guarded namespaces, by namespace and name.

use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hash, Hasher},
    sync::{Arc, PoisonError, RwLock, RwLockWriteGuard},
};

use kube::Client;
use tokio::sync::{Notify, watch};
use tokio_util::task::AbortOnDropHandle;

use super::objects::Objects;
use crate::{
    error::LookupError,
    read::watching::{CallLimits, Start, Watch, WatchedMetadata},
};

/// A resource in namespaces.
#[derive(Clone, Copy)]
pub(crate) struct Resource {
    /// URL path of the group and version, for instance `/apis/apps/v1`.
    pub group: &'static str,
    /// The plural name, for instance `statefulsets`.
    pub name: &'static str,
    /// The plural kind, for log lines.
    pub kind: &'static str,
    /// Returns the part of an object that is stored.
    pub reduce: fn(WatchedMetadata) -> Option<WatchedMetadata>,
    pub limits: &'static CallLimits,
}

/// The objects of guarded namespaces.
#[derive(Clone, Default)]
pub(crate) struct NamespaceWatches {
    pub(super) namespaces: Arc<RwLock<BTreeMap<String, GuardedNamespace>>>,
    /// Changes after each list of a namespace, successful or not, after each failure of a watch, and when namespaces are added.
    pub(super) listed: watch::Sender<()>,
}

/// The objects of one namespace. Dropping it stops the task.
#[derive(Default)]
pub(super) struct GuardedNamespace {
    pub(super) objects: Arc<RwLock<Objects>>,
    /// Wakes a list that waits for other lists, because an evaluation needs it.
    pub(super) urgent: Arc<Notify>,
    /// The number of the start of the shared watch after which the last list of this namespace was requested.
    pub(super) listed_for: Option<u64>,
    /// Lists the objects, and watches them unless the watch is shared.
    pub(super) task: Option<AbortOnDropHandle<()>>,
}

// === impl NamespaceWatches ===

impl NamespaceWatches {
    /// Returns a receiver that changes after each list of a namespace, successful or not, after each failure of a watch, and
    /// when namespaces are added.
    pub(crate) fn listed(&self) -> watch::Receiver<()> {
        self.listed.subscribe()
    }

    /// Whether the objects of the namespace have been listed.
    pub(crate) fn is_listed(&self, namespace: &str) -> bool {
        self.with_objects(namespace, |objects| objects.by_name.is_some()).unwrap_or(false)
    }

    /// If a change may have been missed since the last list of the namespace, moves its next list ahead of others.
    pub(crate) fn hurry(&self, namespace: &str) {
        let namespaces = self.namespaces.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(namespace) = namespaces.get(namespace)
            && !namespace.objects.read().unwrap_or_else(PoisonError::into_inner).is_complete()
        {
            namespace.urgent.notify_one();
        }
    }

    /// Returns the reason why the objects of the namespace could not be listed.
    pub(crate) fn failure(&self, namespace: &str) -> Option<LookupError> {
        self.with_objects(namespace, |objects| objects.failure.clone()).flatten()
    }

    /// Returns the last known state of an object.
    pub(crate) fn get(&self, namespace: &str, name: &str) -> Option<Arc<WatchedMetadata>> {
        self.with_objects(namespace, |objects| objects.by_name.as_ref()?.get(name).cloned()).flatten()
    }

    /// Returns the last known states of the objects that `is_selected` accepts.
    pub(crate) fn select(
        &self,
        namespace: &str,
        is_selected: impl Fn(&WatchedMetadata) -> bool,
    ) -> Vec<Arc<WatchedMetadata>> {
        let select = |objects: &Objects| {
            let all = objects.by_name.iter().flat_map(BTreeMap::values);
            all.filter(|object| is_selected(object)).cloned().collect()
        };
        self.with_objects(namespace, select).unwrap_or_default()
    }

    /// Returns the state of an object if the watch of its namespace works: it is as old as the delay of watch events.
    pub(crate) fn get_current(&self, namespace: &str, name: &str) -> Option<Arc<WatchedMetadata>> {
        let get =
            |objects: &Objects| objects.by_name.as_ref().filter(|_| objects.is_current())?.get(name).cloned();
        self.with_objects(namespace, get).flatten()
    }

    /// Returns the last known states of all objects of a namespace.
    pub(crate) fn last_known(&self, namespace: &str) -> Vec<Arc<WatchedMetadata>> {
        let list = |objects: &Objects| Some(objects.by_name.as_ref()?.values().cloned().collect());
        self.with_objects(namespace, list).flatten().unwrap_or_default()
    }

    /// Returns a number that changes whenever an object of the namespace changes; `None` until the first list is
    /// complete.
    pub(crate) fn version(&self, namespace: &str) -> Option<u64> {
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
        let namespaces = self.namespaces.read().unwrap_or_else(PoisonError::into_inner);
        let namespace = namespaces.get(namespace)?;
        let objects = namespace.objects.read().unwrap_or_else(PoisonError::into_inner);
        Some(read(&objects))
    }

    pub(super) fn contains(&self, namespace: &str) -> bool {
        self.namespaces.read().unwrap_or_else(PoisonError::into_inner).contains_key(namespace)
    }

    pub(super) fn write(&self) -> RwLockWriteGuard<'_, BTreeMap<String, GuardedNamespace>> {
        self.namespaces.write().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Resource ===

impl Resource {
    pub(super) fn watch_of_namespace(self, client: &Client, namespace: &str, urgent: Arc<Notify>) -> Watch {
        let Self { group, name, kind, reduce, limits } = self;
        Watch {
            client: client.clone(),
            path: format!("{group}/namespaces/{namespace}/{name}"),
            label: None,
            resource: name,
            subject: format!("the {kind} of namespace {namespace}"),
            start: Start::List,
            needs: Arc::new(|_| true),
            urgent,
            limits,
            reduce,
        }
    }

    /// `needs` returns whether a namespace is guarded.
    pub(super) fn watch_of_all_namespaces(
        self,
        client: &Client,
        needs: Arc<dyn Fn(&str) -> bool + Send + Sync>,
    ) -> Watch {
        let Self { group, name, kind, reduce, limits } = self;
        Watch {
            client: client.clone(),
            path: format!("{group}/{name}"),
            label: None,
            resource: name,
            subject: format!("the {kind} of all namespaces"),
            start: Start::Version,
            needs,
            urgent: Arc::default(),
            limits,
            reduce,
        }
    }
}
