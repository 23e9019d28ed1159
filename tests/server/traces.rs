//! The spans that a trace collector receives. No verdict depends on the collector.

use std::{net::SocketAddr, time::Duration};

use futures::future::join_all;
use http::{Method, Request, StatusCode, header};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::{Server, UNREACHABLE, deletion_review, etcd_pod};
use test_support::{
    guard::process::OTLP_ENDPOINT,
    http_client::Connection,
    telemetry::trace_receiver::{ReceivedSpan, TraceReceiver},
    wait::wait_until,
};

/// The trace context of an API server whose own trace is sampled.
const CALLER: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const CALLERS_SPAN: &str = "00f067aa0ba902b7";

/// The trace context of an API server whose own trace is not sampled.
const NOT_SAMPLED: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";

/// A generous limit for operations that take no time.
const TIMEOUT: Duration = Duration::from_secs(180);

const CONNECTIONS: usize = 8;

/// Names of events that the OpenTelemetry SDK logs.
const EXPORT_FAILED: &str = "BatchSpanProcessor.ExportError";
const DROPPED: &str = "BatchSpanProcessor.SpanDroppingStarted";

fn start_with_endpoint(endpoint: &str) -> Server {
    let files = tempfile::tempdir().unwrap();
    std::fs::write(files.path().join(OTLP_ENDPOINT), endpoint).unwrap();
    Server::with_files(UNREACHABLE, files)
}

async fn send_with_trace(trace: &str, server: &Server, review: &Value) {
    let mut connection = Connection::tls(server.address(), &server.guard.ca_pem).await.unwrap();
    let request = Request::builder()
        .method(Method::POST)
        .uri("/validate?timeout=10s")
        .header(header::HOST, "localhost")
        .header(header::CONTENT_TYPE, "application/json")
        .header("traceparent", trace)
        .body(http_body_util::Full::from(review.to_string()))
        .unwrap();
    assert_eq!(connection.send(request).await.unwrap().status, StatusCode::OK);
}

#[tokio::test]
async fn review_span_joins_trace_of_caller() {
    let receiver = TraceReceiver::start().await;
    let server = start_with_endpoint(&receiver.endpoint());
    send_with_trace(NOT_SAMPLED, &server, &deletion_review(&etcd_pod())).await;
    send_with_trace(CALLER, &server, &deletion_review(&etcd_pod())).await;

    let review = receiver.span("the review", |span| span.name == "POST /validate").await;
    assert_eq!((review.trace_id.as_str(), review.parent_id.as_str()), (TRACE, CALLERS_SPAN));
    let logged = server.guard.wait_for_verdict("kubernetes-admin", "denied", "LookupFailed").await;
    for field in ["uid", "namespace", "pod", "operation", "user", "verdict", "reason", "message"] {
        assert_eq!(review.attribute(field), logged[field].as_str().unwrap(), "{field}");
    }
    assert_eq!((review.attribute("dry_run"), review.attribute("grace_period_seconds")), ("false", "30"));

    let is_its_step = |span: &ReceivedSpan| {
        span.parent_id == review.span_id && span.name == "reading the namespace from the API server"
    };
    let step = receiver.span("its step", is_its_step).await;
    assert_eq!(step.trace_id, TRACE);
    assert!(step.took <= review.took, "{step:?} of {review:?}");

    let sender = receiver.sender();
    assert_eq!(sender["service.name"], "etcd-guard");
    assert_eq!(sender["service.version"], env!("CARGO_PKG_VERSION"));
    // The request without sampling came first, and was evaluated without a span.
    let traces: Vec<String> = receiver.spans().into_iter().map(|span| span.trace_id).collect();
    assert!(traces.iter().all(|trace| trace == TRACE), "{traces:?}");
    assert_eq!(server.guard.request_count().await, 2);
    let log = serde_json::to_string(&logged).unwrap();
    assert!(!log.contains("span"), "the log line has no span: {log}");
}

#[tokio::test]
async fn exports_remaining_spans_at_shutdown() {
    let receiver = TraceReceiver::start().await;
    let mut server = start_with_endpoint(&receiver.endpoint());
    server.review(&deletion_review(&etcd_pod())).await;
    server.guard.signal(Signal::SIGTERM);
    wait_until("the guard has ended", TIMEOUT, async || server.guard.has_ended().is_some()).await;
    assert!(server.guard.has_ended().unwrap().success());
    let names: Vec<String> = receiver.spans().into_iter().map(|span| span.name).collect();
    assert!(names.contains(&String::from("POST /validate")), "{names:?}");
}

/// Returns the number of events with this name that the SDK has logged.
fn logged(server: &Server, name: &str) -> usize {
    server.guard.count_values("name", name)
}

/// Waits until the SDK has logged an event.
async fn wait_for_event(server: &Server, name: &str) {
    wait_until(name, TIMEOUT, async || logged(server, name) > 0).await;
}

/// The listener accepts connections and does not respond.
#[tokio::test]
async fn hanging_collector_affects_only_spans() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut server = start_with_endpoint(&format!("http://{}", silent.local_addr().unwrap()));
    wait_until("the queue of spans is full", TIMEOUT, async || {
        send_many(server.address(), &server.guard.ca_pem).await;
        logged(&server, DROPPED) > 0
    })
    .await;
    assert_eq!(logged(&server, DROPPED), 1, "dropped spans are logged once");
    wait_for_event(&server, EXPORT_FAILED).await;

    server.guard.signal(Signal::SIGTERM);
    wait_until("the guard has ended", TIMEOUT, async || server.guard.has_ended().is_some()).await;
    assert!(server.guard.has_ended().unwrap().success());
}

#[tokio::test]
async fn finds_collector_that_starts_later() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address: SocketAddr = listener.local_addr().unwrap();
    drop(listener);
    let server = start_with_endpoint(&format!("http://{address}"));
    send_many(server.address(), &server.guard.ca_pem).await;
    wait_for_event(&server, EXPORT_FAILED).await;

    let receiver = TraceReceiver::start_at(address).await;
    wait_until("spans arrive", TIMEOUT, async || {
        send_many(server.address(), &server.guard.ca_pem).await;
        !receiver.spans().is_empty()
    })
    .await;
}

#[test]
fn rejects_invalid_endpoint_at_start() {
    for (endpoint, advice) in [
        ("https://collector:4317", "OTEL_EXPORTER_OTLP_CERTIFICATE"),
        ("collector:4317", "http://HOST:PORT"),
        ("http://collector", "http://HOST:PORT"),
    ] {
        let mut serve = test_support::processes::child::scoped_command(env!("CARGO_BIN_EXE_etcd-guard"));
        serve.args(["serve", "--self-managed-certs", &format!("--otlp-endpoint={endpoint}")]);
        let output = serve.output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success(), "{endpoint}: {stderr}");
        assert!(stderr.contains("traces: ") && stderr.contains(advice), "{endpoint}: {stderr}");
    }
}

/// Sends some hundred deletions that need no probe.
async fn send_many(address: SocketAddr, ca_pem: &str) {
    let mut pod = etcd_pod();
    pod["status"] = json!({"phase": "Failed"});
    let review = deletion_review(&pod).to_string();
    join_all((0..CONNECTIONS).map(async |_| {
        let mut connection = Connection::tls(address, ca_pem).await.unwrap();
        for _ in 0..100 {
            let response = connection.post("/validate?timeout=10s", review.clone()).await.unwrap();
            assert_eq!(response.status, StatusCode::OK);
            assert!(response.body.contains("PodFinished"), "{}", response.body);
        }
    }))
    .await;
}
