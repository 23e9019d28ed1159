//! What is answered without a look at the cluster, and how answers are made.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::{Guarded, NOBODY, deletion_of, etcd_pod, eviction_of, support::wait::until};

/// Longest until a line is in the log, next to compilers.
const LINE_LIMIT: Duration = Duration::from_secs(30);

fn with(change: impl Fn(&mut Value)) -> Value {
    let mut pod = etcd_pod();
    change(&mut pod);
    pod
}

#[tokio::test]
async fn what_costs_no_cluster_anything_is_allowed_at_once() {
    let guarded = Guarded::by(NOBODY);
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
        let response = guarded.review(&deletion_of(&pod)).await;
        assert_eq!(response["allowed"], true, "{reason}: {response}");
        assert_eq!(response["auditAnnotations"]["reason"], reason);
        assert_eq!(response["status"], Value::Null, "an answer that allows carries no status");
    }
}

/// A pod in which nothing says "etcd".
fn web() -> Value {
    json!({
        "metadata": {"name": "web-0", "namespace": "prod", "uid": "u", "labels": {"app": "web"}},
        "spec": {"containers": [{"name": "web", "image": "nginx"}]},
        "status": {"phase": "Running", "podIP": "10.0.0.1"},
    })
}

/// A review in which nothing says "etcd" is read at a glance, any other as a whole.
#[tokio::test]
async fn a_pod_without_etcd_passes_with_the_same_words_however_it_is_read() {
    let guarded = Guarded::by(NOBODY);
    let pod = web();
    for version in ["v1", "v1beta1"] {
        for nameless in [false, true] {
            let mut review = deletion_of(&pod);
            review["apiVersion"] = json!(format!("admission.k8s.io/{version}"));
            if nameless {
                review["request"]
                    .as_object_mut()
                    .unwrap()
                    .retain(|key, _| key != "name" && key != "namespace");
            }
            assert!(!review.to_string().contains("etcd"));
            let at_a_glance = guarded.review(&review).await;
            review["request"]["oldObject"]["metadata"]["labels"]["app"] = json!("etcd-browser");
            let as_a_whole = guarded.review(&review).await;
            assert_eq!(at_a_glance, as_a_whole);
            assert_eq!(at_a_glance["auditAnnotations"]["reason"], "NotEtcd");
        }
    }
    assert_eq!(guarded.guard.counted().await, [(String::from("DELETE allowed NotEtcd"), 8)].into());
}

/// Such a line waits for the worker to rest. Any other line would take it along; this one comes by itself.
#[tokio::test]
async fn a_pod_that_is_passed_by_has_its_line_in_the_log_before_anything_else_is_told() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let guarded = Guarded::by(&silent.local_addr().unwrap().to_string());
    let count = |message| guarded.guard.count_lines(message);
    for sent in 1.. {
        let others = count("not ready");
        guarded.review(&deletion_of(&web())).await;
        until("the line is written", LINE_LIMIT, async || count("web-0 runs no etcd") == sent).await;
        // Where the apiserver was found silent meanwhile, that line may have taken the other along.
        if count("not ready") == others {
            break;
        }
        assert!(sent < 10, "each time something else was told");
    }
}

/// What is found by its letters has to be found, too, where JSON writes them otherwise.
#[tokio::test]
async fn a_member_is_looked_at_however_json_writes_what_makes_it_one() {
    const PLAIN: &str = r#"{"metadata":{"name":"a-0","namespace":"prod","uid":"u"},
        "spec":{"containers":[{"name":"a","image":"a"}]},"status":{"phase":"Running"}}"#;
    let guarded = Guarded::by(NOBODY);
    let changes = [
        ("", "", "allowed"),
        (r#""image":"a""#, r#""image":"\u0065tcd:3.6""#, "denied"),
        (r#""image":"a""#, r#""image":"a","command":["/bin/\u0065tcd"]"#, "denied"),
        (r#""image":"a""#, r#""image":"a","env":[{"name":"ETCD_LISTEN_PEER_URLS"}]"#, "denied"),
        (r#""uid":"u""#, r#""uid":"u","annotations":{"\u0065tcd-guard.io/member":"true"}"#, "denied"),
    ];
    for (from, to, verdict) in changes {
        let pod = PLAIN.replace(from, to);
        let review = deletion_of(&json!({"metadata": {"name": "a-0"}})).to_string();
        let review = review.replace(r#"{"metadata":{"name":"a-0"}}"#, &pod);
        assert!(review.contains(&pod) && !review.contains("etcd"), "{review}");
        let answer = guarded.send("/validate", Some("application/json"), review.into_bytes()).await;
        let answer: Value = serde_json::from_str(&answer.body).unwrap();
        assert_eq!(answer["response"]["allowed"], verdict == "allowed", "{to}: {answer}");
    }
}

/// A mistake in a part that no verdict hangs on holds nobody up.
#[tokio::test]
async fn of_a_pod_that_names_etcd_nowhere_only_what_tells_so_is_read() {
    let guarded = Guarded::by(NOBODY);
    let mut pod = json!({
        "metadata": {"name": "a-0", "namespace": "prod", "labels": 7},
        "spec": {"containers": [{"image": "a"}]},
    });
    assert_eq!(guarded.review(&deletion_of(&pod)).await["allowed"], true);
    for (place, value) in [("/spec/containers/0/image", Value::Null), ("/metadata/name", json!(7))] {
        let before = pod.pointer(place).unwrap().clone();
        *pod.pointer_mut(place).unwrap() = value;
        assert_eq!(guarded.review(&deletion_of(&pod)).await["status"]["code"], 400, "{place}");
        *pod.pointer_mut(place).unwrap() = before;
    }
}

#[tokio::test]
async fn a_review_of_v1beta1_is_answered_in_v1beta1() {
    let guarded = Guarded::by(NOBODY);
    let mut review = deletion_of(&with(|pod| pod["status"]["phase"] = json!("Failed")));
    review["apiVersion"] = json!("admission.k8s.io/v1beta1");
    assert_eq!(guarded.review(&review).await["allowed"], true);
    review["request"]["oldObject"] = etcd_pod();
    let denial = guarded.review(&review).await;
    assert_eq!((&denial["allowed"], &denial["status"]["code"]), (&json!(false), &json!(403)));
}

/// Clients of before 1.22 send evictions of this version, and an apiserver passes them on as they came.
#[tokio::test]
async fn an_eviction_of_v1beta1_is_judged_as_one_of_v1() {
    let guarded = Guarded::by(NOBODY);
    let mut review = eviction_of("etcd-0");
    review["request"]["kind"]["version"] = json!("v1beta1");
    review["request"]["object"]["apiVersion"] = json!("policy/v1beta1");
    let denial = guarded.review(&review).await;
    assert_eq!((&denial["allowed"], &denial["status"]["code"]), (&json!(false), &json!(429)));
}

#[tokio::test]
async fn a_deletion_of_a_collection_is_judged_by_the_old_objects_name() {
    let guarded = Guarded::by(NOBODY);
    let mut review = deletion_of(&etcd_pod());
    review["request"].as_object_mut().unwrap().remove("name");
    let response = guarded.review(&review).await;
    let message = response["status"]["message"].as_str().unwrap();
    assert!(message.contains("pod etcd-0"), "{message}");
}

#[tokio::test]
async fn verdicts_are_counted_under_closed_labels() {
    let guarded = Guarded::by(NOBODY);
    guarded.review(&deletion_of(&etcd_pod())).await;
    guarded.review(&deletion_of(&with(|pod| pod["status"]["phase"] = json!("Failed")))).await;
    let counted = guarded.guard.counted().await;
    let expected = [("DELETE allowed PodFinished", 1), ("DELETE denied LookupFailed", 1)];
    assert_eq!(counted, expected.map(|(verdict, count)| (String::from(verdict), count)).into());
}
