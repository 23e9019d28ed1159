//! Verdicts that need no probe, and the format of responses.

use std::time::Duration;

use serde_json::{Value, json};

use crate::{Server, UNREACHABLE, deletion_review, etcd_pod, eviction_review};
use test_support::wait::wait_until;

/// The longest time until a line is in the log, on a busy machine.
const LINE_TIMEOUT: Duration = Duration::from_secs(30);

fn with(change: impl Fn(&mut Value)) -> Value {
    let mut pod = etcd_pod();
    change(&mut pod);
    pod
}

#[tokio::test]
async fn allows_pods_that_serve_nothing_without_probe() {
    let server = Server::start_with_lists().await;
    let cases = [
        (
            "AlreadyTerminating",
            with(|pod| pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z")),
        ),
        ("PodFinished", with(|pod| pod["status"]["phase"] = json!("Failed"))),
        ("PodFinished", with(|pod| pod["status"]["phase"] = json!("Succeeded"))),
        (
            "MirrorPod",
            with(|pod| pod["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "x"})),
        ),
        ("NotEtcd", with(|pod| pod["spec"]["containers"] = json!([{"name": "web", "image": "nginx"}]))),
    ];
    for (reason, pod) in cases {
        let response = server.review(&deletion_review(&pod)).await;
        assert_eq!(response["allowed"], true, "{reason}: {response}");
        assert_eq!(response["auditAnnotations"]["reason"], reason);
        assert_eq!(response["status"], Value::Null, "an approval has no status");
    }
}

/// Returns a pod that does not contain the word "etcd".
fn web() -> Value {
    json!({
        "metadata": {"name": "web-0", "namespace": "prod", "uid": "u", "labels": {"app": "web"}},
        "spec": {"containers": [{"name": "web", "image": "nginx"}]},
        "status": {"phase": "Running", "podIP": "10.0.0.1"},
    })
}

/// The word "etcd" in a review determines only the level of the log line.
#[tokio::test]
async fn word_etcd_in_review_does_not_change_verdict() {
    let server = Server::start_with_lists().await;
    let pod = web();
    for version in ["v1", "v1beta1"] {
        for nameless in [false, true] {
            let mut review = deletion_review(&pod);
            review["apiVersion"] = json!(format!("admission.k8s.io/{version}"));
            if nameless {
                review["request"]
                    .as_object_mut()
                    .unwrap()
                    .retain(|key, _| key != "name" && key != "namespace");
            }
            assert!(!review.to_string().contains("etcd"));
            let without_word = server.review(&review).await;
            review["request"]["oldObject"]["metadata"]["labels"]["app"] = json!("etcd-browser");
            let with_word = server.review(&review).await;
            assert_eq!(without_word, with_word);
            assert_eq!(without_word["auditAnnotations"]["reason"], "NotEtcd");
        }
    }
    assert_eq!(server.guard.verdict_counts().await, [(String::from("DELETE allowed NotEtcd"), 8)].into());
}

/// Most deleted pods do not mention etcd. A log line for each would hide the verdicts on members.
#[tokio::test]
async fn logs_unrelated_pods_only_if_reviews_mention_etcd() {
    let server = Server::start_with_lists().await;
    let mut mentioning = web();
    mentioning["metadata"]["name"] = json!("web-1");
    mentioning["metadata"]["labels"]["app"] = json!("etcd-browser");
    for pod in [web(), mentioning] {
        let response = server.review(&deletion_review(&pod)).await;
        assert_eq!(response["auditAnnotations"]["reason"], "NotEtcd");
    }
    // Lines are in the order of the verdicts.
    let count = |pod| server.guard.logged_deletions(pod).len();
    wait_until("the second line is written", LINE_TIMEOUT, async || count("web-1") == 1).await;
    assert_eq!(count("web-0"), 0);
}

/// The verdict rests on the parsed pod, whatever the text of the review looks like.
#[tokio::test]
async fn recognizes_members_written_with_json_escapes() {
    const PLAIN: &str = r#"{"metadata":{"name":"a-0","namespace":"prod","uid":"u"},
        "spec":{"containers":[{"name":"a","image":"a"}]},"status":{"phase":"Running"}}"#;
    let server = Server::start_with_lists().await;
    let changes = [
        ("", "", "allowed"),
        (r#""image":"a""#, r#""image":"\u0065tcd:3.6""#, "denied"),
        (r#""image":"a""#, r#""image":"a","command":["/bin/\u0065tcd"]"#, "denied"),
        (r#""image":"a""#, r#""image":"a","env":[{"name":"ETCD_LISTEN_PEER_URLS"}]"#, "denied"),
        (r#""uid":"u""#, r#""uid":"u","annotations":{"\u0065tcd-guard.io/member":"true"}"#, "denied"),
    ];
    for (from, to, verdict) in changes {
        let pod = PLAIN.replace(from, to);
        let review = deletion_review(&json!({"metadata": {"name": "a-0"}})).to_string();
        let review = review.replace(r#"{"metadata":{"name":"a-0"}}"#, &pod);
        assert!(review.contains(&pod) && !review.contains("etcd"), "{review}");
        let answer = server.send("/validate", Some("application/json"), review.into_bytes()).await;
        let answer: Value = serde_json::from_str(&answer.body).unwrap();
        assert_eq!(answer["response"]["allowed"], verdict == "allowed", "{to}: {answer}");
    }
}

/// An API server sends valid pods. A pod that cannot be read is a bad request, and not a pod without etcd.
#[tokio::test]
async fn unreadable_pods_are_bad_requests() {
    let server = Server::start_with_lists().await;
    let mut pod = json!({
        "metadata": {"name": "a-0", "namespace": "prod"},
        "spec": {"containers": [{"image": "a"}]},
    });
    assert_eq!(server.review(&deletion_review(&pod)).await["allowed"], true);
    for (place, value) in [("/spec/containers/0/image", Value::Null), ("/metadata/name", json!(7))] {
        let before = pod.pointer(place).unwrap().clone();
        *pod.pointer_mut(place).unwrap() = value;
        assert_eq!(server.review(&deletion_review(&pod)).await["status"]["code"], 400, "{place}");
        *pod.pointer_mut(place).unwrap() = before;
    }
}

#[tokio::test]
async fn answers_v1beta1_reviews_in_v1beta1() {
    let server = Server::start(UNREACHABLE);
    let mut review = deletion_review(&with(|pod| pod["status"]["phase"] = json!("Failed")));
    review["apiVersion"] = json!("admission.k8s.io/v1beta1");
    assert_eq!(server.review(&review).await["allowed"], true);
    review["request"]["oldObject"] = etcd_pod();
    let denial = server.review(&review).await;
    assert_eq!((&denial["allowed"], &denial["status"]["code"]), (&json!(false), &json!(403)));
}

/// Clients before 1.22 send evictions of this version, and the API server forwards them unchanged.
#[tokio::test]
async fn evaluates_v1beta1_evictions_like_v1() {
    let server = Server::start(UNREACHABLE);
    let mut review = eviction_review("etcd-0");
    review["request"]["kind"]["version"] = json!("v1beta1");
    review["request"]["object"]["apiVersion"] = json!("policy/v1beta1");
    let denial = server.review(&review).await;
    assert_eq!((&denial["allowed"], &denial["status"]["code"]), (&json!(false), &json!(429)));
}

#[tokio::test]
async fn uses_name_of_old_object_for_collections() {
    let server = Server::start(UNREACHABLE);
    let mut review = deletion_review(&etcd_pod());
    review["request"].as_object_mut().unwrap().remove("name");
    let response = server.review(&review).await;
    let message = response["status"]["message"].as_str().unwrap();
    assert!(message.contains("pod etcd-0"), "{message}");
}

#[tokio::test]
async fn verdicts_are_counted_under_closed_labels() {
    let server = Server::start(UNREACHABLE);
    server.review(&deletion_review(&etcd_pod())).await;
    server.review(&deletion_review(&with(|pod| pod["status"]["phase"] = json!("Failed")))).await;
    let counted = server.guard.verdict_counts().await;
    let expected = [("DELETE allowed PodFinished", 1), ("DELETE denied LookupFailed", 1)];
    assert_eq!(counted, expected.map(|(verdict, count)| (String::from(verdict), count)).into());
}
