//! Claims of guarded namespaces, from watches of their metadata. Every evaluation checks whether the claim of a member
//! persists, and claims rarely change. Without a current watch the claim is read live.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures::{StreamExt, pin_mut};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::{
    Api, Client,
    core::{PartialObjectMeta, Request, params::GetParams},
    runtime::{
        reflector::{self, ObjectRef, Store, store::Writer},
        watcher,
    },
};
use tokio::{sync::watch, task::AbortHandle, time::sleep};

use super::{api_reader::ApiReader, watching::WATCH_SECONDS};
use crate::k8s::{error::LookupError, objects::claim::Claim};

/// Pause before a broken watch is restarted. Claims are read live in the meantime.
const RESTART_PAUSE: Duration = Duration::from_secs(5);

type Meta = PartialObjectMeta<PersistentVolumeClaim>;

/// Reads claims.
#[derive(Clone)]
pub struct ClaimReader {
    reader: ApiReader,
    watches: Arc<RwLock<HashMap<String, Watch>>>,
}

/// The watch of one namespace. Dropping it stops the watch.
struct Watch {
    store: Store<Meta>,
    /// Whether the store is current: the list is complete and the watch has not failed since.
    is_current: Arc<AtomicBool>,
    task: AbortHandle,
}

// === impl ClaimReader ===

impl ClaimReader {
    /// Watches the claims of the namespaces in `guarded` until the sender of `guarded` is dropped.
    #[must_use]
    pub fn watch(client: &Client, guarded: watch::Receiver<BTreeSet<String>>) -> Self {
        let claims = Self::without_watches(ApiReader::new(client.clone()));
        tokio::spawn(follow_namespaces(client.clone(), guarded, Arc::clone(&claims.watches)));
        claims
    }

    /// Creates a reader that reads every claim live.
    #[must_use]
    pub fn without_watches(reader: ApiReader) -> Self {
        Self { reader, watches: Arc::default() }
    }

    /// Returns the claim from the watch of its namespace, or `None` without a current watch. The claim is as old as the
    /// delay of watch events.
    #[must_use]
    pub fn cached(&self, namespace: &str, name: &str) -> Option<Claim> {
        let watches = self.watches.read().unwrap_or_else(PoisonError::into_inner);
        let watch = watches.get(namespace).filter(|watch| watch.is_current.load(Ordering::Acquire))?;
        let object = watch.store.get(&ObjectRef::new(name).within(namespace))?;
        Some(Claim::from(&object.metadata))
    }

    /// Returns the stored claim.
    pub async fn read(&self, namespace: &str, name: &str) -> Result<Claim, LookupError> {
        let subject = format!("PersistentVolumeClaim {namespace}/{name}");
        let claims = Request::new(format!("/api/v1/namespaces/{namespace}/persistentvolumeclaims"));
        self.reader.read(subject, claims.get(name, &GetParams::default())).await
    }
}

async fn follow_namespaces(
    client: Client,
    mut guarded: watch::Receiver<BTreeSet<String>>,
    watches: Arc<RwLock<HashMap<String, Watch>>>,
) {
    loop {
        let namespaces = guarded.borrow_and_update().clone();
        {
            let mut watches = watches.write().unwrap_or_else(PoisonError::into_inner);
            watches.retain(|namespace, _| namespaces.contains(namespace));
            for namespace in namespaces {
                let start = || Watch::start(Api::namespaced(client.clone(), &namespace));
                watches.entry(namespace.clone()).or_insert_with(start);
            }
        }
        if guarded.changed().await.is_err() {
            return;
        }
    }
}

// === impl Watch ===

impl Watch {
    fn start(api: Api<Meta>) -> Self {
        let (store, writer) = reflector::store();
        let is_current = Arc::new(AtomicBool::new(false));
        let task = tokio::spawn(follow(api, writer, Arc::clone(&is_current))).abort_handle();
        Self { store, is_current, task }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn follow(api: Api<Meta>, mut writer: Writer<Meta>, is_current: Arc<AtomicBool>) {
    loop {
        let events = watcher(api.clone(), watcher::Config::default().timeout(WATCH_SECONDS));
        pin_mut!(events);
        while let Some(event) = events.next().await {
            match event {
                Ok(event) => {
                    let listed = matches!(event, watcher::Event::InitDone);
                    writer.apply_watcher_event(&event);
                    if listed {
                        is_current.store(true, Ordering::Release);
                    }
                }
                Err(error) => {
                    if is_current.swap(false, Ordering::AcqRel) {
                        tracing::warn!(%error, "the watch of claims failed; it is restarted");
                    }
                    break;
                }
            }
        }
        is_current.store(false, Ordering::Release);
        sleep(RESTART_PAUSE).await;
    }
}
