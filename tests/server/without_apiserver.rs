//! Whatever cannot be found out is denied, with its cause and in time.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use http_body_util::Full;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};

use crate::{Guarded, NOBODY, deletion_of, etcd_pod, eviction_of, support::guard_process::program};

fn message(response: &Value) -> &str {
    assert_eq!(response["allowed"], false, "{response}");
    response["status"]["message"].as_str().unwrap()
}

#[tokio::test]
async fn an_apiserver_that_is_gone_is_named_in_the_denial() {
    let guarded = Guarded::by(NOBODY);
    let response = guarded.review(&deletion_of(&etcd_pod())).await;
    assert_eq!(
        message(&response),
        "whether pod etcd-0 may go is unknown: reading the pods of namespace prod failed: Connection refused (os error \
         111). Try again when the apiserver answers [LookupFailed]"
    );
    assert_eq!(
        (&response["status"]["code"], &response["status"]["reason"]),
        (&403.into(), &"Forbidden".into())
    );

    let response = guarded.review(&eviction_of("etcd-0")).await;
    assert!(message(&response).contains("reading pod prod/etcd-0 failed: Connection refused"));
    assert_eq!(
        (&response["status"]["code"], &response["status"]["reason"]),
        (&429.into(), &"TooManyRequests".into())
    );
}

#[tokio::test]
async fn an_apiserver_that_never_answers_costs_a_denial_in_time() {
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let guarded = Guarded::by(&silent.local_addr().unwrap().to_string());

    let started = Instant::now();
    let response = guarded.review_within("3s", &deletion_of(&etcd_pod())).await;
    assert!(started.elapsed() < Duration::from_secs(3), "{:?}", started.elapsed());
    assert!(
        message(&response).contains("within 2s: listing the pods from the apiserver took too long"),
        "{}",
        message(&response)
    );
    assert_eq!(response["auditAnnotations"]["reason"], "DeadlineExceeded");

    let started = Instant::now();
    let response = guarded.review_within("30s", &deletion_of(&etcd_pod())).await;
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    assert!(message(&response).contains("the apiserver did not answer within 3s"), "{}", message(&response));
}

#[tokio::test]
async fn a_guard_without_an_apiserver_lives_but_is_not_ready() {
    let guarded = Guarded::by(NOBODY);
    assert!(!guarded.guard.is_ready().await);
    let page = crate::support::http_client::get(guarded.guard.http(), "/livez").await.unwrap();
    assert!(page.status.is_success());
}

/// The client would by itself wait for as long as this apiserver says, and try again.
#[tokio::test]
async fn an_apiserver_that_is_too_busy_is_named_at_once_and_asked_once() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let asked = Arc::new(AtomicUsize::new(0));
    tokio::spawn(serve_busy(listener, Arc::clone(&asked)));
    let guarded = Guarded::by(&address.to_string());
    let response = guarded.review_within("30s", &deletion_of(&etcd_pod())).await;
    let message = message(&response);
    assert!(message.contains("reading the pods of namespace prod failed: slow down"), "{message}");
    assert_eq!(asked.load(Ordering::Relaxed), 1, "lists of pods");
}

async fn serve_busy(listener: tokio::net::TcpListener, asked: Arc<AtomicUsize>) {
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let asked = Arc::clone(&asked);
        let service = service_fn(move |request: http::Request<Incoming>| {
            if request.uri().path().ends_with("/pods") {
                asked.fetch_add(1, Ordering::Relaxed);
            }
            let status = json!({
                "kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "TooManyRequests", "code": 429,
                "message": "slow down", "details": {"retryAfterSeconds": 1}
            });
            let response = http::Response::builder().status(429).header("Retry-After", "1");
            std::future::ready(response.body(Full::new(Bytes::from(status.to_string()))))
        });
        tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
    }
}

#[tokio::test]
async fn status_says_that_nothing_could_be_looked_at_and_fails() {
    let guarded = Guarded::by(NOBODY);
    let said = tokio::process::Command::new(program())
        .args([
            "status",
            "-n",
            "prod",
            "--guard",
            &format!("http://{}", guarded.guard.http()),
            "--kubeconfig",
        ])
        .arg(guarded.files().join("kubeconfig"))
        .output()
        .await
        .unwrap();
    let (out, error) = (String::from_utf8_lossy(&said.stdout), String::from_utf8_lossy(&said.stderr));
    assert_eq!(said.status.code(), Some(1), "{out}{error}");
    assert!(out.contains("! ") && !out.contains("no etcd cluster is there"), "{out}");
    assert!(error.contains("not all was looked at"), "{error}");
}
