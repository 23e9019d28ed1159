//! The claims of guarded namespaces, from watches of their metadata: whether the claim of a member's data stays is asked
//! at every decision, and changes next to never. What no watch knows for certain is read.

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

use super::{Claim, LookupError, Pods, annotations::WATCH_SECONDS};

/// Pause before a watch that broke is begun anew: meanwhile claims are read.
const RESTART_PAUSE: Duration = Duration::from_secs(5);

type Meta = PartialObjectMeta<PersistentVolumeClaim>;

/// Finds claims.
#[derive(Clone)]
pub struct Claims {
    reader: Pods,
    watches: Arc<RwLock<HashMap<String, Watch>>>,
}

/// The watch of one namespace; it ends when this is dropped.
struct Watch {
    store: Store<Meta>,
    /// Whether the store shows what the apiserver has, as far as one can know: it was listed, and the watch goes on.
    is_current: Arc<AtomicBool>,
    task: AbortHandle,
}

// === impl Claims ===

impl Claims {
    /// Watches the claims of the namespaces that `guarded` names, as it changes, for as long as its sender lives.
    #[must_use]
    pub fn watch(client: &Client, guarded: watch::Receiver<BTreeSet<String>>) -> Self {
        let claims = Self::unwatched(Pods::new(client.clone()));
        tokio::spawn(follow_namespaces(client.clone(), guarded, Arc::clone(&claims.watches)));
        claims
    }

    /// Reads every claim.
    #[must_use]
    pub fn unwatched(reader: Pods) -> Self {
        Self { reader, watches: Arc::default() }
    }

    /// The claim as its watch has it: at most as old as events take. `None` where that is not known.
    #[must_use]
    pub fn known(&self, namespace: &str, name: &str) -> Option<Claim> {
        let watches = self.watches.read().unwrap_or_else(PoisonError::into_inner);
        let watch = watches.get(namespace).filter(|it| it.is_current.load(Ordering::Acquire))?;
        let object = watch.store.get(&ObjectRef::new(name).within(namespace))?;
        Some(Claim::of(&object.metadata))
    }

    /// The claim as it is stored now.
    pub async fn read(&self, namespace: &str, name: &str) -> Result<Claim, LookupError> {
        let what = format!("PersistentVolumeClaim {namespace}/{name}");
        let claims = Request::new(format!("/api/v1/namespaces/{namespace}/persistentvolumeclaims"));
        self.reader.read(what, claims.get(name, &GetParams::default())).await
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
                        tracing::warn!(%error, "watching claims");
                    }
                    break;
                }
            }
        }
        is_current.store(false, Ordering::Release);
        sleep(RESTART_PAUSE).await;
    }
}
