//! Whatever is sent: a clear answer, the uid whenever there is one, never a panic, never a hang.

use std::time::Duration;

use http::StatusCode;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::timeout,
};

use crate::{Guarded, NOBODY, deletion_of, etcd_pod, eviction_of, support::http_client};

const JSON: Option<&str> = Some("application/json");

/// A review of the deletion of an etcd pod with one change.
fn changed(pointer: &str, value: Value) -> Vec<u8> {
    let mut review = deletion_of(&etcd_pod());
    *review.pointer_mut(pointer).expect("a place in the review") = value;
    review.to_string().into_bytes()
}

/// The same without a field.
fn without(pointer: &str, field: &str) -> Vec<u8> {
    let mut review = deletion_of(&etcd_pod());
    review
        .pointer_mut(pointer)
        .unwrap()
        .as_object_mut()
        .unwrap()
        .remove(field)
        .expect("a field of the review");
    review.to_string().into_bytes()
}

/// The same with a field that stands there twice.
fn twice(field: &str) -> Vec<u8> {
    let review = deletion_of(&etcd_pod()).to_string();
    format!("{{{field:?}: \"AdmissionReview\", {}", &review[1..]).into_bytes()
}

/// Its name, content type and body; the status and words of the answer.
type Case = (&'static str, Option<&'static str>, Vec<u8>, u16, &'static str);

#[tokio::test]
async fn what_holds_no_uid_is_refused_by_status_and_text() {
    let guarded = Guarded::by(NOBODY);
    let review = deletion_of(&etcd_pod()).to_string().into_bytes();
    let cases: Vec<Case> = vec![
        ("no body", JSON, vec![], 400, "the body is empty"),
        ("blanks", JSON, b" \n".to_vec(), 400, "the body is empty"),
        ("no content type", None, review.clone(), 415, "application/json is"),
        ("wrong content type", Some("text/yaml"), review.clone(), 415, "\"text/yaml\" is not read here"),
        ("not JSON", JSON, b"kind: AdmissionReview".to_vec(), 400, "no AdmissionReview in JSON"),
        ("half of it", JSON, review[..review.len() / 2].to_vec(), 400, "no AdmissionReview in JSON"),
        ("a list", JSON, b"[]".to_vec(), 400, "names no kind"),
        ("null", JSON, b"null".to_vec(), 400, "no AdmissionReview in JSON"),
        ("not UTF-8", JSON, b"{\"kind\": \"\xff\"}".to_vec(), 400, "no AdmissionReview in JSON"),
        ("very deep", JSON, "[".repeat(100_000).into_bytes(), 400, "no AdmissionReview in JSON"),
        ("a pod", JSON, etcd_pod().to_string().into_bytes(), 400, "the body is a \"Pod\""),
        ("no request", JSON, without("", "request"), 400, "has no request"),
        ("null for a request", JSON, changed("/request", Value::Null), 400, "has no request"),
        ("text for a request", JSON, changed("/request", json!("x")), 400, "request has no uid"),
        ("no uid", JSON, without("/request", "uid"), 400, "request has no uid"),
        ("10 MiB", JSON, vec![b' '; 10 << 20], 413, "larger than 8 MiB"),
    ];
    for (name, content_type, body, status, text) in cases {
        let response = guarded.send("/validate?timeout=10s", content_type, body).await;
        assert_eq!(response.status.as_u16(), status, "{name}: {}", response.body);
        assert!(response.body.contains(text), "{name}: {}", response.body);
    }
    assert_eq!(guarded.send("/nothing", JSON, review).await.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn every_mistake_beside_a_uid_is_told_as_a_denial_of_that_uid() {
    let guarded = Guarded::by(NOBODY);
    let other = |operation: &str, resource: &str, sub_resource: &str| {
        let mut review = deletion_of(&etcd_pod());
        review["request"]["operation"] = json!(operation);
        review["request"]["resource"]["resource"] = json!(resource);
        review["request"]["subResource"] = json!(sub_resource);
        review.to_string().into_bytes()
    };
    let mut nameless = deletion_of(&json!({"metadata": {}}));
    nameless["request"]["name"] = Value::Null;
    let cases: Vec<(&str, Vec<u8>, &str)> = vec![
        ("wrong kind", changed("/kind", json!("ConversionReview")), "the body is a \"ConversionReview\""),
        (
            "wrong version",
            changed("/apiVersion", json!("admission.k8s.io/v7")),
            "version \"admission.k8s.io/v7\"",
        ),
        ("a number for a version", changed("/apiVersion", json!(5)), "no AdmissionReview in JSON"),
        ("null for a kind", changed("/kind", Value::Null), "no AdmissionReview in JSON"),
        ("two kinds", twice("kind"), "no AdmissionReview in JSON"),
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
        ("no name anywhere", nameless.to_string().into_bytes(), "names no pod name"),
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
        ("another operation", other("UPDATE", "pods", ""), "asked about UPDATE of pods:"),
        ("another resource", other("DELETE", "configmaps", ""), "asked about DELETE of configmaps:"),
        ("another subresource", other("CREATE", "pods", "binding"), "asked about CREATE of pods/binding:"),
        (
            "a pod of another group",
            changed("/request/resource/group", json!("x.io")),
            "asked about DELETE of pods:",
        ),
    ];
    let with_timeout = |timeout: &str| format!("/validate?timeout={timeout}");
    let mut cases: Vec<(String, &str, Vec<u8>, &str)> =
        cases.into_iter().map(|(name, body, text)| (with_timeout("10s"), name, body, text)).collect();
    let review = deletion_of(&etcd_pod()).to_string().into_bytes();
    for (timeout, text) in [
        ("soon", "timeout=\"soon\" is no duration such as 10s or 1m0s"),
        ("-1s", "timeout=\"-1s\" is no duration"),
        ("99999999999999999999s", "timeout=\"99999999999999999999s\" is no duration"),
    ] {
        cases.push((with_timeout(timeout), timeout, review.clone(), text));
    }
    for (path, name, body, text) in cases {
        let response = guarded.send(&path, JSON, body).await;
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
async fn a_timeout_that_no_apiserver_gives_is_cut_to_the_longest_that_one_gives() {
    let guarded = Guarded::by(NOBODY);
    let review = deletion_of(&etcd_pod()).to_string().into_bytes();
    for timeout in ["9999999999999999999s", "1h", "0s"] {
        let response = guarded.send(&format!("/validate?timeout={timeout}"), JSON, review.clone()).await;
        assert_eq!(response.status, StatusCode::OK, "{timeout}: {}", response.body);
        let answer: Value = serde_json::from_str(&response.body).unwrap();
        assert_eq!(answer["response"]["uid"], "5a1b-4711", "{timeout}");
        assert_eq!(answer["response"]["allowed"], false, "{timeout}");
    }
}

#[tokio::test]
async fn fields_of_the_future_are_passed_over() {
    let guarded = Guarded::by(NOBODY);
    let mut pod = etcd_pod();
    pod["status"] = json!({"phase": "Failed", "mood": "bad"});
    pod["spec"]["containers"][0]["color"] = json!({"r": 1});
    let mut review = deletion_of(&pod);
    review["future"] = json!(1);
    review["request"]["future"] = json!([{}]);
    review["request"]["options"]["future"] = json!(null);
    assert_eq!(guarded.review(&review).await["auditAnnotations"]["reason"], "PodFinished");
    let mut review = eviction_of("etcd-0");
    review["request"]["object"]["deleteOptions"] = json!({"future": 1});
    assert_eq!(guarded.review(&review).await["auditAnnotations"]["reason"], "LookupFailed");
}

#[tokio::test]
async fn a_body_that_never_ends_is_given_up_and_the_server_lives_on() {
    let guarded = Guarded::by(NOBODY);
    // A connection without TLS, then one that says nothing: neither holds up the next.
    let mut plain = tokio::net::TcpStream::connect(guarded.address()).await.unwrap();
    plain.write_all(b"POST /validate HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let _silent = tokio::net::TcpStream::connect(guarded.address()).await.unwrap();
    let mut slow = http_client::tls(guarded.address(), &guarded.guard.ca_pem).await.unwrap();
    let head = "POST /validate HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{";
    slow.write_all(head.as_bytes()).await.unwrap();
    let mut answer = [0; 20];
    timeout(Duration::from_secs(8), slow.read_exact(&mut answer)).await.expect("an answer in time").unwrap();
    assert!(answer.starts_with(b"HTTP/1.1 408 Request"), "{}", String::from_utf8_lossy(&answer));
    assert_eq!(guarded.review(&deletion_of(&json!({"metadata": {"name": "web-0"}}))).await["allowed"], true);
}

/// Large bodies wait for each other, so that they cannot end the server; what a deletion takes waits for none of them.
#[tokio::test]
async fn a_review_of_common_size_does_not_wait_for_large_bodies() {
    let guarded = Guarded::by(NOBODY);
    let head = format!(
        "POST /validate HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        8 << 20
    );
    let mut slow = Vec::new();
    for _ in 0..8 {
        let mut stream = http_client::tls(guarded.address(), &guarded.guard.ca_pem).await.unwrap();
        stream.write_all(head.as_bytes()).await.unwrap();
        slow.push(stream);
    }
    let mut connection =
        http_client::Connection::tls(guarded.address(), &guarded.guard.ca_pem).await.unwrap();
    let review = deletion_of(&etcd_pod()).to_string();
    let small = connection.post("/validate?timeout=10s", review);
    let answer = tokio::select! {
        biased;
        _ = slow[0].read_u8() => panic!("the large bodies were given up first"),
        answer = small => answer.unwrap(),
    };
    assert_eq!(answer.status, StatusCode::OK);
    for mut stream in slow {
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer).await;
        assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    }
}
