//! The etcd cluster, the replicas of the guard, and the proxy in front of them.

use std::{
    sync::{Arc, atomic::AtomicU32},
    time::Duration,
};

use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use kube::{Api, Client};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    sync::Mutex,
    time::{Instant, sleep},
};

use crate::{
    API_SERVER,
    certificates::Certificates,
    oracle::Oracle,
    recorder::Recorder,
    review_proxy::{Responder, ReviewProxy},
    stress::{StressTest, Subject},
    x_pdb,
    x_pdb::XPdb,
};
use test_support::{
    guard::process::GuardProcess,
    http_client,
    kubernetes::{
        control_plane::{ControlPlane, SHARED_NODE},
        pods::new_namespace,
        webhook,
    },
    wait::wait_until,
};

/// The longest time until a cluster, an API server or a certificate is available, on a busy machine.
pub(crate) const HEALTHY_TIMEOUT: Duration = Duration::from_secs(300);

/// The time for the API server to load a changed bundle, which its watch reports within a moment. If it takes longer,
/// webhook calls fail for a while and requests are denied.
const TRUST_PAUSE: Duration = Duration::from_secs(1);

/// All parts of a stress test.
pub(crate) struct Environment {
    pub(crate) oracle: Arc<Oracle>,
    pub(crate) pods: Api<Pod>,
    pub(crate) replicas: Mutex<Vec<GuardProcess>>,
    pub(crate) proxy: ReviewProxy,
    pub(crate) recorder: Arc<Recorder>,
    pub(crate) subject: Subject,
    /// The objects of the cluster.
    pub(crate) objects: Vec<Value>,
    /// Number of images that pods have been given.
    pub(crate) images: AtomicU32,
    /// The number of completed slow terminations.
    pub(crate) slow_terminations: AtomicU32,
    /// The number of completed slow cascades.
    pub(crate) slow_cascades: AtomicU32,
    /// The end of the slow departure in progress.
    pub(crate) calm_until: Mutex<Option<Instant>>,
    pub(crate) client: Client,
    pub(crate) namespace: String,
    pub(crate) control_plane: &'static ControlPlane,
    certificates: Arc<Certificates>,
    _x_pdb: XPdb,
    /// Removed last, after all writers have ended.
    _files: TempDir,
}

impl Environment {
    pub(crate) async fn start(test: &StressTest) -> Self {
        // No other test stops the API server until this test has created its objects.
        let _guard = API_SERVER.lock().await;
        let control_plane = ControlPlane::shared();
        let client = control_plane.client().await;
        let namespace = new_namespace(&client, true).await;
        wait_for_service_account(&client, &namespace).await;
        let files = tempfile::tempdir_in(&control_plane.dir).unwrap();
        let recorder = Arc::new(Recorder::start(&control_plane.store_url, &namespace).await);
        let mut x_pdb = XPdb::default();
        if test.subject == Subject::XPdb {
            x_pdb::install(&control_plane.kubectl());
            x_pdb = XPdb::start(control_plane, test.replicas, &files.path().join("x-pdb")).await;
        }
        let objects = test.objects();
        let file = files.path().join("etcd.json");
        let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
        std::fs::write(&file, list.to_string()).unwrap();
        control_plane.kubectl().run_checked(&["apply", "-n", &namespace, "-f", &file.to_string_lossy()]);
        let node = control_plane.process_node(&[SHARED_NODE], &namespace, files.path().join("node"));
        let names = test.pod_names();
        let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
        let oracle = Arc::new(Oracle::new(names, namespace.clone(), Arc::new(node), pods.clone()));
        let (mut replicas, mut folders) = (Vec::new(), Vec::new());
        if test.subject == Subject::Guard {
            for n in 0..test.replicas {
                let folder = files.path().join(format!("replica-{n}"));
                replicas.push(GuardProcess::start(&control_plane.guard_kubeconfig(), &folder).await);
                folders.push(folder);
            }
        }
        let bundle: String =
            replicas.iter().map(|replica| replica.ca_pem.as_str()).chain([x_pdb.ca_pem.as_str()]).collect();
        let certificates = Arc::new(Certificates::new(files.path().join("front"), folders, &bundle));
        let responder = match test.subject {
            Subject::Guard => Responder::Replicas(replicas.iter().map(GuardProcess::https).collect()),
            Subject::XPdb => Responder::XPdb(x_pdb.addresses.clone()),
            Subject::LeaderOnly => Responder::LeaderOnly,
            Subject::Pdb | Subject::Nothing => Responder::AllowAll,
        };
        let (front, approvals) = (Arc::clone(&certificates), Arc::clone(&recorder));
        let proxy = ReviewProxy::start(responder, front, Arc::clone(&oracle), approvals).await;
        let (replicas, subject) = (Mutex::new(replicas), test.subject);
        let environment = Self {
            oracle,
            pods,
            replicas,
            proxy,
            recorder,
            subject,
            objects,
            images: AtomicU32::new(0),
            slow_terminations: AtomicU32::new(0),
            slow_cascades: AtomicU32::new(0),
            calm_until: Mutex::new(None),
            client,
            namespace,
            control_plane,
            certificates,
            _x_pdb: x_pdb,
            _files: files,
        };
        wait_until("all members serve", HEALTHY_TIMEOUT, async || environment.oracle.is_healthy().await)
            .await;
        // A budget is charged after all webhooks have been called, so a webhook cannot observe what the budget allows.
        if subject != Subject::Pdb {
            environment.register().await;
            environment.wait_until_called().await;
        }
        environment
    }

    /// Writes the trace of a test of the guard. The comparison does not explain deletions of owners.
    pub(crate) async fn write_trace(&self, test: &StressTest) {
        if self.subject == Subject::Guard && !test.has_cascades() {
            let name = format!("stress-{}-{}", test.owners, test.seed);
            self.recorder.finish(&name, &self.namespace, &self.oracle.names).await;
        }
    }

    /// Kills the API server, and returns when its successor is ready.
    pub(crate) async fn restart_api_server(&self) {
        let _guard = API_SERVER.lock().await;
        self.control_plane.kill("kube-apiserver").await;
        self.wait_for_api_server().await;
    }

    /// Waits until the API server is ready.
    pub(crate) async fn wait_for_api_server(&self) {
        wait_until("the API server is ready", HEALTHY_TIMEOUT, async || {
            let ready = http::Request::get("/readyz").body(Vec::new()).unwrap();
            self.client.request_text(ready).await.is_ok()
        })
        .await;
    }

    /// Replaces the certificate of the webhook's Service by one of another CA under load.
    pub(crate) async fn rotate_certificates(&self) {
        let next = self.certificates.make_next();
        self.register_exclusively().await;
        sleep(TRUST_PAUSE).await;
        self.certificates.serve(&next);
        for replica in self.replicas.lock().await.iter() {
            wait_until("a replica serves its new certificate", HEALTHY_TIMEOUT, async || {
                http_client::tls(replica.https(), &next.ca_pem).await.is_ok()
            })
            .await;
        }
        self.certificates.trust_only(&next);
        self.register_exclusively().await;
    }

    /// Registers the webhook while no other test stops the API server.
    async fn register_exclusively(&self) {
        let _guard = API_SERVER.lock().await;
        self.register().await;
    }

    /// Registers the webhook with the current bundle.
    async fn register(&self) {
        let bundle = self.certificates.trusted();
        // A restart without a review, while no replica answers, would be a fault that the oracle does not know.
        let fail_closed = |entry: &mut Value| {
            if entry["name"] == "update.guard.etcd-guard.io" {
                entry["failurePolicy"] = json!("Fail");
            }
        };
        webhook::register_at(&self.client, &self.namespace, self.proxy.address, &bundle, fail_closed).await;
    }

    /// Waits until the API server calls the proxy.
    async fn wait_until_called(&self) {
        let dry_run = kube::api::DeleteParams { dry_run: true, ..kube::api::DeleteParams::default() };
        wait_until("the API server calls the webhook", HEALTHY_TIMEOUT, async || {
            // The verdict is irrelevant: the test only waits until the proxy receives a review.
            let _ = self.pods.delete(&self.oracle.names[0], &dry_run).await;
            !self.proxy.answers.lock().unwrap().is_empty()
        })
        .await;
        self.proxy.answers.lock().unwrap().clear();
    }
}

/// Waits until the namespace has its default service account, without which the API server refuses pods. Its controller
/// pauses after a restart of the API server.
async fn wait_for_service_account(client: &Client, namespace: &str) {
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), namespace);
    wait_until("the namespace has a service account", HEALTHY_TIMEOUT, async || {
        accounts.get_opt("default").await.is_ok_and(|account| account.is_some())
    })
    .await;
}
