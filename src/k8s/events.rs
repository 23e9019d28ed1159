//! Events (`events.k8s.io/v1`) on what verdicts are about, and on its StatefulSet: what `kubectl describe` shows. They are
//! written behind the answer's back and wait for nobody: one that cannot be written in time is lost, and the log has the
//! verdict.

use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::{
    Client,
    runtime::events::{Event, EventType, Recorder, Reporter},
};
use moka::sync::Cache;
use tokio::{sync::mpsc, time::timeout};

use super::pod::Pod;

/// Whom events name as their source.
const CONTROLLER: &str = "etcd-guard";

/// Longest that one event may take to be written.
const WRITE_LIMIT: Duration = Duration::from_secs(3);

/// The same verdict on the same request for the same object is told once in so long: a drain asks every 5 s, and a scheduler
/// up to 40 times a second.
const QUIET: Duration = Duration::from_secs(30);

/// The most of these that are kept in mind for that.
const MOST_RECENT: u64 = 4096;

/// The most events that wait to be written. More at a time come from a storm, of which the first tell enough.
const MOST_WAITING: usize = 64;

/// The longest note that the apiserver takes, in bytes.
const LONGEST_NOTE: usize = 1024;

/// What is told of an object.
#[derive(Clone, Debug)]
pub struct Telling {
    /// The pod, or what its deletion would follow from.
    pub object: ObjectReference,
    /// The StatefulSet that it belongs to, which is told the same.
    pub stateful_set: Option<ObjectReference>,
    /// Whether somebody should look at it.
    pub warns: bool,
    /// The reason code.
    pub reason: &'static str,
    /// What was asked for.
    pub action: &'static str,
    /// The text.
    pub note: String,
}

/// Takes events and writes them when it can. Its copies share everything.
#[derive(Clone)]
pub struct Events {
    waiting: mpsc::Sender<Telling>,
    recent: Cache<(Named, [&'static str; 2]), ()>,
}

/// Kind, namespace, name and uid: a review that was put together by hand may leave some out.
type Named = [Option<String>; 4];

// === impl Telling ===

impl Telling {
    /// The pod, as events refer to it.
    #[must_use]
    pub fn pod(namespace: &str, pod: &Pod) -> ObjectReference {
        Self::object(("v1", "Pod"), Some(namespace), &pod.metadata.name, Some(&pod.metadata.uid))
    }

    /// The pod's StatefulSet, if it has one.
    #[must_use]
    pub fn stateful_set(namespace: &str, pod: &Pod) -> Option<ObjectReference> {
        let owner = pod.controller().filter(|owner| owner.kind == "StatefulSet")?;
        Some(Self::object(("apps/v1", "StatefulSet"), Some(namespace), &owner.name, Some(&owner.uid)))
    }

    /// Any object. Events on what has no namespace are in `default`: in its own the apiserver takes none on a namespace.
    ///
    /// Source: `pkg/apis/core/validation/events.go`.
    #[must_use]
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
            name: Some(name.to_owned()),
            uid: uid.map(str::to_owned),
            ..ObjectReference::default()
        }
    }
}

// === impl Events ===

impl Events {
    /// Writes with this client's identity for as long as the process lives.
    #[must_use]
    pub fn start(client: Client) -> Self {
        let (waiting, told) = mpsc::channel(MOST_WAITING);
        tokio::spawn(write(client, told));
        Self { waiting, recent: Cache::builder().max_capacity(MOST_RECENT).time_to_live(QUIET).build() }
    }

    /// Tells of an object, unless the same was told a moment ago. Never waits.
    pub fn tell(&self, telling: Telling) {
        let ObjectReference { kind, namespace, name, uid, .. } = telling.object.clone();
        let key = ([kind, namespace, name, uid], [telling.reason, telling.action]);
        if !self.recent.entry(key).or_insert(()).is_fresh() {
            return;
        }
        if self.waiting.try_send(telling).is_err() {
            tracing::debug!("an event is lost: too many wait to be written");
        }
    }
}

async fn write(client: Client, mut told: mpsc::Receiver<Telling>) {
    let recorder = Recorder::new(client, Reporter::from(CONTROLLER));
    while let Some(telling) = told.recv().await {
        let Telling { object, stateful_set, warns, reason, action, note } = telling;
        let event = |secondary| Event {
            type_: if warns { EventType::Warning } else { EventType::Normal },
            reason: reason.to_owned(),
            note: Some(cut(&note).to_owned()),
            action: action.to_owned(),
            secondary,
        };
        let of_object = (event(None), object.clone());
        let of_set = stateful_set.map(|set| (event(Some(object)), set));
        for (event, object) in [Some(of_object), of_set].into_iter().flatten() {
            match timeout(WRITE_LIMIT, recorder.publish(&event, &object)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => {
                    tracing::warn!(error = super::lookup::innermost(&error), "an event was not written");
                }
                Err(_) => tracing::warn!("an event was not written: the apiserver did not answer in time"),
            }
        }
    }
}

/// The beginning of a note that is too long, at a character's end.
fn cut(note: &str) -> &str {
    let end = (0..=LONGEST_NOTE.min(note.len())).rev().find(|end| note.is_char_boundary(*end));
    note.get(..end.unwrap_or_default()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use serde_json::{Value, json};

    use super::*;
    use crate::k8s::fake;

    fn telling(uid: &str, reason: &'static str) -> Telling {
        let pod: Pod = serde_json::from_value(json!({"metadata": {
            "name": "etcd-1", "uid": uid,
            "ownerReferences": [{"kind": "StatefulSet", "name": "etcd", "uid": "s1", "controller": true}],
        }}))
        .unwrap();
        let (object, stateful_set) = (Telling::pod("prod", &pod), Telling::stateful_set("prod", &pod));
        let note = String::from("pod etcd-1 is the leader");
        Telling { object, stateful_set, warns: true, reason, action: "Delete", note }
    }

    /// What was written, as `METHOD KIND REASON`.
    fn recorded() -> (Events, Arc<Mutex<Vec<String>>>) {
        let written: Arc<Mutex<Vec<String>>> = Arc::default();
        let writing = Arc::clone(&written);
        let client = fake::served_by(move |call, body: &Value| {
            let kind = body["regarding"]["kind"].as_str().unwrap();
            let line = format!("{} {kind} {}", call.method, body["reason"].as_str().unwrap());
            writing.lock().unwrap().push(line);
            (201, body.clone())
        });
        (Events::start(client), written)
    }

    async fn settled(written: &Mutex<Vec<String>>, count: usize) -> Vec<String> {
        for _ in 0..1000 {
            if written.lock().unwrap().len() >= count {
                break;
            }
            tokio::task::yield_now().await;
        }
        std::mem::take(&mut written.lock().unwrap())
    }

    #[tokio::test]
    async fn the_same_verdict_on_the_same_pod_is_told_once_on_the_pod_and_on_its_set() {
        let (events, written) = recorded();
        for _ in 0..3 {
            events.tell(telling("u1", "LeaderProtected"));
        }
        assert_eq!(
            settled(&written, 2).await,
            ["POST Pod LeaderProtected", "POST StatefulSet LeaderProtected"]
        );
        events.tell(telling("u2", "LeaderProtected"));
        events.tell(telling("u1", "QuorumAtRisk"));
        assert_eq!(
            settled(&written, 4).await,
            [
                "POST Pod LeaderProtected",
                "POST StatefulSet LeaderProtected",
                "POST Pod QuorumAtRisk",
                "POST StatefulSet QuorumAtRisk",
            ]
        );
    }

    #[test]
    fn a_note_is_cut_at_a_character() {
        assert_eq!(cut("short"), "short");
        assert_eq!(cut(&"ü".repeat(600)).len(), 1024);
        assert_eq!(cut(&format!("x{}", "ü".repeat(600))).len(), 1023);
    }
}
