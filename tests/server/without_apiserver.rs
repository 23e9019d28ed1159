//! Whatever cannot be found out is denied, with its cause and in time.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::{Guarded, NOBODY, deletion_of, etcd_pod, eviction_of};

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
