//! Annotations of namespaces and StatefulSets, from watches: what their owners wrote there changes seldom and is read at
//! every decision. Only metadata is watched.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Debug,
    hash::Hash,
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

use super::pod::Pod;

/// Longest that the first lists are waited for before it is said that they are missing.
const SYNC_LIMIT: Duration = Duration::from_secs(10);

/// How long one call of a watch goes on. A connection that died silently shows nothing for as long: what an owner took back
/// must not be in force much longer than that.
pub(super) const WATCH_SECONDS: u32 = 30;

/// The label that opts a namespace in. Its value is the webhook configuration's business.
const GUARD_LABEL: &str = "etcd-guard.io/guard";

/// What the watches know.
#[derive(Clone)]
pub struct Annotations {
    namespaces: Store<PartialObjectMeta<Namespace>>,
    stateful_sets: Store<PartialObjectMeta<StatefulSet>>,
    guarded: watch::Receiver<BTreeSet<String>>,
}

// === impl Annotations ===

impl Annotations {
    /// Starts both watches. They go on until the process ends, through every restart of the apiserver.
    #[must_use]
    pub fn watch(client: &Client) -> Self {
        let (told, guarded) = watch::channel(BTreeSet::new());
        let namespaces = watch(client, move |store| tell_guarded(store, &told));
        Self { namespaces, stateful_sets: watch(client, |_| {}), guarded }
    }

    /// The namespaces that carry the label which opts in, as they become known.
    #[must_use]
    pub fn guarded_namespaces(&self) -> watch::Receiver<BTreeSet<String>> {
        self.guarded.clone()
    }

    /// Waits until both are known for the first time; false if that takes too long.
    pub async fn synced(&self) -> bool {
        let both = async {
            self.namespaces.wait_until_ready().await.is_ok()
                && self.stateful_sets.wait_until_ready().await.is_ok()
        };
        timeout(SYNC_LIMIT, both).await.unwrap_or(false)
    }

    /// The annotations of a namespace; none where it is not known.
    #[must_use]
    pub fn of_namespace(&self, name: &str) -> BTreeMap<String, String> {
        let object = self.namespaces.get(&ObjectRef::new(name));
        object.and_then(|it| it.metadata.annotations.clone()).unwrap_or_default()
    }

    /// Whether a namespace, or a StatefulSet in it, has an annotation of one of these names.
    #[must_use]
    pub fn has(&self, namespace: &str, stateful_set: Option<&str>, names: &[&str]) -> bool {
        let among = |it: &ObjectMeta| {
            it.annotations.as_ref().is_some_and(|it| names.iter().any(|name| it.contains_key(*name)))
        };
        let set = stateful_set.and_then(|it| self.stateful_sets.get(&ObjectRef::new(it).within(namespace)));
        let namespace = self.namespaces.get(&ObjectRef::new(namespace));
        namespace.is_some_and(|it| among(&it.metadata)) || set.is_some_and(|it| among(&it.metadata))
    }

    /// Whether the deletion of a namespace was accepted: nobody can take that back.
    #[must_use]
    pub fn is_namespace_terminating(&self, name: &str) -> bool {
        let object = self.namespaces.get(&ObjectRef::new(name));
        object.is_some_and(|it| it.metadata.deletion_timestamp.is_some())
    }

    /// The annotations of a StatefulSet; none where it is not known.
    #[must_use]
    pub fn of_stateful_set(&self, namespace: &str, name: &str) -> BTreeMap<String, String> {
        let object = self.stateful_sets.get(&ObjectRef::new(name).within(namespace));
        object.and_then(|it| it.metadata.annotations.clone()).unwrap_or_default()
    }

    /// The StatefulSet that a pod of this name would be of: its name and uid. Only the pod itself says whether it is.
    #[must_use]
    pub fn stateful_set_by_pod_name(&self, namespace: &str, pod: &str) -> Option<(String, String)> {
        let (name, ordinal) = pod.rsplit_once('-')?;
        let is_ordinal = !ordinal.is_empty() && ordinal.bytes().all(|it| it.is_ascii_digit());
        let object =
            is_ordinal.then(|| self.stateful_sets.get(&ObjectRef::new(name).within(namespace)))??;
        Some((name.to_owned(), object.metadata.uid.clone()?))
    }

    /// Puts what their StatefulSets, and under them the namespace, say by annotations of these names under these pods'
    /// own: what names the Secrets of a whole cluster, say, is written once and not into the template, where it would
    /// restart every member.
    pub fn inherit(&self, namespace: &str, pods: &mut [Pod], names: &[&str]) {
        let of_namespace = self.of_namespace(namespace);
        for pod in pods {
            let of_owner =
                pod.stateful_set().map(|it| self.of_stateful_set(namespace, it)).unwrap_or_default();
            for (name, value) in of_owner.iter().chain(&of_namespace) {
                if names.contains(&name.as_str()) {
                    pod.metadata.annotations.entry(name.clone()).or_insert_with(|| value.clone());
                }
            }
        }
    }
}

fn tell_guarded(store: &Store<PartialObjectMeta<Namespace>>, told: &watch::Sender<BTreeSet<String>>) {
    let is_guarded = |it: &PartialObjectMeta<Namespace>| {
        it.metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(GUARD_LABEL))
    };
    let guarded: BTreeSet<String> =
        store.state().iter().filter(|it| is_guarded(it)).filter_map(|it| it.metadata.name.clone()).collect();
    told.send_if_modified(|known| {
        let is_news = *known != guarded;
        *known = guarded;
        is_news
    });
}

/// `changed` is told of the store after each event.
fn watch<K>(
    client: &Client,
    changed: impl Fn(&Store<PartialObjectMeta<K>>) + Send + 'static,
) -> Store<PartialObjectMeta<K>>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
    K::DynamicType: Eq + Hash,
{
    let (reader, writer) = reflector::store();
    let api: Api<PartialObjectMeta<K>> = Api::all(client.clone());
    let events = watcher(api, watcher::Config::default().timeout(WATCH_SECONDS))
        .default_backoff()
        // Managed fields are most of the metadata, and nobody reads them here.
        .modify(|object| object.metadata.managed_fields = None)
        .reflect(writer);
    let store = reader.clone();
    tokio::spawn(events.for_each(move |event| {
        match event {
            // A list is in the store only when it is whole.
            Ok(watcher::Event::Init | watcher::Event::InitApply(_)) => {}
            Ok(_) => changed(&store),
            Err(error) => tracing::warn!(%error, kind = %K::kind(&()), "watching annotations"),
        }
        std::future::ready(())
    }));
    reader
}
