//! The whole program in front of real members, with a fake API server that has Secrets, claims and pods.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use axum::{
    Router,
    extract::{Request, State},
    http::StatusCode,
    response::{IntoResponse, Response},
};
use http::header;
use k8s_openapi::{ByteString, api::core::v1::Pod};
use serde_json::{Value, json};

use crate::cluster::{Cluster, START_TIMEOUT};
use test_support::{
    guard::{
        process::{ALL_NETWORKS, CONFIG, GuardProcess, SURVEY_INTERVAL},
        review::{deletion_review, dry_run_review, eviction_review, scale_down_review},
    },
    http_client::Connection,
    wait::wait_until,
};

/// Longer than a cached denial is used.
const CACHE_TTL: Duration = Duration::from_millis(600);

/// Reasons that do not last.
const LATE_REASONS: [&str; 2] = ["DeadlineExceeded", "ElectionInProgress"];

/// The texts of causes that do not last.
const LATE_CAUSES: [&str; 4] =
    ["no answer within", "did not pass within", "has no leader", "did not respond within"];

/// The path of the list of namespaces. By default, it contains only `prod`.
const NAMESPACES: &str = "/api/v1/namespaces";

/// The responses of the fake API server to GET requests, by path. Written objects are stored and returned, unless
/// writes fail; all other lists are empty.
#[derive(Clone, Default)]
pub(crate) struct Objects {
    known: Arc<Mutex<BTreeMap<String, (u16, Value)>>>,
    hides_label_from_watch: Arc<AtomicBool>,
    writes_fail: Arc<AtomicBool>,
    reads_wait: Arc<AtomicBool>,
}

/// A guard and its fake API server.
pub(crate) struct GuardedPods {
    guard: GuardProcess,
    pub(crate) objects: Objects,
    _files: tempfile::TempDir,
}

impl Objects {
    pub(crate) fn put(&self, path: &str, status: u16, object: Value) {
        self.known.lock().unwrap().insert(path.to_owned(), (status, object));
    }

    /// Changes the stored objects whose path contains this text.
    pub(crate) fn change(&self, path: &str, change: impl Fn(&mut Value)) {
        let mut known = self.known.lock().unwrap();
        let objects = known.iter_mut().filter(|(name, _)| name.contains(path));
        objects.for_each(|(_, (_, object))| change(object));
    }

    /// Sets whether writes fail.
    pub(crate) fn fail_writes(&self, fail: bool) {
        self.writes_fail.store(fail, Ordering::SeqCst);
    }

    /// Sets whether reads wait.
    pub(crate) fn hold_reads(&self, hold: bool) {
        self.reads_wait.store(hold, Ordering::SeqCst);
    }

    /// Serves the objects as long as the test runs.
    async fn serve(&self) -> SocketAddr {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new().fallback(respond).with_state(self.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        address
    }
}

async fn respond(State(objects): State<Objects>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let path = parts.uri.path().to_owned();
    if parts.uri.query().is_some_and(|query| query.contains("watch")) {
        std::future::pending::<()>().await;
    }
    while parts.method == http::Method::GET && objects.reads_wait.load(Ordering::SeqCst) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let hides_label = objects.hides_label_from_watch.load(Ordering::SeqCst);
    let known = if path == NAMESPACES && !hides_label {
        let known = objects.known.lock().unwrap().get(NAMESPACES).cloned();
        Some(known.unwrap_or_else(|| (200, guarded_namespaces(&["prod"]))))
    } else {
        let known = objects.known.lock().unwrap();
        if path.ends_with("/leases") {
            Some((200, list_of_leases(&known, &path, parts.uri.query().unwrap_or_default())))
        } else {
            known.get(&path).cloned()
        }
    };
    let (status, object) = if parts.method == http::Method::GET {
        // The default is an empty list, or "not found" for a single object.
        let is_object = ["/secrets/", "/configmaps/", "/persistentvolumeclaims/", "/leases/", "/pods/"]
            .iter()
            .any(|resource| path.contains(resource));
        let missing = json!({"kind": "Status", "status": "Failure", "message": "not found", "reason": "NotFound", "code": 404});
        let nothing = if is_object {
            (404, missing)
        } else {
            (200, json!({"metadata": {"resourceVersion": "1"}, "items": []}))
        };
        known.unwrap_or(nothing)
    } else if objects.writes_fail.load(Ordering::SeqCst) {
        (500, json!({"kind": "Status", "status": "Failure", "message": "writes are disabled", "code": 500}))
    } else {
        let body = axum::body::to_bytes(body, 1 << 20).await.unwrap();
        let mut object: Value = serde_json::from_slice(&body).unwrap_or_default();
        object["metadata"]["resourceVersion"] = json!("1");
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        let own = if path.ends_with(name) { path } else { format!("{path}/{name}") };
        objects.put(&own, 200, object.clone());
        (200, object)
    };
    let json = [(header::CONTENT_TYPE, "application/json")];
    (StatusCode::from_u16(status).unwrap(), json, object.to_string()).into_response()
}

/// Returns a list of guarded namespaces with these names.
fn guarded_namespaces(names: &[&str]) -> Value {
    let labels = json!({"etcd-guard.io/guard": "enabled"});
    let namespace = |name: &&str| json!({"metadata": {"name": name, "labels": labels}});
    let items: Vec<Value> = names.iter().map(namespace).collect();
    json!({"metadata": {"resourceVersion": "1"}, "items": items})
}

/// Returns the stored Leases with a label that the query selects.
fn list_of_leases(known: &BTreeMap<String, (u16, Value)>, path: &str, query: &str) -> Value {
    let prefix = format!("{path}/");
    let stored = known.iter().filter(|(name, _)| name.starts_with(&prefix)).map(|(_, (_, lease))| lease);
    let is_selected = |lease: &&Value| {
        let labels = lease["metadata"]["labels"].as_object();
        labels.into_iter().flatten().any(|(_, value)| {
            let value = value.as_str().unwrap_or_default();
            query.contains(&format!("%3D{value}")) || query.contains(&format!("={value}"))
        })
    };
    let items: Vec<&Value> = stored.filter(is_selected).collect();
    json!({"metadata": {"resourceVersion": "1"}, "items": items})
}

impl GuardedPods {
    pub(crate) async fn start(pods: &[Value]) -> Self {
        Self::start_with_config(pods, ALL_NETWORKS).await
    }

    /// Starts a guard with this configuration file.
    pub(crate) async fn start_with_config(pods: &[Value], config: &str) -> Self {
        Self::start_with_objects(Objects::default(), pods, config).await
    }

    /// Starts a guard of the namespaces `prod` and `other`. The list of the StatefulSets of `other` contains this one.
    pub(crate) async fn start_with_other_namespace(pods: &[Value], stateful_set: &Value) -> Self {
        let objects = Objects::default();
        objects.put(NAMESPACES, 200, guarded_namespaces(&["other", "prod"]));
        let list = json!({"metadata": {"resourceVersion": "1"}, "items": [stateful_set]});
        objects.put("/apis/apps/v1/namespaces/other/statefulsets", 200, list);
        Self::start_with_objects(objects, pods, ALL_NETWORKS).await
    }

    /// Starts a guard that surveys the cluster every second.
    pub(crate) async fn start_with_survey(pods: &[Value]) -> Self {
        let files = tempfile::tempdir().unwrap();
        std::fs::write(files.path().join(SURVEY_INTERVAL), "1s").unwrap();
        Self::start_in(files, Objects::default(), pods, ALL_NETWORKS).await
    }

    /// Starts a guard whose watch of namespaces does not show the label that a read of the namespace shows.
    pub(crate) async fn start_before_watch_shows_label(pods: &[Value]) -> Self {
        let objects = Objects::default();
        objects.hides_label_from_watch.store(true, Ordering::SeqCst);
        objects.put(&format!("{NAMESPACES}/prod"), 200, guarded_namespaces(&["prod"])["items"][0].clone());
        Self::start_with_objects(objects, pods, ALL_NETWORKS).await
    }

    async fn start_with_objects(objects: Objects, pods: &[Value], config: &str) -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), objects, pods, config).await
    }

    async fn start_in(files: tempfile::TempDir, objects: Objects, pods: &[Value], config: &str) -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        objects.put("/api/v1/namespaces/prod/pods", 200, json!({"items": pods}));
        for pod in pods {
            let name = pod["metadata"]["name"].as_str().unwrap();
            let claim = format!("/api/v1/namespaces/prod/persistentvolumeclaims/data-{name}");
            objects.put(&claim, 200, json!({"metadata": {"name": format!("data-{name}")}}));
        }
        let kubeconfig = files.path().join("kubeconfig");
        let access = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {"server": format!("http://{}", objects.serve().await)}}],
            "users": [{"name": "u", "user": {}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x"
        });
        std::fs::write(&kubeconfig, access.to_string()).unwrap();
        std::fs::write(files.path().join(CONFIG), config).unwrap();
        Self { guard: GuardProcess::start(&kubeconfig, files.path()).await, objects, _files: files }
    }

    /// Returns the anonymous memory of the guard in bytes.
    pub(crate) fn anonymous_memory(&self) -> u64 {
        self.guard.anonymous_memory()
    }

    /// Restarts the guard, which loses its memory, after its record of the namespace contains this text.
    pub(crate) async fn restart_after_recording(&mut self, text: &str) {
        let lease = "/apis/coordination.k8s.io/v1/namespaces/etcd-guard/leases/etcd-guard-owners.prod";
        wait_until("the guard writes its record", START_TIMEOUT, async || {
            let known = self.objects.known.lock().unwrap();
            known.get(lease).is_some_and(|(_, lease)| lease.to_string().contains(text))
        })
        .await;
        self.guard.kill();
        self.guard.restart().await;
    }

    /// Returns the reason and the message for a dry run of this pod's deletion.
    pub(crate) async fn dry_run(&self, pod: &Value) -> (String, String) {
        self.review(pod, true).await
    }

    /// Returns the reason and the message for this pod's deletion, which does not take effect: the pod remains.
    pub(crate) async fn delete(&self, pod: &Value) -> (String, String) {
        self.review(pod, false).await
    }

    /// Expects this reason for a dry run of this pod's deletion, and returns the message.
    pub(crate) async fn expect_dry_run(&self, pod: &Value, reason: &str) -> String {
        expect(reason, async || self.dry_run(pod).await).await
    }

    /// Expects this reason for this pod's deletion, and returns the message.
    pub(crate) async fn expect_deletion(&self, pod: &Value, reason: &str) -> String {
        expect(reason, async || self.delete(pod).await).await
    }

    /// Expects this reason for this pod's eviction, which names no uid, and returns the message.
    pub(crate) async fn expect_eviction(&self, pod: &Value, reason: &str) -> String {
        expect(reason, async || {
            tokio::time::sleep(CACHE_TTL).await;
            let pod: Pod = serde_json::from_value(pod.clone()).unwrap();
            self.respond_to(eviction_review(&pod)).await
        })
        .await
    }

    /// Returns the value of a metric; 0 if it does not exist yet.
    pub(crate) async fn metric(&self, name: &str) -> u64 {
        self.guard.metric(name).await
    }

    /// Returns the body of `GET /status` for the namespace of the pods.
    pub(crate) async fn status(&self) -> String {
        test_support::http_client::get(self.guard.http(), "/status?namespace=prod").await.unwrap().body
    }

    /// Returns the body of `POST /check` for the deletion of this pod.
    pub(crate) async fn check(&self, pod: &Value) -> String {
        let pod: Pod = serde_json::from_value(pod.clone()).unwrap();
        let mut connection = Connection::plain(self.guard.http()).await.unwrap();
        connection.post("/check", dry_run_review(&pod)).await.unwrap().body
    }

    /// Expects this reason for the reduction of the replicas of StatefulSet `etcd`, and returns the message.
    pub(crate) async fn expect_scale_down(&self, replicas: (u32, u32), reason: &str) -> String {
        expect(reason, async || {
            tokio::time::sleep(CACHE_TTL).await;
            self.respond_to(scale_down_review("prod", "etcd", replicas)).await
        })
        .await
    }

    /// Returns the reason and the message for a dry run of this pod's deletion, which a cached denial may answer.
    pub(crate) async fn dry_run_at_once(&self, pod: &Value) -> (String, String) {
        let pod: Pod = serde_json::from_value(pod.clone()).unwrap();
        self.respond_to(dry_run_review(&pod)).await
    }

    async fn review(&self, pod: &Value, dry_run: bool) -> (String, String) {
        tokio::time::sleep(CACHE_TTL).await;
        let pod: Pod = serde_json::from_value(pod.clone()).unwrap();
        self.respond_to(if dry_run { dry_run_review(&pod) } else { deletion_review(&pod) }).await
    }

    /// Returns the reason and the message for a review.
    async fn respond_to(&self, review: String) -> (String, String) {
        let mut connection = Connection::tls(self.guard.https(), &self.guard.ca_pem).await.unwrap();
        let answer = connection.post("/validate?timeout=10s", review).await.unwrap();
        let answer: Value = serde_json::from_str(&answer.body).unwrap();
        let response = &answer["response"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        (text(&response["auditAnnotations"]["reason"]), text(&response["status"]["message"]))
    }
}

/// Repeats a request while it is denied because a member or the API server was late, as on a busy machine. Any other
/// unexpected reason fails at once. Returns the message.
async fn expect(expected: &str, request: impl AsyncFn() -> (String, String)) -> String {
    let deadline = Instant::now() + START_TIMEOUT;
    loop {
        let (reason, message) = request().await;
        if reason == expected {
            return message;
        }
        let is_late = LATE_REASONS.contains(&reason.as_str())
            || LATE_CAUSES.iter().any(|cause| message.contains(cause));
        assert!(is_late && Instant::now() < deadline, "expected {expected}, not {reason}: {message}");
    }
}

/// Returns the pod of a member with these annotations.
pub(crate) fn annotated_pod(cluster: &Cluster, n: usize, annotations: &[(&str, &str)]) -> Value {
    let mut pod = pod(cluster, n);
    for (name, value) in annotations {
        pod["metadata"]["annotations"][*name] = json!(value);
    }
    pod
}

/// Returns the pod of a member, as a StatefulSet with a claim per pod creates it.
pub(crate) fn pod(cluster: &Cluster, n: usize) -> Value {
    let (name, address) = (format!("etcd-{n}"), cluster.address(n));
    let url = cluster.endpoint(n).url;
    let mut command = vec![
        json!("etcd"),
        json!(format!("--name={name}")),
        json!(format!("--advertise-client-urls={url}")),
        json!(format!("--listen-client-urls={}://0.0.0.0:2379", cluster.endpoint(n).scheme().as_str())),
        json!("--data-dir=/data"),
    ];
    if url.starts_with("https") {
        command.extend([json!("--cert-file=/tls/server.crt"), json!("--trusted-ca-file=/tls/ca.crt")]);
    }
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "prod",
            "uid": format!("uid-{n}"),
            "annotations": {},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "etcd", "uid": "set", "controller": true}]
        },
        "spec": {
            "nodeName": "node",
            "containers": [{
                "name": "etcd",
                "image": "etcd",
                "command": command,
                "volumeMounts": [{"name": "data", "mountPath": "/data"}]
            }],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": format!("data-{name}")}}]
        },
        "status": {
            "phase": "Running",
            "podIP": address,
            "containerStatuses": [{"name": "etcd", "state": {"running": {}}}]
        }
    })
}

pub(crate) fn secret(pairs: &[(&str, &[u8])]) -> Value {
    let data: serde_json::Map<String, Value> =
        pairs.iter().map(|(key, value)| ((*key).to_owned(), json!(ByteString(value.to_vec())))).collect();
    json!({"kind": "Secret", "apiVersion": "v1", "metadata": {"name": "s"}, "data": data})
}

pub(crate) fn forbidden() -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "no", "reason": "Forbidden", "code": 403})
}
