//! Lists and watches of metadata. kube's watcher buffers whole pages and events. The writers of the objects choose their
//! size. This module decodes object by object, and stores only the metadata that the guard reads (decision 50).

mod event_lines;

use std::{
    collections::BTreeMap,
    sync::{Arc, LazyLock},
    time::Duration,
};

use http::{HeaderValue, header::ACCEPT_ENCODING};
use http_body_util::BodyExt;
use kube::{
    Client,
    client::Body,
    core::{
        Request, WatchEvent,
        params::{ListParams, WatchParams},
    },
};
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
};
use serde::Deserialize;
use tokio::{
    sync::{Notify, Semaphore},
    time::{Instant, sleep, timeout},
};

use self::event_lines::{EventLine, EventLines, LineTooLong};
use super::{
    body::{CallFailure, send},
    pages::{List, Listed, metadata},
};
use crate::error::{LookupError, root_cause};
use etcd_guard_core::objects::{
    annotations::deserialize_kept,
    heap_size::heap_size_of_fields,
    pod::{OwnerReference, null_as_default},
};

/// Length of one watch call, in seconds. A connection that broke without notice shows no changes until the call ends,
/// and a revoked annotation must not remain in effect much longer than that.
const WATCH_SECONDS: u32 = 30;

/// Time after which a call is aborted that the API server should have ended.
const WATCH_TIMEOUT: Duration = Duration::from_secs(35);

/// Shortest length of a call that ends by its own timeout. The API server ends a call earlier if the watch is too slow to
/// receive all events, or while it stops; a proxy can end it as well.
const MIN_CALL: Duration = Duration::from_secs(25);

/// Time without data after which all events until now were received.
const IDLE_TIME: Duration = Duration::from_secs(2);

/// Number of calls in a row that end early without an event, after which the watch fails.
const MAX_EMPTY_CALLS: u32 = 5;

/// Timeout of one page of a list: a page of large objects on a busy API server takes seconds.
const PAGE_TIMEOUT: Duration = Duration::from_secs(30);

/// Pause after a failure; it doubles up to [`MAX_PAUSE`].
pub(super) const MIN_PAUSE: Duration = Duration::from_millis(500);

/// Longest pause after a failure. A watch that ran longer starts with the shortest pause again.
pub(super) const MAX_PAUSE: Duration = Duration::from_secs(30);

/// Shortest time between two watch calls. A server that ends each call at once must not cause a loop without pauses.
const MIN_CALL_INTERVAL: Duration = Duration::from_secs(1);

/// Maximum time for which a watch call waits until others have started. Changes are not seen meanwhile.
const PERMIT_TIMEOUT: Duration = Duration::from_secs(30);

/// Timeout of the response to a watch call. Its events follow without this limit.
const START_TIMEOUT: Duration = Duration::from_secs(10);

/// Limits of the calls that run at the same time, for all watches of the process.
pub(super) static CALL_LIMITS: CallLimits = CallLimits::new();

/// The restarts of all watches of the process.
static RESTARTS: LazyLock<Family<WatchedResource, Counter>> = LazyLock::new(Family::default);

/// The plural name of a watched resource.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct WatchedResource {
    resource: &'static str,
}

/// Limits of the calls that run at the same time.
pub(super) struct CallLimits {
    /// Lists. Each buffers one object, and after an outage of the API server all watches start again.
    lists: Semaphore,
    /// Lists for which evaluations wait, in addition to the others.
    urgent_lists: Semaphore,
    /// Watch calls without a response. The API server counts a watch call as a request until it responds, and rejects
    /// requests of one account beyond some dozens that run and some hundreds that wait ("Too many requests").
    starting: Semaphore,
}

/// Metadata of an object (`ObjectMeta`), in part.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct WatchedMetadata {
    pub(super) namespace: String,
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
    WatchedMetadata { namespace, name, uid, resource_version, annotations, owner_references, deletion_timestamp }
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
    /// The plural name of the resource, for the metric.
    pub(super) resource: &'static str,
    /// The objects, for log lines.
    pub(super) subject: String,
    pub(super) start: Start,
    /// Whether the objects of a namespace are needed. Events of other namespaces are dropped before they are parsed.
    pub(super) needs: Arc<dyn Fn(&str) -> bool + Send + Sync>,
    /// Wakes a list that waits for other lists, because an evaluation needs it.
    pub(super) urgent: Arc<Notify>,
    pub(super) limits: &'static CallLimits,
    /// Returns the part of an object that is stored; `None` if the object is not needed.
    pub(super) reduce: fn(WatchedMetadata) -> Option<WatchedMetadata>,
}

/// The call that precedes a watch.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Start {
    /// A list of all objects: the first change is [`Change::Listed`].
    List,
    /// A read of the present version: the first change is [`Change::Started`]. The caller lists the objects.
    Version,
}

/// A change of the watched objects.
#[derive(Debug)]
pub(super) enum Change {
    /// All objects.
    Listed(Vec<WatchedMetadata>),
    /// The changes after a version follow as events. A list that is requested from now on contains all changes before it.
    Started,
    /// An object was created, changed or deleted.
    Event(Event),
    /// A call ended early, or before all events were received. Events can be late until the next [`Change::CaughtUp`].
    Late,
    /// All events until now were received.
    CaughtUp,
    /// Changes are missed from now until the next list or start. Contains the cause, unless the version was too old.
    Failed(Option<LookupError>),
}

/// An event of one object.
#[derive(Debug)]
pub(super) struct Event {
    pub(super) namespace: String,
    pub(super) name: String,
    /// The version of the event. Later events of the resource have greater numbers.
    pub(super) version: String,
    /// The part of the object that is stored; `None` if the object was deleted or is not needed.
    pub(super) object: Option<Arc<WatchedMetadata>>,
}

/// The reason why an event cannot be passed on.
enum EventError {
    Failed(CallFailure),
    TooLong(LineTooLong),
}

/// Returns the restarts of all watches of the process. A clone shares the values.
pub fn watch_restarts() -> Family<WatchedResource, Counter> {
    RESTARTS.clone()
}

/// Returns the counter of watches that failed and start again with a new list. The end of a call after [`WATCH_SECONDS`] is no
/// restart. The counter is shown from now on: a metric that appears with its first increase has no rate.
pub(super) fn restarts_of(resource: &'static str) -> Counter {
    RESTARTS.get_or_create(&WatchedResource { resource }).clone()
}

// === impl Watch ===

impl Watch {
    /// Starts and watches the objects until the future is dropped. After a failure, it starts again.
    pub(super) async fn follow(self, mut on_change: impl FnMut(Change)) {
        let (restarts, mut pause) = (restarts_of(self.resource), MIN_PAUSE);
        loop {
            let started = Instant::now();
            let failure = match self.start().await {
                Ok((change, version)) => {
                    on_change(change);
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
            restarts.inc();
            on_change(Change::Failed(failure));
            if started.elapsed() > MAX_PAUSE {
                pause = MIN_PAUSE;
            }
            sleep(pause).await;
            pause = (pause * 2).min(MAX_PAUSE);
        }
    }

    /// Returns the first change, and the version from which the watch continues.
    async fn start(&self) -> Result<(Change, String), LookupError> {
        match self.start {
            Start::List => {
                let Listed { objects, version } = self.list(|| {}).await?;
                Ok((Change::Listed(objects), version))
            }
            Start::Version => Ok((Change::Started, self.as_list().version(metadata(&self.path)).await?)),
        }
    }

    /// Lists the objects. Waits while too many other lists are in progress, and then calls `on_start`.
    pub(super) async fn list(&self, on_start: impl FnOnce()) -> Result<Listed<WatchedMetadata>, LookupError> {
        let CallLimits { lists, urgent_lists, .. } = self.limits;
        // The semaphores are never closed.
        let _permit = tokio::select! {
            biased;
            permit = lists.acquire() => permit,
            () = self.urgent.notified() => tokio::select! {
                biased;
                permit = lists.acquire() => permit,
                permit = urgent_lists.acquire() => permit,
            },
        };
        on_start();
        let list = self.as_list();
        let parse = |json: &[u8]| Ok((self.reduce)(serde_json::from_slice::<Watched>(json)?.metadata));
        list.read(metadata(&self.path), parse).await
    }

    fn as_list(&self) -> List<'_> {
        List {
            client: &self.client,
            subject: &self.subject,
            timeout: PAGE_TIMEOUT,
            selection: ListParams { label_selector: self.label.clone(), ..ListParams::default() },
        }
    }

    /// Watches the objects after this version until a call fails.
    async fn watch_from(&self, mut version: String, on_change: &mut impl FnMut(Change)) -> CallFailure {
        let mut empty_calls = 0;
        loop {
            let body = match self.start_watch(&version).await {
                Ok(body) => body,
                Err(failure) => return failure,
            };
            let (started, first_version) = (Instant::now(), version.clone());
            let received_all = match timeout(WATCH_TIMEOUT, self.pass_on(body, &mut version, on_change)).await
            {
                Ok(Ok(received_all)) => received_all,
                Ok(Err(failure)) => return failure,
                Err(_) => return self.timed_out(WATCH_TIMEOUT),
            };
            let is_early = started.elapsed() < MIN_CALL;
            if is_early || !received_all {
                on_change(Change::Late);
            }
            empty_calls = if is_early && version == first_version { empty_calls + 1 } else { 0 };
            if empty_calls >= MAX_EMPTY_CALLS {
                return self.failed(format!("{empty_calls} calls in a row ended early")).into();
            }
            sleep(MIN_CALL_INTERVAL.saturating_sub(started.elapsed())).await;
        }
    }

    /// Starts one call. Its events follow this version.
    async fn start_watch(&self, version: &str) -> Result<Body, CallFailure> {
        let label_selector = self.label.clone();
        let parameters = WatchParams { label_selector, ..WatchParams::default() }.timeout(WATCH_SECONDS);
        let mut request = Request::new(self.path.as_str()).watch_metadata(&parameters, version);
        if let Ok(request) = &mut request {
            // From Kubernetes 1.37 on, the API server would compress each event.
            request.headers_mut().insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        }
        // The semaphore is never closed.
        let Ok(_permit) = timeout(PERMIT_TIMEOUT, self.limits.starting.acquire()).await else {
            return Err(self.timed_out(PERMIT_TIMEOUT));
        };
        match timeout(START_TIMEOUT, send(&self.client, &self.subject, request)).await {
            Ok(response) => response,
            Err(_) => Err(self.timed_out(START_TIMEOUT)),
        }
    }

    /// Passes on the events of one call until it ends. Updates `version` to the last one. Returns whether all events until
    /// the last moments of the call were received.
    async fn pass_on(
        &self,
        mut body: Body,
        version: &mut String,
        on_change: &mut impl FnMut(Change),
    ) -> Result<bool, CallFailure> {
        let mut lines = EventLines::new(&*self.needs);
        let mut received_all = false;
        loop {
            let frame = match timeout(IDLE_TIME, body.frame()).await {
                Ok(frame) => frame,
                Err(_) => {
                    if !received_all {
                        received_all = true;
                        on_change(Change::CaughtUp);
                    }
                    body.frame().await
                }
            };
            let Some(frame) = frame else { break };
            let frame = match frame {
                Ok(frame) => frame,
                Err(error) => {
                    // The next call continues after the last event.
                    tracing::debug!(
                        error = root_cause(&error),
                        subject = self.subject,
                        "a watch call was cut off"
                    );
                    return Ok(received_all);
                }
            };
            // A frame without data has trailers.
            let Ok(data) = frame.into_data() else { continue };
            lines
                .push(&data, |line| match line {
                    EventLine::Complete(json) => {
                        received_all |= self.pass_on_event(json, version, on_change)?;
                        Ok(())
                    }
                    EventLine::Dropped(dropped) => {
                        dropped.clone_into(version);
                        Ok(())
                    }
                })
                .map_err(|error| self.event_failure(error))?;
            // A body that always has a next frame must not occupy the task.
            tokio::task::coop::consume_budget().await;
        }
        // The next call repeats an event that was cut off.
        if !is_cut_off(lines.rest()) {
            self.pass_on_event(lines.rest(), version, on_change)
                .map_err(|error| self.event_failure(error))?;
        }
        Ok(received_all)
    }

    /// Passes on the event in a line. Returns whether it is a bookmark: all events until now were received.
    fn pass_on_event(
        &self,
        json: &[u8],
        version: &mut String,
        on_change: &mut impl FnMut(Change),
    ) -> Result<bool, EventError> {
        if json.is_empty() {
            return Ok(false);
        }
        let event = serde_json::from_slice::<WatchEvent<Watched>>(json)
            .map_err(|error| EventError::Failed(self.failed(error.to_string()).into()))?;
        let is_bookmark = matches!(event, WatchEvent::Bookmark(_));
        match event {
            WatchEvent::Added(Watched { metadata }) | WatchEvent::Modified(Watched { metadata }) => {
                version.clone_from(&metadata.resource_version);
                let mut event = Event::deletion(&metadata);
                event.object = (self.reduce)(metadata).map(Arc::new);
                on_change(Change::Event(event));
            }
            WatchEvent::Deleted(Watched { metadata }) => {
                version.clone_from(&metadata.resource_version);
                on_change(Change::Event(Event::deletion(&metadata)));
            }
            WatchEvent::Bookmark(bookmark) => {
                version.clone_from(&bookmark.metadata.resource_version);
                on_change(Change::CaughtUp);
            }
            WatchEvent::Error(status) => {
                let failure = self.failed(status.message.clone());
                let is_expired = status.code == 410;
                return Err(EventError::Failed(if is_expired {
                    CallFailure::Expired(failure)
                } else {
                    CallFailure::Other(failure)
                }));
            }
        }
        Ok(is_bookmark)
    }

    fn event_failure(&self, error: EventError) -> CallFailure {
        match error {
            EventError::Failed(failure) => failure,
            EventError::TooLong(error) => {
                let (subject, cause) = (self.subject.clone(), error.to_string());
                CallFailure::Other(LookupError::TooLarge { subject, cause })
            }
        }
    }

    fn timed_out(&self, limit: Duration) -> CallFailure {
        CallFailure::Other(LookupError::TimedOut { subject: self.subject.clone(), limit })
    }

    fn failed(&self, cause: String) -> LookupError {
        LookupError::Failed { subject: self.subject.clone(), cause }
    }
}

/// Whether the last line of a body is incomplete.
fn is_cut_off(line: &[u8]) -> bool {
    !line.is_empty()
        && serde_json::from_slice::<serde::de::IgnoredAny>(line).is_err_and(|error| error.is_eof())
}

// === impl CallLimits ===

impl CallLimits {
    pub(super) const fn new() -> Self {
        const CALLS: usize = 8;
        Self {
            lists: Semaphore::const_new(CALLS),
            urgent_lists: Semaphore::const_new(CALLS),
            starting: Semaphore::const_new(CALLS),
        }
    }
}

// === impl Event ===

impl Event {
    fn deletion(metadata: &WatchedMetadata) -> Self {
        Self {
            namespace: metadata.namespace.clone(),
            name: metadata.name.clone(),
            version: metadata.resource_version.clone(),
            object: None,
        }
    }
}

// === impl EventError ===

impl From<LineTooLong> for EventError {
    fn from(error: LineTooLong) -> Self {
        Self::TooLong(error)
    }
}
