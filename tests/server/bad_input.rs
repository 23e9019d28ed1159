//! Malformed requests: every response is clear and contains the uid if the request has one; the server never panics or
//! hangs.

use std::time::Duration;

use http::StatusCode;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::timeout,
};

use crate::{Server, UNREACHABLE, deletion_review, etcd_pod, eviction_review};
use test_support::http_client;

const JSON: Option<&str> = Some("application/json");

/// Returns a review of the deletion of an etcd pod with one changed value.
fn changed(pointer: &str, value: Value) -> Vec<u8> {
    let mut review = deletion_review(&etcd_pod());
    *review.pointer_mut(pointer).expect("a place in the review") = value;
    review.to_string().into_bytes()
}

/// Returns a review without a field.
fn without(pointer: &str, field: &str) -> Vec<u8> {
    let mut review = deletion_review(&etcd_pod());
    review
        .pointer_mut(pointer)
        .unwrap()
        .as_object_mut()
        .unwrap()
        .remove(field)
        .expect("a field of the review");
    review.to_string().into_bytes()
}

/// Returns a review with a duplicate field.
fn twice(field: &str) -> Vec<u8> {
    let review = deletion_review(&etcd_pod()).to_string();
    format!("{{{field:?}: \"AdmissionReview\", {}", &review[1..]).into_bytes()
}

/// Attempts to read the response to a body that the server does not read.
const MAX_ATTEMPTS: usize = 20;

/// The name, content type and body of a case, and the status and a part of the response.
type Case = (&'static str, Option<&'static str>, Vec<u8>, u16, &'static str);

#[tokio::test]
async fn rejects_requests_without_uid_by_status() {
    let server = Server::start(UNREACHABLE);
    let review = deletion_review(&etcd_pod()).to_string().into_bytes();
    let cases: Vec<Case> = vec![
        ("no body", JSON, vec![], 400, "the body is empty"),
        ("blanks", JSON, b" \n".to_vec(), 400, "the body is empty"),
        ("no content type", None, review.clone(), 415, "use application/json"),
        ("wrong content type", Some("text/yaml"), review.clone(), 415, "\"text/yaml\" is not supported"),
        ("not JSON", JSON, b"kind: AdmissionReview".to_vec(), 400, "not an AdmissionReview in JSON"),
        ("half of it", JSON, review[..review.len() / 2].to_vec(), 400, "not an AdmissionReview in JSON"),
        ("a list", JSON, b"[]".to_vec(), 400, "has no kind"),
        ("null", JSON, b"null".to_vec(), 400, "not an AdmissionReview in JSON"),
        ("not UTF-8", JSON, b"{\"kind\": \"\xff\"}".to_vec(), 400, "not an AdmissionReview in JSON"),
        ("very deep", JSON, "[".repeat(100_000).into_bytes(), 400, "not an AdmissionReview in JSON"),
        ("a pod", JSON, etcd_pod().to_string().into_bytes(), 400, "the body is of kind \"Pod\""),
        ("no request", JSON, without("", "request"), 400, "has no request"),
        ("null for a request", JSON, changed("/request", Value::Null), 400, "has no request"),
        ("text for a request", JSON, changed("/request", json!("x")), 400, "request has no uid"),
        ("no uid", JSON, without("/request", "uid"), 400, "request has no uid"),
    ];
    for (name, content_type, body, status, text) in cases {
        let response = server.send("/validate?timeout=10s", content_type, body).await;
        assert_eq!(response.status.as_u16(), status, "{name}: {}", response.body);
        assert!(response.body.contains(text), "{name}: {}", response.body);
    }
    assert_eq!(server.send("/nothing", JSON, review).await.status, StatusCode::NOT_FOUND);
}

/// The server closes the connection without reading the body, so that the client can lose the response while it sends.
#[tokio::test]
async fn rejects_large_bodies_with_413() {
    let server = Server::start(UNREACHABLE);
    let mut responses = Vec::new();
    for _ in 0..MAX_ATTEMPTS {
        let body = vec![b' '; 10 << 20];
        if let Ok(response) = server.try_send("/validate?timeout=10s", JSON, body).await {
            responses.push(response);
            break;
        }
    }
    let response = responses.first().expect("no response to a large body");
    assert_eq!(response.status, StatusCode::PAYLOAD_TOO_LARGE, "{}", response.body);
    assert!(response.body.contains("larger than 8 MiB"), "{}", response.body);
}

#[tokio::test]
async fn denies_malformed_reviews_by_uid() {
    let server = Server::start(UNREACHABLE);
    let other = |operation: &str, resource: &str, sub_resource: &str| {
        let mut review = deletion_review(&etcd_pod());
        review["request"]["operation"] = json!(operation);
        review["request"]["resource"]["resource"] = json!(resource);
        review["request"]["subResource"] = json!(sub_resource);
        review.to_string().into_bytes()
    };
    let mut nameless = deletion_review(&json!({"metadata": {}}));
    nameless["request"]["name"] = Value::Null;
    let cases: Vec<(&str, Vec<u8>, &str)> = vec![
        (
            "wrong kind",
            changed("/kind", json!("ConversionReview")),
            "the body is of kind \"ConversionReview\"",
        ),
        (
            "wrong version",
            changed("/apiVersion", json!("admission.k8s.io/v7")),
            "version \"admission.k8s.io/v7\"",
        ),
        ("a number for a version", changed("/apiVersion", json!(5)), "not an AdmissionReview in JSON"),
        ("null for a kind", changed("/kind", Value::Null), "not an AdmissionReview in JSON"),
        ("two kinds", twice("kind"), "not an AdmissionReview in JSON"),
        ("no operation", without("/request", "operation"), "missing field `operation`"),
        ("no resource", without("/request", "resource"), "missing field `resource`"),
        ("a number for a name", changed("/request/name", json!(7)), "invalid type: integer `7`"),
        ("text for a pod", changed("/request/oldObject", json!("etcd-0")), "oldObject is not readable"),
        (
            "text for containers",
            changed("/request/oldObject/spec/containers", json!("x")),
            "oldObject is not readable",
        ),
        ("text for options", changed("/request/options", json!("x")), "options is not readable"),
        ("no name anywhere", nameless.to_string().into_bytes(), "nor its oldObject has a pod name"),
        (
            "a path for a name",
            changed("/request/name", json!("../../secrets")),
            "\"../../secrets\" is not a valid pod name",
        ),
        (
            "a path for a namespace",
            changed("/request/namespace", json!("a/b")),
            "\"a/b\" is not a valid namespace",
        ),
        ("another operation", other("UPDATE", "pods", "status"), "not UPDATE of pods/status:"),
        ("another resource", other("DELETE", "endpoints", ""), "not DELETE of endpoints:"),
        ("another subresource", other("CREATE", "pods", "binding"), "not CREATE of pods/binding:"),
        // A group with a dot belongs to custom resources, whose objects can own pods.
        ("a pod of another group", changed("/request/resource/group", json!("batch")), "not DELETE of pods:"),
    ];
    let with_timeout = |timeout: &str| format!("/validate?timeout={timeout}");
    let mut cases: Vec<(String, &str, Vec<u8>, &str)> =
        cases.into_iter().map(|(name, body, text)| (with_timeout("10s"), name, body, text)).collect();
    let review = deletion_review(&etcd_pod()).to_string().into_bytes();
    for (timeout, text) in [
        ("soon", "timeout=\"soon\" is not a duration such as 10s or 1m0s"),
        ("-1s", "timeout=\"-1s\" is not a duration"),
        ("99999999999999999999s", "timeout=\"99999999999999999999s\" is not a duration"),
    ] {
        cases.push((with_timeout(timeout), timeout, review.clone(), text));
    }
    for (path, name, body, text) in cases {
        let response = server.send(&path, JSON, body).await;
        assert_eq!(response.status, StatusCode::OK, "{name}: {}", response.body);
        let answer: Value = serde_json::from_str(&response.body).unwrap();
        assert_eq!(answer["response"]["uid"], "5a1b-4711", "{name}");
        assert_eq!(answer["response"]["allowed"], false, "{name}");
        assert_eq!(answer["response"]["status"]["code"], 400, "{name}");
        let message = answer["response"]["status"]["message"].as_str().unwrap();
        assert!(message.contains(text), "{name}: {message}");
    }
}

#[tokio::test]
async fn limits_timeout_to_longest_of_api_server() {
    let server = Server::start(UNREACHABLE);
    let review = deletion_review(&etcd_pod()).to_string().into_bytes();
    for timeout in ["9999999999999999999s", "1h", "0s"] {
        let response = server.send(&format!("/validate?timeout={timeout}"), JSON, review.clone()).await;
        assert_eq!(response.status, StatusCode::OK, "{timeout}: {}", response.body);
        let answer: Value = serde_json::from_str(&response.body).unwrap();
        assert_eq!(answer["response"]["uid"], "5a1b-4711", "{timeout}");
        assert_eq!(answer["response"]["allowed"], false, "{timeout}");
    }
}

#[tokio::test]
async fn ignores_unknown_fields() {
    let server = Server::start(UNREACHABLE);
    let mut pod = etcd_pod();
    pod["status"] = json!({"phase": "Failed", "mood": "bad"});
    pod["spec"]["containers"][0]["color"] = json!({"r": 1});
    let mut review = deletion_review(&pod);
    review["future"] = json!(1);
    review["request"]["future"] = json!([{}]);
    review["request"]["options"]["future"] = json!(null);
    assert_eq!(server.review(&review).await["auditAnnotations"]["reason"], "PodFinished");
    let mut review = eviction_review("etcd-0");
    review["request"]["object"]["deleteOptions"] = json!({"future": 1});
    assert_eq!(server.review(&review).await["auditAnnotations"]["reason"], "LookupFailed");
}

#[tokio::test]
async fn times_out_incomplete_body() {
    let server = Server::start_with_lists().await;
    // A connection without TLS and one that sends nothing must not delay the next one.
    let mut plain = tokio::net::TcpStream::connect(server.address()).await.unwrap();
    plain.write_all(b"POST /validate HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let _silent = tokio::net::TcpStream::connect(server.address()).await.unwrap();
    let mut slow = http_client::tls(server.address(), &server.guard.ca_pem).await.unwrap();
    let head = "POST /validate HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{";
    slow.write_all(head.as_bytes()).await.unwrap();
    let mut answer = [0; 20];
    timeout(Duration::from_secs(8), slow.read_exact(&mut answer)).await.expect("an answer in time").unwrap();
    assert!(answer.starts_with(b"HTTP/1.1 408 Request"), "{}", String::from_utf8_lossy(&answer));
    assert_eq!(
        server.review(&deletion_review(&json!({"metadata": {"name": "web-0"}}))).await["allowed"],
        true
    );
}

/// Large bodies are read one after the other, so that they cannot exhaust the memory. Reviews of common size do not
/// wait for them.
#[tokio::test]
async fn common_reviews_do_not_wait_for_large_bodies() {
    let server = Server::start(UNREACHABLE);
    let head = format!(
        "POST /validate HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        8 << 20
    );
    let mut slow = Vec::new();
    for _ in 0..8 {
        let mut stream = http_client::tls(server.address(), &server.guard.ca_pem).await.unwrap();
        stream.write_all(head.as_bytes()).await.unwrap();
        slow.push(stream);
    }
    let mut connection = http_client::Connection::tls(server.address(), &server.guard.ca_pem).await.unwrap();
    let review = deletion_review(&etcd_pod()).to_string();
    let small = connection.post("/validate?timeout=10s", review);
    let answer = tokio::select! {
        biased;
        _ = slow[0].read_u8() => panic!("the large bodies timed out first"),
        answer = small => answer.unwrap(),
    };
    assert_eq!(answer.status, StatusCode::OK);
    for mut stream in slow {
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer).await;
        assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    }
}
