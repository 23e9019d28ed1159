//! x-pdb (<https://github.com/form3tech-oss/x-pdb>) in the place of the guard: a webhook that checks a budget at evictions and
//! deletions. It binds all addresses, so `scripts/storm` runs this test in a network namespace of its own.

use std::{
    fs,
    net::{SocketAddr, TcpListener},
    path::{Path, PathBuf},
    process::{Child, Stdio},
};

use serde_json::{Value, json};

use crate::environment::HEALTHY_TIMEOUT;
use test_support::{
    guard::process::make_certificate,
    http_client,
    kubernetes::{control_plane::ControlPlane, kubectl::Kubectl},
    processes::child::prioritized_command,
    wait::wait_until,
};

/// The variable with the folder of its sources, which contain its CRD.
const SOURCE: &str = "STORM_X_PDB_SOURCE";

/// The variable with its program.
const PROGRAM: &str = "STORM_X_PDB";

/// Running replicas. When they are dropped, they are killed.
#[derive(Default)]
pub(crate) struct XPdb {
    children: Vec<Child>,
    pub(crate) addresses: Vec<SocketAddr>,
    pub(crate) ca_pem: String,
}

impl XPdb {
    /// Starts replicas that log into this folder, and waits until they serve.
    pub(crate) async fn start(control_plane: &ControlPlane, replicas: usize, files: &Path) -> Self {
        fs::create_dir_all(files).unwrap();
        let ca_pem = make_certificate(files);
        fs::write(files.join("ca.crt"), &ca_pem).unwrap();
        let mut started = Self { children: Vec::new(), addresses: Vec::new(), ca_pem };
        for n in 0..replicas {
            let [webhook, state, health] = [free_port(), free_port(), free_port()];
            let mut command = prioritized_command(variable(PROGRAM));
            command.env("KUBECONFIG", control_plane.admin_kubeconfig());
            command.args(["--cluster-id=storm", "--metrics-bind-address=0", &format!("--pod-id=x-pdb-{n}")]);
            command.args([format!("--webhook-port={webhook}"), format!("--controller-port={state}")]);
            command.arg(format!("--health-probe-bind-address=127.0.0.1:{health}"));
            let folder = files.display();
            command
                .args([format!("--webhook-certs-dir={folder}"), format!("--controller-certs-dir={folder}")]);
            let log = fs::File::create(files.join(format!("{n}.log"))).unwrap();
            let child = command.stdin(Stdio::null()).stderr(log).spawn().expect("x-pdb starts");
            let address = SocketAddr::from(([127, 0, 0, 1], webhook));
            started.children.push(child);
            started.addresses.push(address);
            wait_until("x-pdb serves", HEALTHY_TIMEOUT, async || {
                http_client::tls(address, &started.ca_pem).await.is_ok()
            })
            .await;
        }
        started
    }
}

impl Drop for XPdb {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Creates the type of its budgets.
pub(crate) fn install(kubectl: &Kubectl) {
    let crds = variable(SOURCE).join("charts/x-pdb/crds");
    kubectl.run_checked(&["apply", "-f", &crds.to_string_lossy()]);
    let crd = "crd/xpoddisruptionbudgets.x-pdb.form3.tech";
    kubectl.run_checked(&["wait", "--for=condition=established", "--timeout=60s", crd]);
}

/// Returns the budget of x-pdb with the selector and the limit of a `PodDisruptionBudget`.
pub(crate) fn budget(budget: &Value) -> Value {
    let spec = &budget["spec"];
    json!({
        "apiVersion": "x-pdb.form3.tech/v1alpha1",
        "kind": "XPodDisruptionBudget",
        "metadata": budget["metadata"],
        "spec": {"maxUnavailable": spec["maxUnavailable"], "selector": spec["selector"]},
    })
}

/// Whether its own registration selects this review.
pub(crate) fn selects(review: &Value) -> bool {
    let request = &review["request"];
    let operation = request["operation"].as_str().unwrap_or_default();
    let subresource = request["subResource"].as_str().unwrap_or_default();
    request["resource"]["resource"] == "pods"
        && matches!((operation, subresource), ("DELETE", "") | ("CREATE", "eviction"))
}

fn variable(name: &str) -> PathBuf {
    std::env::var_os(name)
        .map_or_else(|| panic!("{name} is not set: use scripts/storm --x-pdb"), PathBuf::from)
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}
