//! Moves of leadership by annotation: the guard acts with its own credentials for etcd, and answers with an Event.
//!
//! The value of the annotation is `POD@TIME`: the pod that shall lead, or nothing for the best voter, and the time of the
//! request, which makes each request unique. The note of the Event begins with `move-leader POD@TIME: `.

use std::{cmp::Reverse, time::Duration};

use k8s_openapi::api::{
    apps::v1::StatefulSet,
    core::v1::{Event, Pod},
};
use kube::api::{ListParams, Patch, PatchParams};
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::now;
use crate::{api_server::CallError, guard_client::GuardClient};
use etcd_guard_api::{ClusterStatus, Role};
use etcd_guard_core::escape::{MAX_TEXT_CHARS, to_bounded_line};

/// The annotation of a request.
pub(crate) const MOVE_LEADER: &str = "etcd-guard.io/move-leader";

/// The reason of the Event about a completed move.
const MOVED: &str = "LeaderMoved";

/// The reasons of the Events about a move that did not take place.
const NOT_MOVED: [&str; 2] = ["LeaderMoveFailed", "LeaderMoveRejected"];

/// Time for the answer to one request in the course of a restart. The guard acts within 5 s.
pub(crate) const HANDOVER_TIMEOUT: Duration = Duration::from_secs(15);

/// Pause after a move of leadership that failed. Meanwhile the eviction of the leader is attempted.
pub(crate) const HANDOVER_INTERVAL: Duration = Duration::from_secs(30);

/// Pause between two reads of the Events.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

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

/// The answer of the guard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    /// Whether leadership is where the request wants it.
    pub(crate) is_moved: bool,
    /// The reason of the Event.
    pub(crate) reason: String,
    /// The note without its prefix.
    pub(crate) text: String,
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

    /// Returns the StatefulSet that controls the pod, or the pod.
    pub(crate) fn of_pod(namespace: &str, name: &str, pod: &Pod) -> Self {
        let mut owners = pod.metadata.owner_references.iter().flatten();
        let set = owners
            .find(|owner| owner.kind == SubjectKind::StatefulSet.as_str() && owner.controller == Some(true));
        match set {
            Some(set) => Self::stateful_set(namespace, &set.name),
            None => Self { kind: SubjectKind::Pod, namespace: namespace.to_owned(), name: name.to_owned() },
        }
    }
}

/// Requests a move of leadership, and waits for the answer of the guard.
pub(crate) async fn move_leader(
    guard: &GuardClient,
    subject: &Subject,
    to: Option<&str>,
    timeout: Duration,
) -> anyhow::Result<Answer> {
    let value = format!("{}@{}", to.unwrap_or_default(), now());
    annotate(guard, subject, &value).await?;
    let deadline = Instant::now() + timeout;
    loop {
        let cause = match answer(guard, subject, &value).await {
            Ok(Some(answer)) => return Ok(answer),
            Ok(None) => None,
            Err(cause) => Some(cause),
        };
        if Instant::now() >= deadline {
            let Subject { kind, namespace, name } = subject;
            let cause = cause.map(|cause| format!(" ({cause})")).unwrap_or_default();
            anyhow::bail!(
                "the guard did not answer the annotation {MOVE_LEADER}={value} of {} {namespace}/{name} within \
                 {}{cause}; check the guard, and the clock of this machine: kubectl etcd-guard doctor",
                kind.as_str(),
                crate::durations::text(timeout)
            );
        }
        sleep(POLL_INTERVAL).await;
    }
}

async fn annotate(guard: &GuardClient, subject: &Subject, value: &str) -> anyhow::Result<()> {
    let Subject { kind, namespace, name } = subject;
    let patch = Patch::Merge(json!({"metadata": {"annotations": {MOVE_LEADER: value}}}));
    let parameters = PatchParams::default();
    let operation = format!("failed to annotate {} {namespace}/{name}", kind.as_str());
    match kind {
        SubjectKind::StatefulSet => {
            let sets = guard.api_server.namespaced::<StatefulSet>(namespace);
            guard.api_server.call(operation, sets.patch(name, &parameters, &patch)).await?;
        }
        SubjectKind::Pod => {
            let pods = guard.api_server.namespaced::<Pod>(namespace);
            guard.api_server.call(operation, pods.patch(name, &parameters, &patch)).await?;
        }
    }
    Ok(())
}

/// Returns the answer to the request with this value, once it exists. Reads core Events, which the role `view` permits.
async fn answer(guard: &GuardClient, subject: &Subject, value: &str) -> Result<Option<Answer>, CallError> {
    let Subject { kind, namespace, name } = subject;
    let fields = format!("involvedObject.kind={},involvedObject.name={name}", kind.as_str());
    let events = guard.api_server.namespaced::<Event>(namespace);
    let parameters = ListParams::default().fields(&fields);
    let events = guard.api_server.call("failed to list Events", events.list(&parameters)).await?;
    let answers: Vec<Answer> =
        events.items.iter().filter_map(|event| Answer::from_event(event, value)).collect();
    // Another replica may have failed before it recorded the request. Its answer can precede that of the replica that moved
    // leadership.
    let moved = answers.iter().find(|answer| answer.is_moved);
    Ok(moved.or(answers.first()).cloned())
}

// === impl Answer ===

impl Answer {
    /// Returns the answer in this Event, if the Event answers the request with this value.
    fn from_event(event: &Event, value: &str) -> Option<Self> {
        let reason = event.reason.as_deref()?;
        if reason != MOVED && !NOT_MOVED.contains(&reason) {
            return None;
        }
        let text = event.message.as_deref()?.strip_prefix(&format!("move-leader {value}: "))?;
        let text = to_bounded_line(text, MAX_TEXT_CHARS);
        Some(Self { is_moved: reason == MOVED, reason: reason.to_owned(), text })
    }
}

/// Returns the pod that shall lead: the serving voter that qualifies and has applied most raft entries. Of equal ones, the one
/// with the highest member id is chosen, because ids are hashes. The guard has the same order, and cannot know which members
/// a restart has replaced: the template of the StatefulSet is the same.
pub(crate) fn transferee(cluster: &ClusterStatus, qualifies: impl Fn(&str) -> bool) -> Option<&str> {
    let voters = cluster
        .members
        .iter()
        .filter(|member| member.role == Role::Follower && member.serving && member.leaving.is_none());
    let candidates = voters.filter_map(|member| {
        let rank = (Reverse(member.lag.unwrap_or(u64::MAX)), &member.id);
        member.pod.as_deref().filter(|pod| qualifies(pod)).map(|pod| (rank, pod))
    });
    candidates.max().map(|(_, pod)| pod)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::maintenance::health::tests::cluster;

    fn event(reason: &str, note: &str) -> Event {
        Event { reason: Some(reason.to_owned()), message: Some(note.to_owned()), ..Event::default() }
    }

    #[test]
    fn answer_has_the_exact_value_of_the_request() {
        let value = "etcd-1@2026-11-24T06:00:00Z";
        let note = format!("move-leader {value}: etcd-1 leads prod/etcd");
        let answer = Answer::from_event(&event("LeaderMoved", &note), value).unwrap();
        assert_eq!((answer.is_moved, answer.text.as_str()), (true, "etcd-1 leads prod/etcd"));
        for reason in NOT_MOVED {
            assert!(!Answer::from_event(&event(reason, &note), value).unwrap().is_moved);
        }
        assert_eq!(Answer::from_event(&event("LeaderMoved", &note), "@2026-11-24T06:00:00Z"), None);
        assert_eq!(Answer::from_event(&event("LeaderProtected", &note), value), None);
    }

    #[test]
    fn transferee_is_the_most_advanced_voter_that_qualifies() {
        let mut cluster = cluster();
        cluster.members[1].lag = Some(7);
        assert_eq!(transferee(&cluster, |_| true), Some("etcd-2"));
        assert_eq!(transferee(&cluster, |pod| pod != "etcd-2"), Some("etcd-1"));
        cluster.members[2].lag = Some(7);
        cluster.members[1].id = Some(String::from("ff"));
        cluster.members[2].id = Some(String::from("0f"));
        assert_eq!(transferee(&cluster, |_| true), Some("etcd-1"), "of equal ones, that with the highest id");
        cluster.members[2].lag = None;
        assert_eq!(transferee(&cluster, |_| true), Some("etcd-1"), "the lag of etcd-2 is unknown");
        cluster.members[1].serving = false;
        assert_eq!(transferee(&cluster, |pod| pod != "etcd-2"), None);
        assert_eq!(transferee(&cluster, |pod| pod == "etcd-0"), None, "the leader");
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
