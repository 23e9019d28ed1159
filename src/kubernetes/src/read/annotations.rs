//! Annotations of guarded namespaces and of the StatefulSets in them, from watches: they rarely change and every
//! evaluation reads them. Only the metadata of guarded namespaces is stored.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use kube::Client;
use tokio::{sync::watch, time::timeout};

use super::{
    namespace_watches::{NamespaceWatches, Resource},
    owners::Existence,
    watching::{CALL_LIMITS, Change, Event, Start, Watch, WatchedMetadata},
};
use crate::error::LookupError;
use etcd_guard_core::{
    objects::{
        annotations::{DEFRAGMENT, MOVE_LEADER, REPLACE},
        heap_size::HeapSize,
        pod::{Metadata, OwnerReference, Pod},
    },
    opt_in_label::OptInLabel,
};

/// Timeout of the first lists.
const SYNC_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum memory of the reference to the controller of a StatefulSet, in bytes. A group and a name have at most 253
/// characters each; the API server does not validate a reference.
const MAX_CONTROLLER_BYTES: usize = 1024;

/// Metadata of the guarded namespaces and of their StatefulSets, updated by watches.
#[derive(Clone)]
pub struct AnnotationCache {
    opt_in_label: Arc<OptInLabel>,
    namespaces: Arc<RwLock<BTreeMap<String, Arc<WatchedMetadata>>>>,
    are_namespaces_listed: watch::Receiver<bool>,
    stateful_sets: NamespaceWatches,
    /// Pods without a StatefulSet that request an action.
    requesting_pods: NamespaceWatches,
    guarded: watch::Receiver<BTreeSet<String>>,
}

/// What an annotation requests of the guard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Action {
    /// To move leadership.
    MoveLeader,
    /// To defragment the members.
    Defragment,
    /// To carry out one step of the replacement of a member.
    Replace,
}

/// A request to act on a cluster, as an annotation.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ActionRequest {
    /// What is requested.
    pub action: Action,
    /// Namespace of the annotated object.
    pub namespace: String,
    /// Name of the annotated object.
    pub name: String,
    /// Uid of the annotated object.
    pub uid: String,
    /// Value of the annotation.
    pub value: String,
    /// Whether the object is a pod instead of a StatefulSet.
    pub is_pod: bool,
}

/// The store of the watch of namespaces.
struct NamespaceStore {
    namespaces: Arc<RwLock<BTreeMap<String, Arc<WatchedMetadata>>>>,
    are_listed: watch::Sender<bool>,
    guarded: watch::Sender<BTreeSet<String>>,
}

// === impl AnnotationCache ===

impl AnnotationCache {
    /// Starts the watches of the namespaces with this label. They run until the process ends and reconnect after every
    /// restart of the API server.
    pub fn watch(client: &Client, opt_in_label: OptInLabel) -> Self {
        let (are_listed, are_namespaces_listed) = watch::channel(false);
        let (sender, guarded) = watch::channel(BTreeSet::new());
        let namespaces = Arc::default();
        let mut store = NamespaceStore { namespaces: Arc::clone(&namespaces), are_listed, guarded: sender };
        let all = Watch {
            client: client.clone(),
            path: String::from("/api/v1/namespaces"),
            label: Some(opt_in_label.to_string()),
            resource: "namespaces",
            subject: String::from("the namespaces"),
            start: Start::List,
            needs: Arc::new(|_| true),
            urgent: Arc::default(),
            limits: &CALL_LIMITS,
            reduce: |namespace| Some(without_owners(namespace)),
        };
        tokio::spawn(all.follow(move |change| store.apply(change)));
        let resource = Resource {
            group: "/apis/apps/v1",
            name: "statefulsets",
            kind: "StatefulSets",
            reduce: |set| Some(with_controller(set)),
            limits: &CALL_LIMITS,
        };
        let stateful_sets = NamespaceWatches::start(client, resource, guarded.clone());
        let resource = Resource {
            group: "/api/v1",
            name: "pods",
            kind: "pods",
            reduce: requesting_pod,
            limits: &CALL_LIMITS,
        };
        let requesting_pods = NamespaceWatches::start(client, resource, guarded.clone());
        let opt_in_label = Arc::new(opt_in_label);
        Self { opt_in_label, namespaces, are_namespaces_listed, stateful_sets, requesting_pods, guarded }
    }

    /// Returns the label that opts a namespace in.
    pub fn opt_in_label(&self) -> &OptInLabel {
        &self.opt_in_label
    }

    /// Returns a receiver of the namespaces with the opt-in label.
    pub fn guarded_namespaces(&self) -> watch::Receiver<BTreeSet<String>> {
        self.guarded.clone()
    }

    /// Whether the watch shows the opt-in label of this namespace.
    pub fn is_guarded(&self, namespace: &str) -> bool {
        self.guarded.borrow().contains(namespace)
    }

    /// Whether the namespaces have been listed since the start.
    pub fn are_namespaces_listed(&self) -> bool {
        *self.are_namespaces_listed.borrow()
    }

    /// Waits until the watch shows the opt-in label of this namespace. The caller limits the time.
    pub async fn wait_until_guarded(&self, namespace: &str) {
        let shows = self.guarded.clone().wait_for(|guarded| guarded.contains(namespace)).await.is_ok();
        if !shows {
            // The watch ended with the runtime.
            std::future::pending::<()>().await;
        }
    }

    /// Waits until the namespaces have been listed; false if that takes longer than 10 s. For the rest of this time, waits
    /// for the StatefulSets of the guarded namespaces. A namespace whose list fails delays only its own evaluations.
    pub async fn wait_until_synced(&self) -> bool {
        let mut are_namespaces_listed = self.are_namespaces_listed.clone();
        let all = async {
            let is_listed = are_namespaces_listed.wait_for(|listed| *listed).await.is_ok();
            if is_listed {
                let guarded = self.guarded.borrow().clone();
                for namespace in guarded {
                    // The namespace's evaluations report the failure.
                    let _ = self.wait_until_known(&namespace).await;
                }
            }
        };
        let _ = timeout(SYNC_TIMEOUT, all).await;
        *self.are_namespaces_listed.borrow()
    }

    /// If annotations in a guarded namespace can have changed since its last list, moves its next list ahead of others.
    pub fn hurry(&self, namespace: &str) {
        self.stateful_sets.hurry(namespace);
    }

    /// Waits until the annotations in a namespace are known: after a start, the namespaces are listed first, and then the
    /// StatefulSets of a namespace that is guarded. An evaluation that does not wait can miss annotations. The caller limits the
    /// time.
    ///
    /// # Errors
    ///
    /// Fails if the StatefulSets of the namespace could not be listed since it became guarded.
    pub async fn wait_until_known(&self, namespace: &str) -> Result<(), LookupError> {
        let (mut listed, mut guarded) = (self.stateful_sets.listed(), self.guarded.clone());
        let mut are_namespaces_listed = self.are_namespaces_listed.clone();
        while !self.is_known(namespace) {
            if let Some(failure) = self.stateful_sets.failure(namespace) {
                return Err(failure);
            }
            self.stateful_sets.hurry(namespace);
            let changed = tokio::select! {
                biased;
                changed = listed.changed() => changed,
                changed = guarded.changed() => changed,
                changed = are_namespaces_listed.changed() => changed,
            };
            if changed.is_err() {
                // The watches ended with the runtime.
                std::future::pending::<()>().await;
            }
        }
        Ok(())
    }

    /// Whether the annotations in a namespace are known, or the namespace is not guarded. Before the first list of namespaces, the
    /// result is false.
    pub fn is_known(&self, namespace: &str) -> bool {
        self.are_namespaces_listed()
            && (self.stateful_sets.is_listed(namespace) || !self.guarded.borrow().contains(namespace))
    }

    /// Returns the annotations of a namespace; empty if the namespace is not guarded.
    pub fn namespace_annotations(&self, name: &str) -> BTreeMap<String, String> {
        self.namespace(name).map(|namespace| namespace.annotations.clone()).unwrap_or_default()
    }

    /// Whether a namespace, or a StatefulSet in it, has an annotation with one of these names.
    pub fn has_any(&self, namespace: &str, stateful_set: Option<&str>, names: &[&str]) -> bool {
        let has_any = |metadata: Arc<WatchedMetadata>| {
            names.iter().any(|name| metadata.annotations.contains_key(*name))
        };
        self.namespace(namespace).is_some_and(has_any)
            || stateful_set.and_then(|name| self.stateful_sets.get(namespace, name)).is_some_and(has_any)
    }

    /// Whether the deletion of a guarded namespace was accepted, which is irrevocable.
    pub fn is_namespace_terminating(&self, name: &str) -> bool {
        self.namespace(name).is_some_and(|namespace| namespace.deletion_timestamp.is_some())
    }

    /// Returns whether the StatefulSet with this uid is terminating, or `None` if a working watch does not show it.
    pub fn stateful_set_state(&self, namespace: &str, name: &str, uid: &str) -> Option<Existence> {
        let set = self.stateful_sets.get_current(namespace, name).filter(|set| set.uid == uid)?;
        Some(match set.deletion_timestamp {
            Some(_) => Existence::Terminating,
            None => Existence::Alive,
        })
    }

    /// Returns the uids of the StatefulSets that the watch showed last.
    pub fn stateful_set_uids(&self, namespace: &str) -> BTreeSet<String> {
        self.stateful_sets.last_known(namespace).into_iter().map(|set| set.uid.clone()).collect()
    }

    /// Whether the StatefulSet of this name has a controller, for instance a custom resource.
    pub fn has_controller(&self, namespace: &str, name: &str) -> bool {
        self.stateful_sets.get(namespace, name).is_some_and(|set| !set.owner_references.is_empty())
    }

    /// Returns the annotations of a StatefulSet; empty if the StatefulSet is unknown.
    pub fn stateful_set_annotations(&self, namespace: &str, name: &str) -> BTreeMap<String, String> {
        self.stateful_sets.get(namespace, name).map(|set| set.annotations.clone()).unwrap_or_default()
    }

    /// Returns name, uid, annotations, controller and deletion of a StatefulSet, or `None` if the StatefulSet is unknown.
    pub fn stateful_set(&self, namespace: &str, name: &str) -> Option<Metadata> {
        let set = self.stateful_sets.get(namespace, name)?;
        Some(Metadata {
            name: set.name.clone(),
            namespace: namespace.to_owned(),
            uid: set.uid.clone(),
            annotations: set.annotations.clone(),
            owner_references: set.owner_references.clone(),
            deletion_timestamp: set.deletion_timestamp.clone(),
            ..Metadata::default()
        })
    }

    /// Returns a number for each of these namespaces that changes whenever a StatefulSet in it changes. The controller
    /// updates the status of a StatefulSet whenever it creates or deletes a pod. Namespaces that have not been listed are
    /// missing.
    pub fn stateful_set_versions(&self, namespaces: &BTreeSet<String>) -> BTreeMap<String, u64> {
        let version = |namespace: &String| Some((namespace.clone(), self.stateful_sets.version(namespace)?));
        namespaces.iter().filter_map(version).collect()
    }

    /// Returns the requests in guarded namespaces.
    pub fn requests(&self) -> Vec<ActionRequest> {
        let guarded = self.guarded.borrow().clone();
        let requests = |watches: &NamespaceWatches, namespace: &str, is_pod: bool| {
            let objects = watches.select(namespace, |object| actions_of(object).next().is_some());
            let of_object = |object: Arc<WatchedMetadata>| {
                let request = |(action, value): (Action, &String)| ActionRequest {
                    action,
                    namespace: namespace.to_owned(),
                    name: object.name.clone(),
                    uid: object.uid.clone(),
                    value: value.clone(),
                    is_pod,
                };
                actions_of(&object).map(request).collect::<Vec<_>>()
            };
            objects.into_iter().flat_map(of_object).collect::<Vec<_>>()
        };
        let in_namespace = |namespace: &String| {
            let of_sets = requests(&self.stateful_sets, namespace, false);
            of_sets.into_iter().chain(requests(&self.requesting_pods, namespace, true)).collect::<Vec<_>>()
        };
        guarded.iter().flat_map(in_namespace).collect()
    }

    /// Returns the name and the uid of the StatefulSet that the name of a pod implies. Only the owner reference of the
    /// pod proves that the pod belongs to this StatefulSet.
    pub fn stateful_set_by_pod_name(&self, namespace: &str, pod: &str) -> Option<(String, String)> {
        let (name, ordinal) = pod.rsplit_once('-')?;
        let is_ordinal = !ordinal.is_empty() && ordinal.bytes().all(|byte| byte.is_ascii_digit());
        let set = is_ordinal.then(|| self.stateful_sets.get(namespace, name))??;
        Some((name.to_owned(), set.uid.clone()))
    }

    /// Whether the name of a pod implies a StatefulSet of this guarded namespace, or the StatefulSets of the namespace are not known.
    pub fn may_have_stateful_set_of_pod(&self, namespace: &str, pod: &str) -> bool {
        !self.is_known(namespace) || self.stateful_set_by_pod_name(namespace, pod).is_some()
    }

    /// Adds annotations with these names to pods that lack them: first from the pod's StatefulSet, then from the
    /// namespace. Settings of a whole cluster, such as the names of its Secrets, need not be in the pod template, where
    /// a change restarts every member. Those of the namespace are added if `accepts` returns true for the pod, the name and
    /// the value.
    pub fn apply_inherited(
        &self,
        namespace: &str,
        pods: &mut [Pod],
        names: &[&str],
        accepts: impl Fn(&Pod, &str, &str) -> bool,
    ) {
        let from_namespace = self.namespace_annotations(namespace);
        for pod in pods {
            let from_owner = pod
                .stateful_set()
                .map(|set| self.stateful_set_annotations(namespace, set))
                .unwrap_or_default();
            pod.inherit(&from_owner, names, |_, _, _| true);
            pod.inherit(&from_namespace, names, &accepts);
        }
    }

    fn namespace(&self, name: &str) -> Option<Arc<WatchedMetadata>> {
        self.namespaces.read().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }
}

// === impl NamespaceStore ===

impl NamespaceStore {
    fn apply(&mut self, change: Change) {
        let is_list = matches!(change, Change::Listed(_));
        let guarded: BTreeSet<String> = {
            let mut namespaces = self.namespaces.write().unwrap_or_else(PoisonError::into_inner);
            match change {
                Change::Listed(listed) => {
                    let by_name =
                        listed.into_iter().map(|namespace| (namespace.name.clone(), Arc::new(namespace)));
                    *namespaces = by_name.collect();
                }
                Change::Event(Event { name, object: Some(namespace), .. }) => {
                    namespaces.insert(name, namespace);
                }
                Change::Event(Event { name, object: None, .. }) => {
                    namespaces.remove(&name);
                }
                // The last known state is used until the next list.
                Change::Started | Change::Late | Change::CaughtUp | Change::Failed(_) => {}
            }
            namespaces.keys().cloned().collect()
        };
        self.guarded.send_if_modified(|previous| {
            let is_changed = *previous != guarded;
            *previous = guarded;
            is_changed
        });
        if is_list {
            self.are_listed.send_replace(true);
        }
    }
}

/// Returns metadata without the owners, which are not read.
fn without_owners(metadata: WatchedMetadata) -> WatchedMetadata {
    WatchedMetadata { owner_references: Vec::new(), ..metadata }
}

/// Returns the actions that an object requests, each with its value.
fn actions_of(object: &WatchedMetadata) -> impl Iterator<Item = (Action, &String)> {
    let names =
        [(Action::MoveLeader, MOVE_LEADER), (Action::Defragment, DEFRAGMENT), (Action::Replace, REPLACE)];
    names.into_iter().filter_map(|(action, name)| Some((action, object.annotations.get(name)?)))
}

/// Returns the metadata of a pod without a StatefulSet that requests an action.
fn requesting_pod(metadata: WatchedMetadata) -> Option<WatchedMetadata> {
    let is_in_set = metadata
        .owner_references
        .iter()
        .any(|owner| owner.controller == Some(true) && owner.kind == "StatefulSet");
    let requests = actions_of(&metadata).next().is_some() && !is_in_set;
    requests.then(|| without_owners(metadata))
}

/// Returns metadata with the controller as the only owner. A reference that no object of the API server can have is
/// dropped.
fn with_controller(mut metadata: WatchedMetadata) -> WatchedMetadata {
    let is_kept =
        |owner: &OwnerReference| owner.controller == Some(true) && owner.heap_size() <= MAX_CONTROLLER_BYTES;
    metadata.owner_references.retain(is_kept);
    metadata.owner_references.shrink_to_fit();
    metadata
}

#[cfg(test)]
mod tests;
