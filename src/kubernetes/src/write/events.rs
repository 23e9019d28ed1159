//! Events (`events.k8s.io/v1`) about verdicts, on the object and on its StatefulSet, for `kubectl describe`. They are
//! written after the response, by a background task. An Event that cannot be written in time is dropped; the log
//! contains every verdict.

use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::{
    Client,
    runtime::events::{Event, EventType, Recorder, Reporter},
};
use tokio::{sync::mpsc, time::timeout};

use crate::error::root_cause;
use etcd_guard_cache::{ExpiringCache, Lifetime};
use etcd_guard_core::{
    escape::{MAX_NAME_CHARS, to_bounded_line},
    objects::pod::Pod,
};

/// The `reportingController` of the Events.
const CONTROLLER: &str = "etcd-guard";

/// Timeout of writing one Event.
const WRITE_TIMEOUT: Duration = Duration::from_secs(3);

/// An Event with the same object, reason and action is recorded once in this interval: a drain retries every 5 s, and a
/// scheduler up to 40 times a second.
const REPEAT_INTERVAL: Duration = Duration::from_secs(30);

/// Maximum number of Events that are remembered for [`REPEAT_INTERVAL`].
const MAX_RECENT: u64 = 4096;

/// Maximum number of Events in the queue. Further Events of a burst of requests are dropped.
const MAX_QUEUED: usize = 64;

/// Maximum length of a note in bytes. The API server rejects longer notes.
const MAX_NOTE_BYTES: usize = 1024;

/// The content of an Event.
#[derive(Clone, Debug)]
pub struct EventRecord {
    /// The pod, or the parent object of a workload operation.
    pub object: ObjectReference,
    /// The StatefulSet of the pod, which receives the same Event.
    pub stateful_set: Option<ObjectReference>,
    /// Whether the Event has type `Warning` instead of `Normal`.
    pub is_warning: bool,
    /// The reason code.
    pub reason: &'static str,
    /// The requested operation.
    pub action: &'static str,
    /// The text.
    pub note: String,
    /// The address of the section that explains the reason, which ends the note if it fits.
    pub documentation: Option<String>,
}

/// Queues Events and writes them in the background. Clones share the queue.
#[derive(Clone)]
pub struct EventRecorder {
    queue: mpsc::Sender<Queued>,
    recent: ExpiringCache<(ObjectKey, [&'static str; 2]), ()>,
}

/// An Event in the queue.
struct Queued {
    record: EventRecord,
    /// Whether the Event answers a request or states an action. Its note is written even if an Event with the same reason exists.
    is_answer: bool,
}

/// Kind, namespace, name and uid; hand-written reviews may lack some of them.
type ObjectKey = [Option<String>; 4];

// === impl EventRecord ===

impl EventRecord {
    /// Returns a reference to a pod.
    pub fn pod(namespace: &str, pod: &Pod) -> ObjectReference {
        Self::object(("v1", "Pod"), Some(namespace), &pod.metadata.name, Some(&pod.metadata.uid))
    }

    /// Returns a reference to the pod's StatefulSet, if the pod has one.
    pub fn stateful_set(namespace: &str, pod: &Pod) -> Option<ObjectReference> {
        let owner = pod.controller().filter(|owner| owner.kind == "StatefulSet")?;
        Some(Self::object(("apps/v1", "StatefulSet"), Some(namespace), &owner.name, Some(&owner.uid)))
    }

    /// Returns a reference to any object, with name and uid escaped and cut: the API server does not validate the texts of
    /// an ownerReference. Events on cluster-scoped objects are in `default`: the API server rejects an
    /// Event on a namespace inside that namespace.
    ///
    /// Source: `pkg/apis/core/validation/events.go`.
    pub fn object(
        (api_version, kind): (&str, &str),
        namespace: Option<&str>,
        name: &str,
        uid: Option<&str>,
    ) -> ObjectReference {
        ObjectReference {
            api_version: Some(api_version.to_owned()),
            kind: Some(kind.to_owned()),
            namespace: namespace.map(str::to_owned),
            name: Some(to_bounded_line(name, MAX_NAME_CHARS)),
            uid: uid.map(|uid| to_bounded_line(uid, MAX_NAME_CHARS)),
            ..ObjectReference::default()
        }
    }

    /// Returns the Event, with the note escaped and cut to `MAX_NOTE_BYTES`.
    pub fn event(&self, secondary: Option<ObjectReference>) -> Event {
        let mut note = truncated(&to_bounded_line(&self.note, MAX_NOTE_BYTES)).to_owned();
        let end = self.documentation.as_ref().map(|url| format!("; see {url}")).unwrap_or_default();
        if note.len() + end.len() <= MAX_NOTE_BYTES {
            note.push_str(&end);
        }
        Event {
            type_: if self.is_warning { EventType::Warning } else { EventType::Normal },
            reason: self.reason.to_owned(),
            note: Some(note),
            action: self.action.to_owned(),
            secondary,
        }
    }
}

// === impl EventRecorder ===

impl EventRecorder {
    /// Starts the background task, which writes with this client's identity until the process ends.
    pub fn start(client: Client) -> Self {
        let (queue, queued) = mpsc::channel(MAX_QUEUED);
        tokio::spawn(write_events(client, queued));
        Self { queue, recent: ExpiringCache::new(MAX_RECENT, Lifetime::SinceInsertion(REPEAT_INTERVAL)) }
    }

    /// Queues an Event, unless the same Event was queued within the last 30 s. Never waits.
    pub fn record(&self, record: EventRecord) {
        let ObjectReference { kind, namespace, name, uid, .. } = record.object.clone();
        let key = ([kind, namespace, name, uid], [record.reason, record.action]);
        if !self.recent.get_or_default(&key).1 {
            return;
        }
        self.queue(record, false);
    }

    /// Queues an Event that answers a request, or states an action, and is written with its own note in every case. Never
    /// waits.
    pub fn answer(&self, record: EventRecord) {
        self.queue(record, true);
    }

    fn queue(&self, record: EventRecord, is_answer: bool) {
        if self.queue.try_send(Queued { record, is_answer }).is_err() {
            tracing::debug!("an event was dropped: the queue is full");
        }
    }
}

async fn write_events(client: Client, mut queued: mpsc::Receiver<Queued>) {
    let shared = Recorder::new(client.clone(), Reporter::from(CONTROLLER));
    while let Some(Queued { record, is_answer }) = queued.recv().await {
        // A recorder increases the count of an earlier Event of the same reason, and drops the note of the later one.
        let recorder = if is_answer {
            Recorder::new(client.clone(), Reporter::from(CONTROLLER))
        } else {
            shared.clone()
        };
        let on_object = (record.event(None), record.object.clone());
        let on_set = record.stateful_set.clone();
        let on_set = on_set.map(|set| (record.event(Some(record.object.clone())), set));
        for (event, object) in [Some(on_object), on_set].into_iter().flatten() {
            match timeout(WRITE_TIMEOUT, recorder.publish(&event, &object)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => {
                    tracing::warn!(error = root_cause(&error), "an event was not written");
                }
                Err(_) => tracing::warn!("an event was not written: the API server did not respond in time"),
            }
        }
    }
}

/// Truncates a note to [`MAX_NOTE_BYTES`] at a character boundary.
fn truncated(note: &str) -> &str {
    let end = (0..=MAX_NOTE_BYTES.min(note.len())).rev().find(|end| note.is_char_boundary(*end));
    note.get(..end.unwrap_or_default()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use serde_json::{Value, json};

    use super::*;
    use crate::fake;

    fn record(uid: &str, reason: &'static str) -> EventRecord {
        let pod: Pod = serde_json::from_value(json!({"metadata": {
            "name": "etcd-1", "uid": uid,
            "ownerReferences": [{"kind": "StatefulSet", "name": "etcd", "uid": "s1", "controller": true}],
        }}))
        .unwrap();
        let (object, stateful_set) =
            (EventRecord::pod("prod", &pod), EventRecord::stateful_set("prod", &pod));
        let note = String::from("pod etcd-1 is the leader");
        let documentation = Some(String::from("https://example.com/#leader"));
        EventRecord { object, stateful_set, is_warning: true, reason, action: "Delete", note, documentation }
    }

    /// A recorder and the written Events, as `METHOD KIND REASON`.
    fn recorder() -> (EventRecorder, Arc<Mutex<Vec<String>>>) {
        let written: Arc<Mutex<Vec<String>>> = Arc::default();
        let writing = Arc::clone(&written);
        let client = fake::api_server_with(move |call, body: &Value| {
            let kind = body["regarding"]["kind"].as_str().unwrap();
            let line = format!("{} {kind} {}", call.method, body["reason"].as_str().unwrap());
            writing.lock().unwrap().push(line);
            (201, body.clone())
        });
        (EventRecorder::start(client), written)
    }

    async fn wait_for(written: &Mutex<Vec<String>>, count: usize) -> Vec<String> {
        for _ in 0..1000 {
            if written.lock().unwrap().len() >= count {
                break;
            }
            tokio::task::yield_now().await;
        }
        std::mem::take(&mut written.lock().unwrap())
    }

    #[tokio::test]
    async fn records_repeated_verdict_once_on_pod_and_stateful_set() {
        let (events, written) = recorder();
        for _ in 0..3 {
            events.record(record("u1", "LeaderProtected"));
        }
        assert_eq!(
            wait_for(&written, 2).await,
            ["POST Pod LeaderProtected", "POST StatefulSet LeaderProtected"]
        );
        events.record(record("u2", "LeaderProtected"));
        events.record(record("u1", "QuorumAtRisk"));
        assert_eq!(
            wait_for(&written, 4).await,
            [
                "POST Pod LeaderProtected",
                "POST StatefulSet LeaderProtected",
                "POST Pod QuorumAtRisk",
                "POST StatefulSet QuorumAtRisk",
            ]
        );
    }

    #[test]
    fn note_ends_with_the_address_if_it_fits() {
        let note = |length: usize| {
            let record = EventRecord { note: "x".repeat(length), ..record("u1", "LeaderProtected") };
            record.event(None).note.unwrap()
        };
        let end = "; see https://example.com/#leader";
        let longest = MAX_NOTE_BYTES - end.len();
        assert_eq!(note(longest), format!("{}{end}", "x".repeat(longest)));
        assert_eq!(note(longest + 1), "x".repeat(longest + 1), "half an address helps nobody");
    }

    #[test]
    fn truncates_note_at_a_character_boundary() {
        assert_eq!(truncated("short"), "short");
        assert_eq!(truncated(&"ü".repeat(600)).len(), 1024);
        assert_eq!(truncated(&format!("x{}", "ü".repeat(600))).len(), 1023);
    }
}
