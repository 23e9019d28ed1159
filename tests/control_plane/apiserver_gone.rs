//! An apiserver that hangs: the guard says so in time, and says no.

use std::{
    net::Ipv4Addr,
    time::{Duration, Instant},
};

use kube::Api;

use crate::support::{
    control_plane::ControlPlane,
    guard_process::GuardProcess,
    http_client::Connection,
    pods::{create_etcd_pod, new_namespace},
    review::{deletion_of, verdict},
};

#[tokio::test]
async fn while_the_apiserver_hangs_the_guard_denies_within_the_time_that_it_is_given() {
    let control_plane = ControlPlane::start(&[]);
    let client = control_plane.client().await;
    let pods = Api::namespaced(client.clone(), &new_namespace(&client, true).await);
    let pod = create_etcd_pod(&pods, "etcd-0", Ipv4Addr::LOCALHOST).await;
    let mut guard =
        GuardProcess::start(&control_plane.admin_kubeconfig(), &control_plane.dir.join("guard")).await;
    let mut apiserver = Connection::tls(guard.https(), &guard.ca_pem).await.unwrap();

    control_plane.freeze("kube-apiserver").await;
    for (timeout, limit, text, reason) in [
        ("10s", 10, "the apiserver did not answer within 3s", "LookupFailed"),
        ("2s", 2, "could not be found out within 1s", "DeadlineExceeded"),
    ] {
        let started = Instant::now();
        let answer =
            apiserver.post(&format!("/validate?timeout={timeout}"), deletion_of(&pod)).await.unwrap();
        assert!(started.elapsed() < Duration::from_secs(limit), "{:?} of {timeout}", started.elapsed());
        let (allowed, message) = verdict(&answer.body);
        assert!(!allowed && message.contains(text) && message.contains(reason), "{message}");
        assert_eq!(guard.news().await, [format!("DELETE denied {reason}")]);
    }

    control_plane.thaw("kube-apiserver");
    let answer = apiserver.post("/validate?timeout=10s", deletion_of(&pod)).await.unwrap();
    let (_, message) = verdict(&answer.body);
    assert!(
        message.contains("no member of etcd cluster") && message.contains("could be reached"),
        "{message}"
    );
    assert_eq!(guard.news().await, ["DELETE denied EtcdUnreachable"]);
}
