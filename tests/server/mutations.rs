//! What `/mutate` answers: in the form that the apiserver takes, and never a rejection for an error of its own.

use http::StatusCode;
use serde_json::{Value, json};

use crate::{Guarded, NOBODY};

impl Guarded {
    async fn mutate(&self, review: &Value) -> Value {
        self.mutate_within("5s", review).await
    }

    async fn mutate_within(&self, timeout: &str, review: &Value) -> Value {
        let body = review.to_string().into_bytes();
        let path = format!("/mutate?timeout={timeout}");
        let response = self.send(&path, Some("application/json"), body).await;
        assert_eq!(response.status, StatusCode::OK, "{}", response.body);
        let answer: Value = serde_json::from_str(&response.body).unwrap();
        // crazytaxii/lxcfs-hostpath-injector and denverdino/lxcfs-admission-webhook answer without the first two, which
        // v1 takes for a failed call; denverdino knows v1beta1 only.
        assert_eq!(answer["apiVersion"], review["apiVersion"]);
        assert_eq!(answer["kind"], "AdmissionReview");
        assert_eq!(answer["response"]["uid"], review["request"]["uid"]);
        let response = &answer["response"];
        assert_eq!(response["patch"].is_null(), response["patchType"].is_null(), "both or neither");
        response.clone()
    }
}

fn creation_of(pod: &Value) -> Value {
    json!({
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "5a1b-4713",
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "namespace": "prod",
            "operation": "CREATE",
            "userInfo": {"username": "kubernetes-admin"},
            "object": pod,
            "oldObject": null,
            "dryRun": true,
        }
    })
}

fn asking() -> Value {
    json!({
        "metadata": {"generateName": "web-", "annotations": {"etcd-guard.io/inject": "lxcfs"}},
        "spec": {"containers": [{"name": "web"}]}
    })
}

#[tokio::test]
async fn a_pod_that_asks_for_nothing_is_allowed_without_a_patch_in_either_version() {
    let guarded = Guarded::by(NOBODY);
    for version in ["admission.k8s.io/v1", "admission.k8s.io/v1beta1"] {
        let mut review = creation_of(&json!({"spec": {"containers": [{"name": "web"}]}}));
        review["apiVersion"] = json!(version);
        let response = guarded.mutate(&review).await;
        assert_eq!((&response["allowed"], &response["patch"]), (&json!(true), &Value::Null));
    }
    let counted = guarded.guard.counted().await;
    assert_eq!(counted, [(String::from("CREATE allowed NothingToInject"), 2)].into());
}

#[tokio::test]
async fn without_an_apiserver_nothing_is_injected_that_the_namespace_might_forbid() {
    let guarded = Guarded::by(NOBODY);
    let response = guarded.mutate(&creation_of(&asking())).await;
    assert_eq!((&response["allowed"], &response["patch"]), (&json!(true), &Value::Null));
    let warning = response["warnings"][0].as_str().unwrap();
    assert!(
        warning.starts_with("the labels of namespace prod are not known: ") && warning.len() <= 120,
        "{warning}"
    );
    assert_eq!(response["auditAnnotations"]["reason"], "NamespaceUnknown");
}

#[tokio::test]
async fn what_the_apiserver_waits_bounds_the_look_at_the_namespace() {
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let guarded = Guarded::by(&silent.local_addr().unwrap().to_string());
    let response = guarded.mutate_within("2s", &creation_of(&asking())).await;
    assert_eq!((&response["allowed"], &response["patch"]), (&json!(true), &Value::Null));
    let expected = "the labels of namespace prod are not known: reading the namespace took longer than 1s";
    assert_eq!(response["warnings"][0], expected);

    let body = creation_of(&asking()).to_string().into_bytes();
    let response = guarded.send("/mutate?timeout=soon", Some("application/json"), body).await;
    assert_eq!(response.status, StatusCode::BAD_REQUEST);
    assert!(response.body.contains("timeout=\"soon\" is no duration"), "{}", response.body);
}

#[tokio::test]
async fn an_object_that_is_not_readable_or_not_ours_is_admitted_with_a_warning() {
    let guarded = Guarded::by(NOBODY);
    let mut configmap = creation_of(&asking());
    configmap["request"]["resource"]["resource"] = json!("configmaps");
    let mut update = creation_of(&asking());
    update["request"]["operation"] = json!("UPDATE");
    let odd = json!({"metadata": {"labels": [], "annotations": "x"}, "spec": {"containers": {"a": 1}}});
    let mut null = creation_of(&Value::Null);
    for review in [creation_of(&json!([])), creation_of(&odd), configmap, update, null.take()] {
        let response = guarded.mutate(&review).await;
        assert_eq!((&response["allowed"], &response["patch"]), (&json!(true), &Value::Null), "{review}");
    }
}

#[tokio::test]
async fn a_review_without_a_request_is_told_so_and_the_server_lives_on() {
    // togettoyou/sidecar-injector panics on it.
    let guarded = Guarded::by(NOBODY);
    let body =
        json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}).to_string().into_bytes();
    let response = guarded.send("/mutate", Some("application/json"), body).await;
    assert_eq!(response.status, StatusCode::BAD_REQUEST);
    assert!(response.body.contains("has no request"), "{}", response.body);
    assert_eq!(guarded.mutate(&creation_of(&json!({}))).await["allowed"], true);
}

#[tokio::test]
async fn a_creation_of_a_pod_on_validate_is_judged_by_its_name_and_nothing_else() {
    let guarded = Guarded::by(NOBODY);
    let response = guarded.review(&creation_of(&asking())).await;
    assert_eq!(response["allowed"], true);
    assert_eq!(response["patchType"], Value::Null, "a validating answer carries no patch");
    assert_eq!(guarded.guard.counted().await, [(String::from("CREATE allowed NameAllowed"), 1)].into());
}
