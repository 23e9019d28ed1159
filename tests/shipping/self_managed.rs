//! Certificates that the guard manages itself: two replicas, a real apiserver, callers that trust the caBundle and nothing
//! else.

#[path = "self_managed/callers.rs"]
mod callers;
#[path = "self_managed/stage.rs"]
mod stage;

use std::{fs, net::SocketAddr, time::Duration};

use kube::{
    api::{DeleteParams, Patch, PatchParams},
    config::Kubeconfig,
};
use serde_json::json;
use tokio::time::{Instant, sleep};

pub(super) use self::stage::permit;
use self::{
    callers::{Callers, Kept},
    stage::{SECRET, Stage, bundle},
};
use crate::support::{
    control_plane::ControlPlane,
    kubectl::Kubectl,
    self_managed_guard::{Clock, SelfManagedGuard},
    wait::{some, until},
};

/// Longest that the proof of rotation may take, on a machine that does other things, too.
const PROOF_LIMIT: Duration = Duration::from_secs(900);

/// Longest that recovery may take, next to compilers.
const RECOVERY: Duration = Duration::from_secs(60);

fn seconds(variable: &str, default: u64) -> Duration {
    Duration::from_secs(std::env::var(variable).map_or(default, |it| it.parse().unwrap()))
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
        // As a rolling update and a drain under the budget do: nobody is ended while the other is not ready.
        stage.replicas[(restarts + 1) % 2].wait_until_ready().await;
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
    make_etcd_pod(&kubectl).await;
    until("the guard denies", RECOVERY, async || {
        let said = kubectl.run(&["-n", "prod", "delete", "pod", "etcd-0", "--dry-run=server"]).await;
        said.stderr.contains("admission webhook \"guard.etcd-guard.io\" denied the request")
    })
    .await;
}

/// Makes the pod `etcd-0` in the guarded namespace `prod`: running, with an address where nobody answers. What cannot be asked
/// is not deleted.
pub(super) async fn make_etcd_pod(kubectl: &Kubectl) {
    kubectl.must(&["create", "namespace", "prod"]);
    kubectl.must(&["label", "namespace", "prod", "etcd-guard.io/guard=enabled"]);
    let pod = json!({"spec": {"nodeName": "nowhere", "containers": [{"name": "etcd", "image": "etcd", "command": ["etcd"]}]}});
    let overrides = format!("--overrides={pod}");
    // A new namespace has no service account for a moment.
    until("the pod is made", RECOVERY, async || {
        kubectl.run(&["-n", "prod", "run", "etcd-0", "--image=etcd", &overrides]).await.success
    })
    .await;
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
}
