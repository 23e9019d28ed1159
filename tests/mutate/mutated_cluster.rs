//! A control plane for all tests, and for each test a namespace and a guard that mutates its pods.

use std::{
    any::Any,
    path::{Path, PathBuf},
    sync::{
        OnceLock,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use serde_json::{Value, json};

use test_support::{
    guard::process::{CONFIG, GuardProcess},
    kubernetes::kubectl::{CommandOutput, Kubectl},
    processes::testbed,
    wait::wait_until,
};

/// The longest time until the controller manager creates the service account of a namespace; only a broken one exceeds
/// this.
pub(crate) const ACCOUNT_TIMEOUT: Duration = Duration::from_secs(120);

/// The longest time until the API server learns of a webhook by its watch.
const REGISTRATION_TIMEOUT: Duration = Duration::from_secs(60);

/// A namespace that the shipped configurations exclude.
pub(crate) const SYSTEM_NAMESPACE: &str = "kube-system";

struct ControlPlane {
    dir: PathBuf,
    kubectl: PathBuf,
    _testbed: Box<dyn Any + Send + Sync>,
}

/// A guard that mutates the pods of one namespace.
pub(crate) struct MutatedCluster {
    pub(crate) guard: GuardProcess,
    pub(crate) namespace: String,
    pub(crate) files: PathBuf,
    kubectl: Kubectl,
    /// A control plane that other tests do not use. It ends with this value.
    #[allow(dead_code, reason = "it is only dropped")]
    own: Option<ControlPlane>,
}

fn control_plane() -> &'static ControlPlane {
    static SHARED: OnceLock<ControlPlane> = OnceLock::new();
    SHARED.get_or_init(ControlPlane::start)
}

impl ControlPlane {
    fn start() -> Self {
        let testbed = testbed::control_plane(&[]);
        let (dir, kubectl) = (testbed.path("TESTBED_DIR").to_owned(), testbed.path("KUBECTL").to_owned());
        Self { dir, kubectl, _testbed: Box::new(testbed) }
    }

    fn kubectl(&self) -> Kubectl {
        Kubectl::new(&self.kubectl, &self.dir.join("admin.kubeconfig"), &self.dir.join("kubectl-cache"))
    }
}

impl MutatedCluster {
    /// Starts a guard with this configuration, creates a namespace with these labels, and registers these shipped
    /// components.
    pub(crate) async fn start(config: &str, labels: &[&str], shipped: &[&str]) -> Self {
        Self::start_in(control_plane(), config, labels, shipped).await
    }

    /// Starts a guard with this configuration and the shipped injection in a control plane of its own, in which the
    /// kubelet of one node has this version.
    pub(crate) async fn start_with_kubelet(config: &str, version: &str) -> Self {
        let own = tokio::task::spawn_blocking(ControlPlane::start).await.unwrap();
        let kubectl = own.kubectl();
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node"}});
        let file = own.dir.join("node.json");
        std::fs::write(&file, node.to_string()).unwrap();
        kubectl.run_checked(&["create", "-f", file.to_str().unwrap()]);
        let status = json!({"status": {"nodeInfo": {"kubeletVersion": version}}}).to_string();
        kubectl.run_checked(&[
            "patch",
            "node",
            "node",
            "--subresource=status",
            "--type=merge",
            "-p",
            &status,
        ]);
        let mut cluster = Self::start_in(&own, config, &[], &["inject"]).await;
        cluster.own = Some(own);
        cluster
    }

    async fn start_in(control_plane: &ControlPlane, config: &str, labels: &[&str], shipped: &[&str]) -> Self {
        let (namespace, files) = new_namespace(control_plane);
        std::fs::create_dir_all(&files).unwrap();
        std::fs::write(files.join(CONFIG), format!("apiVersion: etcd-guard.io/v1alpha1\n{config}")).unwrap();
        let admin = control_plane.dir.join("admin.kubeconfig");
        let guard = GuardProcess::start(&admin, &files).await;
        let mut cluster = Self { guard, namespace, files, kubectl: control_plane.kubectl(), own: None };
        cluster.kubectl.run_checked(&["create", "namespace", &cluster.namespace]);
        for label in labels {
            cluster.kubectl.run_checked(&["label", "namespace", &cluster.namespace, label]);
        }
        wait_until("the namespace has its service account", ACCOUNT_TIMEOUT, async || {
            cluster.kubectl(&["get", "serviceaccount", "default"]).await.success
        })
        .await;
        for shipped in shipped {
            cluster.register(shipped, &cluster.guard, "").await;
        }
        // Verdicts before all webhooks are registered are ignored.
        cluster.guard.new_verdicts().await;
        cluster
    }

    /// Registers a guard for this namespace by a shipped configuration, and waits until the API server calls it.
    pub(crate) async fn register(&self, shipped: &str, guard: &GuardProcess, prefix: &str) {
        self.configure(shipped, guard, prefix);
        let node = format!("heard-{}", self.namespace);
        if shipped == "over-commit" {
            let labels = json!({"node-restriction.kubernetes.io/over-commit": "1"});
            let node =
                json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node, "labels": labels}});
            assert!(self.create(&node, &[]).await.success);
        }
        let before = guard.request_count().await;
        wait_until("the API server calls the guard", REGISTRATION_TIMEOUT, async || {
            if shipped == "over-commit" {
                let patch = json!({"status": {"phase": "Pending"}}).to_string();
                let patch = ["patch", "node", &node, "--subresource=status", "--type=merge", "-p", &patch];
                assert!(self.kubectl(&[&patch[..], &["--dry-run=server"]].concat()).await.success);
            } else {
                self.create(&pod(json!({})), &["--dry-run=server"]).await;
            }
            guard.request_count().await > before
        })
        .await;
        if shipped == "over-commit" {
            self.run_checked(&["delete", "node", &node]);
        }
    }

    fn configure(&self, shipped: &str, guard: &GuardProcess, prefix: &str) {
        let file = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("deploy/components")
            .join(shipped)
            .join("webhook.yaml");
        let text = std::fs::read_to_string(file).unwrap();
        let mut configuration: Value = serde_saphyr::from_str(&text).unwrap();
        let name =
            format!("{prefix}{}-{}", configuration["metadata"]["name"].as_str().unwrap(), self.namespace);
        configuration["metadata"]["name"] = json!(name);
        let webhook = &mut configuration["webhooks"][0];
        let path = webhook["clientConfig"]["service"]["path"].as_str().unwrap().to_owned();
        let bundle = k8s_openapi::ByteString(guard.ca_pem.clone().into_bytes());
        webhook["clientConfig"] =
            json!({"url": format!("https://{}{path}", guard.https()), "caBundle": bundle});
        // The selector remains the shipped one. A condition restricts the webhook to the namespace of the test and to
        // the excluded one.
        if webhook.get("namespaceSelector").is_some() {
            let expression = format!("request.namespace in ['{}', '{SYSTEM_NAMESPACE}']", self.namespace);
            webhook["matchConditions"] = json!([{"name": "this-test", "expression": expression}]);
        }
        self.apply(&format!("{name}.json"), &configuration);
    }

    /// Runs `kubectl` in the namespace of the test.
    pub(crate) async fn kubectl(&self, arguments: &[&str]) -> CommandOutput {
        self.kubectl.run(&[&["--namespace", &self.namespace], arguments].concat()).await
    }

    pub(crate) fn run_checked(&self, arguments: &[&str]) -> CommandOutput {
        self.kubectl.run_checked(&[&["--namespace", &self.namespace], arguments].concat())
    }

    /// Runs `kubectl get` and returns the JSON document.
    pub(crate) fn get(&self, arguments: &[&str]) -> Value {
        let output = self.run_checked(&[&["get", "-o", "json"], arguments].concat());
        serde_json::from_str(&output.stdout).unwrap()
    }

    /// Runs `kubectl create` for an object, with further arguments.
    pub(crate) async fn create(&self, object: &Value, arguments: &[&str]) -> CommandOutput {
        let file = self.write("object.json", object);
        self.kubectl(&[&["create", "-f", &file], arguments].concat()).await
    }

    /// Applies a pod and returns it as stored.
    pub(crate) async fn applied(&self, pod: &Value) -> (Value, CommandOutput) {
        let file = self.write("pod.json", pod);
        let output = self.kubectl(&["apply", "-f", &file]).await;
        assert!(output.success, "{output:?}");
        (self.get(&["pod", pod["metadata"]["name"].as_str().unwrap()]), output)
    }

    fn apply(&self, name: &str, object: &Value) {
        let file = self.write(name, object);
        self.run_checked(&["apply", "-f", &file]);
    }

    fn write(&self, name: &str, object: &Value) -> String {
        let file = self.files.join(name);
        std::fs::write(&file, object.to_string()).unwrap();
        file.to_str().unwrap().to_owned()
    }
}

/// Returns a unique name and a folder of that name.
fn new_namespace(control_plane: &ControlPlane) -> (String, PathBuf) {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let name = format!("mutate-{}", NEXT.fetch_add(1, Ordering::Relaxed));
    let files = control_plane.dir.join(&name);
    (name, files)
}

/// Starts another guard in the same control plane.
pub(crate) async fn another_guard(config: &str) -> GuardProcess {
    let (_, files) = new_namespace(control_plane());
    std::fs::create_dir_all(&files).unwrap();
    std::fs::write(files.join(CONFIG), format!("apiVersion: etcd-guard.io/v1alpha1\n{config}")).unwrap();
    GuardProcess::start(&control_plane().dir.join("admin.kubeconfig"), &files).await
}

/// Returns a pod with one container and these annotations.
#[allow(clippy::needless_pass_by_value, reason = "callers pass a literal")]
pub(crate) fn pod(annotations: Value) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "web", "annotations": annotations},
        "spec": {"containers": [{"name": "web", "image": "web:1", "resources": {"limits": {"cpu": "1", "memory": "256Mi"}}}]}
    })
}

pub(crate) fn mount_paths(container: &Value) -> Vec<&str> {
    container["volumeMounts"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|mount| mount["mountPath"].as_str())
        .collect()
}
