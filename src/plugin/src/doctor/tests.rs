//! A table of defective installations, each with the line that must report the defect. The API server and the guard are fakes.

mod handover;
mod owner_kinds;

use std::{collections::BTreeMap, convert::Infallible, net::SocketAddr, sync::Arc, time::SystemTime};

use axum::{Router, routing::get};
use http_body_util::BodyExt;
use kube::{Client, client::Body};
use serde_json::{Value, json};

use self::owner_kinds::list_owner_kind;
use super::{Doctor, Options};
use crate::{
    api_server::ApiServer,
    guard_client::{GuardClient, GuardEndpoint},
};
use etcd_guard_cli::registration::{Registration, WebhookGroup, shipped_configurations};
use etcd_guard_core::{documentation::Manual, opt_in_label::OptInLabel};
use etcd_guard_kubernetes::fake::status_failure;

const CONFIGURATION: &str =
    "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/etcd-guard";
const UID: &str = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/etcd-guard";
const NODES: &str = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/etcd-guard-nodes";
const POLICIES: &str = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies";
const BINDINGS: &str = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings";
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/ops/deployments";
const PODS: &str = "/api/v1/namespaces/ops/pods";
const LXCFS: &str = "/apis/apps/v1/namespaces/etcd-guard-lxcfs/daemonsets";

/// The manifests of the policies.
const POLICY_MANIFESTS: [&str; 3] = [
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/components/self-managed/policy.yaml")),
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/components/over-commit/policy.yaml")),
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/lxcfs/policy.yaml")),
];

/// An installation, and what the user selected.
#[derive(Clone)]
struct Installation {
    /// The responses of the API server by path.
    objects: BTreeMap<String, Value>,
    /// Permissions that accounts lack, each as `ACCOUNT VERB RESOURCE`.
    denied: Vec<&'static str>,
    survey: Value,
    guard_responds: bool,
    namespace: Option<&'static str>,
}

/// A defect: the check that must report it, the state, and a part of the message or of the remedy.
type Defect = (&'static str, fn(&mut Installation), &'static str, &'static str, &'static str);

const DEFECTS: [Defect; 25] = [
    (
        "the deletion of a listed owner is not evaluated",
        list_owner_kind,
        "webhooks",
        "warning",
        "guard.ownerKinds lists etcdclusters.example.com, but intent.guard.etcd-guard.io has no rule for their deletion",
    ),
    (
        "another name of the Deployment of the certificates hides its missing permission",
        |it| {
            it.objects.get_mut(DEPLOYMENTS).unwrap()["items"][1]["metadata"]["name"] =
                json!("other-certificates");
            it.denied.push("etcd-guard-certificates get secrets");
        },
        "permissions",
        "failure",
        "account etcd-guard-certificates: cannot get secrets",
    ),
    (
        "the account of --register lacks a permission",
        |it| {
            let args = json!(["certificates", "--register"]);
            it.objects.get_mut(DEPLOYMENTS).unwrap()["items"][1]["spec"]["template"]["spec"]["containers"]
                [0]["args"] = args;
            it.denied.push("etcd-guard-certificates create mutatingwebhookconfigurations");
        },
        "permissions",
        "failure",
        "cannot create mutatingwebhookconfigurations",
    ),
    (
        "the account of lxcfs lacks its permission",
        |it| it.denied.push("lxcfs patch nodes"),
        "permissions",
        "failure",
        "account lxcfs: cannot patch nodes",
    ),
    (
        "no policy limits the account of the certificates",
        |it| drop(it.objects.remove(&format!("{POLICIES}/etcd-guard-certificates"))),
        "policies",
        "failure",
        "ValidatingAdmissionPolicy etcd-guard-certificates is missing",
    ),
    (
        "a policy for the status of nodes lacks its binding",
        |it| drop(it.objects.remove(&format!("{BINDINGS}/etcd-guard-nodes"))),
        "policies",
        "failure",
        "ValidatingAdmissionPolicyBinding etcd-guard-nodes is missing",
    ),
    (
        "a binding does not deny",
        |it| {
            let binding = it.objects.get_mut(&format!("{BINDINGS}/etcd-guard-certificates")).unwrap();
            binding["spec"]["validationActions"] = json!(["Audit"]);
        },
        "policies",
        "failure",
        "etcd-guard-certificates does not deny",
    ),
    (
        "a policy lacks a validation",
        |it| {
            let policy = it.objects.get_mut(&format!("{POLICIES}/etcd-guard-lxcfs")).unwrap();
            policy["spec"]["validations"].as_array_mut().unwrap().pop();
        },
        "policies",
        "failure",
        "etcd-guard-lxcfs lacks a shipped validation",
    ),
    (
        "both replicas run on one node",
        |it| {
            for pod in it.objects.get_mut(PODS).unwrap()["items"].as_array_mut().unwrap() {
                pod["spec"]["nodeName"] = json!("worker");
            }
        },
        "replicas",
        "warning",
        "run on one node",
    ),
    (
        "a pod cannot pull its image",
        |it| {
            let pod = &mut it.objects.get_mut(PODS).unwrap()["items"][1];
            let waiting = json!({"waiting": {"reason": "ImagePullBackOff"}});
            pod["status"] = json!({"containerStatuses": [{"image": "etcd-guard:0.1.0", "state": waiting}]});
        },
        "replicas",
        "failure",
        "cannot pull its image etcd-guard:0.1.0",
    ),
    ("the clock of no replica was read", |it| it.guard_responds = false, "clock", "warning", "unknown: "),
    (
        "the guard protects no cluster",
        |it| it.survey["clusters"] = json!([]),
        "clusters",
        "warning",
        "label namespace NAME etcd-guard.io/guard=enabled",
    ),
    (
        "the guard and the webhooks use different labels",
        |it| it.survey["optInLabel"] = json!("team=etcd"),
        "webhooks",
        "warning",
        "another namespaceSelector",
    ),
    (
        "the selected namespace does not exist",
        |it| it.namespace = Some("absent"),
        "network",
        "failure",
        "namespace absent does not exist",
    ),
    (
        "a condition excludes all deletions",
        |it| entry(it, 0)["matchConditions"][0]["expression"] = json!("false"),
        "webhooks",
        "failure",
        "other matchConditions than shipped (not-terminating)",
    ),
    (
        "a further condition excludes evictions",
        |it| entry(it, 1)["matchConditions"] = json!([{"name": "never", "expression": "false"}]),
        "webhooks",
        "failure",
        "other matchConditions than shipped (never)",
    ),
    (
        "a condition is left out",
        |it| entry(it, 0)["matchConditions"] = json!([]),
        "webhooks",
        "warning",
        "lacks the matchConditions not-terminating, not-finished",
    ),
    (
        "evaluations have little time",
        |it| entry(it, 0)["timeoutSeconds"] = json!(1),
        "webhooks",
        "warning",
        "timeoutSeconds 1 instead of 10: slower evaluations fail",
    ),
    (
        "slow evaluations pass",
        |it| {
            entry(it, 0)["timeoutSeconds"] = json!(1);
            entry(it, 0)["failurePolicy"] = json!("Ignore");
        },
        "webhooks",
        "failure",
        "slower evaluations pass without a verdict",
    ),
    (
        "failures of the guard are ignored",
        |it| entry(it, 1)["failurePolicy"] = json!("Ignore"),
        "webhooks",
        "warning",
        "requests pass while no replica responds",
    ),
    (
        "requests for other versions pass",
        |it| entry(it, 1)["matchPolicy"] = json!("Exact"),
        "webhooks",
        "failure",
        "matchPolicy Exact",
    ),
    (
        "side effects are declared otherwise",
        |it| entry(it, 0)["sideEffects"] = json!("None"),
        "webhooks",
        "warning",
        "sideEffects None instead of NoneOnDryRun",
    ),
    (
        "the values of the Helm release omit the entry for deletions",
        |it| {
            of_release(it);
            it.objects.get_mut(CONFIGURATION).unwrap()["webhooks"].as_array_mut().unwrap().remove(0);
        },
        "webhooks",
        "failure",
        "upgrade guard deploy/chart/etcd-guard --reset-then-reuse-values --set webhooks.guard=true,webhooks.eviction=true",
    ),
    (
        "the values of the Helm release omit all entries",
        |it| {
            of_release(it);
            it.objects.get_mut(CONFIGURATION).unwrap()["webhooks"] = json!(null);
        },
        "webhooks",
        "failure",
        "guard.etcd-guard.io is not registered",
    ),
    (
        "the CA is unknown in an installation without certificates of its own",
        |it| drop(it.objects.get_mut(DEPLOYMENTS).unwrap()["items"].as_array_mut().unwrap().remove(1)),
        "ca-bundle",
        "failure",
        "scripts/certs --apply --namespace ops --context dev",
    ),
];

fn entry(it: &mut Installation, index: usize) -> &mut Value {
    &mut it.objects.get_mut(CONFIGURATION).unwrap()["webhooks"][index]
}

fn of_release(it: &mut Installation) {
    let metadata = &mut it.objects.get_mut(DEPLOYMENTS).unwrap()["items"][0]["metadata"];
    metadata["labels"] = json!({"helm.sh/chart": "etcd-guard-0.1.0"});
    metadata["annotations"] = json!({"meta.helm.sh/release-name": "guard"});
}

fn workload(name: &str, account: &str, args: &[&str]) -> Value {
    json!({
        "metadata": {"name": name},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": {"app": name}},
            "template": {"spec": {"serviceAccountName": account, "containers": [{"name": "c", "args": args}]}},
        },
    })
}

// === impl Installation ===

impl Installation {
    fn correct() -> Self {
        let mut objects = BTreeMap::new();
        let registration = Registration {
            namespace: String::from("ops"),
            groups: vec![WebhookGroup::Guard, WebhookGroup::Nodes],
            url: None,
            opt_in_label: OptInLabel::default(),
        };
        for name in shipped_configurations() {
            let end = format!("/{}s/{}", name.kind.to_lowercase(), name.name);
            let path = [CONFIGURATION, UID, NODES].into_iter().find(|path| path.ends_with(&end));
            if let Some(path) = path {
                objects.insert(path.to_owned(), registration.object(&name, "Y2E=", None).unwrap());
            }
        }
        for manifest in POLICY_MANIFESTS {
            let policies: Vec<Value> = serde_saphyr::from_multiple(manifest).unwrap();
            for policy in policies {
                let folder = if policy["kind"] == "ValidatingAdmissionPolicy" { POLICIES } else { BINDINGS };
                let name = policy["metadata"]["name"].as_str().unwrap().to_owned();
                objects.insert(format!("{folder}/{name}"), policy);
            }
        }
        let pod = |name: &str| {
            json!({
                "metadata": {"name": name, "namespace": "ops", "labels": {"app": "etcd-guard"}},
                "spec": {"nodeName": name, "serviceAccountName": "etcd-guard", "containers": []},
                "status": {"conditions": [{"type": "Ready", "status": "True"}]},
            })
        };
        let lists = [
            (PODS, json!([pod("a"), pod("b")])),
            (
                DEPLOYMENTS,
                json!([
                    workload("etcd-guard", "etcd-guard", &["serve"]),
                    workload("etcd-guard-certificates", "etcd-guard-certificates", &["certificates"]),
                ]),
            ),
            (LXCFS, json!([workload("lxcfs", "lxcfs", &[])])),
            ("/api/v1/nodes", json!([{"metadata": {"name": "a"}}, {"metadata": {"name": "b"}}])),
            (
                "/api/v1/namespaces",
                json!([{"metadata": {"name": "prod", "labels": {"etcd-guard.io/guard": "enabled"}}}]),
            ),
        ];
        for (path, items) in lists {
            objects.insert(path.to_owned(), json!({"items": items}));
        }
        objects.insert(String::from("/version"), json!({"major": "1", "minor": "34"}));
        let survey = json!({
            "clusters": [{
                "namespace": "prod", "name": "etcd", "id": "1", "voters": 3, "healthy": 3, "quorum": 2, "spare": 1, "term": 2,
                "members": [{"pod": "etcd-0", "role": "leader", "serving": true, "version": "3.6.16"}],
                "reservations": [], "policy": [], "problems": [], "traps": [],
            }],
            "problems": [], "warnings": [], "gaps": [], "guardPriority": 2_000_000_000,
        });
        Self { objects, denied: Vec::new(), survey, guard_responds: true, namespace: None }
    }

    /// Returns a client of the API server.
    fn client(&self) -> Client {
        let installation = Arc::new(self.clone());
        let serve = move |request: http::Request<Body>| {
            let installation = Arc::clone(&installation);
            async move {
                let (call, body) = request.into_parts();
                let body = body.collect().await.unwrap().to_bytes();
                let body = serde_json::from_slice(&body).unwrap_or_default();
                let (status, body) = installation.respond(call.uri.path(), &body);
                let response = http::Response::builder()
                    .status(status)
                    .header("date", httpdate::fmt_http_date(SystemTime::now()))
                    .body(Body::from(body.to_string().into_bytes()));
                Ok::<_, Infallible>(response.unwrap())
            }
        };
        Client::new(tower::service_fn(serve), "default")
    }

    fn respond(&self, path: &str, body: &Value) -> (u16, Value) {
        if path.ends_with("/subjectaccessreviews") {
            let attributes = &body["spec"]["resourceAttributes"];
            let text = |value: &Value| value.as_str().unwrap().to_owned();
            let account = text(&body["spec"]["user"]).rsplit(':').next().unwrap().to_owned();
            let right = format!("{account} {} {}", text(&attributes["verb"]), text(&attributes["resource"]));
            return (201, json!({"status": {"allowed": !self.denied.contains(&right.as_str())}}));
        }
        if path.ends_with("/eviction") {
            return (404, status_failure(404, "pods \"etcd-guard-doctor-absent-pod\" not found"));
        }
        let not_found = (404, status_failure(404, &format!("{path} not found")));
        self.objects.get(path).map_or(not_found, |object| (200, object.clone()))
    }

    /// Serves the admin port of the guard, and returns its address.
    async fn serve_guard(&self) -> SocketAddr {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let metrics = format!("etcd_guard_build_info{{version=\"{}\"}} 1\n", env!("CARGO_PKG_VERSION"));
        let status = self.survey.to_string();
        let routes = Router::new()
            .route("/metrics", get(async move || metrics))
            .route("/status", get(async move || status));
        if self.guard_responds {
            tokio::spawn(async { axum::serve(listener, routes).await });
        }
        address
    }

    /// Returns the lines of `doctor` as in its JSON output.
    async fn examine(&self) -> Vec<Value> {
        let address = self.serve_guard().await;
        self.examine_at(GuardEndpoint::Url(format!("http://{address}").parse().unwrap())).await
    }

    async fn examine_at(&self, endpoint: GuardEndpoint) -> Vec<Value> {
        let guard =
            GuardClient { api_server: ApiServer::fake(self.client(), "kubectl --context dev"), endpoint };
        let options = Options {
            guard_namespace: String::from("ops"),
            guard_selector: String::from("app=etcd-guard"),
            namespace: self.namespace.map(str::to_owned),
            manual: Manual::default(),
        };
        let report = Doctor::new(guard, options).examine().await.unwrap();
        let lines = serde_json::to_value(&report).unwrap()["checks"].as_array().unwrap().clone();
        for line in &lines {
            assert_eq!(line["documentation"].is_null(), line["state"] == "ok", "{line}");
            assert_ne!(line["documentation"], "https://etcd-guard.io/cli.html#doctor", "no section: {line}");
        }
        lines
    }
}

#[tokio::test]
async fn reports_each_defect_of_an_installation() {
    let correct = Installation::correct().examine().await;
    let deviations: Vec<&Value> = correct.iter().filter(|line| line["state"] != "ok").collect();
    // The fake API server forwards no port to the replicas, and serves no budget.
    let expected = ["ca-bundle", "certificate", "disruption-budget"];
    assert!(
        deviations.iter().all(|line| expected.iter().any(|check| line["check"] == *check)),
        "{deviations:#?}"
    );
    let mut missed = Vec::new();
    for (name, change, check, state, text) in DEFECTS {
        let mut installation = Installation::correct();
        change(&mut installation);
        let lines = installation.examine().await;
        let of_check: Vec<&Value> = lines.iter().filter(|line| line["check"] == check).collect();
        let is_reported =
            of_check.iter().any(|line| line["state"] == state && line.to_string().contains(text));
        if !is_reported {
            missed.push(format!("{name}: {of_check:#?}"));
        }
    }
    assert!(missed.is_empty(), "{} of {}: {}", missed.len(), DEFECTS.len(), missed.join("\n"));
}

#[tokio::test]
async fn missing_installation_is_one_failure() {
    let endpoint = || GuardEndpoint::PortForward {
        namespace: String::from("ops"),
        selector: String::from("app=etcd-guard"),
    };
    let mut installation = Installation::correct();
    installation.objects.retain(|path, _| path == "/version" || path == "/api/v1/namespaces");
    let lines = installation.examine_at(endpoint()).await;
    let found: Vec<_> = lines.iter().map(|line| (line["check"].as_str(), line["state"].as_str())).collect();
    assert_eq!(
        found,
        [(Some("api-server"), Some("ok")), (Some("installation"), Some("failure"))],
        "{lines:#?}"
    );
    let remedy = lines[1]["remedy"].as_str().unwrap();
    assert!(
        remedy.ends_with(": kubectl etcd-guard doctor --context dev --pre --guard-namespace ops"),
        "{remedy}"
    );
    // What is left of an installation is checked as an installation.
    let mut installation = Installation::correct();
    installation.objects.retain(|path, _| path == "/version" || path == CONFIGURATION);
    let lines = installation.examine_at(endpoint()).await;
    assert!(lines.len() > 5 && lines.iter().all(|line| line["check"] != "installation"), "{lines:#?}");
}

#[tokio::test]
async fn rule_for_listed_owners_has_no_warning() {
    let mut installation = Installation::correct();
    list_owner_kind(&mut installation);
    let rule = json!({
        "apiGroups": ["example.com"], "apiVersions": ["*"], "operations": ["DELETE"], "resources": ["etcdclusters"],
        "scope": "Namespaced",
    });
    let entries = installation.objects.get_mut(CONFIGURATION).unwrap()["webhooks"].as_array_mut().unwrap();
    let entry = entries.iter_mut().find(|entry| entry["name"] == "intent.guard.etcd-guard.io").unwrap();
    entry["rules"].as_array_mut().unwrap().push(rule);
    let lines = installation.examine().await;
    let mut webhooks = lines.iter().filter(|line| line["check"] == "webhooks");
    assert!(webhooks.all(|line| line["state"] == "ok"), "{lines:#?}");
}
