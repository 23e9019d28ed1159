//! The watches of namespaces, with a fake API server.

use std::{
    convert::Infallible,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::{StreamExt, stream};
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::{Bytes, Frame};
use kube::client::Body;
use prometheus_client::{encoding::text::encode, registry::Registry};
use serde_json::{Value, json};
use tokio::{
    sync::broadcast,
    time::{Instant, sleep, timeout_at},
};

use super::{
    super::watching::{CallLimits, watch_restarts},
    *,
};

/// A fake API server: each namespace has a StatefulSet `etcd` of version 10, and lists have the version 20.
struct Server {
    /// Paths of lists, in the order of their calls.
    lists: Mutex<Vec<String>>,
    /// Paths of watch calls.
    watches: Mutex<Vec<String>>,
    open_watches: AtomicUsize,
    max_open_watches: AtomicUsize,
    /// Watch calls that have no response yet.
    starting: AtomicUsize,
    max_starting: AtomicUsize,
    /// The time until a watch call has a response.
    start_time: Duration,
    /// The time until a list has a response.
    list_time: Duration,
    /// Whether lists fail, also those that read a version.
    fails: AtomicBool,
    /// Whether calls of watches end after a second.
    ends_early: AtomicBool,
    /// Events that open watches deliver.
    events: broadcast::Sender<Value>,
}

/// The path of the objects of all namespaces.
const ALL: &str = "/apis/apps/v1/statefulsets";

type Response = http::Response<UnsyncBoxBody<Bytes, Infallible>>;

/// Closes a watch when its response is dropped.
struct OpenWatch(Arc<Server>);

impl Drop for OpenWatch {
    fn drop(&mut self) {
        self.0.open_watches.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Server {
    fn new(start_time: Duration, list_time: Duration) -> Arc<Self> {
        Arc::new(Self {
            lists: Mutex::default(),
            watches: Mutex::default(),
            open_watches: AtomicUsize::new(0),
            max_open_watches: AtomicUsize::new(0),
            starting: AtomicUsize::new(0),
            max_starting: AtomicUsize::new(0),
            start_time,
            list_time,
            fails: AtomicBool::new(false),
            ends_early: AtomicBool::new(false),
            events: broadcast::channel(100).0,
        })
    }

    /// Starts the watches of this number of namespaces. The sender changes the guarded namespaces.
    fn watch(self: &Arc<Self>, namespaces: usize) -> (NamespaceWatches, watch::Sender<BTreeSet<String>>) {
        self.watch_resource("statefulsets", namespaces)
    }

    fn watch_resource(
        self: &Arc<Self>,
        name: &'static str,
        namespaces: usize,
    ) -> (NamespaceWatches, watch::Sender<BTreeSet<String>>) {
        let server = Arc::clone(self);
        let service = tower::service_fn(move |request| {
            let server = Arc::clone(&server);
            async move { Ok::<_, Infallible>(server.respond(request).await) }
        });
        let resource = Resource {
            group: "/apis/apps/v1",
            name,
            kind: "StatefulSets",
            reduce: Some,
            // Tests must not wait for each other.
            limits: Box::leak(Box::new(CallLimits::new())),
        };
        let (guarded, receiver) = watch::channel(names(namespaces));
        (NamespaceWatches::start(&Client::new(service, "default"), resource, receiver), guarded)
    }

    async fn respond(self: Arc<Self>, request: http::Request<Body>) -> Response {
        let path = request.uri().path().to_owned();
        let query = request.uri().query().unwrap_or_default().to_owned();
        if query.contains("watch=true") {
            return self.respond_to_watch(path).await;
        }
        self.lists.lock().unwrap().push(path.clone());
        sleep(self.list_time).await;
        if self.fails.load(Ordering::Relaxed) {
            let failure = json!({"kind": "Status", "status": "Failure", "message": "not now", "code": 500});
            let response = http::Response::builder().status(500);
            return response.body(Full::from(failure.to_string()).boxed_unsync()).unwrap();
        }
        let mut set = json!({"metadata": {"name": "etcd", "resourceVersion": "10"}});
        if path == ALL {
            assert!(query.contains("limit=1"), "{query}");
            // Larger than an object that is buffered.
            set["metadata"]["annotations"] = json!({"large": "x".repeat(9 << 20)});
        }
        let list = json!({"metadata": {"resourceVersion": "20", "continue": "more"}, "items": [set]});
        let list = if path == ALL { list.to_string() } else { list.to_string().replace("more", "") };
        http::Response::new(Full::from(list).boxed_unsync())
    }

    /// Responds with the events of the next 30 s.
    async fn respond_to_watch(self: Arc<Self>, path: String) -> Response {
        self.watches.lock().unwrap().push(path.clone());
        let starting = self.starting.fetch_add(1, Ordering::Relaxed) + 1;
        self.max_starting.fetch_max(starting, Ordering::Relaxed);
        sleep(self.start_time).await;
        self.starting.fetch_sub(1, Ordering::Relaxed);
        let open = self.open_watches.fetch_add(1, Ordering::Relaxed) + 1;
        self.max_open_watches.fetch_max(open, Ordering::Relaxed);
        let seconds = if self.ends_early.load(Ordering::Relaxed) { 1 } else { 30 };
        let state = (self.events.subscribe(), Instant::now() + Duration::from_secs(seconds), OpenWatch(self));
        let lines = stream::unfold(state, move |(mut events, end, open)| {
            let path = path.clone();
            async move {
                loop {
                    let event = timeout_at(end, events.recv()).await.ok()?.ok()?;
                    let namespace = event["object"]["metadata"]["namespace"].as_str();
                    let is_received = namespace
                        .is_none_or(|namespace| path == ALL || path.contains(&format!("/{namespace}/")));
                    if is_received {
                        return Some((format!("{event}\n"), (events, end, open)));
                    }
                }
            }
        });
        let frames = lines.map(|line| Ok::<_, Infallible>(Frame::data(Bytes::from(line))));
        http::Response::new(StreamBody::new(frames).boxed_unsync())
    }

    fn send(&self, event: &str, namespace: &str, version: u64) {
        let metadata =
            json!({"namespace": namespace, "name": "etcd", "resourceVersion": version.to_string()});
        self.events.send(json!({"type": event, "object": {"metadata": metadata}})).unwrap();
    }

    fn lists_of(&self, namespace: &str) -> usize {
        let path = format!("/apis/apps/v1/namespaces/{namespace}/statefulsets");
        self.lists.lock().unwrap().iter().filter(|list| **list == path).count()
    }
}

fn names(count: usize) -> BTreeSet<String> {
    (0..count).map(|number| format!("namespace-{number}")).collect()
}

fn version(watches: &NamespaceWatches, namespace: &str) -> Option<String> {
    watches.get_current(namespace, "etcd").map(|object| object.resource_version.clone())
}

#[tokio::test(start_paused = true)]
async fn few_watch_calls_start_at_the_same_time() {
    let server = Server::new(Duration::from_secs(1), Duration::ZERO);
    let (_watches, _guarded) = server.watch(MAX_OWN_WATCHES);
    sleep(Duration::from_secs(20)).await;
    assert_eq!(server.max_starting.load(Ordering::Relaxed), 8);
    assert_eq!(server.open_watches.load(Ordering::Relaxed), MAX_OWN_WATCHES);
}

#[tokio::test(start_paused = true)]
async fn few_namespaces_have_watches_of_their_own() {
    let server = Server::new(Duration::ZERO, Duration::ZERO);
    let (watches, _guarded) = server.watch(3);
    sleep(Duration::from_secs(5)).await;
    assert_eq!(server.open_watches.load(Ordering::Relaxed), 3);
    let paths = server.watches.lock().unwrap().clone();
    assert!(paths.iter().all(|path| path.starts_with("/apis/apps/v1/namespaces/")), "{paths:?}");
    assert_eq!(version(&watches, "namespace-2").as_deref(), Some("10"));
}

#[tokio::test(start_paused = true)]
async fn many_namespaces_share_one_watch() {
    let server = Server::new(Duration::ZERO, Duration::ZERO);
    let (watches, guarded) = server.watch(100);
    sleep(Duration::from_secs(5)).await;
    assert!(names(100).iter().all(|name| version(&watches, name).as_deref() == Some("10")));
    server.send("MODIFIED", "namespace-7", 21);
    server.send("DELETED", "namespace-8", 22);
    server.send("MODIFIED", "namespace-9", 19);
    server.send("ADDED", "other", 23);
    // Several watch calls.
    sleep(Duration::from_secs(100)).await;
    assert_eq!(version(&watches, "namespace-7").as_deref(), Some("21"));
    assert_eq!(version(&watches, "namespace-8"), None, "it was deleted");
    assert_eq!(version(&watches, "namespace-9").as_deref(), Some("10"), "the list is newer than the event");
    assert_eq!(watches.last_known("other").len(), 0, "it is not guarded");

    guarded.send_modify(|names| {
        names.insert(String::from("other"));
        names.remove("namespace-7");
    });
    sleep(Duration::from_secs(5)).await;
    assert_eq!(version(&watches, "other").as_deref(), Some("10"));
    assert_eq!(version(&watches, "namespace-7"), None);
    assert_eq!(server.max_open_watches.load(Ordering::Relaxed), 1);
    assert!(server.watches.lock().unwrap().len() > 3, "the watch continues");
    assert!(server.watches.lock().unwrap().iter().all(|path| path == ALL));
    for name in names(100).iter().map(String::as_str).chain(["other"]) {
        assert_eq!(server.lists_of(name), 1, "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn objects_remain_known_when_the_watch_becomes_shared() {
    let server = Server::new(Duration::ZERO, Duration::from_secs(1));
    let (watches, guarded) = server.watch(MAX_OWN_WATCHES);
    sleep(Duration::from_secs(20)).await;
    server.send("MODIFIED", "namespace-1", 21);
    sleep(Duration::from_millis(10)).await;
    guarded.send_replace(names(MAX_OWN_WATCHES + 1));
    sleep(Duration::from_millis(10)).await;
    assert_eq!(version(&watches, "namespace-1"), None, "no watch runs");
    assert!(watches.is_listed("namespace-1"), "policies are known");
    assert_eq!(watches.get("namespace-1", "etcd").unwrap().resource_version, "21");
    sleep(Duration::from_secs(20)).await;
    assert_eq!(server.open_watches.load(Ordering::Relaxed), 1);
    assert!(names(MAX_OWN_WATCHES + 1).iter().all(|name| version(&watches, name).as_deref() == Some("10")));
}

#[tokio::test(start_paused = true)]
async fn failed_shared_watch_lists_every_namespace_again() {
    let server = Server::new(Duration::ZERO, Duration::ZERO);
    let (watches, _guarded) = server.watch(40);
    sleep(Duration::from_secs(5)).await;
    let status = json!({"kind": "Status", "status": "Failure", "message": "too old", "reason": "Expired", "code": 410});
    server.events.send(json!({"type": "ERROR", "object": status})).unwrap();
    sleep(Duration::from_millis(10)).await;
    assert_eq!(version(&watches, "namespace-1"), None, "changes can be missing");
    assert!(watches.is_listed("namespace-1"), "policies are known");
    sleep(Duration::from_secs(5)).await;
    assert_eq!(version(&watches, "namespace-1").as_deref(), Some("10"));
    assert!(names(40).iter().all(|name| server.lists_of(name) == 2));
}

#[tokio::test(start_paused = true)]
async fn restarts_of_a_watch_are_counted() {
    let restarts = || {
        let mut text = String::new();
        let mut registry = Registry::default();
        registry.register("restarts", "", watch_restarts());
        encode(&mut text, &registry).unwrap();
        let count =
            text.lines().find_map(|line| line.strip_prefix("restarts_total{resource=\"restarting\"} "));
        count.map(str::to_owned)
    };
    let server = Server::new(Duration::ZERO, Duration::ZERO);
    let (_watches, _guarded) = server.watch_resource("restarting", 1);
    // Several calls, which end by their own timeout.
    sleep(Duration::from_secs(100)).await;
    assert_eq!(restarts().as_deref(), Some("0"));
    let status = json!({"kind": "Status", "status": "Failure", "message": "too old", "reason": "Expired", "code": 410});
    server.events.send(json!({"type": "ERROR", "object": status})).unwrap();
    sleep(Duration::from_millis(10)).await;
    assert_eq!(restarts().as_deref(), Some("1"));
    server.fails.store(true, Ordering::Relaxed);
    sleep(Duration::from_secs(1)).await;
    assert_eq!(restarts().as_deref(), Some("2"), "the list failed");
}

#[tokio::test(start_paused = true)]
async fn urgent_list_does_not_wait_for_others() {
    let server = Server::new(Duration::ZERO, Duration::from_secs(10));
    let (watches, _guarded) = server.watch(100);
    // The read of the version takes 10 s as well. Eight lists begin.
    sleep(Duration::from_secs(11)).await;
    let waits = names(100).into_iter().find(|name| server.lists_of(name) == 0).unwrap();
    watches.hurry(&waits);
    sleep(Duration::from_millis(10)).await;
    assert_eq!(server.lists_of(&waits), 1);
    sleep(Duration::from_secs(10)).await;
    assert!(watches.is_listed(&waits));
}

#[tokio::test(start_paused = true)]
async fn failed_lists_of_a_shared_watch_are_repeated() {
    let server = Server::new(Duration::ZERO, Duration::ZERO);
    server.fails.store(true, Ordering::Relaxed);
    let (watches, guarded) = server.watch(40);
    sleep(Duration::from_secs(2)).await;
    let failure = watches.failure("namespace-1").unwrap().to_string();
    assert_eq!(failure, "reading the StatefulSets of all namespaces failed: not now");
    guarded.send_modify(|names| {
        names.insert(String::from("other"));
    });
    sleep(Duration::from_millis(10)).await;
    assert!(watches.failure("other").is_some(), "the failure precedes the namespace");
    server.fails.store(false, Ordering::Relaxed);
    sleep(Duration::from_secs(31)).await;
    assert!(watches.failure("namespace-1").is_none() && watches.failure("other").is_none());
    assert_eq!(version(&watches, "other").as_deref(), Some("10"));

    server.fails.store(true, Ordering::Relaxed);
    guarded.send_modify(|names| {
        names.insert(String::from("late"));
    });
    sleep(Duration::from_secs(2)).await;
    let failure = watches.failure("late").unwrap().to_string();
    assert_eq!(failure, "reading the StatefulSets of namespace late failed: not now");
    server.send("ADDED", "late", 21);
    server.fails.store(false, Ordering::Relaxed);
    sleep(Duration::from_secs(31)).await;
    assert_eq!(version(&watches, "late").as_deref(), Some("10"), "the last list contains earlier events");
}

#[tokio::test(start_paused = true)]
async fn event_during_a_list_is_applied_after_it() {
    let server = Server::new(Duration::ZERO, Duration::from_secs(1));
    let (watches, guarded) = server.watch(40);
    sleep(Duration::from_secs(20)).await;
    guarded.send_modify(|names| {
        names.insert(String::from("other"));
    });
    sleep(Duration::from_millis(500)).await;
    server.send("MODIFIED", "other", 21);
    sleep(Duration::from_millis(10)).await;
    assert!(!watches.is_listed("other"));
    sleep(Duration::from_secs(1)).await;
    assert_eq!(version(&watches, "other").as_deref(), Some("21"));
}

#[tokio::test(start_paused = true)]
async fn objects_are_not_current_after_a_call_that_ended_early() {
    let server = Server::new(Duration::ZERO, Duration::ZERO);
    let (watches, _guarded) = server.watch(40);
    server.ends_early.store(true, Ordering::Relaxed);
    sleep(Duration::from_millis(2500)).await;
    assert_eq!(version(&watches, "namespace-1"), None, "events can be late");
    assert!(watches.is_listed("namespace-1"));
    server.ends_early.store(false, Ordering::Relaxed);
    sleep(Duration::from_millis(1500)).await;
    assert_eq!(version(&watches, "namespace-1"), None);
    let metadata = json!({"resourceVersion": "30"});
    let bookmark = json!({"metadata": metadata, "kind": "StatefulSet", "apiVersion": "apps/v1"});
    server.events.send(json!({"type": "BOOKMARK", "object": bookmark})).unwrap();
    sleep(Duration::from_millis(10)).await;
    assert_eq!(version(&watches, "namespace-1").as_deref(), Some("10"));
    assert!(names(40).iter().all(|name| server.lists_of(name) == 1), "no list is repeated");
}

#[tokio::test(start_paused = true)]
async fn objects_are_current_again_after_time_without_events() {
    let server = Server::new(Duration::ZERO, Duration::ZERO);
    let (watches, _guarded) = server.watch(40);
    server.ends_early.store(true, Ordering::Relaxed);
    sleep(Duration::from_millis(1500)).await;
    assert_eq!(version(&watches, "namespace-1"), None);
    server.ends_early.store(false, Ordering::Relaxed);
    sleep(Duration::from_secs(5)).await;
    assert_eq!(version(&watches, "namespace-1").as_deref(), Some("10"));
}

#[tokio::test(start_paused = true)]
async fn calls_that_always_end_early_fail_the_watch() {
    let server = Server::new(Duration::ZERO, Duration::ZERO);
    let (watches, _guarded) = server.watch(40);
    server.ends_early.store(true, Ordering::Relaxed);
    sleep(Duration::from_secs(20)).await;
    assert!(watches.is_listed("namespace-1"), "policies are known");
    assert!(server.lists_of("namespace-1") > 1, "it is listed again");
}

#[tokio::test(start_paused = true)]
async fn waiting_evaluation_is_woken_when_its_namespace_has_an_entry() {
    for count in [3, 40] {
        let server = Server::new(Duration::ZERO, Duration::from_secs(10));
        let (watches, guarded) = server.watch(count);
        sleep(Duration::from_secs(5)).await;
        let mut listed = watches.listed();
        listed.borrow_and_update();
        guarded.send_modify(|names| {
            names.insert(String::from("other"));
        });
        sleep(Duration::from_millis(10)).await;
        assert!(listed.has_changed().unwrap(), "{count} namespaces");
    }
}

#[tokio::test(start_paused = true)]
async fn urgent_list_precedes_others_of_own_watches() {
    let server = Server::new(Duration::ZERO, Duration::from_secs(10));
    let (watches, _guarded) = server.watch(MAX_OWN_WATCHES);
    sleep(Duration::from_secs(1)).await;
    let waits = names(MAX_OWN_WATCHES).into_iter().find(|name| server.lists_of(name) == 0).unwrap();
    watches.hurry(&waits);
    sleep(Duration::from_millis(10)).await;
    assert_eq!(server.lists_of(&waits), 1);
}
