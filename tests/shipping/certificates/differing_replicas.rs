//! Replicas with different flags, as during an update, agree on one certificate.

use std::{
    net::{SocketAddr, TcpListener},
    time::Duration,
};

use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use tokio::time::sleep;

use crate::certificates::self_managed::permit;
use test_support::{
    guard::self_managed::SelfManagedGuard, http_client::Connection, kubernetes::control_plane::ControlPlane,
    wait::wait_for,
};

/// The longest time until they agree, on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Replicas that disagree replace the certificate about every second. The next rotation of an agreed one is hours away.
const STABLE_TIME: Duration = Duration::from_secs(6);

/// Returns the version of the Secret, if all replicas serve its certificate and no rotation is in progress.
async fn agreed_version(secrets: &Api<Secret>, replicas: &[&SelfManagedGuard]) -> Option<String> {
    let secret = secrets.get_opt("etcd-guard-certificates").await.ok()??;
    let data = secret.data?;
    let ca = String::from_utf8(data.get("ca.crt")?.0.clone()).ok()?;
    for replica in replicas {
        Connection::tls(replica.https(), &ca).await.ok()?;
    }
    (!data.contains_key("next-ca.crt")).then_some(secret.metadata.resource_version?)
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_with_differing_settings_share_certificate() {
    let control_plane = ControlPlane::start(&[]);
    let kubeconfig = permit(&control_plane);
    let launch = |host: [u8; 4], life: &str| {
        // The port is free at one loopback address, and is known before the guard listens.
        let free = TcpListener::bind(SocketAddr::from((host, 0))).unwrap().local_addr().unwrap();
        let url = format!("--register-url=https://{free}");
        let life = format!("--certificate-life={life}");
        SelfManagedGuard::launch(&kubeconfig, free, &[&life, "--register", &url])
    };
    let (long, short) = (launch([127, 0, 0, 1], "20h"), launch([127, 0, 0, 2], "1h"));
    let secrets = Api::namespaced(control_plane.client().await, "etcd-guard");

    let agree = async || agreed_version(&secrets, &[&long, &short]).await;
    let version = wait_for("both serve the stored certificate", TIMEOUT, agree).await;
    sleep(STABLE_TIME).await;
    assert_eq!(agree().await, Some(version));
    long.wait_until_ready().await;
    short.wait_until_ready().await;
}
