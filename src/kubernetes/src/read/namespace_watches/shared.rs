//! One watch of the objects of all namespaces, for many guarded namespaces.
//!
//! The watch starts at the present version. Then each guarded namespace is listed on its own, so that the size of a list does
//! not depend on the writers of other namespaces. Events of namespaces that are not guarded are dropped.

use std::{
    collections::{BTreeSet, btree_map::Entry},
    sync::{Arc, PoisonError, RwLock},
};

use kube::Client;
use tokio::{sync::watch, time::sleep};
use tokio_util::task::AbortOnDropHandle;

use super::{
    guarded::{GuardedNamespace, NamespaceWatches, Resource},
    objects::Objects,
};
use crate::{
    error::LookupError,
    read::watching::{Change, MAX_PAUSE, MIN_PAUSE, Watch},
};

/// The watch of the objects of all namespaces.
pub(super) struct SharedWatch {
    watches: NamespaceWatches,
    client: Client,
    resource: Resource,
    state: watch::Sender<State>,
}

/// The state of the watch.
#[derive(Clone, Default)]
struct State {
    /// The number of starts until now.
    starts: u64,
    is_running: bool,
    /// Whether events can be late.
    is_late: bool,
    /// The cause of the last failure, while the watch does not run.
    failure: Option<LookupError>,
}

// === impl SharedWatch ===

impl SharedWatch {
    pub(super) fn new(watches: NamespaceWatches, client: Client, resource: Resource) -> Self {
        Self { watches, client, resource, state: watch::Sender::default() }
    }

    /// Updates the objects of the namespaces in `guarded` until the sender of `guarded` is dropped. Ends the watches that
    /// these namespaces had of their own.
    pub(super) async fn follow(self, guarded: watch::Receiver<BTreeSet<String>>) {
        for namespace in self.watches.write().values_mut() {
            // An aborted task can still write once, to the former objects.
            let last_known = namespace.objects.read().unwrap_or_else(PoisonError::into_inner).last_known();
            let objects = Arc::new(RwLock::new(last_known));
            let urgent = Arc::clone(&namespace.urgent);
            *namespace = GuardedNamespace { objects, urgent, ..GuardedNamespace::default() };
        }
        let namespaces = Arc::downgrade(&self.watches.namespaces);
        let needs = Arc::new(move |namespace: &str| {
            namespaces.upgrade().is_some_and(|namespaces| {
                namespaces.read().unwrap_or_else(PoisonError::into_inner).contains_key(namespace)
            })
        });
        let watch = self.resource.watch_of_all_namespaces(&self.client, needs);
        tokio::select! {
            biased;
            () = self.follow_namespaces(guarded) => {}
            () = watch.follow(|change| self.apply(change)) => {}
        }
    }

    fn apply(&self, change: Change) {
        let namespaces = self.watches.namespaces.read().unwrap_or_else(PoisonError::into_inner);
        let write = |namespace: &GuardedNamespace, change| {
            namespace.objects.write().unwrap_or_else(PoisonError::into_inner).apply(change);
        };
        match change {
            Change::Event(event) => {
                if let Some(namespace) = namespaces.get(&event.namespace) {
                    write(namespace, Change::Event(event));
                }
            }
            Change::Started => self.state.send_modify(|state| {
                *state = State { starts: state.starts + 1, is_running: true, ..State::default() };
            }),
            Change::Late => {
                namespaces.values().for_each(|namespace| write(namespace, Change::Late));
                self.state.send_modify(|state| state.is_late = true);
            }
            Change::CaughtUp => {
                // Most calls are never late.
                if self.state.borrow().is_late {
                    namespaces.values().for_each(|namespace| write(namespace, Change::CaughtUp));
                    self.state.send_modify(|state| state.is_late = false);
                }
            }
            Change::Failed(failure) => {
                namespaces.values().for_each(|namespace| write(namespace, Change::Failed(failure.clone())));
                self.state.send_modify(|state| (state.is_running, state.failure) = (false, failure));
                self.watches.listed.send_replace(());
            }
            // This watch lists no objects.
            Change::Listed(_) => {}
        }
    }

    async fn follow_namespaces(&self, mut guarded: watch::Receiver<BTreeSet<String>>) {
        let mut state = self.state.subscribe();
        loop {
            let names = guarded.borrow_and_update().clone();
            let present = state.borrow_and_update().clone();
            let mut has_new = false;
            {
                let mut namespaces = self.watches.write();
                namespaces.retain(|name, _| names.contains(name));
                for name in names {
                    let namespace = match namespaces.entry(name.clone()) {
                        Entry::Occupied(known) => known.into_mut(),
                        Entry::Vacant(new) => {
                            has_new = true;
                            let objects = Arc::new(RwLock::new(Objects::failed(present.failure.clone())));
                            new.insert(GuardedNamespace { objects, ..GuardedNamespace::default() })
                        }
                    };
                    if present.is_running && namespace.listed_for != Some(present.starts) {
                        self.start_list(&name, namespace, &present);
                    }
                }
            }
            if has_new {
                // An evaluation can wait for a namespace that had no entry.
                self.watches.listed.send_replace(());
            }
            tokio::select! {
                biased;
                changed = guarded.changed() => if changed.is_err() { return },
                // The sender exists as long as this watch.
                _ = state.changed() => {}
            }
        }
    }

    /// Lists a namespace in the background, after the last start of the watch.
    fn start_list(&self, name: &str, namespace: &mut GuardedNamespace, state: &State) {
        let objects = Arc::clone(&namespace.objects);
        objects.write().unwrap_or_else(PoisonError::into_inner).expect_list(state.starts, state.is_late);
        namespace.listed_for = Some(state.starts);
        let urgent = Arc::clone(&namespace.urgent);
        let list = self.resource.watch_of_namespace(&self.client, name, urgent);
        let list = list_until_success(list, state.starts, objects, self.watches.listed.clone());
        namespace.task = Some(AbortOnDropHandle::new(tokio::spawn(list)));
    }
}

async fn list_until_success(
    namespace: Watch,
    start: u64,
    objects: Arc<RwLock<Objects>>,
    listed: watch::Sender<()>,
) {
    let mut pause = MIN_PAUSE;
    loop {
        let write = || objects.write().unwrap_or_else(PoisonError::into_inner);
        let result = namespace.list(|| write().start_list(start)).await;
        let is_done = match result {
            Ok(list) => write().apply_list(start, list),
            Err(error) => {
                tracing::warn!(%error, "a list failed; it is repeated");
                write().fail_list(start, error);
                false
            }
        };
        listed.send_replace(());
        if is_done {
            return;
        }
        sleep(pause).await;
        pause = (pause * 2).min(MAX_PAUSE);
    }
}
