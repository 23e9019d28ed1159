//! Lists and watches of metadata. The list of kube's watcher buffers whole pages, whose size the writers of the objects
//! choose; this one decodes object by object and keeps only what the guard reads (decision 0050).

use std::{collections::BTreeMap, time::Duration};

use futures::{Stream, TryStreamExt, pin_mut};
use kube::{
    Client,
    core::{
        Request, WatchEvent,
        params::{ListParams, WatchParams},
    },
};
use serde::Deserialize;
use tokio::{
    sync::Semaphore,
    time::{Instant, sleep, timeout},
};

use super::{
    body::CallFailure,
    pages::{List, Listed, metadata},
};
use crate::k8s::{
    error::{LookupError, error_message},
    objects::{
        annotations::deserialize_kept,
        heap_size::heap_size_of_fields,
        pod::{OwnerReference, null_as_default},
    },
};

/// Length of one watch call, in seconds. A connection that broke without notice shows no changes until the call ends,
/// and a revoked annotation must not remain in effect much longer than that.
const WATCH_SECONDS: u32 = 30;

/// Time after which a call is aborted that the API server should have ended.
const WATCH_TIMEOUT: Duration = Duration::from_secs(35);

/// Timeout of one page of a list: a page of large objects on a busy API server takes seconds.
const PAGE_TIMEOUT: Duration = Duration::from_secs(30);

/// Pause after a failure; it doubles up to [`MAX_PAUSE`].
const MIN_PAUSE: Duration = Duration::from_millis(500);

/// Longest pause after a failure. A watch that ran longer starts with the shortest pause again.
const MAX_PAUSE: Duration = Duration::from_secs(30);

/// Shortest time between two watch calls. A server that ends each call at once must not cause a loop without pauses.
const MIN_CALL_INTERVAL: Duration = Duration::from_secs(1);

/// Maximum number of lists at the same time. Each buffers one object, and after an outage of the API server all watches
/// start again.
static LISTS: Semaphore = Semaphore::const_new(8);

/// Maximum number of watch calls that start at the same time. The API server counts a watch call as a request until it
/// responds, and rejects requests of one account beyond some dozens that run and some hundreds that wait ("Too many
/// requests").
static STARTING: Semaphore = Semaphore::const_new(8);

/// Maximum time for which a watch call waits until others have started. Changes are not seen meanwhile.
const PERMIT_TIMEOUT: Duration = Duration::from_secs(30);

/// Timeout of the response to a watch call. Its events follow without this limit.
const START_TIMEOUT: Duration = Duration::from_secs(10);

/// Metadata of an object (`ObjectMeta`), in part.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct WatchedMetadata {
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) resource_version: String,
    #[serde(deserialize_with = "deserialize_kept")]
    pub(super) annotations: BTreeMap<String, String>,
    #[serde(deserialize_with = "null_as_default")]
    pub(super) owner_references: Vec<OwnerReference>,
    pub(super) deletion_timestamp: Option<String>,
}

heap_size_of_fields! {
    WatchedMetadata { name, uid, resource_version, annotations, owner_references, deletion_timestamp }
}

/// An object of which only the metadata is read.
#[derive(Clone, Deserialize)]
struct Watched {
    #[serde(default)]
    metadata: WatchedMetadata,
}

/// A resource that is watched.
pub(super) struct Watch {
    pub(super) client: Client,
    /// URL path of the objects.
    pub(super) path: String,
    /// The label of the objects, `KEY=VALUE`; all objects without it. The API server selects the objects, so that it sends
    /// no others, and reports an object that loses the label as deleted.
    pub(super) label: Option<String>,
    /// The objects, for log lines.
    pub(super) subject: String,
    /// Returns the part of an object that is stored; `None` if the object is not needed.
    pub(super) reduce: fn(WatchedMetadata) -> Option<WatchedMetadata>,
}

/// A change of the watched objects.
#[derive(Debug)]
pub(super) enum Change {
    /// All objects.
    Listed(Vec<WatchedMetadata>),
    /// An object that was created or changed.
    Applied(WatchedMetadata),
    /// The name of an object that was deleted, or is not needed any more.
    Removed(String),
    /// Changes are missed from now until the next list. Contains the cause, unless the version was too old.
    Failed(Option<LookupError>),
}

// === impl Watch ===

impl Watch {
    /// Lists and watches the objects until the future is dropped. After a failure, the objects are listed again.
    pub(super) async fn follow(self, mut on_change: impl FnMut(Change)) {
        let mut pause = MIN_PAUSE;
        loop {
            let started = Instant::now();
            let failure = match self.list().await {
                Ok(Listed { objects, version }) => {
                    on_change(Change::Listed(objects));
                    match self.watch_from(version, &mut on_change).await {
                        CallFailure::Other(error) => Some(error),
                        CallFailure::Expired(_) => None,
                    }
                }
                Err(error) => Some(error),
            };
            if let Some(error) = &failure {
                tracing::warn!(%error, "a watch failed; it is restarted");
            }
            on_change(Change::Failed(failure));
            if started.elapsed() > MAX_PAUSE {
                pause = MIN_PAUSE;
            }
            sleep(pause).await;
            pause = (pause * 2).min(MAX_PAUSE);
        }
    }

    async fn list(&self) -> Result<Listed<WatchedMetadata>, LookupError> {
        // The semaphore is never closed.
        let _permit = LISTS.acquire().await;
        let list = List {
            client: &self.client,
            subject: &self.subject,
            timeout: PAGE_TIMEOUT,
            selection: ListParams { label_selector: self.label.clone(), ..ListParams::default() },
        };
        let parse = |json: &[u8]| Ok((self.reduce)(serde_json::from_slice::<Watched>(json)?.metadata));
        list.read(metadata(&self.path), parse).await
    }

    /// Watches the objects after this version until a call fails.
    async fn watch_from(&self, mut version: String, on_change: &mut impl FnMut(Change)) -> CallFailure {
        loop {
            let started = Instant::now();
            let events = match self.start_watch(&version).await {
                Ok(events) => events,
                Err(failure) => return failure,
            };
            match timeout(WATCH_TIMEOUT, self.pass_on(events, &mut version, on_change)).await {
                Ok(Ok(())) => {}
                Ok(Err(failure)) => return failure,
                Err(_) => return self.timed_out(WATCH_TIMEOUT),
            }
            sleep(MIN_CALL_INTERVAL.saturating_sub(started.elapsed())).await;
        }
    }

    /// Starts one call. Its events follow this version.
    async fn start_watch(
        &self,
        version: &str,
    ) -> Result<impl Stream<Item = Result<WatchEvent<Watched>, kube::Error>> + use<>, CallFailure> {
        let label_selector = self.label.clone();
        let parameters = WatchParams { label_selector, ..WatchParams::default() }.timeout(WATCH_SECONDS);
        let request = Request::new(self.path.as_str()).watch_metadata(&parameters, version);
        let request = request.map_err(|error| self.failed(error.to_string()))?;
        // The semaphore is never closed.
        let Ok(_permit) = timeout(PERMIT_TIMEOUT, STARTING.acquire()).await else {
            return Err(self.timed_out(PERMIT_TIMEOUT));
        };
        match timeout(START_TIMEOUT, self.client.request_events::<Watched>(request)).await {
            Ok(response) => response.map_err(|error| self.watch_failure(&error)),
            Err(_) => Err(self.timed_out(START_TIMEOUT)),
        }
    }

    /// Passes on the events of one call until the API server ends it. Updates `version` to the last one.
    async fn pass_on(
        &self,
        events: impl Stream<Item = Result<WatchEvent<Watched>, kube::Error>>,
        version: &mut String,
        on_change: &mut impl FnMut(Change),
    ) -> Result<(), CallFailure> {
        pin_mut!(events);
        while let Some(event) = events.try_next().await.map_err(|error| self.watch_failure(&error))? {
            match event {
                WatchEvent::Added(Watched { metadata }) | WatchEvent::Modified(Watched { metadata }) => {
                    version.clone_from(&metadata.resource_version);
                    let name = metadata.name.clone();
                    let reduced = (self.reduce)(metadata);
                    on_change(reduced.map_or(Change::Removed(name), Change::Applied));
                }
                WatchEvent::Deleted(Watched { metadata }) => {
                    version.clone_from(&metadata.resource_version);
                    on_change(Change::Removed(metadata.name));
                }
                WatchEvent::Bookmark(bookmark) => version.clone_from(&bookmark.metadata.resource_version),
                WatchEvent::Error(status) => return Err(self.watch_failure(&kube::Error::Api(status))),
            }
        }
        Ok(())
    }

    fn watch_failure(&self, error: &kube::Error) -> CallFailure {
        match error {
            kube::Error::Api(status) if status.code == 410 => {
                CallFailure::Expired(self.failed(status.message.clone()))
            }
            _ => CallFailure::Other(self.failed(error_message(error))),
        }
    }

    fn timed_out(&self, limit: Duration) -> CallFailure {
        CallFailure::Other(LookupError::TimedOut { subject: self.subject.clone(), limit })
    }

    fn failed(&self, cause: String) -> LookupError {
        LookupError::Failed { subject: self.subject.clone(), cause }
    }
}
