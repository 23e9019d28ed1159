//! The watches, with a fake API server.

use std::sync::Mutex;

use serde_json::{Value, json};
use tokio::time::sleep;

use super::*;
use crate::fake;

/// The longest wait for a change, on a busy machine.
const WAIT: Duration = Duration::from_secs(30);

const LEADER: &str = "etcd-guard.io/leader";

/// A namespace that is guarded, and a StatefulSet in each namespace. It selects namespaces as the API server does.
#[derive(Clone, Default)]
struct Server {
    /// Whether the lists of namespaces fail.
    fails_namespaces: Arc<Mutex<bool>>,
    /// Calls of lists of StatefulSets, by path.
    lists: Arc<Mutex<Vec<String>>>,
    /// Whether the lists of StatefulSets succeed.
    has_stateful_sets: Arc<Mutex<bool>>,
    /// The event that the next watch of namespaces delivers.
    namespace_event: Arc<Mutex<Option<Value>>>,
}

impl Server {
    fn cache(&self) -> AnnotationCache {
        let Self { fails_namespaces, lists, has_stateful_sets, namespace_event } = self.clone();
        let client = fake::api_server_with(move |call, _| {
            let query = call.uri.query().unwrap_or_default();
            let is_watch = query.contains("watch=true");
            if call.uri.path() == "/api/v1/namespaces" {
                assert!(query.contains("labelSelector=example.com%2Fguard%3Dyes"), "{query}");
            }
            match (call.uri.path(), is_watch) {
                ("/api/v1/namespaces", false) if *fails_namespaces.lock().unwrap() => {
                    (500, fake::status_failure(500, "not now"))
                }
                ("/api/v1/namespaces", false) => {
                    (200, json!({"metadata": {"resourceVersion": "1"}, "items": [namespace("prod")]}))
                }
                ("/api/v1/namespaces", true) => {
                    (200, namespace_event.lock().unwrap().take().unwrap_or(json!(null)))
                }
                (_, true) => (200, json!(null)),
                (path, false) => {
                    lists.lock().unwrap().push(path.to_owned());
                    if !*has_stateful_sets.lock().unwrap() {
                        return (500, fake::status_failure(500, "not now"));
                    }
                    let set = json!({"metadata": {"name": "etcd", "uid": "set", "annotations": {LEADER: "deny", "a": "b"}}});
                    (200, json!({"metadata": {"resourceVersion": "1"}, "items": [set]}))
                }
            }
        });
        AnnotationCache::watch(&client, "example.com/guard=yes".parse().unwrap())
    }

    fn serve_stateful_sets(&self) {
        *self.has_stateful_sets.lock().unwrap() = true;
    }
}

fn namespace(name: &str) -> Value {
    json!({"metadata": {"name": name, "annotations": {LEADER: "transfer", "large": "x"}}})
}

async fn until(is_so: impl Fn() -> bool) {
    let poll = async {
        while !is_so() {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(WAIT, poll).await.unwrap();
}

#[tokio::test]
async fn stores_only_what_is_read_of_guarded_namespaces() {
    let server = Server::default();
    server.serve_stateful_sets();
    let cache = server.cache();
    assert!(cache.wait_until_synced().await);
    assert!(cache.is_known("prod"));
    assert_eq!(*cache.guarded_namespaces().borrow(), BTreeSet::from([String::from("prod")]));
    let annotations = |value: &str| BTreeMap::from([(String::from(LEADER), String::from(value))]);
    assert_eq!(cache.namespace_annotations("prod"), annotations("transfer"));
    assert_eq!(cache.stateful_set_annotations("prod", "etcd"), annotations("deny"));
    assert_eq!(cache.stateful_set_by_pod_name("prod", "etcd-2"), Some(("etcd".into(), "set".into())));
    assert!(cache.namespace_annotations("other").is_empty());
    // The pods of guarded namespaces are listed at the same time, for requests to move leadership.
    let lists = server.lists.lock().unwrap();
    assert!(lists.iter().any(|path| path == "/apis/apps/v1/namespaces/prod/statefulsets"), "{lists:?}");
    assert!(lists.iter().all(|path| path.contains("/namespaces/prod/")), "{lists:?}");
}

#[tokio::test]
async fn policies_of_an_unlisted_namespace_are_unknown() {
    let server = Server::default();
    let cache = server.cache();
    until(|| cache.is_guarded("prod")).await;
    assert!(!cache.is_known("prod"));
    assert!(cache.may_have_stateful_set_of_pod("prod", "other-0"));
    until(|| cache.is_known("other")).await;
    assert!(!cache.may_have_stateful_set_of_pod("other", "etcd-0"));
    assert!(cache.stateful_set_versions(&BTreeSet::from([String::from("prod")])).is_empty());
    let failure = timeout(WAIT, cache.wait_until_known("prod")).await.unwrap().unwrap_err();
    assert_eq!(failure.to_string(), "reading the StatefulSets of namespace prod failed: not now");
    server.serve_stateful_sets();
    until(|| cache.is_known("prod")).await;
    cache.wait_until_known("prod").await.unwrap();
    assert!(cache.may_have_stateful_set_of_pod("prod", "etcd-0"));
    assert!(!cache.may_have_stateful_set_of_pod("prod", "other-0"));
    assert_eq!(cache.stateful_set_annotations("prod", "etcd")[LEADER], "deny");
}

#[tokio::test]
async fn policies_are_unknown_until_the_namespaces_are_listed() {
    let server = Server::default();
    server.serve_stateful_sets();
    *server.fails_namespaces.lock().unwrap() = true;
    let cache = server.cache();
    assert!(!cache.is_known("prod"));
    // A namespace without the label is unknown as well: the list decides which namespaces have it.
    assert!(!cache.is_known("other"));
    let (waiting, other) = (cache.clone(), cache.clone());
    let mut known = tokio::spawn(async move { waiting.wait_until_known("prod").await });
    let other = tokio::spawn(async move { other.wait_until_known("other").await });
    assert!(timeout(Duration::from_millis(200), &mut known).await.is_err(), "the wait ended before the list");
    *server.fails_namespaces.lock().unwrap() = false;
    timeout(WAIT, known).await.unwrap().unwrap().unwrap();
    timeout(WAIT, other).await.unwrap().unwrap().unwrap();
    assert_eq!(cache.namespace_annotations("prod")[LEADER], "transfer");
    assert_eq!(cache.stateful_set_annotations("prod", "etcd")[LEADER], "deny");
}

#[tokio::test]
async fn namespaces_become_guarded_and_unguarded_by_events() {
    let server = Server::default();
    server.serve_stateful_sets();
    let cache = server.cache();
    assert!(cache.wait_until_synced().await);
    let send = |event: &str, namespace: Value| {
        *server.namespace_event.lock().unwrap() = Some(json!({"type": event, "object": namespace}));
    };
    send("ADDED", namespace("other"));
    until(|| cache.guarded_namespaces().borrow().contains("other")).await;
    timeout(WAIT, cache.wait_until_known("other")).await.unwrap().unwrap();
    assert_eq!(cache.stateful_set_annotations("other", "etcd")[LEADER], "deny");
    send("DELETED", namespace("prod"));
    until(|| !cache.guarded_namespaces().borrow().contains("prod")).await;
    until(|| cache.stateful_set_annotations("prod", "etcd").is_empty()).await;
    assert!(cache.namespace_annotations("prod").is_empty());
}
