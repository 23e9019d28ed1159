//! The HTTP interface of the API server, as a service that a replica's client calls.

use std::{convert::Infallible, time::Duration};

use bytes::Bytes;
use futures::stream;
use http::{Request, Response};
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::Frame;
use kube::{Client, client::Body};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::store::{Key, Rejected, key};
use crate::world::{PHASES, Sim, World};

/// Interval at which a watch call searches for changes.
const WATCH_INTERVAL: Duration = Duration::from_millis(62 * PHASES);

/// Time between a bookmark and the end of a watch call.
const BOOKMARK_TIME: Duration = Duration::from_secs(2);

/// The body of a response, which may be a stream.
type ResponseBody = UnsyncBoxBody<Bytes, Infallible>;

/// A call, from its path and its query.
struct Call {
    resource: String,
    namespace: Option<String>,
    name: Option<String>,
    query: String,
}

/// Returns a client for a replica. The calls of a replica that has crashed fail.
pub(crate) fn client(sim: &Sim, replica: usize, generation: u64) -> Client {
    let sim = sim.clone();
    let service = tower::service_fn(move |request: Request<Body>| {
        let sim = sim.clone();
        async move { Ok::<_, Infallible>(serve(&sim, replica, generation, request).await) }
    });
    Client::new(service, "etcd-guard")
}

async fn serve(sim: &Sim, replica: usize, generation: u64, request: Request<Body>) -> Response<ResponseBody> {
    let (parts, body) = request.into_parts();
    let body = body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    let query = parts.uri.query().unwrap_or_default().to_owned();
    // kube derives the names of events from the clock of the machine. Versions depend on the order of writes at an instant.
    let path = if parts.uri.path().contains("/events") { "events" } else { parts.uri.path() };
    let call_name = format!(
        "{replica} {} {path} {}",
        parts.method,
        query.split("&resourceVersion=").next().unwrap_or_default()
    );
    let most = sim.world().faults.api_delay;
    sim.pause_call(replica, &call_name, 1..=most).await;
    if sim.world().scenario.generations[replica] != generation {
        // The tasks of a replica that has crashed have no effect.
        return unavailable();
    }
    if sim.world().faults.api_down_until.is_some_and(|until| until > Instant::now()) {
        return unavailable();
    }
    let Some(call) = Call::parse(parts.uri.path(), query) else {
        return json_response(200, &json!({"major": "1", "minor": "34"}));
    };
    if call.query.contains("watch=true") {
        return watch(sim.clone(), replica, call);
    }
    let (response, is_lost) = {
        let mut world = sim.world();
        let (status, value) = respond(&mut world, replica, parts.method.as_str(), &call, &body);
        let is_write = parts.method != http::Method::GET;
        let lost = world.faults.lost_responses;
        let is_lost = is_write && world.call_number(&call_name, 0..=99) < u64::from(lost);
        if is_write && call.resource == "leases" {
            let name = call.name.clone().unwrap_or_default();
            world.note(&format!("api: replica {replica} {} {name}: {status}", parts.method));
        }
        (json_response(status, &value), is_lost)
    };
    sim.pause_call(replica, &call_name, 1..=3).await;
    if is_lost {
        // The connection breaks without a response: the client waits until its timeout.
        return std::future::pending().await;
    }
    response
}

fn respond(world: &mut World, replica: usize, method: &str, call: &Call, body: &Value) -> (u16, Value) {
    let namespace = call.namespace.clone().unwrap_or_default();
    match (method, &call.name) {
        ("GET", Some(name)) => match world.store.get(&key(&call.resource, &namespace, name)) {
            Some(object) => (200, object.clone()),
            None => not_found(),
        },
        ("GET", None) => {
            let from_cache = call.query.contains("resourceVersion=0");
            let lag = world.faults.watch_lag[replica];
            let namespace = call.namespace.as_deref();
            let objects: Vec<Value> = if from_cache {
                world.store.list_stale(&call.resource, namespace, lag)
            } else {
                world.store.list(&call.resource, namespace).cloned().collect()
            };
            let items: Vec<Value> = objects.into_iter().filter(|object| call.selects(object)).collect();
            let version = world.store.version().to_string();
            (200, json!({"metadata": {"resourceVersion": version}, "items": items}))
        }
        // Events influence no verdict.
        _ if call.resource == "events" => (201, body.clone()),
        ("POST", _) => {
            let name = body["metadata"]["name"].as_str().unwrap_or_default();
            stored(world.store.create(key(&call.resource, &namespace, name), body.clone()), 201)
        }
        ("PUT", Some(name)) => {
            stored(world.store.replace(key(&call.resource, &namespace, name), body.clone()), 200)
        }
        ("DELETE", Some(name)) => {
            let version = body["preconditions"]["resourceVersion"].as_str();
            let removed = world.store.remove(&key(&call.resource, &namespace, name), version);
            stored(removed.map(|()| json!({"kind": "Status", "status": "Success"})), 200)
        }
        _ => (405, status_failure(405, "MethodNotAllowed", "not simulated")),
    }
}

fn stored(result: Result<Value, Rejected>, success: u16) -> (u16, Value) {
    match result {
        Ok(object) => (success, object),
        Err(Rejected::NotFound) => not_found(),
        Err(Rejected::Conflict) => (409, status_failure(409, "Conflict", "the object has been modified")),
        Err(Rejected::AlreadyExists) => {
            (409, status_failure(409, "AlreadyExists", "the object already exists"))
        }
    }
}

fn not_found() -> (u16, Value) {
    (404, status_failure(404, "NotFound", "not found"))
}

fn status_failure(code: u16, reason: &str, message: &str) -> Value {
    json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "reason": reason, "code": code,
    })
}

fn unavailable() -> Response<ResponseBody> {
    json_response(503, &status_failure(503, "ServiceUnavailable", "the API server is restarting"))
}

fn json_response(status: u16, value: &Value) -> Response<ResponseBody> {
    let body = Full::from(value.to_string()).boxed_unsync();
    Response::builder().status(status).header("content-type", "application/json").body(body).unwrap()
}

/// Streams the changes after a version, each with the delay of the replica's watches, until the call ends.
fn watch(sim: Sim, replica: usize, call: Call) -> Response<ResponseBody> {
    let after = call.parameter("resourceVersion").and_then(|version| version.parse().ok()).unwrap_or(0);
    let seconds = call.parameter("timeoutSeconds").and_then(|seconds| seconds.parse().ok()).unwrap_or(30);
    let end = Instant::now() + Duration::from_secs(seconds);
    let first = after;
    let state = (sim, call, after, false);
    let events = stream::unfold(state, move |(sim, call, after, has_bookmark)| async move {
        loop {
            let (lines, seen) = {
                let world = sim.world();
                let lag = world.faults.watch_lag[replica];
                let namespace = call.namespace.as_deref();
                let (changes, seen) = world.store.changes(&call.resource, namespace, after, lag);
                let lines: Vec<String> = changes
                    .into_iter()
                    .map(|change| format!("{}\n", json!({"type": change.kind, "object": change.object})))
                    .collect();
                (lines.concat(), seen)
            };
            if !lines.is_empty() {
                let frame = Frame::data(Bytes::from(lines));
                return Some((Ok::<_, Infallible>(frame), (sim, call, seen, has_bookmark)));
            }
            // As the API server does shortly before the end of a call with events.
            if !has_bookmark && after > first && Instant::now() + BOOKMARK_TIME >= end {
                let object =
                    json!({"kind": "", "apiVersion": "", "metadata": {"resourceVersion": after.to_string()}});
                let frame =
                    Frame::data(Bytes::from(format!("{}\n", json!({"type": "BOOKMARK", "object": object}))));
                return Some((Ok(frame), (sim, call, after, true)));
            }
            let is_down = sim.world().faults.api_down_until.is_some_and(|until| until > Instant::now());
            if Instant::now() >= end || is_down {
                return None;
            }
            sleep(WATCH_INTERVAL).await;
        }
    });
    Response::new(StreamBody::new(events).boxed_unsync())
}

// === impl Call ===

impl Call {
    /// Reads a path such as `/apis/apps/v1/namespaces/prod/statefulsets/etcd`. Returns `None` for `/version`.
    fn parse(path: &str, query: String) -> Option<Self> {
        let segments: Vec<&str> = path.trim_matches('/').split('/').collect();
        let (["api", _, rest @ ..] | ["apis", _, _, rest @ ..]) = segments.as_slice() else { return None };
        let text = |segment: &&str| (*segment).to_owned();
        let (namespace, rest) = match rest {
            ["namespaces", namespace, rest @ ..] if !rest.is_empty() => (Some(namespace), rest),
            rest => (None, rest),
        };
        let namespace = namespace.map(text);
        Some(Self { resource: rest.first().map(text)?, namespace, name: rest.get(1).map(text), query })
    }

    fn parameter(&self, name: &str) -> Option<&str> {
        self.query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
    }

    /// Whether the selectors of the call select an object.
    fn selects(&self, object: &Value) -> bool {
        let decode = |text: &str| text.replace("%3D", "=").replace("%2F", "/");
        let labels = self.parameter("labelSelector").map(decode);
        let has_label = labels.is_none_or(|selector| {
            let (name, value) = selector.split_once('=').unwrap();
            object["metadata"]["labels"][name] == value
        });
        let fields = self.parameter("fieldSelector").map(decode);
        has_label
            && fields.is_none_or(|selector| {
                let (path, value) = selector.split_once('=').unwrap();
                path.split('.').fold(object, |object, part| &object[part]) == value
            })
    }
}

/// Returns the key of a pod.
pub(crate) fn pod_key(namespace: &str, name: &str) -> Key {
    key("pods", namespace, name)
}
