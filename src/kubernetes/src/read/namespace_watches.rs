//! Metadata of the objects of one resource in guarded namespaces.
//!
//! Up to [`MAX_OWN_WATCHES`] guarded namespaces have watches of their own, so that the guard receives no objects of other
//! namespaces. More of them share one watch of all namespaces, because each watch needs a connection and a call every 30 s.
//! Lists are those of single namespaces in both cases (decision 50).

mod guarded;
mod objects;
mod shared;

use std::{
    collections::BTreeSet,
    sync::{Arc, PoisonError, RwLock},
};

use kube::Client;
use tokio::sync::{Notify, watch};
use tokio_util::task::AbortOnDropHandle;

use self::{guarded::GuardedNamespace, objects::Objects, shared::SharedWatch};
use super::watching::Change;

pub(super) use self::guarded::{NamespaceWatches, Resource};

/// Maximum number of guarded namespaces with watches of their own.
const MAX_OWN_WATCHES: usize = 32;

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

    async fn follow_namespaces(
        self,
        client: Client,
        resource: Resource,
        mut guarded: watch::Receiver<BTreeSet<String>>,
    ) {
        loop {
            let names = guarded.borrow_and_update().clone();
            if names.len() > MAX_OWN_WATCHES {
                break;
            }
            let is_new = names.iter().any(|name| !self.contains(name));
            {
                let mut namespaces = self.write();
                namespaces.retain(|name, _| names.contains(name));
                for name in names {
                    let start = || self.start_own_watch(&client, resource, &name);
                    namespaces.entry(name.clone()).or_insert_with(start);
                }
            }
            if is_new {
                // An evaluation can wait for a namespace that had no entry.
                self.listed.send_replace(());
            }
            if guarded.changed().await.is_err() {
                return;
            }
        }
        tracing::info!(
            resource = resource.name,
            "more than {MAX_OWN_WATCHES} namespaces are guarded: they share one watch until the process ends"
        );
        SharedWatch::new(self, client, resource).follow(guarded).await;
    }

    fn start_own_watch(&self, client: &Client, resource: Resource, namespace: &str) -> GuardedNamespace {
        let (objects, urgent) = (Arc::<RwLock<Objects>>::default(), Arc::<Notify>::default());
        let watch = resource.watch_of_namespace(client, namespace, Arc::clone(&urgent));
        let (written, listed) = (Arc::clone(&objects), self.listed.clone());
        let task = tokio::spawn(watch.follow(move |change| {
            let is_list = matches!(change, Change::Listed(_) | Change::Failed(_));
            written.write().unwrap_or_else(PoisonError::into_inner).apply(change);
            if is_list {
                listed.send_replace(());
            }
        }));
        GuardedNamespace { objects, urgent, listed_for: None, task: Some(AbortOnDropHandle::new(task)) }
    }
}

#[cfg(test)]
mod tests;
