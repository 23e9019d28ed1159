//! A hanging API server: the guard denies requests in time.

use std::{
    net::Ipv4Addr,
    time::{Duration, Instant},
};

use kube::Api;

use test_support::{
    guard::{
        process::GuardProcess,
        review::{deletion_review, verdict},
    },
    http_client::Connection,
    kubernetes::{
        control_plane::ControlPlane,
        pods::{create_etcd_pod, new_namespace},
    },
};

#[tokio::test]
async fn denies_within_timeout_while_api_server_hangs() {
    let control_plane = ControlPlane::start(&[]);
    let client = control_plane.client().await;
    let pods = Api::namespaced(client.clone(), &new_namespace(&client, true).await);
    let pod = create_etcd_pod(&pods, "etcd-0", Ipv4Addr::LOCALHOST).await;
    let mut guard =
        GuardProcess::start(&control_plane.admin_kubeconfig(), &control_plane.dir.join("guard")).await;
    let mut apiserver = Connection::tls(guard.https(), &guard.ca_pem).await.unwrap();

    control_plane.freeze("kube-apiserver").await;
    for (timeout, limit, text, reason) in [
        ("10s", 10, "the API server did not respond within 3s", "LookupFailed"),
        ("2s", 2, "could not evaluate pod etcd-0 within 1s", "DeadlineExceeded"),
    ] {
        let started = Instant::now();
        let answer =
            apiserver.post(&format!("/validate?timeout={timeout}"), deletion_review(&pod)).await.unwrap();
        assert!(started.elapsed() < Duration::from_secs(limit), "{:?} of {timeout}", started.elapsed());
        let (allowed, message) = verdict(&answer.body);
        assert!(!allowed && message.contains(text) && message.contains(reason), "{message}");
        assert_eq!(guard.new_verdicts().await, [format!("DELETE denied {reason}")]);
    }

    control_plane.thaw("kube-apiserver");
    let answer = apiserver.post("/validate?timeout=10s", deletion_review(&pod)).await.unwrap();
    let (_, message) = verdict(&answer.body);
    assert!(message.contains("no member of ") && message.contains("could be reached"), "{message}");
    assert_eq!(guard.new_verdicts().await, ["DELETE denied EtcdUnreachable"]);
}
