//! Without the required information, requests are denied in time, and the denial names the cause.

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

use crate::{Server, UNREACHABLE, deletion_review, etcd_pod, eviction_review};
use test_support::project::plugin_program;

fn message(response: &Value) -> &str {
    assert_eq!(response["allowed"], false, "{response}");
    response["status"]["message"].as_str().unwrap()
}

#[tokio::test]
async fn denial_names_unreachable_api_server() {
    let server = Server::start(UNREACHABLE);
    let response = server.review(&deletion_review(&etcd_pod())).await;
    assert_eq!(
        message(&response),
        "LookupFailed: could not evaluate pod etcd-0: reading namespace prod failed: Connection refused (os error 111). \
         Retry when the API server is ready: kubectl get --raw '/readyz?verbose'\nSee https://etcd-guard.io/reasons.html#lookupfailed"
    );
    assert_eq!(
        (&response["status"]["code"], &response["status"]["reason"]),
        (&403.into(), &"Forbidden".into())
    );

    let response = server.review(&eviction_review("etcd-0")).await;
    assert!(message(&response).contains("reading namespace prod failed: Connection refused"));
    assert_eq!(
        (&response["status"]["code"], &response["status"]["reason"]),
        (&429.into(), &"TooManyRequests".into())
    );
}

#[tokio::test]
async fn denies_in_time_if_api_server_hangs() {
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = Server::start(&silent.local_addr().unwrap().to_string());

    let started = Instant::now();
    let response = server.review_within("3s", &deletion_review(&etcd_pod())).await;
    assert!(started.elapsed() < Duration::from_secs(3), "{:?}", started.elapsed());
    assert!(
        message(&response).contains("within 2s: reading the namespace from the API server took too long"),
        "{}",
        message(&response)
    );
    assert_eq!(response["auditAnnotations"]["reason"], "DeadlineExceeded");

    let started = Instant::now();
    let response = server.review_within("30s", &deletion_review(&etcd_pod())).await;
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    assert!(
        message(&response).contains("the API server did not respond within 3s"),
        "{}",
        message(&response)
    );
}

#[tokio::test]
async fn is_live_but_not_ready_without_api_server() {
    let server = Server::start(UNREACHABLE);
    assert!(!server.guard.is_ready().await);
    let page = test_support::http_client::get(server.guard.http(), "/livez").await.unwrap();
    assert!(page.status.is_success());
}

/// By default, the client library would wait as long as this API server requests, and retry.
#[tokio::test]
async fn does_not_retry_overloaded_api_server() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let reads = Arc::new(AtomicUsize::new(0));
    tokio::spawn(serve_busy(listener, Arc::clone(&reads)));
    let server = Server::start(&address.to_string());
    let response = server.review_within("30s", &deletion_review(&etcd_pod())).await;
    let message = message(&response);
    assert!(message.contains("reading namespace prod failed: slow down"), "{message}");
    assert_eq!(reads.load(Ordering::Relaxed), 1, "reads of the namespace");
}

async fn serve_busy(listener: tokio::net::TcpListener, reads: Arc<AtomicUsize>) {
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let reads = Arc::clone(&reads);
        let service = service_fn(move |request: http::Request<Incoming>| {
            if request.uri().path() == "/api/v1/namespaces/prod" {
                reads.fetch_add(1, Ordering::Relaxed);
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
async fn status_command_fails_without_api_server() {
    let server = Server::start(UNREACHABLE);
    let output = tokio::process::Command::new(plugin_program())
        .args(["status", "-n", "prod", "--guard", &format!("http://{}", server.guard.http()), "--kubeconfig"])
        .arg(server.files().join("kubeconfig"))
        .output()
        .await
        .unwrap();
    let (out, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(2), "{out}{error}");
    assert!(out.contains("! ") && !out.contains("no etcd cluster found"), "{out}");
    assert!(error.contains("the status is incomplete"), "{error}");
}
