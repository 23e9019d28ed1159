//! Self-managed certificates with the shipped accounts: the certificate manager, two replicas that mount its Secret, a
//! real API server, and callers that trust only the caBundle.

mod callers;
mod setup;

use std::{fs, net::SocketAddr, time::Duration};

use kube::{
    api::{DeleteParams, Patch, PatchParams},
    config::Kubeconfig,
};
use serde_json::json;
use tokio::time::{Instant, sleep};

pub(crate) use self::{
    callers::Callers,
    setup::{CERTIFICATES, SECOND_SECRET, SECRET, SERVER, Setup, kubeconfig_of, permit},
};
use self::{callers::ReusedConnection, setup::bundle};
use test_support::{
    guard::self_managed::{Clock, SelfManagedGuard},
    kubernetes::{control_plane::ControlPlane, kubectl::Kubectl},
    processes::sockets::listening_addresses,
    wait::{wait_for, wait_until},
};

/// The longest additional time for the test of rotation, on a busy machine.
const ROTATION_TIMEOUT: Duration = Duration::from_secs(900);

/// The longest time for a recovery, on a busy machine.
const RECOVERY_TIMEOUT: Duration = Duration::from_secs(60);

fn seconds(variable: &str, default: u64) -> Duration {
    Duration::from_secs(std::env::var(variable).map_or(default, |value| value.parse().unwrap()))
}

/// Certificates have a lifetime of 60 s. A long run takes five minutes: `ROTATION_SECONDS=300`.
#[tokio::test(flavor = "multi_thread")]
async fn certificates_rotate_under_load_during_restarts() {
    let (length, life) = (seconds("ROTATION_SECONDS", 60), seconds("CERTIFICATE_LIFE", 60));
    let mut setup = Setup::start(life).await;
    let callers = Callers::start(&setup).await;
    let start = Instant::now();
    // 50 requests per second, independent of the time that this machine needs.
    let target = usize::try_from(length.as_secs()).unwrap() * 50;
    let mut served = vec![setup.secret("tls.crt").await.unwrap()];
    let mut restarts = 0;
    while start.elapsed() < length || callers.answered() < target || served.len() < 2 || restarts < 4 {
        assert!(
            start.elapsed() < length + ROTATION_TIMEOUT,
            "{} of {target} calls, {} certificates, {restarts} restarts",
            callers.answered(),
            served.len(),
        );
        // Like a rolling update or a drain with a budget: a replica is restarted only while the other one is ready.
        setup.replicas[(restarts + 1) % 2].wait_until_ready().await;
        setup.replicas[restarts % 2].restart().await;
        restarts += 1;
        sleep(Duration::from_secs(1)).await;
        let certificate = setup.secret("tls.crt").await;
        served.extend(certificate.filter(|certificate| served.last() != Some(certificate)));
    }
    callers.end().await;
    eprintln!("{} certificates, {restarts} restarts in {:?}", served.len(), start.elapsed());
}

/// The account that can change webhook configurations is that of a process without a listener.
fn assert_listeners(setup: &Setup) {
    // The servers listen at two ports each: the webhook, and health with metrics.
    for replica in &setup.replicas {
        assert_eq!(listening_addresses(replica.id()).len(), 2);
    }
    assert_eq!(listening_addresses(setup.manager.id()), [""; 0]);
}

async fn assert_api_server_calls_guard(setup: &Setup) {
    let kubectl = setup.control_plane.kubectl();
    make_etcd_pod(&kubectl).await;
    wait_until("the guard denies", RECOVERY_TIMEOUT, async || {
        let output = kubectl.run(&["-n", "prod", "delete", "pod", "etcd-0", "--dry-run=server"]).await;
        output.stderr.contains("admission webhook \"guard.etcd-guard.io\" denied the request")
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn serves_with_own_certificate_and_restores_lost_objects() {
    let setup = Setup::start(Duration::from_secs(3600)).await;
    assert_listeners(&setup);
    assert_api_server_calls_guard(&setup).await;
    let callers = Callers::start(&setup).await;
    let before = setup.secret("tls.crt").await.unwrap();

    setup.secrets().delete(SECRET, &DeleteParams::default()).await.unwrap();
    // The manager writes the certificate that the replicas serve, so it does not change.
    let after =
        wait_for("the Secret is restored", RECOVERY_TIMEOUT, async || setup.secret("tls.crt").await).await;
    assert_eq!(after, before);
    // The Secret is visible before the manager logs the write.
    wait_until("the restoration is logged", RECOVERY_TIMEOUT, async || {
        setup.manager.count_lines("lost Secret restored") > 0
    })
    .await;

    let spoilt = Patch::Merge(json!({"stringData": {"tls.crt": "rubbish"}}));
    setup.secrets().patch(SECRET, &PatchParams::default(), &spoilt).await.unwrap();
    wait_until("the Secret is repaired", RECOVERY_TIMEOUT, async || {
        setup.secret("tls.crt").await == Some(before.clone())
    })
    .await;

    callers.end().await;
    let configuration = "validatingwebhookconfiguration/etcd-guard";
    setup.control_plane.kubectl().run_checked(&["delete", configuration]);
    wait_until("the configuration is restored", RECOVERY_TIMEOUT, async || setup.bundle().await.is_some())
        .await;
    setup.replicas[0].wait_until_ready().await;
    let ca = setup.secret("ca.crt").await.unwrap();
    assert!(setup.bundle().await.unwrap().contains(ca.trim()));
}

/// Two wrong clocks: one replica does not verify the API server's certificate, so that it can act on its clock; the
/// other one rejects that certificate as not valid yet.
#[tokio::test(flavor = "multi_thread")]
async fn replica_with_old_clock_recovers() {
    let control_plane = ControlPlane::start(&[]);
    let (kubeconfig, folder) = (permit(&control_plane), tempfile::tempdir().unwrap());
    let mut insecure = Kubeconfig::read_from(&kubeconfig).unwrap();
    for cluster in insecure.clusters.iter_mut().filter_map(|cluster| cluster.cluster.as_mut()) {
        cluster.insecure_skip_tls_verify = Some(true);
        cluster.certificate_authority_data = None;
    }
    let insecure_file = folder.path().join("kubeconfig");
    fs::write(&insecure_file, serde_json::to_string(&insecure).unwrap()).unwrap();
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let url = format!("--register-url=https://{free}");
    let flags = ["--certificate-life=1h", "--register", &url];

    let old = Clock::in_folder(folder.path(), "-30d");
    let first = SelfManagedGuard::launch_with_clock(Some(&old), &insecure_file, free, &flags);
    first.wait_until_ready().await;
    // A certificate with a lifetime of an hour would have expired if it used this clock.
    let client = control_plane.client().await;
    let trusted = bundle(&client).await.unwrap();
    let mut connection = ReusedConnection::open(Some(&first.https()), trusted).await.unwrap();
    connection.send().await.unwrap();

    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let second = SelfManagedGuard::launch_with_clock(Some(&old), &kubeconfig, any, &flags);
    wait_until("the guard reports that it cannot renew its certificate", RECOVERY_TIMEOUT, async || {
        second.has_logged("certificate step failed") && second.has_logged("not valid yet")
    })
    .await;
    assert!(!second.is_ready().await);
    old.set("+0");
    second.wait_until_ready().await;
    wait_until("the new certificate is logged", RECOVERY_TIMEOUT, async || {
        second.has_logged("serving a new certificate")
    })
    .await;
    let mut connection =
        ReusedConnection::open(Some(&second.https()), bundle(&client).await.unwrap()).await.unwrap();
    connection.send().await.unwrap();
}

/// Creates the pod `etcd-0` in the guarded namespace `prod`: running, with an address without a listener. Its deletion
/// is denied, because the member cannot be probed.
pub(crate) async fn make_etcd_pod(kubectl: &Kubectl) {
    kubectl.run_checked(&["create", "namespace", "prod"]);
    kubectl.run_checked(&["label", "namespace", "prod", "etcd-guard.io/guard=enabled"]);
    let pod = json!({"spec": {"nodeName": "nowhere", "containers": [{"name": "etcd", "image": "etcd", "command": ["etcd"]}]}});
    let overrides = format!("--overrides={pod}");
    // A new namespace has no service account for a moment.
    wait_until("the pod is created", RECOVERY_TIMEOUT, async || {
        kubectl.run(&["-n", "prod", "run", "etcd-0", "--image=etcd", &overrides]).await.success
    })
    .await;
    let status = json!({"status": {"phase": "Running", "podIP": "127.0.0.1", "podIPs": [{"ip": "127.0.0.1"}],
        "containerStatuses": [{"name": "etcd", "image": "etcd", "imageID": "", "ready": true, "restartCount": 0,
            "started": true, "state": {"running": {}}}]}});
    kubectl.run_checked(&[
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
