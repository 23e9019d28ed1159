//! Certificates that the guard manages itself: two replicas, a real apiserver, callers that trust the caBundle and nothing
//! else.

use std::{
    fs,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use k8s_openapi::api::{admissionregistration::v1::ValidatingWebhookConfiguration, core::v1::Secret};
use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams},
    config::{AuthInfo, Kubeconfig},
};
use serde_json::json;
use tokio::{
    task::JoinSet,
    time::{Instant, MissedTickBehavior, interval, sleep},
};

use crate::{
    kustomize,
    support::{
        control_plane::ControlPlane,
        http_client::{self, Connection, NoAnswer},
        self_managed_guard::{Clock, SelfManagedGuard},
        wait::{some, until},
    },
};

const SECRET: &str = "etcd-guard-certificates";

/// Callers, and what each waits between two requests: 50 requests a second.
const CALLERS: usize = 10;
const PERIOD: Duration = Duration::from_millis(200);

/// After so many requests a caller takes a new connection.
const FRESH_AFTER: usize = 20;

/// How late apiservers and Services learn of a change.
const LATE: Duration = Duration::from_millis(200);

/// Until when what a caller knows counts as fresh: the guard gives apiservers three seconds to learn of a new CA, and serves
/// on for five after it has failed its readiness.
const TIMELY: Duration = Duration::from_secs(2);

/// Longest that the proof of rotation may take, on a machine that does other things, too.
const PROOF_LIMIT: Duration = Duration::from_secs(900);

/// Longest that recovery may take, next to compilers.
const RECOVERY: Duration = Duration::from_secs(60);

fn seconds(variable: &str, default: u64) -> Duration {
    Duration::from_secs(std::env::var(variable).map_or(default, |it| it.parse().unwrap()))
}

/// A control plane with the guard's permissions, and two replicas that register themselves.
struct Stage {
    control_plane: ControlPlane,
    client: Client,
    replicas: [SelfManagedGuard; 2],
}

impl Stage {
    async fn start(life: Duration) -> Self {
        let control_plane = ControlPlane::start(&[]);
        let kubeconfig = permit(&control_plane);
        let life = format!("--certificate-life={}s", life.as_secs());
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let url = format!("--register-url=https://{free}");
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let launch = |address| SelfManagedGuard::launch(&kubeconfig, address, &[&life, "--register", &url]);
        let replicas = [launch(free), launch(any)];
        for replica in &replicas {
            replica.wait_until_ready().await;
        }
        Self { client: control_plane.client().await, control_plane, replicas }
    }

    fn secrets(&self) -> Api<Secret> {
        Api::namespaced(self.client.clone(), "etcd-guard")
    }

    async fn secret(&self, key: &str) -> Option<String> {
        let secret = self.secrets().get_opt(SECRET).await.ok()??;
        String::from_utf8(secret.data?.get(key)?.0.clone()).ok()
    }

    /// What an apiserver trusts: of all entries the same.
    async fn bundle(&self) -> Option<String> {
        bundle(&self.client).await
    }
}

async fn bundle(client: &Client) -> Option<String> {
    let api: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
    let entries = api.get_opt("etcd-guard").await.ok()??.webhooks?;
    let bundles: Vec<_> = entries.into_iter().map(|it| it.client_config.ca_bundle).collect();
    assert!(bundles.windows(2).all(|pair| pair[0] == pair[1]), "all entries have one bundle");
    String::from_utf8(bundles.into_iter().next()??.0).ok()
}

/// Applies the shipped permissions, and returns a kubeconfig that has no others.
pub(super) fn permit(control_plane: &ControlPlane) -> std::path::PathBuf {
    let objects = crate::objects(&kustomize("deploy/overlays/register"));
    let is_wanted = |kind: &str| ["Namespace", "ServiceAccount"].contains(&kind) || kind.contains("Role");
    let items: Vec<_> = objects.iter().filter(|it| is_wanted(it["kind"].as_str().unwrap())).collect();
    let file = control_plane.dir.join("permissions.json");
    fs::write(&file, json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string()).unwrap();
    let kubectl = control_plane.kubectl();
    kubectl.must(&["apply", "-f", &file.to_string_lossy()]);
    let token = kubectl.must(&["create", "token", "etcd-guard", "-n", "etcd-guard"]).stdout;
    let mut kubeconfig = Kubeconfig::read_from(control_plane.admin_kubeconfig()).unwrap();
    for user in &mut kubeconfig.auth_infos {
        let token = Some(token.trim().to_owned().into());
        user.auth_info = Some(AuthInfo { token, ..AuthInfo::default() });
    }
    let path = control_plane.dir.join("etcd-guard.kubeconfig");
    fs::write(&path, serde_json::to_string(&kubeconfig).unwrap()).unwrap();
    path
}

/// Something that changes, as its watcher saw it last.
struct Known<T> {
    value: T,
    /// When it was asked for.
    at: Instant,
}

/// What an apiserver and a Service would know, some moments late.
struct Knowledge {
    bundle: Mutex<Known<String>>,
    ready: Mutex<Known<Vec<SocketAddr>>>,
    stop: AtomicBool,
    answered: AtomicUsize,
}

impl Knowledge {
    fn now(&self) -> (String, Vec<SocketAddr>, Instant) {
        let (bundle, ready) = (self.bundle.lock().unwrap(), self.ready.lock().unwrap());
        (bundle.value.clone(), ready.value.clone(), bundle.at.min(ready.at))
    }

    fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

/// Call as an apiserver does: ready replicas only, trusting the bundle alone.
struct Callers {
    knowledge: Arc<Knowledge>,
    callers: JoinSet<Calls>,
}

/// What one caller got.
#[derive(Default)]
struct Calls {
    failed: Vec<NoAnswer>,
    /// Failures of callers that knew less than the guard may expect of them.
    too_late: usize,
}

impl Callers {
    async fn start(stage: &Stage) -> Self {
        let now = Instant::now();
        let knowledge = Arc::new(Knowledge {
            bundle: Mutex::new(Known { value: stage.bundle().await.unwrap(), at: now }),
            ready: Mutex::new(Known { value: Vec::new(), at: now }),
            stop: AtomicBool::new(false),
            answered: AtomicUsize::new(0),
        });
        let addresses: Vec<_> = stage.replicas.iter().map(|it| (it.http(), it.https())).collect();
        tokio::spawn(watch_bundle(stage.client.clone(), Arc::clone(&knowledge)));
        tokio::spawn(watch_readiness(addresses, Arc::clone(&knowledge)));
        until("a replica is known to be ready", RECOVERY, async || !knowledge.now().1.is_empty()).await;
        let callers = (0..CALLERS).map(|number| call(number, Arc::clone(&knowledge))).collect();
        Self { knowledge, callers }
    }

    fn answered(&self) -> usize {
        self.knowledge.answered.load(Ordering::Relaxed)
    }

    /// How many were answered; all must be.
    async fn end(self) -> usize {
        let answered = self.answered();
        self.knowledge.stop.store(true, Ordering::Relaxed);
        let calls = self.callers.join_all().await;
        let failed: Vec<_> = calls.iter().flat_map(|it| &it.failed).collect();
        let too_late: usize = calls.iter().map(|it| it.too_late).sum();
        eprintln!("{answered} calls answered; {too_late} tried again, because the caller was held up");
        assert!(failed.is_empty(), "{} failed, {answered} answered: {failed:?}", failed.len());
        answered
    }
}

async fn watch_bundle(client: Client, knowledge: Arc<Knowledge>) {
    while !knowledge.is_over() {
        let at = Instant::now();
        if let Some(value) = bundle(&client).await {
            *knowledge.bundle.lock().unwrap() = Known { value, at };
        }
        sleep(LATE).await;
    }
}

async fn watch_readiness(replicas: Vec<(SocketAddr, SocketAddr)>, knowledge: Arc<Knowledge>) {
    while !knowledge.is_over() {
        let at = Instant::now();
        let mut value = Vec::new();
        for (http, https) in &replicas {
            if http_client::get(*http, "/readyz").await.is_ok_and(|it| it.status.is_success()) {
                value.push(*https);
            }
        }
        *knowledge.ready.lock().unwrap() = Known { value, at };
        sleep(LATE).await;
    }
}

/// One caller: keeps its connection as an apiserver does, until the bundle changes, the replica is no longer ready, or the
/// server says that it closes. Now and then it takes a new one without need, for the handshake's sake.
async fn call(number: usize, knowledge: Arc<Knowledge>) -> Calls {
    let mut calls = Calls::default();
    let mut ticks = interval(PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut kept: Option<Kept> = None;
    let mut turn = number;
    while !knowledge.is_over() {
        ticks.tick().await;
        turn += 1;
        let (bundle, ready, known_at) = knowledge.now();
        let usable =
            |it: &Kept| ready.contains(&it.address) && it.bundle == bundle && it.requests < FRESH_AFTER;
        let answer = match kept.take().filter(usable) {
            Some(kept) => Ok(kept),
            None => Kept::open(ready.get(turn % ready.len().max(1)), bundle).await,
        };
        let answer = match answer {
            Ok(mut connection) => connection.ask().await.map(|closes| {
                if !closes {
                    kept = Some(connection);
                }
            }),
            Err(error) => Err(error),
        };
        match answer {
            Ok(()) => drop(knowledge.answered.fetch_add(1, Ordering::Relaxed)),
            // On a machine that stood still, what it knew was old when it called; it calls again with what is true now. A
            // call that hangs is no such thing.
            Err(error) if known_at.elapsed() > TIMELY && !error.is_timeout() => calls.too_late += 1,
            Err(error) => calls.failed.push(error),
        }
    }
    calls
}

/// A connection that is kept.
struct Kept {
    address: SocketAddr,
    bundle: String,
    connection: Connection,
    requests: usize,
}

impl Kept {
    async fn open(address: Option<&SocketAddr>, bundle: String) -> Result<Self, NoAnswer> {
        let address = *address.ok_or_else(|| NoAnswer(String::from("no replica is ready")))?;
        let connection = Connection::tls(address, &bundle).await?;
        Ok(Self { address, bundle, connection, requests: 0 })
    }

    /// Whether the server closes after its answer.
    async fn ask(&mut self) -> Result<bool, NoAnswer> {
        self.requests += 1;
        let pod = json!({
            "metadata": {"name": "web", "namespace": "prod", "uid": "u"},
            "spec": {"containers": [{"name": "web"}]}
        });
        let answer = self.connection.post("/validate?timeout=10s", deletion_of(&pod).to_string()).await?;
        if answer.status == 200 { Ok(answer.closes) } else { Err(NoAnswer(answer.body)) }
    }
}

/// Certificates that live for 60 s. The whole proof takes five minutes: `ROTATION_SECONDS=300`.
#[tokio::test(flavor = "multi_thread")]
async fn certificates_rotate_under_load_while_replicas_restart_in_turn() {
    let (length, life) = (seconds("ROTATION_SECONDS", 60), seconds("CERTIFICATE_LIFE", 60));
    let mut stage = Stage::start(life).await;
    let callers = Callers::start(&stage).await;
    let start = Instant::now();
    // 50 a second, however long this machine takes for them.
    let enough = usize::try_from(length.as_secs()).unwrap() * 50;
    let mut served = vec![stage.secret("tls.crt").await.unwrap()];
    let mut restarts = 0;
    while start.elapsed() < length || callers.answered() < enough || served.len() < 2 || restarts < 4 {
        assert!(
            start.elapsed() < length + PROOF_LIMIT,
            "{} of {enough} calls, {} certificates, {restarts} restarts",
            callers.answered(),
            served.len(),
        );
        stage.replicas[restarts % 2].restart().await;
        restarts += 1;
        sleep(Duration::from_secs(1)).await;
        let certificate = stage.secret("tls.crt").await;
        served.extend(certificate.filter(|it| served.last() != Some(it)));
    }
    callers.end().await;
    eprintln!("{} certificates, {restarts} restarts in {:?}", served.len(), start.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_or_spoilt_secret_and_a_lost_configuration_come_back_by_themselves() {
    let stage = Stage::start(Duration::from_secs(3600)).await;
    let callers = Callers::start(&stage).await;
    let before = stage.secret("tls.crt").await.unwrap();

    stage.secrets().delete(SECRET, &DeleteParams::default()).await.unwrap();
    // What the replicas serve is what they write again: nobody has to change.
    let after = some("the Secret is back", RECOVERY, async || stage.secret("tls.crt").await).await;
    assert_eq!(after, before);

    let spoilt = Patch::Merge(json!({"stringData": {"tls.crt": "rubbish"}}));
    stage.secrets().patch(SECRET, &PatchParams::default(), &spoilt).await.unwrap();
    until("the Secret is whole", RECOVERY, async || stage.secret("tls.crt").await == Some(before.clone()))
        .await;

    callers.end().await;
    let configuration = "validatingwebhookconfiguration/etcd-guard";
    stage.control_plane.kubectl().must(&["delete", configuration]);
    until("the configuration is back", RECOVERY, async || stage.bundle().await.is_some()).await;
    stage.replicas[0].wait_until_ready().await;
    let ca = stage.secret("ca.crt").await.unwrap();
    assert!(stage.bundle().await.unwrap().contains(ca.trim()));
}

/// Two old clocks: one whose owner does not check the apiserver's certificate, so that it may do its harm, and one that
/// cannot even take that certificate for valid.
#[tokio::test(flavor = "multi_thread")]
async fn a_replica_with_an_old_clock_does_no_harm_and_recovers_by_itself() {
    let control_plane = ControlPlane::start(&[]);
    let (kubeconfig, folder) = (permit(&control_plane), tempfile::tempdir().unwrap());
    let mut credulous = Kubeconfig::read_from(&kubeconfig).unwrap();
    for cluster in credulous.clusters.iter_mut().filter_map(|it| it.cluster.as_mut()) {
        cluster.insecure_skip_tls_verify = Some(true);
        cluster.certificate_authority_data = None;
    }
    let credulous_file = folder.path().join("kubeconfig");
    fs::write(&credulous_file, serde_json::to_string(&credulous).unwrap()).unwrap();
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let url = format!("--register-url=https://{free}");
    let flags = ["--certificate-life=1h", "--register", &url];

    let old = Clock::in_folder(folder.path(), "-30d");
    let first = SelfManagedGuard::launch_by(Some(&old), &credulous_file, free, &flags);
    first.wait_until_ready().await;
    // Of 30 days ago, a certificate for an hour would have ended long ago.
    let client = control_plane.client().await;
    let trusted = bundle(&client).await.unwrap();
    let mut kept = Kept::open(Some(&first.https()), trusted).await.unwrap();
    kept.ask().await.unwrap();

    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let second = SelfManagedGuard::launch_by(Some(&old), &kubeconfig, any, &flags);
    until("it says that it cannot keep its certificate", RECOVERY, async || {
        second.has_logged("keeping the certificate failed") && second.has_logged("not valid yet")
    })
    .await;
    assert!(!second.is_ready().await);
    old.set("+0");
    second.wait_until_ready().await;
    assert!(second.has_logged("serving a new certificate"));
    let mut kept = Kept::open(Some(&second.https()), bundle(&client).await.unwrap()).await.unwrap();
    kept.ask().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_apiserver_asks_a_guard_that_registered_itself() {
    let stage = Stage::start(Duration::from_secs(3600)).await;
    let kubectl = stage.control_plane.kubectl();
    kubectl.must(&["create", "namespace", "prod"]);
    kubectl.must(&["label", "namespace", "prod", "etcd-guard.io/guard=enabled"]);
    // Named etcd, running, with an address where nobody answers: what cannot be asked is not deleted.
    let pod = json!({"spec": {"nodeName": "nowhere", "containers": [{"name": "etcd", "image": "etcd", "command": ["etcd"]}]}});
    kubectl.must(&["-n", "prod", "run", "etcd-0", "--image=etcd", &format!("--overrides={pod}")]);
    let status = json!({"status": {"phase": "Running", "podIP": "127.0.0.1", "podIPs": [{"ip": "127.0.0.1"}],
        "containerStatuses": [{"name": "etcd", "image": "etcd", "imageID": "", "ready": true, "restartCount": 0,
            "started": true, "state": {"running": {}}}]}});
    kubectl.must(&[
        "-n",
        "prod",
        "patch",
        "pod",
        "etcd-0",
        "--subresource=status",
        "-p",
        &status.to_string(),
    ]);
    until("the guard denies", RECOVERY, async || {
        let said = kubectl.run(&["-n", "prod", "delete", "pod", "etcd-0", "--dry-run=server"]).await;
        said.stderr.contains("admission webhook \"guard.etcd-guard.io\" denied the request")
    })
    .await;
}

/// A review of the deletion of this pod.
fn deletion_of(pod: &serde_json::Value) -> serde_json::Value {
    json!({
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "5a1b-4711",
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "name": pod["metadata"]["name"],
            "namespace": "prod",
            "operation": "DELETE",
            "userInfo": {"username": "kubernetes-admin"},
            "oldObject": pod,
            "dryRun": false
        }
    })
}
