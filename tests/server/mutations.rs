//! Answers of `/mutate`: they have the form that the API server accepts, and an error of the guard never rejects a pod.

use http::StatusCode;
use serde_json::{Value, json};

use crate::{Server, UNREACHABLE};

impl Server {
    async fn mutate(&self, review: &Value) -> Value {
        self.mutate_within("5s", review).await
    }

    async fn mutate_within(&self, timeout: &str, review: &Value) -> Value {
        let body = review.to_string().into_bytes();
        let path = format!("/mutate?timeout={timeout}");
        let response = self.send(&path, Some("application/json"), body).await;
        assert_eq!(response.status, StatusCode::OK, "{}", response.body);
        let answer: Value = serde_json::from_str(&response.body).unwrap();
        // crazytaxii/lxcfs-hostpath-injector and denverdino/lxcfs-admission-webhook omit the first two fields, which v1
        // treats as a failed call; denverdino supports only v1beta1.
        assert_eq!(answer["apiVersion"], review["apiVersion"]);
        assert_eq!(answer["kind"], "AdmissionReview");
        assert_eq!(answer["response"]["uid"], review["request"]["uid"]);
        let response = &answer["response"];
        assert_eq!(
            response["patch"].is_null(),
            response["patchType"].is_null(),
            "a patch and its type are set together"
        );
        response.clone()
    }
}

fn creation_review(pod: &Value) -> Value {
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

fn pod_with_injection() -> Value {
    json!({
        "metadata": {"generateName": "web-", "annotations": {"etcd-guard.io/inject": "lxcfs"}},
        "spec": {"containers": [{"name": "web"}]}
    })
}

#[tokio::test]
async fn pod_without_injection_request_gets_no_patch() {
    let server = Server::start(UNREACHABLE);
    for version in ["admission.k8s.io/v1", "admission.k8s.io/v1beta1"] {
        let mut review = creation_review(&json!({"spec": {"containers": [{"name": "web"}]}}));
        review["apiVersion"] = json!(version);
        let response = server.mutate(&review).await;
        assert_eq!((&response["allowed"], &response["patch"]), (&json!(true), &Value::Null));
    }
    let counted = server.guard.verdict_counts().await;
    assert_eq!(counted, [(String::from("CREATE allowed NothingToInject"), 2)].into());
}

#[tokio::test]
async fn injects_no_restricted_volumes_without_api_server() {
    let server = Server::start(UNREACHABLE);
    let response = server.mutate(&creation_review(&pod_with_injection())).await;
    assert_eq!((&response["allowed"], &response["patch"]), (&json!(true), &Value::Null));
    let warning = response["warnings"][0].as_str().unwrap();
    assert!(
        warning.starts_with("the labels of namespace prod are not known: ") && warning.len() <= 120,
        "{warning}"
    );
    assert_eq!(response["auditAnnotations"]["reason"], "NamespaceUnknown");
}

#[tokio::test]
async fn request_timeout_bounds_namespace_read() {
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = Server::start(&silent.local_addr().unwrap().to_string());
    let response = server.mutate_within("2s", &creation_review(&pod_with_injection())).await;
    assert_eq!((&response["allowed"], &response["patch"]), (&json!(true), &Value::Null));
    let expected = "the labels of namespace prod are not known: reading the namespace took longer than 1s";
    assert_eq!(response["warnings"][0], expected);

    let body = creation_review(&pod_with_injection()).to_string().into_bytes();
    let response = server.send("/mutate?timeout=soon", Some("application/json"), body).await;
    assert_eq!(response.status, StatusCode::BAD_REQUEST);
    assert!(response.body.contains("timeout=\"soon\" is not a duration"), "{}", response.body);
}

#[tokio::test]
async fn admits_unreadable_objects_with_warning() {
    let server = Server::start(UNREACHABLE);
    let mut configmap = creation_review(&pod_with_injection());
    configmap["request"]["resource"]["resource"] = json!("configmaps");
    let mut update = creation_review(&pod_with_injection());
    update["request"]["operation"] = json!("UPDATE");
    let odd = json!({"metadata": {"labels": [], "annotations": "x"}, "spec": {"containers": {"a": 1}}});
    let mut null = creation_review(&Value::Null);
    for review in [creation_review(&json!([])), creation_review(&odd), configmap, update, null.take()] {
        let response = server.mutate(&review).await;
        assert_eq!((&response["allowed"], &response["patch"]), (&json!(true), &Value::Null), "{review}");
    }
}

#[tokio::test]
async fn rejects_review_without_request_and_keeps_serving() {
    // togettoyou/sidecar-injector panics on such a review.
    let server = Server::start(UNREACHABLE);
    let body =
        json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}).to_string().into_bytes();
    let response = server.send("/mutate", Some("application/json"), body).await;
    assert_eq!(response.status, StatusCode::BAD_REQUEST);
    assert!(response.body.contains("has no request"), "{}", response.body);
    assert_eq!(server.mutate(&creation_review(&json!({}))).await["allowed"], true);
}

#[tokio::test]
async fn validate_decides_pod_creation_by_name_only() {
    let server = Server::start(UNREACHABLE);
    let response = server.review(&creation_review(&pod_with_injection())).await;
    assert_eq!(response["allowed"], true);
    assert_eq!(response["patchType"], Value::Null, "a validating answer carries no patch");
    assert_eq!(server.guard.verdict_counts().await, [(String::from("CREATE allowed NameAllowed"), 1)].into());
}
