//! What a collector of traces is sent, and that no verdict ever hangs on one.

use std::{net::SocketAddr, time::Duration};

use futures::future::join_all;
use http::{Method, Request, StatusCode, header};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::{
    Guarded, NOBODY, deletion_of, etcd_pod,
    support::{
        guard_process::OTLP_ENDPOINT,
        http_client::Connection,
        trace_receiver::{Arrived, TraceReceiver},
        wait::until,
    },
};

/// As an apiserver sends it whose own traces are sampled.
const CALLER: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const CALLERS_SPAN: &str = "00f067aa0ba902b7";

/// The same of one whose are not.
const NOT_SAMPLED: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";

/// Longest that something takes which takes no time.
const LIMIT: Duration = Duration::from_secs(180);

const CONNECTIONS: usize = 8;

fn traced_by(endpoint: &str) -> Guarded {
    let files = tempfile::tempdir().unwrap();
    std::fs::write(files.path().join(OTLP_ENDPOINT), endpoint).unwrap();
    Guarded::with_files(NOBODY, files)
}

async fn ask_within(trace: &str, guarded: &Guarded, review: &Value) {
    let mut connection = Connection::tls(guarded.address(), &guarded.guard.ca_pem).await.unwrap();
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
async fn a_review_is_a_span_of_its_callers_trace_with_what_the_log_says_and_its_steps_below_it() {
    let receiver = TraceReceiver::start().await;
    let guarded = traced_by(&receiver.endpoint());
    ask_within(NOT_SAMPLED, &guarded, &deletion_of(&etcd_pod())).await;
    ask_within(CALLER, &guarded, &deletion_of(&etcd_pod())).await;

    let review = receiver.span("the review", |it| it.name == "POST /validate").await;
    assert_eq!((review.trace_id.as_str(), review.parent_id.as_str()), (TRACE, CALLERS_SPAN));
    let logged = guarded.guard.told("kubernetes-admin", "denied", "LookupFailed").await;
    for field in ["uid", "namespace", "pod", "operation", "user", "verdict", "reason", "message"] {
        assert_eq!(review.attribute(field), logged[field].as_str().unwrap(), "{field}");
    }
    assert_eq!((review.attribute("dry_run"), review.attribute("grace_period_seconds")), ("false", "30"));

    let is_its_step =
        |it: &Arrived| it.parent_id == review.span_id && it.name == "listing the pods from the apiserver";
    let step = receiver.span("its step", is_its_step).await;
    assert_eq!(step.trace_id, TRACE);
    assert!(step.took <= review.took, "{step:?} of {review:?}");

    let sender = receiver.sender();
    assert_eq!(sender["service.name"], "etcd-guard");
    assert_eq!(sender["service.version"], env!("CARGO_PKG_VERSION"));
    // Whose caller sampled it not came first, and was judged all the same.
    let traces: Vec<String> = receiver.spans().into_iter().map(|it| it.trace_id).collect();
    assert!(traces.iter().all(|it| it == TRACE), "{traces:?}");
    assert_eq!(guarded.guard.requests().await, 2);
    let log = serde_json::to_string(&logged).unwrap();
    assert!(!log.contains("span"), "a line of the log stays as it is: {log}");
}

#[tokio::test]
async fn what_is_left_at_a_gentle_end_is_sent() {
    let receiver = TraceReceiver::start().await;
    let mut guarded = traced_by(&receiver.endpoint());
    guarded.review(&deletion_of(&etcd_pod())).await;
    guarded.guard.signal(Signal::SIGTERM);
    until("the guard has ended", LIMIT, async || guarded.guard.has_ended().is_some()).await;
    assert!(guarded.guard.has_ended().unwrap().success());
    let names: Vec<String> = receiver.spans().into_iter().map(|it| it.name).collect();
    assert!(names.contains(&String::from("POST /validate")), "{names:?}");
}

/// It takes connections, and says nothing.
#[tokio::test]
async fn a_collector_that_hangs_costs_spans_and_no_verdict_and_no_gentle_end() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut guarded = traced_by(&format!("http://{}", silent.local_addr().unwrap()));
    until("spans find no room", LIMIT, async || {
        judge_many(guarded.address(), &guarded.guard.ca_pem).await;
        spans(&guarded, "dropped").await > 0
    })
    .await;
    until("the collector is given up", LIMIT, async || spans(&guarded, "failed").await > 0).await;
    assert_eq!(spans(&guarded, "sent").await, 0);
    assert_eq!(guarded.guard.count_lines("spans are lost"), 1, "and it is said once");

    guarded.guard.signal(Signal::SIGTERM);
    until("the guard has ended", LIMIT, async || guarded.guard.has_ended().is_some()).await;
    assert!(guarded.guard.has_ended().unwrap().success());
}

#[tokio::test]
async fn a_collector_that_is_not_there_costs_spans_and_no_verdict_and_is_found_when_it_comes() {
    let held = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address: SocketAddr = held.local_addr().unwrap();
    drop(held);
    let guarded = traced_by(&format!("http://{address}"));
    judge_many(guarded.address(), &guarded.guard.ca_pem).await;
    until("spans are lost", LIMIT, async || spans(&guarded, "failed").await > 0).await;
    assert_eq!(guarded.guard.count_lines("spans are lost"), 1, "and it is said once");

    let receiver = TraceReceiver::start_at(address).await;
    until("spans arrive", LIMIT, async || {
        judge_many(guarded.address(), &guarded.guard.ca_pem).await;
        !receiver.spans().is_empty()
    })
    .await;
    until("it is said", LIMIT, async || guarded.guard.count_lines("the collector takes spans again") == 1)
        .await;
}

#[test]
fn an_endpoint_that_no_spans_can_be_sent_to_is_refused_at_the_start() {
    for endpoint in ["https://collector:4317", "collector:4317", "http://collector"] {
        let mut serve = crate::support::child::mortal(env!("CARGO_BIN_EXE_etcd-guard"));
        serve.args(["serve", "--self-managed-certs", &format!("--otlp-endpoint={endpoint}")]);
        let output = serve.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success(), "{endpoint}: {said}");
        assert!(said.contains("--otlp-endpoint") && said.contains("http://HOST:PORT"), "{endpoint}: {said}");
    }
}

/// Some hundred deletions that are judged without a look at anything.
async fn judge_many(address: SocketAddr, ca_pem: &str) {
    let mut pod = etcd_pod();
    pod["status"] = json!({"phase": "Failed"});
    let review = deletion_of(&pod).to_string();
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

async fn spans(guarded: &Guarded, result: &str) -> u64 {
    guarded.guard.metric(&format!("etcd_guard_trace_spans_total{{result=\"{result}\"}}")).await
}
