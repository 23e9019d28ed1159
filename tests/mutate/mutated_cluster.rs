//! One control plane for all tests, and per test a namespace and a guard that mutates what happens in it.

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

use crate::support::{
    guard_process::{CONFIG, GuardProcess},
    kubectl::{Kubectl, Said},
    testbed,
    wait::until,
};

/// Longest that the controller manager may take to make a namespace's service account: only a broken one takes so long.
pub(crate) const ACCOUNT_LIMIT: Duration = Duration::from_secs(120);

/// Longest that the apiserver may take to hear of a webhook, which it does by a watch.
const HEARD_LIMIT: Duration = Duration::from_secs(60);

/// A namespace that the shipped configurations leave out.
pub(crate) const SYSTEM: &str = "kube-system";

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
}

fn control_plane() -> &'static ControlPlane {
    static SHARED: OnceLock<ControlPlane> = OnceLock::new();
    SHARED.get_or_init(|| {
        let testbed = testbed::control_plane(&[]);
        let (dir, kubectl) = (testbed.path("TESTBED_DIR").to_owned(), testbed.path("KUBECTL").to_owned());
        ControlPlane { dir, kubectl, _testbed: Box::new(testbed) }
    })
}

impl MutatedCluster {
    /// A guard with this configuration, a namespace with these labels, and the shipped entries that are named.
    pub(crate) async fn start(config: &str, labels: &[&str], shipped: &[&str]) -> Self {
        let control_plane = control_plane();
        let (namespace, files) = fresh();
        std::fs::create_dir_all(&files).unwrap();
        std::fs::write(files.join(CONFIG), format!("apiVersion: etcd-guard.io/v1alpha1\n{config}")).unwrap();
        let admin = control_plane.dir.join("admin.kubeconfig");
        let guard = GuardProcess::start(&admin, &files).await;
        let kubectl = Kubectl::new(&control_plane.kubectl, &admin, &control_plane.dir.join("kubectl-cache"));
        let mut cluster = Self { guard, namespace, files, kubectl };
        cluster.kubectl.must(&["create", "namespace", &cluster.namespace]);
        for label in labels {
            cluster.kubectl.must(&["label", "namespace", &cluster.namespace, label]);
        }
        until("the namespace has its service account", ACCOUNT_LIMIT, async || {
            cluster.kubectl(&["get", "serviceaccount", "default"]).await.success
        })
        .await;
        for shipped in shipped {
            cluster.register(shipped, &cluster.guard, "").await;
        }
        // What was asked while the apiserver had not heard of all of them is nobody's news.
        cluster.guard.news().await;
        cluster
    }

    /// Registers a guard for this namespace, by a shipped configuration, and waits until the apiserver asks it.
    pub(crate) async fn register(&self, shipped: &str, guard: &GuardProcess, prefix: &str) {
        self.configure(shipped, guard, prefix);
        let node = format!("heard-{}", self.namespace);
        if shipped == "over-commit" {
            let labels = json!({"node-restriction.kubernetes.io/over-commit": "1"});
            let node =
                json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node, "labels": labels}});
            assert!(self.create(&node, &[]).await.success);
        }
        let before = guard.requests().await;
        until("the apiserver asks the guard", HEARD_LIMIT, async || {
            if shipped == "over-commit" {
                let patch = json!({"status": {"phase": "Pending"}}).to_string();
                let patch = ["patch", "node", &node, "--subresource=status", "--type=merge", "-p", &patch];
                assert!(self.kubectl(&[&patch[..], &["--dry-run=server"]].concat()).await.success);
            } else {
                self.create(&pod(json!({})), &["--dry-run=server"]).await;
            }
            guard.requests().await > before
        })
        .await;
        if shipped == "over-commit" {
            self.must(&["delete", "node", &node]);
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
        // The selector is the shipped one. What keeps tests from meeting is a condition beside it, which would let a
        // namespace of the system in.
        if webhook.get("namespaceSelector").is_some() {
            let expression = format!("request.namespace in ['{}', '{SYSTEM}']", self.namespace);
            webhook["matchConditions"] = json!([{"name": "this-test", "expression": expression}]);
        }
        self.apply(&format!("{name}.json"), &configuration);
    }

    /// What `kubectl -n NAMESPACE ...` says.
    pub(crate) async fn kubectl(&self, arguments: &[&str]) -> Said {
        self.kubectl.run(&[&["--namespace", &self.namespace], arguments].concat()).await
    }

    pub(crate) fn must(&self, arguments: &[&str]) -> Said {
        self.kubectl.must(&[&["--namespace", &self.namespace], arguments].concat())
    }

    /// What `kubectl get` shows.
    pub(crate) fn get(&self, arguments: &[&str]) -> Value {
        let said = self.must(&[&["get", "-o", "json"], arguments].concat());
        serde_json::from_str(&said.stdout).unwrap()
    }

    /// `kubectl create` of an object; further arguments may follow.
    pub(crate) async fn create(&self, object: &Value, arguments: &[&str]) -> Said {
        let file = self.write("object.json", object);
        self.kubectl(&[&["create", "-f", &file], arguments].concat()).await
    }

    /// The pod as it is stored after `kubectl apply`.
    pub(crate) async fn applied(&self, pod: &Value) -> (Value, Said) {
        let file = self.write("pod.json", pod);
        let said = self.kubectl(&["apply", "-f", &file]).await;
        assert!(said.success, "{said:?}");
        (self.get(&["pod", pod["metadata"]["name"].as_str().unwrap()]), said)
    }

    fn apply(&self, name: &str, object: &Value) {
        let file = self.write(name, object);
        self.must(&["apply", "-f", &file]);
    }

    fn write(&self, name: &str, object: &Value) -> String {
        let file = self.files.join(name);
        std::fs::write(&file, object.to_string()).unwrap();
        file.to_str().unwrap().to_owned()
    }
}

/// A name that no other test has, and a folder of that name.
pub(crate) fn fresh() -> (String, PathBuf) {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let name = format!("mutate-{}", NEXT.fetch_add(1, Ordering::Relaxed));
    let files = control_plane().dir.join(&name);
    (name, files)
}

/// Another guard in the same control plane.
pub(crate) async fn another_guard(config: &str) -> GuardProcess {
    let (_, files) = fresh();
    std::fs::create_dir_all(&files).unwrap();
    std::fs::write(files.join(CONFIG), format!("apiVersion: etcd-guard.io/v1alpha1\n{config}")).unwrap();
    GuardProcess::start(&control_plane().dir.join("admin.kubeconfig"), &files).await
}

/// A pod of one container with these annotations.
#[allow(clippy::needless_pass_by_value, reason = "callers write it in place")]
pub(crate) fn pod(annotations: Value) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "web", "annotations": annotations},
        "spec": {"containers": [{"name": "web", "image": "web:1", "resources": {"limits": {"cpu": "1", "memory": "256Mi"}}}]}
    })
}

pub(crate) fn mount_paths(container: &Value) -> Vec<&str> {
    container["volumeMounts"].as_array().unwrap().iter().filter_map(|it| it["mountPath"].as_str()).collect()
}
