//! Requests to the guard by annotation: it acts with its own credentials for etcd, and answers with Events.
//!
//! The value of the annotation is `DETAIL@TIME`: what is requested, and the time of the request, which makes each request unique.
//! The note of an Event begins with the name and the value of the annotation.

use k8s_openapi::api::{
    apps::v1::StatefulSet,
    core::v1::{Event, Pod},
};
use kube::api::{ListParams, Patch, PatchParams};
use serde_json::{Value, json};

use super::now;
use crate::{
    api_server::{ApiServer, CallError},
    guard_client::GuardClient,
};
use etcd_guard_core::escape::{MAX_TEXT_CHARS, to_bounded_line};

/// Prefix of the annotations.
const PREFIX: &str = "etcd-guard.io";

/// The object that carries the annotation: the StatefulSet of the members, or a pod without one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Subject {
    pub(crate) kind: SubjectKind,
    pub(crate) namespace: String,
    pub(crate) name: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SubjectKind {
    StatefulSet,
    Pod,
}

/// An Event of the guard about a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    /// The reason of the Event.
    pub(crate) reason: String,
    /// The note without its prefix.
    pub(crate) text: String,
}

/// A request that was made.
pub(crate) struct Requested<'a> {
    subject: &'a Subject,
    /// The name of the annotation, without the prefix.
    action: &'static str,
    value: String,
}

// === impl SubjectKind ===

impl SubjectKind {
    const fn as_str(self) -> &'static str {
        match self {
            Self::StatefulSet => "StatefulSet",
            Self::Pod => "Pod",
        }
    }
}

// === impl Subject ===

impl Subject {
    pub(crate) fn stateful_set(namespace: &str, name: &str) -> Self {
        Self { kind: SubjectKind::StatefulSet, namespace: namespace.to_owned(), name: name.to_owned() }
    }

    pub(crate) fn pod(namespace: &str, name: &str) -> Self {
        Self { kind: SubjectKind::Pod, namespace: namespace.to_owned(), name: name.to_owned() }
    }

    /// Returns the StatefulSet that controls the pod, or the pod.
    pub(crate) fn of_pod(namespace: &str, name: &str, pod: &Pod) -> Self {
        let mut owners = pod.metadata.owner_references.iter().flatten();
        let set = owners
            .find(|owner| owner.kind == SubjectKind::StatefulSet.as_str() && owner.controller == Some(true));
        match set {
            Some(set) => Self::stateful_set(namespace, &set.name),
            None => Self::pod(namespace, name),
        }
    }

    /// Sets an annotation of the object, or removes it, if the object still has this version.
    pub(crate) async fn annotate(
        &self,
        api_server: &ApiServer,
        annotation: &str,
        value: Option<&str>,
        version: Option<&str>,
    ) -> Result<(), CallError> {
        let Self { kind, namespace, name } = self;
        let patch = Patch::Merge(patch(annotation, value, version));
        let parameters = PatchParams::default();
        let operation = format!("failed to annotate {} {namespace}/{name}", kind.as_str());
        match kind {
            SubjectKind::StatefulSet => {
                let sets = api_server.namespaced::<StatefulSet>(namespace);
                api_server.call(operation, sets.patch(name, &parameters, &patch)).await.map(drop)
            }
            SubjectKind::Pod => {
                let pods = api_server.namespaced::<Pod>(namespace);
                api_server.call(operation, pods.patch(name, &parameters, &patch)).await.map(drop)
            }
        }
    }
}

fn patch(annotation: &str, value: Option<&str>, version: Option<&str>) -> Value {
    let metadata = match version {
        Some(version) => json!({"annotations": {annotation: value}, "resourceVersion": version}),
        None => json!({"annotations": {annotation: value}}),
    };
    json!({"metadata": metadata})
}

// === impl Requested ===

impl<'a> Requested<'a> {
    /// Requests an action by the annotation `etcd-guard.io/ACTION`, if the object still has this version.
    pub(crate) async fn annotate(
        guard: &GuardClient,
        subject: &'a Subject,
        action: &'static str,
        detail: &str,
        version: Option<&str>,
    ) -> Result<Self, CallError> {
        let value = format!("{detail}@{}", now());
        subject.annotate(&guard.api_server, &format!("{PREFIX}/{action}"), Some(&value), version).await?;
        Ok(Self { subject, action, value })
    }

    pub(crate) fn value(&self) -> &str {
        &self.value
    }

    /// Returns the answers that exist, the oldest first. Reads core Events, which the role `view` permits.
    pub(crate) async fn answers(&self, guard: &GuardClient) -> Result<Vec<Answer>, CallError> {
        let Subject { kind, namespace, name } = self.subject;
        let fields = format!("involvedObject.kind={},involvedObject.name={name}", kind.as_str());
        let events = guard.api_server.namespaced::<Event>(namespace);
        let parameters = ListParams::default().fields(&fields);
        let mut events =
            guard.api_server.call("failed to list Events", events.list(&parameters)).await?.items;
        events.sort_by(|one, other| one.event_time.cmp(&other.event_time));
        Ok(events.iter().filter_map(|event| Answer::from_event(event, self.action, &self.value)).collect())
    }

    /// Returns the error for a guard that did not answer within a time. The last read of the Events may have failed.
    pub(crate) fn unanswered(&self, within: &str, failure: Option<&CallError>) -> anyhow::Error {
        let Self { subject: Subject { kind, namespace, name }, action, value } = self;
        let failure = failure.map(|failure| format!(" ({failure})")).unwrap_or_default();
        anyhow::anyhow!(
            "the guard did not answer the annotation {PREFIX}/{action}={value} of {} {namespace}/{name} within \
             {within}{failure}; check the guard, and the clock of this machine: kubectl etcd-guard doctor",
            kind.as_str()
        )
    }
}

// === impl Answer ===

impl Answer {
    /// Returns the answer in this Event, if the Event answers the request with this value.
    fn from_event(event: &Event, action: &str, value: &str) -> Option<Self> {
        let text = event.message.as_deref()?.strip_prefix(&format!("{action} {value}: "))?;
        Some(Self { reason: event.reason.clone()?, text: to_bounded_line(text, MAX_TEXT_CHARS) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answer_has_the_exact_value_of_the_request() {
        let value = "etcd-1@2026-11-24T06:00:00Z";
        let note = format!("move-leader {value}: etcd-1 leads prod/etcd");
        let event =
            Event { reason: Some(String::from("LeaderMoved")), message: Some(note), ..Event::default() };
        let answer = Answer::from_event(&event, "move-leader", value).unwrap();
        assert_eq!((answer.reason.as_str(), answer.text.as_str()), ("LeaderMoved", "etcd-1 leads prod/etcd"));
        assert_eq!(Answer::from_event(&event, "move-leader", "@2026-11-24T06:00:00Z"), None);
        assert_eq!(Answer::from_event(&event, "defragment", value), None);
    }

    #[test]
    fn a_request_may_require_a_version() {
        let metadata = |version| patch("etcd-guard.io/replace", Some("a@b"), version)["metadata"].clone();
        let annotations = json!({"etcd-guard.io/replace": "a@b"});
        assert_eq!(metadata(Some("7")), json!({"annotations": annotations, "resourceVersion": "7"}));
        assert_eq!(metadata(None), json!({"annotations": annotations}));
    }

    #[test]
    fn subject_is_the_stateful_set_of_a_pod() {
        let owner = json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "etcd", "uid": "1", "controller": true});
        let pod = serde_json::from_value(json!({"metadata": {"ownerReferences": [owner]}})).unwrap();
        assert_eq!(Subject::of_pod("prod", "etcd-1", &pod), Subject::stateful_set("prod", "etcd"));
        let bare = Subject::of_pod("prod", "etcd-1", &Pod::default());
        assert_eq!((bare.kind, bare.name.as_str()), (SubjectKind::Pod, "etcd-1"));
    }
}
