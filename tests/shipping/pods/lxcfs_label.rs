//! The label of nodes with a working lxcfs, and the shipped permissions for it.

use std::{fs, path::PathBuf, process::Command, sync::LazyLock, time::Duration};

use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client, Config,
    api::{Patch, PatchParams},
    config::{KubeConfigOptions, Kubeconfig},
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::{Value, json};

use crate::{kubeconfig_with, kustomize, objects, project_path};
use test_support::{
    kubernetes::{control_plane::ControlPlane, kubectl::Kubectl},
    processes::child::scoped_command,
    wait::wait_until,
};

const NAMESPACE: &str = "etcd-guard-lxcfs";
const LABEL: &str = "node-restriction.kubernetes.io/lxcfs-ready";

/// The longest time until a change is reported, on a busy machine; lxcfs is checked every five seconds.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Two nodes, and a pod of the `DaemonSet` on the first one.
struct Setup {
    kubectl: Kubectl,
    /// A kubeconfig with the token of that pod.
    kubeconfig: PathBuf,
    _control_plane: ControlPlane,
}

impl Setup {
    /// Returns the setup that the tests share: they change nothing but the label, and one of them only as a dry run.
    fn shared() -> &'static Self {
        static SHARED: LazyLock<Setup> = LazyLock::new(Setup::start);
        &SHARED
    }

    fn start() -> Self {
        let control_plane = ControlPlane::start(&[]);
        let kubectl = control_plane.kubectl();
        kubectl.run_checked(&["apply", "-k", &project_path("deploy/lxcfs").to_string_lossy()]);
        for name in ["node-a", "node-b"] {
            let file = control_plane.dir.join("node.json");
            let metadata = json!({"name": name, "labels": {"zone": "z"}});
            let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": metadata});
            fs::write(&file, node.to_string()).unwrap();
            kubectl.run_checked(&["create", "-f", &file.to_string_lossy()]);
        }
        let spec = json!({"spec": {"nodeName": "node-a", "serviceAccountName": "lxcfs"}});
        let spec = format!("--overrides={spec}");
        kubectl.run_checked(&["-n", NAMESPACE, "run", "lxcfs", "--image=lxcfs", &spec]);
        let bound = ["--bound-object-kind=Pod", "--bound-object-name=lxcfs"];
        let token =
            kubectl.run_checked(&[&["-n", NAMESPACE, "create", "token", "lxcfs"][..], &bound].concat());
        let kubeconfig = kubeconfig_with(&control_plane, "lxcfs", token.stdout.trim());
        Self { kubectl, kubeconfig, _control_plane: control_plane }
    }

    fn label(&self) -> String {
        let path = format!("jsonpath={{.metadata.labels.{}}}", LABEL.replace('.', r"\."));
        self.kubectl.run_checked(&["get", "node", "node-a", "-o", &path]).stdout
    }

    async fn wait_for_label(&self, value: &str) {
        wait_until(&format!("the label is {value:?}"), TIMEOUT, async || self.label() == value).await;
    }

    async fn nodes(&self) -> Api<Node> {
        let kubeconfig = Kubeconfig::read_from(&self.kubeconfig).unwrap();
        let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
        Api::all(Client::try_from(config).unwrap())
    }
}

#[tokio::test]
async fn node_labels_follow_lxcfs_availability() {
    let (setup, root) = (Setup::shared(), tempfile::tempdir().unwrap());
    fs::create_dir(root.path().join("proc")).unwrap();
    let (file, aside) = (root.path().join("proc/meminfo"), root.path().join("aside"));
    fs::write(&file, "MemTotal:         262144 kB\n").unwrap();
    let mut command = scoped_command(env!("CARGO_BIN_EXE_etcd-guard"));
    command.args(["lxcfs-label", "--node=node-a", "--root"]).arg(root.path());
    let mut labeller = command.arg("--kubeconfig").arg(&setup.kubeconfig).spawn().unwrap();
    setup.wait_for_label("true").await;

    // Like a hanging lxcfs: opening a FIFO waits for a writer.
    fs::rename(&file, &aside).unwrap();
    assert!(Command::new("mkfifo").arg(&file).status().unwrap().success());
    setup.wait_for_label("").await;

    // lxcfs works again.
    fs::write(&file, "").unwrap();
    fs::rename(&aside, &file).unwrap();
    setup.wait_for_label("true").await;

    kill(Pid::from_raw(i32::try_from(labeller.id()).unwrap()), Signal::SIGTERM).unwrap();
    wait_until("the program ends", TIMEOUT, async || {
        labeller.try_wait().unwrap().is_some_and(|status| status.success())
    })
    .await;
    assert_eq!(setup.label(), "");
}

#[tokio::test]
async fn lxcfs_token_changes_only_its_own_node_label() {
    let setup = Setup::shared();
    let nodes = setup.nodes().await;
    let patch_node = async |node: &str, patch: Value| {
        let params = PatchParams { dry_run: true, ..PatchParams::default() };
        nodes.patch(node, &params, &Patch::Merge(patch)).await.map(drop).map_err(|error| error.to_string())
    };
    let ready = json!({"metadata": {"labels": {LABEL: "true"}}});
    // The API server learns of a policy by a watch.
    wait_until("another node is denied", TIMEOUT, async || {
        let output = patch_node("node-b", ready.clone()).await;
        output.is_err_and(|error| error.contains("lxcfs labels only the node on which it runs"))
    })
    .await;

    for patch in [
        json!({"metadata": {"labels": {"zone": "other"}}}),
        json!({"metadata": {"labels": {"zone": null}}}),
        json!({"metadata": {"labels": {"new": "label"}}}),
        json!({"metadata": {"annotations": {"new": "annotation"}}}),
        json!({"metadata": {"finalizers": ["example.com/new"]}}),
        json!({"metadata": {"ownerReferences": [
            {"apiVersion": "v1", "kind": "Namespace", "name": "other", "uid": "00000000-0000-0000-0000-000000000000"},
        ]}}),
        json!({"spec": {"unschedulable": true}}),
        json!({"spec": {"taints": []}}),
    ] {
        let output = patch_node("node-a", patch.clone()).await;
        assert!(
            output.as_ref().is_err_and(|error| error.contains("and changes nothing else")),
            "{patch}: {output:?}"
        );
    }
    patch_node("node-a", ready).await.unwrap();
    patch_node("node-a", json!({"metadata": {"labels": {LABEL: null}}})).await.unwrap();
}

/// `tests/inject_node` restarts a hung lxcfs with a faster probe, which differs from the shipped one in its times only.
#[test]
fn hung_lxcfs_restarts_after_five_minutes() {
    let shipped = |folder: &str| {
        let all = objects(&kustomize(folder));
        all.into_iter().find(|object| object["kind"] == "DaemonSet").unwrap()
    };
    let mut set = shipped("deploy/lxcfs");
    let mut fast = shipped("tests/data/kustomizations/lxcfs-with-fast-probe");
    let container = &set["spec"]["template"]["spec"]["containers"][0];
    let (liveness, readiness) = (&container["livenessProbe"], &container["readinessProbe"]);
    assert_eq!((&container["name"], &liveness["exec"]), (&json!("lxcfs"), &readiness["exec"]));
    assert_eq!(
        liveness["periodSeconds"].as_u64().unwrap() * liveness["failureThreshold"].as_u64().unwrap(),
        300
    );
    for set in [&mut set, &mut fast] {
        let probe =
            set["spec"]["template"]["spec"]["containers"][0]["livenessProbe"].as_object_mut().unwrap();
        probe.retain(|field, _| field == "exec");
    }
    assert_eq!(set, fast);
}
