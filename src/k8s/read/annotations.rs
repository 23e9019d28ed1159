//! Annotations of namespaces and StatefulSets, from watches: they rarely change and every evaluation reads them. Only
//! metadata is watched.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt::Debug,
    hash::{DefaultHasher, Hash, Hasher},
    time::Duration,
};

use futures::StreamExt;
use k8s_openapi::{
    api::{apps::v1::StatefulSet, core::v1::Namespace},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{
    Api, Client, Resource,
    core::PartialObjectMeta,
    runtime::{
        WatchStreamExt, reflector,
        reflector::{ObjectRef, Store},
        watcher,
    },
};
use serde::de::DeserializeOwned;
use tokio::{sync::watch, time::timeout};

use super::watching::WATCH_SECONDS;
use crate::k8s::objects::pod::Pod;

/// Timeout of the first lists.
const SYNC_TIMEOUT: Duration = Duration::from_secs(10);

/// The label that opts a namespace in. Webhook configurations select namespaces by its value, this module only by its
/// presence.
const GUARD_LABEL: &str = "etcd-guard.io/guard";

/// Metadata of all namespaces and StatefulSets, updated by watches.
#[derive(Clone)]
pub struct AnnotationCache {
    namespaces: Store<PartialObjectMeta<Namespace>>,
    stateful_sets: Store<PartialObjectMeta<StatefulSet>>,
    guarded: watch::Receiver<BTreeSet<String>>,
}

// === impl AnnotationCache ===

impl AnnotationCache {
    /// Starts both watches. They run until the process ends and reconnect after every restart of the API server.
    #[must_use]
    pub fn watch(client: &Client) -> Self {
        let (sender, guarded) = watch::channel(BTreeSet::new());
        let namespaces = watch(client, move |store| publish_guarded(store, &sender));
        Self { namespaces, stateful_sets: watch(client, |_| {}), guarded }
    }

    /// Returns a receiver of the namespaces with the opt-in label.
    #[must_use]
    pub fn guarded_namespaces(&self) -> watch::Receiver<BTreeSet<String>> {
        self.guarded.clone()
    }

    /// Waits until both watches have delivered their first list; false if that takes longer than 10 s.
    pub async fn wait_until_synced(&self) -> bool {
        let both = async {
            self.namespaces.wait_until_ready().await.is_ok()
                && self.stateful_sets.wait_until_ready().await.is_ok()
        };
        timeout(SYNC_TIMEOUT, both).await.unwrap_or(false)
    }

    /// Returns the annotations of a namespace; empty if the namespace is unknown.
    #[must_use]
    pub fn namespace_annotations(&self, name: &str) -> BTreeMap<String, String> {
        let object = self.namespaces.get(&ObjectRef::new(name));
        object.and_then(|object| object.metadata.annotations.clone()).unwrap_or_default()
    }

    /// Whether a namespace, or a StatefulSet in it, has an annotation with one of these names.
    #[must_use]
    pub fn has_any(&self, namespace: &str, stateful_set: Option<&str>, names: &[&str]) -> bool {
        let has_any = |metadata: &ObjectMeta| {
            metadata
                .annotations
                .as_ref()
                .is_some_and(|annotations| names.iter().any(|name| annotations.contains_key(*name)))
        };
        let set =
            stateful_set.and_then(|name| self.stateful_sets.get(&ObjectRef::new(name).within(namespace)));
        let namespace = self.namespaces.get(&ObjectRef::new(namespace));
        namespace.is_some_and(|namespace| has_any(&namespace.metadata))
            || set.is_some_and(|set| has_any(&set.metadata))
    }

    /// Whether the deletion of a namespace was accepted, which is irrevocable.
    #[must_use]
    pub fn is_namespace_terminating(&self, name: &str) -> bool {
        let object = self.namespaces.get(&ObjectRef::new(name));
        object.is_some_and(|object| object.metadata.deletion_timestamp.is_some())
    }

    /// Whether the deletion of the StatefulSet with this uid was accepted, and its pods are deleted next.
    #[must_use]
    pub fn is_stateful_set_terminating(&self, namespace: &str, name: &str, uid: &str) -> bool {
        let object = self.stateful_sets.get(&ObjectRef::new(name).within(namespace));
        object.is_some_and(|object| {
            object.metadata.uid.as_deref() == Some(uid) && object.metadata.deletion_timestamp.is_some()
        })
    }

    /// Returns the annotations of a StatefulSet; empty if the StatefulSet is unknown.
    #[must_use]
    pub fn stateful_set_annotations(&self, namespace: &str, name: &str) -> BTreeMap<String, String> {
        let object = self.stateful_sets.get(&ObjectRef::new(name).within(namespace));
        object.and_then(|object| object.metadata.annotations.clone()).unwrap_or_default()
    }

    /// Returns a number for each of these namespaces that changes whenever a StatefulSet in it changes. The controller
    /// updates the status of a StatefulSet whenever it creates or deletes a pod.
    #[must_use]
    pub fn stateful_set_versions(&self, namespaces: &BTreeSet<String>) -> HashMap<String, u64> {
        let mut versions: HashMap<String, u64> = HashMap::new();
        for object in self.stateful_sets.state() {
            let metadata = &object.metadata;
            let Some(namespace) = metadata.namespace.as_ref().filter(|name| namespaces.contains(*name))
            else {
                continue;
            };
            let mut hasher = DefaultHasher::new();
            (&metadata.uid, &metadata.resource_version).hash(&mut hasher);
            // Independent of the order in which the store returns the objects.
            *versions.entry(namespace.clone()).or_default() ^= hasher.finish();
        }
        versions
    }

    /// Returns the name and the uid of the StatefulSet that the name of a pod implies. Only the owner reference of the
    /// pod proves that the pod belongs to this StatefulSet.
    #[must_use]
    pub fn stateful_set_by_pod_name(&self, namespace: &str, pod: &str) -> Option<(String, String)> {
        let (name, ordinal) = pod.rsplit_once('-')?;
        let is_ordinal = !ordinal.is_empty() && ordinal.bytes().all(|byte| byte.is_ascii_digit());
        let object =
            is_ordinal.then(|| self.stateful_sets.get(&ObjectRef::new(name).within(namespace)))??;
        Some((name.to_owned(), object.metadata.uid.clone()?))
    }

    /// Adds annotations with these names to pods that lack them: first from the pod's StatefulSet, then from the
    /// namespace. Settings of a whole cluster, such as the names of its Secrets, need not be in the pod template, where
    /// a change restarts every member.
    pub fn apply_inherited(&self, namespace: &str, pods: &mut [Pod], names: &[&str]) {
        let from_namespace = self.namespace_annotations(namespace);
        for pod in pods {
            let from_owner = pod
                .stateful_set()
                .map(|set| self.stateful_set_annotations(namespace, set))
                .unwrap_or_default();
            for (name, value) in from_owner.iter().chain(&from_namespace) {
                if names.contains(&name.as_str()) {
                    pod.metadata.annotations.entry(name.clone()).or_insert_with(|| value.clone());
                }
            }
        }
    }
}

/// Publishes the set of opted-in namespaces if it changed.
fn publish_guarded(store: &Store<PartialObjectMeta<Namespace>>, sender: &watch::Sender<BTreeSet<String>>) {
    let is_guarded = |namespace: &PartialObjectMeta<Namespace>| {
        namespace.metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(GUARD_LABEL))
    };
    let guarded: BTreeSet<String> = store
        .state()
        .iter()
        .filter(|namespace| is_guarded(namespace))
        .filter_map(|namespace| namespace.metadata.name.clone())
        .collect();
    sender.send_if_modified(|previous| {
        let is_changed = *previous != guarded;
        *previous = guarded;
        is_changed
    });
}

/// Starts a watch of metadata; `on_change` receives the store after each event.
fn watch<K>(
    client: &Client,
    on_change: impl Fn(&Store<PartialObjectMeta<K>>) + Send + 'static,
) -> Store<PartialObjectMeta<K>>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
    K::DynamicType: Eq + Hash,
{
    let (reader, writer) = reflector::store();
    let api: Api<PartialObjectMeta<K>> = Api::all(client.clone());
    let events = watcher(api, watcher::Config::default().timeout(WATCH_SECONDS))
        .default_backoff()
        // Managed fields are most of the metadata and are not used.
        .modify(|object| object.metadata.managed_fields = None)
        .reflect(writer);
    let store = reader.clone();
    tokio::spawn(events.for_each(move |event| {
        match event {
            // The store contains a list only after its last page.
            Ok(watcher::Event::Init | watcher::Event::InitApply(_)) => {}
            Ok(_) => on_change(&store),
            Err(error) => tracing::warn!(%error, kind = %K::kind(&()), "the watch of annotations failed; it is restarted"),
        }
        std::future::ready(())
    }));
    reader
}
