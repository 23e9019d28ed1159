//! The cluster, the replicas, and what stands between.

use std::{path::Path, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client};
use tempfile::TempDir;
use tokio::sync::Mutex;

use crate::{
    front::{Front, Replica},
    storm::{Judge, Storm},
    support::{
        control_plane::{ControlPlane, SHARED_NODE},
        guard_process::GuardProcess,
        pods::new_namespace,
        wait::until,
        webhook,
    },
    truth::Truth,
};

/// Longest that a cluster may take to start or to be whole again, next to compilers.
pub(crate) const WHOLE_LIMIT: Duration = Duration::from_secs(120);

const MANIFEST: &str = "etcd-manifests/plain.yaml";

/// All that a storm needs.
pub(crate) struct Scene {
    pub(crate) truth: Arc<Truth>,
    pub(crate) pods: Api<Pod>,
    pub(crate) replicas: Mutex<Vec<GuardProcess>>,
    pub(crate) front: Front,
    /// Removed last, when nobody writes there any more.
    _files: TempDir,
}

impl Scene {
    pub(crate) async fn start(storm: &Storm) -> Self {
        let control_plane = ControlPlane::shared();
        let client = control_plane.client().await;
        let namespace = new_namespace(&client, true).await;
        let files = tempfile::tempdir_in(&control_plane.dir).unwrap();
        apply(control_plane, &namespace, &files, storm.members);
        let node = control_plane.process_node(&[SHARED_NODE], &namespace, files.path().join("node"));
        let names = (0..storm.members).map(|ordinal| format!("etcd-{ordinal}")).collect();
        let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
        let truth = Arc::new(Truth::new(names, namespace.clone(), Arc::new(node), pods.clone()));
        let (mut guards, mut replicas) = (Vec::new(), Vec::new());
        if storm.judge == Judge::Guard {
            for n in 0..storm.replicas {
                let dir = files.path().join(format!("replica-{n}"));
                let guard = GuardProcess::start(&control_plane.guard_kubeconfig(), &dir).await;
                replicas.push(Replica::Guard { address: guard.https(), ca_pem: guard.ca_pem.clone() });
                guards.push(guard);
            }
        } else {
            replicas.push(Replica::LeaderOnly);
        }
        let front = Front::start(&files.path().join("front"), replicas, Arc::clone(&truth)).await;
        let scene = Self { truth, pods, replicas: Mutex::new(guards), front, _files: files };
        until("all members serve", WHOLE_LIMIT, async || scene.truth.is_whole().await).await;
        scene.register(&client, &namespace).await;
        scene
    }

    /// Returns when the apiserver asks.
    async fn register(&self, client: &Client, namespace: &str) {
        webhook::register_at(client, namespace, self.front.address, &self.front.ca_pem, |_| {}).await;
        let dry_run = kube::api::DeleteParams { dry_run: true, ..kube::api::DeleteParams::default() };
        until("the apiserver asks", WHOLE_LIMIT, async || {
            // A yes or a no: what counts is who said it.
            let _ = self.pods.delete(&self.truth.names[0], &dry_run).await;
            !self.front.answers.lock().unwrap().is_empty()
        })
        .await;
        self.front.answers.lock().unwrap().clear();
    }
}

/// Applies the shipped example with this many members, whose owners want leadership moved.
fn apply(control_plane: &ControlPlane, namespace: &str, files: &TempDir, members: usize) {
    let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(MANIFEST)).unwrap();
    let member = |ordinal: usize| format!("etcd-{ordinal}=http://etcd-{ordinal}.etcd.$(NAMESPACE).svc:2380");
    let list = |count: usize| (0..count).map(member).collect::<Vec<_>>().join(",");
    assert!(text.contains(&list(3)) && text.contains("replicas: 3"), "{MANIFEST} is another one");
    let text = text.replace(&list(3), &list(members)).replace("replicas: 3", &format!("replicas: {members}"));
    let file = files.path().join("etcd.yaml");
    std::fs::write(&file, text).unwrap();
    let kubectl = control_plane.kubectl();
    kubectl.must(&["apply", "-n", namespace, "-f", &file.to_string_lossy()]);
    // Its refusals after a yes leave reservations behind, about which control_plane/refused_later.rs is.
    kubectl.must(&["delete", "-n", namespace, "poddisruptionbudget", "etcd"]);
    let transfer = "etcd-guard.io/leader=transfer";
    kubectl.must(&["annotate", "-n", namespace, "statefulset", "etcd", transfer]);
}
