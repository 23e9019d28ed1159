//! Replicas that were started with different flags, as in the middle of an update: they agree all the same.

use std::{net::SocketAddr, net::TcpListener, time::Duration};

use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use tokio::time::sleep;

use crate::{
    self_managed::permit,
    support::{
        control_plane::ControlPlane, http_client::Connection, self_managed_guard::SelfManagedGuard,
        wait::some,
    },
};

/// Longest until they agree, next to compilers.
const LIMIT: Duration = Duration::from_secs(60);

/// Replicas that disagree exchange the certificate about every second. Those that agree have hours.
const QUIET: Duration = Duration::from_secs(6);

/// What is stored, if both serve it and nothing is to come.
async fn agreed(secrets: &Api<Secret>, replicas: &[&SelfManagedGuard]) -> Option<String> {
    let secret = secrets.get_opt("etcd-guard-certificates").await.ok()??;
    let data = secret.data?;
    let ca = String::from_utf8(data.get("ca.crt")?.0.clone()).ok()?;
    for replica in replicas {
        Connection::tls(replica.https(), &ca).await.ok()?;
    }
    (!data.contains_key("next-ca.crt")).then_some(secret.metadata.resource_version?)
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_of_different_lives_and_names_agree_on_one_certificate() {
    let control_plane = ControlPlane::start(&[]);
    let kubeconfig = permit(&control_plane);
    let launch = |host: [u8; 4], life: &str| {
        // The port is free at one address of loopback, so that it can be named before it is taken.
        let free = TcpListener::bind(SocketAddr::from((host, 0))).unwrap().local_addr().unwrap();
        let url = format!("--register-url=https://{free}");
        let life = format!("--certificate-life={life}");
        SelfManagedGuard::launch(&kubeconfig, free, &[&life, "--register", &url])
    };
    let (long, short) = (launch([127, 0, 0, 1], "20h"), launch([127, 0, 0, 2], "1h"));
    let secrets = Api::namespaced(control_plane.client().await, "etcd-guard");

    let agree = async || agreed(&secrets, &[&long, &short]).await;
    let version = some("both serve what is stored", LIMIT, agree).await;
    sleep(QUIET).await;
    assert_eq!(agree().await, Some(version));
    long.wait_until_ready().await;
    short.wait_until_ready().await;
}
