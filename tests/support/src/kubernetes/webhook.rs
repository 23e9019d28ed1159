//! The shipped webhook configuration with the address of a test's guard.

use std::{
    mem,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard},
};

use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
};
use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams},
};
use serde_json::{Value, json};
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

use crate::{guard::process::GuardProcess, project};

/// The label that enables the guard in a namespace.
pub const LABEL: &str = "etcd-guard.io/guard";

/// The value of this label.
pub const VALUE: &str = "enabled";

/// The label of the namespaces of one test. Each test uses its own value, so that guards do not receive the reviews of
/// other tests.
pub const TEST_LABEL: &str = "test.etcd-guard.io/test";

/// The user of the garbage collector.
pub const COLLECTOR: &str = "system:serviceaccount:kube-system:generic-garbage-collector";

/// The longest timeout of a webhook, in seconds.
const MAX_TIMEOUT: u32 = 30;

const SHIPPED: &str = "deploy/base/webhooks.yaml";

const SHIPPED_FOR_UIDS: &str = "deploy/base/uid-webhook.yaml";

const SHIPPED_FOR_NODES: &str = "deploy/components/node-deletions/webhook.yaml";

/// Registers the guard by the shipped configuration for the namespaces of the test with this label value. `change` modifies each
/// webhook.
pub async fn register(client: &Client, label: &str, guard: &GuardProcess, change: impl Fn(&mut Value)) {
    register_at(client, label, guard.https(), &guard.ca_pem, change).await;
}

/// Registers a server at this address, whose certificate is signed by this CA.
pub async fn register_at(
    client: &Client,
    label: &str,
    address: SocketAddr,
    ca_pem: &str,
    change: impl Fn(&mut Value),
) {
    let name = format!("etcd-guard-{label}");
    let mut configuration = shipped(SHIPPED, &name, label, address, ca_pem);
    configuration["webhooks"].as_array_mut().expect("webhooks").iter_mut().for_each(change);
    apply(client, &name, configuration).await;
    let api: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
    let configuration = Patch::Apply(shipped(SHIPPED_FOR_UIDS, &name, label, address, ca_pem));
    api.patch(&name, &PatchParams::apply("test").force(), &configuration)
        .await
        .expect("the configuration is accepted");
}

/// Removes the webhook that adds uids to evictions.
pub async fn unregister_uids(client: &Client, label: &str) {
    let api: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
    api.delete(&format!("etcd-guard-{label}"), &DeleteParams::default())
        .await
        .expect("the configuration exists");
}

/// Returns the shipped configuration in this file for the server at this address and the namespaces of one test.
fn shipped(file: &str, name: &str, label: &str, address: SocketAddr, ca_pem: &str) -> Value {
    let text = std::fs::read_to_string(project::path(file)).expect(file);
    let mut configuration: Value = serde_saphyr::from_str(&text).expect(file);
    configuration["metadata"]["name"] = json!(name);
    for webhook in configuration["webhooks"].as_array_mut().expect("webhooks") {
        let path = webhook["clientConfig"]["service"]["path"].as_str().expect("a path").to_owned();
        webhook["clientConfig"] =
            json!({"url": format!("https://{address}{path}"), "caBundle": base64(ca_pem)});
        let labels = &mut webhook["namespaceSelector"]["matchLabels"];
        assert_eq!(*labels, json!({LABEL: VALUE}), "the documented label");
        labels[TEST_LABEL] = json!(label);
    }
    configuration
}

/// Registers the guard by the shipped configuration for deletions of nodes, for the nodes with these names.
pub async fn register_node_deletions(client: &Client, label: &str, guard: &GuardProcess, nodes: &[&str]) {
    let file = project::path(SHIPPED_FOR_NODES);
    let text = std::fs::read_to_string(&file).expect(SHIPPED_FOR_NODES);
    let mut configuration: Value = serde_saphyr::from_str(&text).expect(SHIPPED_FOR_NODES);
    let name = format!("etcd-guard-node-deletions-{label}");
    configuration["metadata"]["name"] = json!(name);
    for webhook in configuration["webhooks"].as_array_mut().expect("webhooks") {
        let url = format!("https://{}/validate", guard.https());
        webhook["clientConfig"] = json!({"url": url, "caBundle": base64(&guard.ca_pem)});
        let conditions = webhook["matchConditions"].as_array_mut().expect("conditions");
        conditions.push(json!({"name": "node-of-test", "expression": format!("request.name in ['{}']", nodes.join("', '"))}));
    }
    apply(client, &name, configuration).await;
}

/// A second webhook that approves all requests, and can hold one of them before. It works as long as this exists.
///
/// It never responds and is ignored: the API server continues when the connection closes, at the latest after 30 s.
pub struct HoldingWebhook {
    connections: Arc<Mutex<Connections>>,
    _task: JoinSet<()>,
}

/// The connections of the API server to a [`HoldingWebhook`].
#[derive(Default)]
struct Connections {
    holds_next: bool,
    held: Option<TcpStream>,
    count: usize,
}

impl HoldingWebhook {
    /// Adds the webhook for this operation on this resource. It holds nothing yet.
    pub async fn add(
        client: &Client,
        label: &str,
        guard: &GuardProcess,
        operation: &str,
        resource: &str,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("https://{}", listener.local_addr().expect("an address"));
        let settings = json!({
            "url": url, "failurePolicy": "Ignore", "operation": operation, "resource": resource,
            "timeoutSeconds": MAX_TIMEOUT,
        });
        add(client, &format!("holding-{label}"), label, guard, settings).await;
        let connections = Arc::<Mutex<Connections>>::default();
        let accepted = Arc::clone(&connections);
        let mut task = JoinSet::new();
        task.spawn(async move {
            while let Ok((connection, _)) = listener.accept().await {
                let mut connections = lock(&accepted);
                connections.count += 1;
                if mem::take(&mut connections.holds_next) {
                    connections.held = Some(connection);
                }
            }
        });
        Self { connections, _task: task }
    }

    /// Returns the number of requests so far.
    pub fn count(&self) -> usize {
        lock(&self.connections).count
    }

    /// Holds the next request. Later ones are approved at once.
    pub fn hold_next(&self) {
        lock(&self.connections).holds_next = true;
    }

    /// Approves the request that is held.
    pub fn release(&self) {
        lock(&self.connections).held = None;
    }
}

fn lock(connections: &Mutex<Connections>) -> MutexGuard<'_, Connections> {
    connections.lock().expect("the lock is not poisoned")
}

/// Adds a second webhook for deletions of pods that fails, so that the API server rejects them all. Returns the name of
/// its configuration.
pub async fn add_failing_webhook(client: &Client, label: &str, guard: &GuardProcess) -> String {
    let name = format!("refusing-{label}");
    add(client, &name, label, guard, json!({"url": "https://127.0.0.1:1", "failurePolicy": "Fail"})).await;
    name
}

/// Adds a mutating webhook for the deletions by the garbage collector that fails. Mutating webhooks are called first, so
/// that the guard receives no review of these deletions. Returns the name of the configuration.
pub async fn add_collector_block(client: &Client, label: &str, guard: &GuardProcess) -> String {
    let name = format!("collector-{label}");
    let rule = |group: &str, resource: &str| json!({"apiGroups": [group], "apiVersions": ["v1"], "operations": ["DELETE"], "resources": [resource]});
    let webhook = json!({
        "name": "collector.test.io",
        "rules": [rule("", "pods"), rule("apps", "replicasets")],
        "clientConfig": {"url": "https://127.0.0.1:1", "caBundle": base64(&guard.ca_pem)},
        "namespaceSelector": {"matchLabels": {LABEL: VALUE, TEST_LABEL: label}},
        "matchConditions": [{
            "name": "collector",
            "expression": format!("request.userInfo.username == '{COLLECTOR}'"),
        }],
        "failurePolicy": "Fail",
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    });
    let configuration = json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": name},
        "webhooks": [webhook],
    });
    let api: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
    let parameters = PatchParams::apply("test").force();
    api.patch(&name, &parameters, &Patch::Apply(configuration)).await.expect("the configuration is accepted");
    name
}

async fn add(client: &Client, name: &str, label: &str, guard: &GuardProcess, settings: Value) {
    let setting = |name: &str, default: Value| settings.get(name).cloned().unwrap_or(default);
    let (operation, resource) = (setting("operation", json!("DELETE")), setting("resource", json!("pods")));
    let webhook = json!({
        "name": "other.test.io",
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": [operation], "resources": [resource]}],
        "clientConfig": {"url": settings["url"], "caBundle": base64(&guard.ca_pem)},
        "namespaceSelector": {"matchLabels": {LABEL: VALUE, TEST_LABEL: label}},
        "failurePolicy": settings["failurePolicy"],
        "timeoutSeconds": setting("timeoutSeconds", json!(2)),
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    });
    apply(client, name, json!({"metadata": {"name": name}, "webhooks": [webhook]})).await;
}

async fn apply(client: &Client, name: &str, mut configuration: Value) {
    configuration["apiVersion"] = json!("admissionregistration.k8s.io/v1");
    configuration["kind"] = json!("ValidatingWebhookConfiguration");
    let api: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
    let parameters = PatchParams::apply("test").force();
    api.patch(name, &parameters, &Patch::Apply(configuration)).await.expect("the configuration is accepted");
}

fn base64(text: &str) -> Value {
    json!(k8s_openapi::ByteString(text.as_bytes().to_vec()))
}
