//! The admission policy for the account that keeps the certificates: it changes only the caBundle, or, with
//! `--register`, applies only the shipped configurations.

use std::{
    fs,
    net::{SocketAddr, TcpListener},
    path::PathBuf,
    process::{Child, Stdio},
    time::Duration,
};

use base64::{Engine, engine::general_purpose::STANDARD};
use clap::ValueEnum;
use serde_json::{Value, json};

use etcd_guard_cli::registration::{ConfigurationName, Registration, WebhookGroup};
use etcd_guard_core::opt_in_label::OptInLabel;

use crate::{
    artifacts::scripts::ca_valid_between,
    certificates::self_managed::{CERTIFICATES, SECRET, SERVER, kubeconfig_of},
    kustomize, objects,
};
use test_support::{
    guard::{
        certificate_manager::{CertificateManager, MountedSecret},
        self_managed::SelfManagedGuard,
    },
    kubernetes::{control_plane::ControlPlane, kubectl::CommandOutput},
    processes::child::scoped_command,
    project::guard_program,
    wait::wait_until,
};

/// The longest time for a step, on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);

const CONFIGURATION: &str = "validatingwebhookconfiguration/etcd-guard";

/// Part of the message for an object that is neither shipped nor keeps its entries.
const NOT_SHIPPED: &str = "applies only the webhook configurations of etcd-guard as they are shipped";

/// A rule that matches every request of the cluster.
fn any_request() -> Value {
    json!([{"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["*"], "resources": ["*/*"]}])
}

/// A control plane with all shipped objects of an overlay except Deployments.
struct Setup {
    control_plane: ControlPlane,
    kubeconfig: PathBuf,
}

impl Setup {
    fn start(overlay: &str) -> Self {
        let control_plane = ControlPlane::start(&[]);
        let mut all = objects(&kustomize(overlay));
        all.retain(|object| object["kind"] != "Deployment");
        let file = control_plane.dir.join("shipped.json");
        fs::write(&file, json!({"apiVersion": "v1", "kind": "List", "items": all}).to_string()).unwrap();
        // Without the annotation of `kubectl apply`, which `kubectl replace` would change.
        control_plane.kubectl().run_checked(&["create", "-f", &file.to_string_lossy()]);
        let kubeconfig = kubeconfig_of(&control_plane, CERTIFICATES);
        Self { control_plane, kubeconfig }
    }

    /// Writes an object with the account, as a dry run.
    async fn write(&self, verb: &str, object: &Value) -> CommandOutput {
        let file = self.control_plane.dir.join("object.json");
        fs::write(&file, object.to_string()).unwrap();
        let kubeconfig = format!("--kubeconfig={}", self.kubeconfig.display());
        let words = [&kubeconfig, verb, "--dry-run=server", "-f", &file.to_string_lossy()];
        self.control_plane.kubectl().run(&words).await
    }

    async fn assert_denied(&self, verb: &str, object: &Value, message: &str) {
        let output = self.write(verb, object).await;
        assert!(!output.success && output.stderr.contains(message), "{object:#}: {output:?}");
    }
}

/// Returns a copy with another value.
fn with(object: &Value, pointer: &str, value: Value) -> Value {
    let mut changed = object.clone();
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    match changed.pointer_mut(parent).unwrap() {
        Value::Array(list) => list[key.parse::<usize>().unwrap()] = value,
        parent => parent[key.replace("~1", "/")] = value,
    }
    changed
}

#[tokio::test]
async fn certificate_account_changes_only_the_ca_bundle() {
    let setup = Setup::start("deploy/overlays/self-managed");
    let manager = CertificateManager::launch(&setup.kubeconfig, &[]);
    wait_until("the certificate is stored", TIMEOUT, async || {
        manager.count_lines("next certificate promoted") > 0
    })
    .await;
    let token = json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "kubernetes.io/service-account-token",
        "metadata": {
            "name": "etcd-guard-certificates-2",
            "namespace": "etcd-guard",
            "annotations": {"kubernetes.io/service-account.name": "etcd-guard"},
        },
    });
    setup.assert_denied("create", &token, "this account writes only Secrets of the type Opaque").await;
    let kubectl = setup.control_plane.kubectl();
    let stored = kubectl.run_checked(&["get", CONFIGURATION, "-o", "json"]).stdout;
    let mut stored: Value = serde_json::from_str(&stored).unwrap();
    // Later writes of the manager change the version.
    stored["metadata"].as_object_mut().unwrap().remove("resourceVersion");
    assert!(stored["webhooks"][3]["clientConfig"]["caBundle"].is_string(), "{stored}");

    let attack = with(&stored, "/webhooks/0/rules", any_request());
    wait_until("the policy is in effect", TIMEOUT, async || {
        setup.write("replace", &attack).await.stderr.contains("changes only the caBundle")
    })
    .await;
    let bundle = &stored["webhooks"][0]["clientConfig"]["caBundle"];
    let url = json!({"url": "https://192.0.2.1/validate", "caBundle": bundle});
    let service = "sends requests only to the Service etcd-guard of its namespace";
    setup.assert_denied("replace", &with(&stored, "/webhooks/0/clientConfig", url), service).await;
    let other = with(&stored, "/webhooks/0/clientConfig/service/namespace", json!("default"));
    setup.assert_denied("replace", &other, service).await;
    for (pointer, value) in [
        ("/webhooks/0/namespaceSelector", json!({})),
        ("/webhooks/0/matchConditions", json!([])),
        ("/webhooks/0/failurePolicy", json!("Ignore")),
        ("/webhooks/0/timeoutSeconds", json!(1)),
        ("/webhooks/0/clientConfig/service/path", json!("/mutate")),
        ("/webhooks", json!([])),
        ("/metadata/annotations", json!({"cert-manager.io/inject-ca-from": "other/ca"})),
        ("/metadata/ownerReferences", json!([{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u"}])),
        ("/metadata/labels", json!({})),
        ("/metadata/labels/app.kubernetes.io~1instance", json!("other")),
    ] {
        setup.assert_denied("replace", &with(&stored, pointer, value), "changes only the caBundle").await;
    }
    let ca = json!(STANDARD.encode(ca_valid_between(2019, 4000)));
    let output = setup.write("replace", &with(&stored, "/webhooks/0/clientConfig/caBundle", ca)).await;
    assert!(output.success, "{output:?}");

    // The manager writes a bundle that another writer removed.
    let remove = r#"[{"op": "remove", "path": "/webhooks/0/clientConfig/caBundle"}]"#;
    kubectl.run_checked(&["patch", CONFIGURATION, "--type=json", "-p", remove]);
    let path = "jsonpath={.webhooks[0].clientConfig.caBundle}";
    wait_until("the bundle is written again", TIMEOUT, async || {
        kubectl.run(&["get", CONFIGURATION, "-o", path]).await.stdout == bundle.as_str().unwrap()
    })
    .await;
}

/// With `--register`, the account applies the built-in configurations. The policy contains them as well.
#[tokio::test]
async fn registering_account_applies_only_shipped_configurations() {
    let setup = Setup::start("deploy/overlays/register");
    let groups = WebhookGroup::value_variants().to_vec();
    let registration = Registration {
        namespace: String::from("etcd-guard"),
        groups,
        url: None,
        opt_in_label: OptInLabel::default(),
    };
    let bundle = STANDARD.encode(ca_valid_between(2019, 4000));
    let built_in = |name: &ConfigurationName| registration.object(name, &bundle, None).unwrap();
    let all: Vec<Value> = registration.names().map(|name| built_in(&name)).collect();
    let service = "sends requests only to the Service etcd-guard of its namespace";
    let guard = &all[0];
    assert_eq!(guard["metadata"]["name"], "etcd-guard");
    let other = with(guard, "/webhooks/0/clientConfig/service/name", json!("other"));
    wait_until("the policy is in effect", TIMEOUT, async || {
        setup.write("create", &other).await.stderr.contains(service)
    })
    .await;
    let url = with(guard, "/webhooks/0/clientConfig", json!({"url": "https://192.0.2.1/validate"}));
    setup.assert_denied("create", &url, service).await;
    let name = with(guard, "/metadata/name", json!("other"));
    setup.assert_denied("create", &name, "changes only the webhook configurations of etcd-guard").await;
    assert_eq!(all.len(), 6);
    for object in &all {
        let output = setup.write("create", object).await;
        assert!(output.success, "{object:#}: {output:?}");
        let rules = with(object, "/webhooks/0/rules", any_request());
        setup.assert_denied("create", &rules, NOT_SHIPPED).await;
    }

    let labels = json!({"matchLabels": {"example.com/other": "label"}});
    let changes = [
        ("/kind", json!("MutatingWebhookConfiguration")),
        ("/metadata/annotations", json!({"cert-manager.io/inject-ca-from": "other/ca"})),
        ("/metadata/labels", json!({"app.kubernetes.io/instance": "other"})),
        ("/webhooks", json!([])),
        ("/webhooks/0/name", json!("other.etcd-guard.io")),
        ("/webhooks/0/rules/0/resources", json!(["pods", "secrets"])),
        ("/webhooks/0/rules/0/operations", json!(["DELETE", "CREATE"])),
        ("/webhooks/0/rules/0/scope", json!("*")),
        ("/webhooks/2/rules", json!([guard["webhooks"][2]["rules"][0]])),
        ("/webhooks/0/matchConditions", json!([])),
        ("/webhooks/0/matchConditions/0/expression", json!("false")),
        ("/webhooks/0/namespaceSelector", json!({})),
        ("/webhooks/0/namespaceSelector/matchLabels", json!({})),
        ("/webhooks/0/namespaceSelector/matchExpressions/0/values", json!(["etcd-guard"])),
        ("/webhooks/0/objectSelector", labels),
        ("/webhooks/0/clientConfig/service/path", json!("/mutate")),
        ("/webhooks/0/failurePolicy", json!("Ignore")),
        ("/webhooks/3/failurePolicy", json!("Fail")),
        ("/webhooks/0/matchPolicy", json!("Exact")),
    ];
    for (pointer, value) in &changes {
        setup.assert_denied("create", &with(guard, pointer, value.clone()), NOT_SHIPPED).await;
    }
    let status_of_nodes = all.iter().find(|object| object["metadata"]["name"] == "etcd-guard-nodes").unwrap();
    let fail = with(status_of_nodes, "/webhooks/0/failurePolicy", json!("Fail"));
    setup.assert_denied("create", &fail, NOT_SHIPPED).await;

    // A configuration of an administrator keeps its entries, and can be replaced by the shipped one.
    let mut stored = with(guard, "/webhooks/0/timeoutSeconds", json!(3));
    stored = with(&stored, "/webhooks/3/failurePolicy", json!("Fail"));
    let file = setup.control_plane.dir.join("stored.json");
    fs::write(&file, stored.to_string()).unwrap();
    setup.control_plane.kubectl().run_checked(&["create", "-f", &file.to_string_lossy()]);
    let ca = json!(STANDARD.encode(ca_valid_between(2019, 4000)));
    for object in [with(&stored, "/webhooks/0/clientConfig/caBundle", ca), guard.clone()] {
        let output = setup.write("replace", &object).await;
        assert!(output.success, "{output:?}");
    }
    let narrowed = with(&stored, "/webhooks/0/matchConditions", json!([]));
    setup.assert_denied("replace", &narrowed, NOT_SHIPPED).await;
}

/// The address of the Service `etcd-guard` in the hosts file of the registering process.
const SERVICE_ADDRESS: [u8; 4] = [127, 200, 0, 1];

/// Runs a program with another hosts file.
const WITH_HOSTS: &str = r#"mount --bind "$1" /etc/hosts && shift && exec setpriv --pdeathsig KILL -- "$@""#;

/// The process of the Deployment `etcd-guard-certificates` of `overlays/register`, in which the name of the Service has an
/// address. Killed when it is dropped.
struct RegisteringProcess(Child);

impl RegisteringProcess {
    fn start(setup: &Setup) -> Self {
        let hosts = setup.control_plane.dir.join("hosts");
        let address = SERVICE_ADDRESS.map(|byte| byte.to_string()).join(".");
        fs::write(&hosts, format!("127.0.0.1 localhost\n{address} etcd-guard.etcd-guard.svc\n")).unwrap();
        let mut command = scoped_command("unshare");
        command.args(["--mount", "sh", "-c", WITH_HOSTS, "sh"]).arg(hosts).arg(guard_program());
        command.args(["certificates", "--namespace=etcd-guard", "--kubeconfig"]).arg(&setup.kubeconfig);
        command.arg("--register=guard,inject,nodes,rules,node-deletions").stdin(Stdio::null());
        Self(command.spawn().unwrap())
    }
}

impl Drop for RegisteringProcess {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The policy accepts what the process itself applies: all configurations, with the Service as the address. The server
/// listens at the port of the Service, which requires root: as another user, the test fails and states the cause.
#[tokio::test]
async fn process_registers_the_service_under_its_own_policy() {
    let address = SocketAddr::from((SERVICE_ADDRESS, 443));
    let bound = TcpListener::bind(address);
    assert!(bound.is_ok(), "{address}: {bound:?}: run this test as root, or exclude it with --skip");
    drop(bound);
    let setup = Setup::start("deploy/overlays/register");
    let groups = WebhookGroup::value_variants().to_vec();
    let registration = Registration {
        namespace: String::from("etcd-guard"),
        groups,
        url: None,
        opt_in_label: OptInLabel::default(),
    };
    let names: Vec<ConfigurationName> = registration.names().collect();
    let attack = with(&registration.object(&names[0], "", None).unwrap(), "/webhooks/0/rules", any_request());
    wait_until("the policy is in effect", TIMEOUT, async || {
        setup.write("create", &attack).await.stderr.contains(NOT_SHIPPED)
    })
    .await;

    let _process = RegisteringProcess::start(&setup);
    let client = setup.control_plane.client().await;
    let mount = MountedSecret::mount(client, SECRET, setup.control_plane.dir.join("mount")).await;
    let account = kubeconfig_of(&setup.control_plane, SERVER);
    let _server = SelfManagedGuard::launch_with_files(&account, address, &[mount.folder()]);
    let kubectl = setup.control_plane.kubectl();
    let registered = async |name: &ConfigurationName| {
        let output = kubectl.run(&["get", &name.kind, &name.name, "-o", "json"]).await;
        let object: Value = serde_json::from_str(&output.stdout).ok()?;
        let entries = object["webhooks"].as_array()?;
        let service = &entries.first()?["clientConfig"]["service"];
        let is_complete = service["name"] == "etcd-guard" && service["namespace"] == "etcd-guard";
        let has_bundle =
            |entry: &Value| entry["clientConfig"]["caBundle"].as_str().is_some_and(|text| !text.is_empty());
        (is_complete && entries.iter().all(has_bundle)).then_some(entries.len())
    };
    for name in &names {
        wait_until(&format!("{name} is registered"), TIMEOUT, async || registered(name).await.is_some())
            .await;
    }
    assert_eq!((names.len(), registered(&names[0]).await), (6, Some(6)));
    kubectl.run_checked(&["delete", &names[0].kind, &names[0].name]);
    wait_until("the configuration is applied again", TIMEOUT, async || registered(&names[0]).await.is_some())
        .await;
}
