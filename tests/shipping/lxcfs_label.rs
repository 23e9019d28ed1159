//! The label of a node on which lxcfs serves: written with the permissions that are shipped, which reach no further.

use std::{fs, path::PathBuf, process::Command, time::Duration};

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

use crate::{
    kubeconfig_with, path_of,
    support::{child::mortal, control_plane::ControlPlane, kubectl::Kubectl, wait::until},
};

const NAMESPACE: &str = "etcd-guard-lxcfs";
const LABEL: &str = "etcd-guard.io/lxcfs-ready";

/// Longest until a change is told, next to compilers; lxcfs is looked at every five seconds.
const LIMIT: Duration = Duration::from_secs(60);

/// Two nodes, and the pod of the `DaemonSet` on the first.
struct Stage {
    kubectl: Kubectl,
    /// Of that pod.
    kubeconfig: PathBuf,
    _control_plane: ControlPlane,
}

impl Stage {
    fn start() -> Self {
        let control_plane = ControlPlane::start(&[]);
        let kubectl = control_plane.kubectl();
        kubectl.must(&["apply", "-k", &path_of("deploy/lxcfs").to_string_lossy()]);
        for name in ["node-a", "node-b"] {
            let file = control_plane.dir.join("node.json");
            let metadata = json!({"name": name, "labels": {"zone": "z"}});
            let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": metadata});
            fs::write(&file, node.to_string()).unwrap();
            kubectl.must(&["create", "-f", &file.to_string_lossy()]);
        }
        let spec = json!({"spec": {"nodeName": "node-a", "serviceAccountName": "lxcfs"}});
        let spec = format!("--overrides={spec}");
        kubectl.must(&["-n", NAMESPACE, "run", "lxcfs", "--image=lxcfs", &spec]);
        let bound = ["--bound-object-kind=Pod", "--bound-object-name=lxcfs"];
        let token = kubectl.must(&[&["-n", NAMESPACE, "create", "token", "lxcfs"][..], &bound].concat());
        let kubeconfig = kubeconfig_with(&control_plane, token.stdout.trim());
        Self { kubectl, kubeconfig, _control_plane: control_plane }
    }

    fn label(&self) -> String {
        let path = format!("jsonpath={{.metadata.labels.{}}}", LABEL.replace('.', r"\."));
        self.kubectl.must(&["get", "node", "node-a", "-o", &path]).stdout
    }

    async fn until_labelled(&self, value: &str) {
        until(&format!("the label is {value:?}"), LIMIT, async || self.label() == value).await;
    }

    async fn nodes(&self) -> Api<Node> {
        let kubeconfig = Kubeconfig::read_from(&self.kubeconfig).unwrap();
        let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
        Api::all(Client::try_from(config).unwrap())
    }
}

#[tokio::test]
async fn a_node_has_its_label_while_lxcfs_answers_and_no_longer() {
    let (stage, root) = (Stage::start(), tempfile::tempdir().unwrap());
    fs::create_dir(root.path().join("proc")).unwrap();
    let (file, aside) = (root.path().join("proc/meminfo"), root.path().join("aside"));
    fs::write(&file, "MemTotal:         262144 kB\n").unwrap();
    let mut command = mortal(env!("CARGO_BIN_EXE_etcd-guard"));
    command.args(["lxcfs-label", "--node=node-a", "--root"]).arg(root.path());
    let mut labeller = command.arg("--kubeconfig").arg(&stage.kubeconfig).spawn().unwrap();
    stage.until_labelled("true").await;

    // As lxcfs that hangs: who opens it waits for somebody who never comes.
    fs::rename(&file, &aside).unwrap();
    assert!(Command::new("mkfifo").arg(&file).status().unwrap().success());
    stage.until_labelled("").await;

    // It is killed, and started again.
    fs::write(&file, "").unwrap();
    fs::rename(&aside, &file).unwrap();
    stage.until_labelled("true").await;

    kill(Pid::from_raw(i32::try_from(labeller.id()).unwrap()), Signal::SIGTERM).unwrap();
    until("it ends", LIMIT, async || labeller.try_wait().unwrap().is_some_and(|it| it.success())).await;
    assert_eq!(stage.label(), "");
}

#[tokio::test]
async fn the_token_of_one_nodes_lxcfs_changes_that_label_of_that_node_and_nothing_else() {
    let stage = Stage::start();
    let nodes = stage.nodes().await;
    let denial = async |node: &str, patch: Value| {
        let params = PatchParams { dry_run: true, ..PatchParams::default() };
        nodes.patch(node, &params, &Patch::Merge(patch)).await.map(drop).map_err(|it| it.to_string())
    };
    let ready = json!({"metadata": {"labels": {LABEL: "true"}}});
    // The apiserver learns of a policy by a watch.
    until("another node is denied", LIMIT, async || {
        let said = denial("node-b", ready.clone()).await;
        said.is_err_and(|it| it.contains("lxcfs labels the node that it runs on, and no other"))
    })
    .await;

    for patch in [
        json!({"metadata": {"labels": {"zone": "other"}}}),
        json!({"metadata": {"labels": {"zone": null}}}),
        json!({"metadata": {"labels": {"new": "label"}}}),
        json!({"metadata": {"annotations": {"new": "annotation"}}}),
        json!({"metadata": {"finalizers": ["example.com/new"]}}),
        json!({"metadata": {"ownerReferences": [
            {"apiVersion": "v1", "kind": "Namespace", "name": "gone", "uid": "00000000-0000-0000-0000-000000000000"},
        ]}}),
        json!({"spec": {"unschedulable": true}}),
        json!({"spec": {"taints": []}}),
    ] {
        let said = denial("node-a", patch.clone()).await;
        assert!(said.as_ref().is_err_and(|it| it.contains("and changes nothing else")), "{patch}: {said:?}");
    }
    denial("node-a", ready).await.unwrap();
    denial("node-a", json!({"metadata": {"labels": {LABEL: null}}})).await.unwrap();
}
