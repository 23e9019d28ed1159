//! A table of clusters, each with the line that must report what stops or surprises an installation. The API server is a fake.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::pod;
use crate::{
    api_server::ApiServer,
    doctor::{Doctor, Options, Report},
    guard_client::{GuardClient, GuardEndpoint},
};
use etcd_guard_core::documentation::Manual;
use etcd_guard_kubernetes::fake::{api_server_with, status_failure};

const VALIDATING: &str = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
const MUTATING: &str = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations";
const SETS: &str = "/apis/apps/v1/statefulsets";
const BUDGETS: &str = "/apis/policy/v1/poddisruptionbudgets";
const NAMESPACES: &str = "/api/v1/namespaces";
const PODS: &str = "/api/v1/namespaces/ops/pods";

/// A cluster before an installation.
#[derive(Clone)]
struct Cluster {
    /// The responses to reads by path.
    objects: BTreeMap<String, Value>,
    /// The responses to dry runs by path; without one, a dry run succeeds.
    rejections: BTreeMap<&'static str, (u16, &'static str)>,
    /// The permissions that the user lacks, each as `VERB RESOURCE`.
    denied: Vec<&'static str>,
}

/// A case: the check that must report it, the state, and a part of the message.
type Case = (fn(&mut Cluster), &'static str, &'static str, &'static str);

const CASES: [Case; 27] = [
    (
        |it| drop(it.objects.insert(String::from("/version"), json!({"major": "1", "minor": "29"}))),
        "api-server",
        "failure",
        "Kubernetes 1.29 is older than 1.30",
    ),
    (
        |it| it.reject(VALIDATING, 422, "spec.matchConditions: Invalid value"),
        "admission",
        "failure",
        "the API server rejects ValidatingWebhookConfiguration etcd-guard: spec.matchConditions",
    ),
    (
        |it| {
            it.reject(
                MUTATING,
                403,
                "mutatingwebhookconfigurations is forbidden: User \"alice\" cannot create",
            );
        },
        "admission",
        "warning",
        "not checked: mutatingwebhookconfigurations is forbidden",
    ),
    (
        |it| it.reject(VALIDATING, 500, "etcdserver: request timed out"),
        "admission",
        "warning",
        "not checked: etcdserver: request timed out",
    ),
    (|it| it.reject(MUTATING, 401, "Unauthorized"), "admission", "warning", "not checked: "),
    (
        |it| it.reject(VALIDATING, 500, "failed calling webhook \"policy.example.com\": refused"),
        "admission",
        "failure",
        "the API server rejects ValidatingWebhookConfiguration etcd-guard: failed calling webhook",
    ),
    (
        |it| {
            it.exists();
            it.reject(PODS, 500, "etcdserver: request timed out");
        },
        "pods",
        "warning",
        "not checked: etcdserver: request timed out",
    ),
    (|it| it.reject(VALIDATING, 409, "already exists"), "admission", "ok", "accepts the webhooks"),
    (
        |it| it.denied.push("create clusterroles"),
        "permissions",
        "failure",
        "you cannot create clusterroles.rbac.authorization.k8s.io",
    ),
    (
        // Nobody grants what they do not have.
        |it| it.denied.extend(["escalate clusterroles", "watch pods"]),
        "permissions",
        "failure",
        "you cannot watch pods",
    ),
    (|it| it.denied.push("escalate clusterroles"), "permissions", "ok", "you may create everything"),
    (|it| it.exists(), "pods", "ok", "admits a pod"),
    (
        |it| {
            it.exists();
            it.reject(PODS, 403, "pods \"x\" is forbidden: failed quota: team: must specify limits.cpu");
        },
        "pods",
        "failure",
        "must specify limits.cpu",
    ),
    (
        |it| {
            it.exists();
            it.reject(
                PODS,
                403,
                "pods \"x\" is forbidden: insufficient quota to match these scopes: [{PriorityClass}]",
            );
        },
        "pods",
        "ok",
        "admits a pod",
    ),
    (
        |it| {
            it.exists();
            it.reject(PODS, 403, "pods is forbidden: User \"alice\" cannot create resource");
        },
        "pods",
        "warning",
        "not checked: ",
    ),
    (
        |it| {
            it.exists();
            it.reject(
                PODS,
                400,
                "admission webhook \"images.example.com\" denied the request: unknown registry",
            );
        },
        "pods",
        "warning",
        "unknown registry",
    ),
    (
        |it| drop(it.objects.insert(String::from("/apis/cert-manager.io/v1"), json!({"resources": []}))),
        "certificates",
        "ok",
        "cert-manager is installed; self-managed (the default), cert-manager and files fit",
    ),
    (
        |it| {
            it.register(
                "policy",
                json!({"rules": rule("*", "pods/eviction", "CREATE"), "failurePolicy": "Ignore"}),
            );
        },
        "other-webhooks",
        "warning",
        "takes part in deletions or evictions of etcd pods in prod: if it refuses",
    ),
    (
        |it| {
            let selector = json!({"matchLabels": {"team": "a"}});
            it.register("policy", json!({"rules": rule("*", "*/*", "*"), "namespaceSelector": selector}));
        },
        "other-webhooks",
        "ok",
        "(webhooks: 1)",
    ),
    (
        |it| it.register("closed", json!({"rules": rule("*", "*", "CREATE")})),
        "other-webhooks",
        "warning",
        "while ValidatingWebhookConfiguration closed (closed.example.com) does not respond, no replica of the guard starts",
    ),
    (
        |it| it.register("etcd-guard", json!({"rules": rule("*", "*/*", "*")})),
        "other-webhooks",
        "ok",
        "(webhooks: 0)",
    ),
    (
        |it| it.items(SETS).clear(),
        "etcd",
        "warning",
        "no StatefulSet is recognized as etcd: the guard would protect nothing",
    ),
    (
        |it| it.items(SETS)[0]["metadata"]["namespace"] = json!("kube-system"),
        "etcd",
        "warning",
        "kube-system/etcd is in a namespace that is never guarded",
    ),
    (
        |it| {
            let container = &mut it.items(SETS)[0]["spec"]["template"]["spec"]["containers"][0];
            container["command"] = json!([
                "etcd",
                "--listen-client-urls=https://0.0.0.0:2379",
                "--cert-file=/tls/tls.crt",
                "--key-file=/tls/tls.key",
                "--trusted-ca-file=/tls/ca.crt",
                "--client-cert-auth",
            ]);
            container["volumeMounts"] = json!([{"name": "tls", "mountPath": "/tls"}]);
            let volumes = json!([{"name": "tls", "secret": {"secretName": "etcd-tls"}}]);
            it.items(SETS)[0]["spec"]["template"]["spec"]["volumes"] = volumes;
        },
        "etcd",
        "warning",
        "prod/etcd needs credentials",
    ),
    (|it| it.items(BUDGETS).clear(), "etcd-budgets", "warning", "prod/etcd: no PodDisruptionBudget"),
    (
        |it| it.items(BUDGETS)[0]["spec"]["maxUnavailable"] = json!("0%"),
        "etcd-budgets",
        "warning",
        "PodDisruptionBudget etcd never allows an eviction",
    ),
    (
        |it| {
            let second = it.items(BUDGETS)[0].clone();
            it.items(BUDGETS).push(second);
        },
        "etcd-budgets",
        "warning",
        "Kubernetes evicts no pod with several budgets (etcd, etcd)",
    ),
];

/// Returns the rules of a webhook.
fn rule(group: &str, resource: &str, operation: &str) -> Value {
    json!([{"apiGroups": [group], "apiVersions": ["*"], "resources": [resource], "operations": [operation]}])
}

// === impl Cluster ===

impl Cluster {
    fn clean() -> Self {
        let namespace =
            |name: &str| json!({"metadata": {"name": name, "labels": {"kubernetes.io/metadata.name": name}}});
        let set = json!({
            "metadata": {"name": "etcd", "namespace": "prod"},
            "spec": {"replicas": 3, "template": {
                "metadata": {"labels": {"app": "etcd"}},
                "spec": {"containers": [{"name": "etcd", "image": "etcd", "command": ["etcd", "--listen-client-urls=http://0.0.0.0:2379"]}]},
            }},
        });
        let other = json!({
            "metadata": {"name": "web", "namespace": "default"},
            "spec": {"template": {"spec": {"containers": [{"name": "web", "image": "web"}]}}},
        });
        let budget = json!({
            "metadata": {"name": "etcd", "namespace": "prod"},
            "spec": {
                "maxUnavailable": 1, "selector": {"matchLabels": {"app": "etcd"}},
                "unhealthyPodEvictionPolicy": "AlwaysAllow",
            },
        });
        let lists = [
            (NAMESPACES, json!([namespace("prod"), namespace("default"), namespace("kube-system")])),
            (SETS, json!([set, other])),
            (BUDGETS, json!([budget])),
            (VALIDATING, json!([])),
            (MUTATING, json!([])),
        ];
        let mut objects: BTreeMap<String, Value> =
            lists.map(|(path, items)| (path.to_owned(), json!({"items": items}))).into();
        objects.insert(String::from("/version"), json!({"major": "1", "minor": "37"}));
        Self { objects, rejections: BTreeMap::new(), denied: Vec::new() }
    }

    fn items(&mut self, path: &str) -> &mut Vec<Value> {
        self.objects.get_mut(path).unwrap()["items"].as_array_mut().unwrap()
    }

    fn reject(&mut self, path: &'static str, code: u16, message: &'static str) {
        self.rejections.insert(path, (code, message));
    }

    /// Creates the namespace of the guard.
    fn exists(&mut self) {
        self.objects.insert(format!("{NAMESPACES}/ops"), json!({"metadata": {"name": "ops"}}));
    }

    /// Registers a webhook.
    fn register(&mut self, name: &str, mut entry: Value) {
        entry["name"] = json!(format!("{name}.example.com"));
        self.items(VALIDATING).push(json!({"metadata": {"name": name}, "webhooks": [entry]}));
    }

    fn respond(&self, method: &http::Method, path: &str, body: &Value) -> (u16, Value) {
        if path.ends_with("/selfsubjectaccessreviews") {
            let attributes = &body["spec"]["resourceAttributes"];
            let [verb, resource] = ["verb", "resource"].map(|name| attributes[name].as_str().unwrap());
            let is_denied = self.denied.contains(&format!("{verb} {resource}").as_str());
            return (201, json!({"spec": {}, "status": {"allowed": !is_denied}}));
        }
        if method == http::Method::POST {
            let rejection = self.rejections.get(path);
            return rejection.map_or_else(
                || (201, body.clone()),
                |(code, message)| (*code, status_failure(*code, message)),
            );
        }
        let not_found = (404, status_failure(404, &format!("{path} not found")));
        self.objects.get(path).map_or(not_found, |object| (200, object.clone()))
    }

    async fn examine(&self) -> Vec<Value> {
        let cluster = self.clone();
        let client = api_server_with(move |call, body| {
            let is_dry_run = call.uri.query().is_some_and(|query| query.contains("dryRun=All"));
            let is_review = call.uri.path().ends_with("/selfsubjectaccessreviews");
            assert!(is_dry_run || is_review || call.method == http::Method::GET, "{}", call.uri);
            cluster.respond(&call.method, call.uri.path(), body)
        });
        let guard = GuardClient {
            api_server: ApiServer::fake(client, "kubectl --context dev"),
            endpoint: GuardEndpoint::PortForward {
                namespace: String::from("ops"),
                selector: String::from("app=guard"),
            },
        };
        let options = Options {
            guard_namespace: String::from("ops"),
            guard_selector: String::from("app=guard"),
            namespace: None,
            manual: Manual::default(),
        };
        let report: Report = Doctor::new(guard, options).examine_before().await.unwrap();
        serde_json::to_value(&report).unwrap()["checks"].as_array().unwrap().clone()
    }
}

#[tokio::test]
async fn clean_cluster_has_no_finding() {
    let lines = Cluster::clean().examine().await;
    let checks: Vec<&str> = lines.iter().map(|line| line["check"].as_str().unwrap()).collect();
    let all = [
        "api-server",
        "installation",
        "admission",
        "permissions",
        "pods",
        "certificates",
        "other-webhooks",
        "etcd",
        "etcd-budgets",
    ];
    assert_eq!(checks, all);
    assert!(lines.iter().all(|line| line["state"] == "ok"), "{lines:#?}");
    assert!(
        lines[7]["message"].as_str().unwrap().starts_with("recognized as etcd: prod/etcd; "),
        "{lines:#?}"
    );
}

#[tokio::test]
async fn reports_what_stops_or_surprises() {
    let mut missed = Vec::new();
    for (change, check, state, text) in CASES {
        let mut cluster = Cluster::clean();
        change(&mut cluster);
        let lines = cluster.examine().await;
        let line = lines.iter().find(|line| line["check"] == check).unwrap();
        let is_reported = line["state"] == state && line["message"].as_str().unwrap().contains(text);
        if !is_reported {
            missed.push(format!("{text}: {line:#}"));
        }
        for line in &lines {
            let is_ok = line["state"] == "ok";
            assert_eq!((line["remedy"].is_null(), line["documentation"].is_null()), (is_ok, is_ok), "{line}");
            assert_ne!(line["documentation"], "https://etcd-guard.io/cli.html#doctor", "no section: {line}");
        }
    }
    assert!(missed.is_empty(), "{} of {}: {}", missed.len(), CASES.len(), missed.join("\n"));
}

#[tokio::test]
async fn another_guard_is_found() {
    let configuration = |namespace: &str| {
        let service = json!({"service": {"namespace": namespace, "name": "etcd-guard"}});
        json!({"metadata": {"name": "etcd-guard"}, "webhooks": [{"name": "guard", "clientConfig": service}]})
    };
    for (namespace, state, remedy) in [
        ("ops", "warning", "kubectl etcd-guard doctor --context dev --guard-namespace ops"),
        ("elsewhere", "failure", "kubectl etcd-guard doctor --context dev --guard-namespace elsewhere"),
    ] {
        let mut cluster = Cluster::clean();
        cluster.objects.insert(format!("{VALIDATING}/etcd-guard"), configuration(namespace));
        let lines = cluster.examine().await;
        let line = lines.iter().find(|line| line["check"] == "installation").unwrap();
        assert_eq!(line["state"], state, "{line}");
        assert!(line["remedy"].as_str().unwrap().ends_with(remedy), "{line}");
    }
}

#[test]
fn pod_of_the_dry_run_is_that_of_the_manifest() {
    let pod = pod();
    assert_eq!(pod["spec"]["priorityClassName"], "system-cluster-critical");
    assert_eq!(pod["metadata"]["labels"]["app.kubernetes.io/name"], "etcd-guard");
    assert!(pod["spec"]["containers"][0]["resources"]["limits"]["memory"].is_string(), "{pod}");
    assert!(pod["spec"]["serviceAccountName"].is_null(), "the account does not exist yet");
}
