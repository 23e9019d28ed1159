//! Retries and reports of a reconciler after failed writes, with a paused clock.

use std::{
    io::{self, Write},
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use serde_json::{Value, json};
use tokio::time::timeout;
use tracing::subscriber::DefaultGuard;

use super::*;
use etcd_guard_kubernetes::fake::{api_server_with, status_failure};

/// A time in which the longest pause between two attempts elapses several times.
const PERIOD: Duration = Duration::from_secs(600);

/// The lines that this thread logs.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

// === impl Log ===

impl Log {
    fn start() -> (Self, DefaultGuard) {
        let log = Self::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::WARN)
            .with_ansi(false)
            .with_writer(move || writer.clone())
            .finish();
        (log, tracing::subscriber::set_default(subscriber))
    }

    fn count(&self, text: &str) -> usize {
        let log = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        log.lines().filter(|line| line.contains(text)).count()
    }
}

fn not_found() -> (u16, Value) {
    let mut status = status_failure(404, "not found");
    status["reason"] = json!("NotFound");
    (404, status)
}

/// Reconciles for [`PERIOD`] through this client.
async fn reconcile(client: &Client) {
    let settings = CertificateSettings {
        namespace: String::from("etcd-guard"),
        names: vec![String::from("etcd-guard.etcd-guard.svc")],
        lifetime: Duration::from_secs(24 * 3600),
        registration: None,
        server: None,
    };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let running = CertificateReconciler::new(client, settings, provider).run();
    assert!(timeout(PERIOD, running).await.is_err(), "the reconciler does not end");
}

#[tokio::test(start_paused = true)]
async fn retries_immutable_secrets_at_growing_intervals() {
    let attempts = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&attempts);
    let client = api_server_with(move |call, _| match (call.method.as_str(), call.uri.path()) {
        ("GET", "/version") => (200, json!({})),
        ("GET", path) if path.contains("/secrets/") => {
            let name = path.rsplit('/').next();
            (200, json!({"metadata": {"name": name, "resourceVersion": "1"}, "immutable": true}))
        }
        ("PUT", path) if path.contains("/secrets/") => {
            count.fetch_add(1, Ordering::SeqCst);
            (422, status_failure(422, "field is immutable when `immutable` is set"))
        }
        _ => not_found(),
    });
    let (log, _guard) = Log::start();
    reconcile(&client).await;
    // Seven attempts in the first 32 s, and then one every 30 s.
    let attempts = attempts.load(Ordering::SeqCst);
    assert!((20..=27).contains(&attempts), "{attempts}");
    assert_eq!(log.count("certificate step failed, it will be retried"), 1);
    assert_eq!(log.count("Secrets etcd-guard-certificates and etcd-guard-certificates-2 are immutable"), 1);
}

/// A configuration that is not required is retried in each cycle, and its cause is reported once.
#[tokio::test(start_paused = true)]
async fn reports_unwritable_configuration_once() {
    const GUARD: &str = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/etcd-guard";
    const INJECT: &str =
        "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/etcd-guard-inject";
    const NODES: &str =
        "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/etcd-guard-nodes";
    let configuration = |kind: &str, name: &str| {
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": kind,
            "metadata": {"name": name, "resourceVersion": "1"},
            "webhooks": [{"name": "one.etcd-guard.io", "clientConfig": {}}],
        })
    };
    let objects: BTreeMap<String, Value> = [
        (String::from(GUARD), configuration("ValidatingWebhookConfiguration", "etcd-guard")),
        (String::from(INJECT), configuration("MutatingWebhookConfiguration", "etcd-guard-inject")),
    ]
    .into();
    let (objects, attempts) = (Arc::new(Mutex::new(objects)), Arc::new(AtomicUsize::new(0)));
    let count = Arc::clone(&attempts);
    let client = api_server_with(move |call, body| {
        let (mut objects, path) = (objects.lock().unwrap(), call.uri.path());
        match call.method.as_str() {
            "GET" if path == "/version" => (200, json!({})),
            "GET" if path == NODES => (403, status_failure(403, "no access")),
            "GET" => objects.get(path).map_or(not_found(), |object| (200, object.clone())),
            "PUT" if path == INJECT => {
                count.fetch_add(1, Ordering::SeqCst);
                (403, status_failure(403, "no update"))
            }
            "PUT" | "POST" if body["kind"] != "Event" => {
                let name = body["metadata"]["name"].as_str().unwrap_or_default();
                let path = if call.method == "POST" { format!("{path}/{name}") } else { path.to_owned() };
                let mut stored = body.clone();
                stored["metadata"]["resourceVersion"] = json!("2");
                objects.insert(path, stored.clone());
                (200, stored)
            }
            _ => not_found(),
        }
    });
    let (log, _guard) = Log::start();
    reconcile(&client).await;
    let attempts = attempts.load(Ordering::SeqCst);
    assert!(attempts >= 20, "{attempts}");
    assert_eq!(log.count("no update"), 1);
    assert_eq!(log.count("no access"), 1);
    assert_eq!(log.count("certificate step failed"), 0);
}
