//! The cluster, the replicas, and what stands between.

use std::{path::Path, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client};
use tempfile::TempDir;
use tokio::{sync::Mutex, time::sleep};

use crate::{
    certificates::Certificates,
    front::{Answerer, Front},
    storm::{Against, Storm},
    support::{
        control_plane::{ControlPlane, SHARED_NODE},
        guard_process::GuardProcess,
        http_client,
        pods::new_namespace,
        wait::until,
        webhook,
    },
    truth::Truth,
};

/// Longest that a cluster, an apiserver or a certificate may take to be there, next to compilers.
pub(crate) const WHOLE_LIMIT: Duration = Duration::from_secs(300);

/// How long an apiserver may take to trust a bundle that was written: its watch tells it in a moment. If it takes longer,
/// it cannot call the webhook for a while, and refuses.
const TRUST_PAUSE: Duration = Duration::from_secs(1);

const MANIFEST: &str = "etcd-manifests/plain.yaml";

/// All that a storm needs.
pub(crate) struct Scene {
    pub(crate) truth: Arc<Truth>,
    pub(crate) pods: Api<Pod>,
    pub(crate) replicas: Mutex<Vec<GuardProcess>>,
    pub(crate) front: Front,
    pub(crate) against: Against,
    control_plane: &'static ControlPlane,
    client: Client,
    namespace: String,
    certificates: Arc<Certificates>,
    /// Removed last, when nobody writes there any more.
    _files: TempDir,
}

impl Scene {
    pub(crate) async fn start(storm: &Storm) -> Self {
        let control_plane = ControlPlane::shared();
        let client = control_plane.client().await;
        let namespace = new_namespace(&client, true).await;
        let files = tempfile::tempdir_in(&control_plane.dir).unwrap();
        apply(control_plane, &namespace, &files, storm);
        let node = control_plane.process_node(&[SHARED_NODE], &namespace, files.path().join("node"));
        let names = (0..storm.members).map(|ordinal| format!("etcd-{ordinal}")).collect();
        let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
        let truth = Arc::new(Truth::new(names, namespace.clone(), Arc::new(node), pods.clone()));
        let (mut replicas, mut folders) = (Vec::new(), Vec::new());
        if storm.against == Against::Guard {
            for n in 0..storm.replicas {
                let folder = files.path().join(format!("replica-{n}"));
                replicas.push(GuardProcess::start(&control_plane.guard_kubeconfig(), &folder).await);
                folders.push(folder);
            }
        }
        let bundle: String = replicas.iter().map(|it| it.ca_pem.as_str()).collect();
        let certificates = Arc::new(Certificates::new(files.path().join("front"), folders, &bundle));
        let answerer = match storm.against {
            Against::Guard => Answerer::Replicas(replicas.iter().map(GuardProcess::https).collect()),
            Against::LeaderOnly => Answerer::LeaderOnly,
            Against::Pdb | Against::Nothing => Answerer::Nobody,
        };
        let front = Front::start(answerer, Arc::clone(&certificates), Arc::clone(&truth)).await;
        let (replicas, against) = (Mutex::new(replicas), storm.against);
        let scene = Self {
            truth,
            pods,
            replicas,
            front,
            against,
            control_plane,
            client,
            namespace,
            certificates,
            _files: files,
        };
        until("all members serve", WHOLE_LIMIT, async || scene.truth.is_whole().await).await;
        // A budget is counted down after all webhooks have been asked, so that none can see what it allows.
        if against != Against::Pdb {
            scene.register().await;
            scene.wait_until_asked().await;
        }
        scene
    }

    /// Kills the apiserver, and returns when there is one again.
    pub(crate) async fn restart_the_apiserver(&self) {
        self.control_plane.kill("kube-apiserver").await;
        self.wait_for_the_apiserver().await;
    }

    /// Returns when the apiserver is ready.
    pub(crate) async fn wait_for_the_apiserver(&self) {
        until("the apiserver is back", WHOLE_LIMIT, async || {
            let ready = http::Request::get("/readyz").body(Vec::new()).unwrap();
            self.client.request_text(ready).await.is_ok()
        })
        .await;
    }

    /// Gives the webhook's Service another certificate from another CA, while all serve on.
    pub(crate) async fn rotate_certificates(&self) {
        let next = self.certificates.make_next();
        self.register().await;
        sleep(TRUST_PAUSE).await;
        self.certificates.serve(&next);
        for replica in self.replicas.lock().await.iter() {
            until("a replica serves its new certificate", WHOLE_LIMIT, async || {
                http_client::tls(replica.https(), &next.ca_pem).await.is_ok()
            })
            .await;
        }
        self.certificates.forget_all_but(&next);
        self.register().await;
    }

    /// Registers the webhook with what is trusted now.
    async fn register(&self) {
        let bundle = self.certificates.trusted();
        webhook::register_at(&self.client, &self.namespace, self.front.address, &bundle, |_| {}).await;
    }

    /// Returns when the apiserver asks.
    async fn wait_until_asked(&self) {
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
fn apply(control_plane: &ControlPlane, namespace: &str, files: &TempDir, storm: &Storm) {
    let members = storm.members;
    let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(MANIFEST)).unwrap();
    let member = |ordinal: usize| format!("etcd-{ordinal}=http://etcd-{ordinal}.etcd.$(NAMESPACE).svc:2380");
    let list = |count: usize| (0..count).map(member).collect::<Vec<_>>().join(",");
    assert!(text.contains(&list(3)) && text.contains("replicas: 3"), "{MANIFEST} is another one");
    let text = text.replace(&list(3), &list(members)).replace("replicas: 3", &format!("replicas: {members}"));
    let file = files.path().join("etcd.yaml");
    std::fs::write(&file, text).unwrap();
    let kubectl = control_plane.kubectl();
    kubectl.must(&["apply", "-n", namespace, "-f", &file.to_string_lossy()]);
    if storm.against == Against::Pdb {
        // Alone it is safer as it is by default: what is not ready may not go while others are not, either.
        let default = r#"{"spec":{"unhealthyPodEvictionPolicy":null}}"#;
        kubectl.must(&[
            "patch",
            "-n",
            namespace,
            "poddisruptionbudget",
            "etcd",
            "--type=merge",
            "-p",
            default,
        ]);
    } else {
        // Its refusals after a yes leave reservations behind, about which control_plane/refused_later.rs is.
        kubectl.must(&["delete", "-n", namespace, "poddisruptionbudget", "etcd"]);
    }
    let transfer = "etcd-guard.io/leader=transfer";
    kubectl.must(&["annotate", "-n", namespace, "statefulset", "etcd", transfer]);
}
