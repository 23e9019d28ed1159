//! The Leases with the reservations, under the shipped permissions.

use std::collections::BTreeMap;

use etcd_guard_kubernetes::{Leases, WriteError};

use crate::observability::cost::send_review;
use test_support::{
    guard::review::deletion_review,
    guarded_cluster::{GuardedCluster, Setup},
    kubernetes::{api_client, control_plane::ControlPlane},
    layout::Layout,
};

#[tokio::test]
async fn deletes_lease_only_in_known_version() {
    let control_plane = ControlPlane::shared();
    let leases = Leases::new(api_client::client(&control_plane.guard_kubeconfig()).await, "etcd-guard");
    let name = "etcd-guard.dead";
    let text = |text: &str| BTreeMap::from([(String::from("etcd-guard.io/reservations"), text.to_owned())]);
    let first = leases.write(&leases.read(name).await.unwrap(), text("[]")).await.unwrap();
    let second = leases.write(&first, text("[ ]")).await.unwrap();

    let listed = async || leases.list().await.unwrap().into_iter().find(|page| page.name == name);
    assert_eq!(listed().await.as_ref(), Some(&second));
    assert!(matches!(leases.delete(&first).await, Err(WriteError::Conflict)));
    assert_eq!(listed().await.as_ref(), Some(&second), "the later write is preserved");
    leases.delete(&second).await.unwrap();
    assert_eq!(listed().await, None);
    assert!(matches!(leases.delete(&second).await, Err(WriteError::Conflict)), "the Lease is deleted");
    // The API server creates a Lease by an update without a uid.
    assert!(matches!(leases.write(&second, text("[]")).await, Err(WriteError::Conflict)));
    assert_eq!(leases.read(name).await.unwrap().version, None);
}

/// The approved deletions are not executed, as if another webhook held them, while somebody deletes the Lease.
#[tokio::test]
async fn deleted_lease_forgets_no_approval() {
    let layout = Layout { members: 5, ..Layout::default() };
    let etcd = GuardedCluster::start_as(Setup { layout, ..Setup::default() }).await;
    let leader = etcd.leader().await;
    let followers: Vec<String> = etcd.pod_names().await.into_iter().filter(|name| *name != leader).collect();
    let delete = async |name: &str| {
        let pod = etcd.pods.get(name).await.unwrap();
        send_review(&etcd.guard, deletion_review(&pod)).await
    };
    let lease = format!("lease/etcd-guard.ns.{}", etcd.namespace);
    let kubectl = etcd.kubectl_everywhere();
    let delete_lease = async || {
        let output = kubectl.run(&["-n", "etcd-guard", "delete", &lease]).await;
        assert!(output.success, "{}", output.stderr);
    };

    assert!(delete(&followers[0]).await.0);
    delete_lease().await;
    assert!(delete(&followers[1]).await.0, "five members can lose two");
    // The second approval has restored the first one.
    let output = kubectl.run(&["-n", "etcd-guard", "get", &lease, "-o", "yaml"]).await;
    for name in &followers[..2] {
        let uid = etcd.uid(name).await;
        assert!(output.stdout.contains(&uid), "{name} {uid}: {}", output.stdout);
    }
    delete_lease().await;
    let (allowed, message) = delete(&followers[2]).await;
    assert!(!allowed && message.contains("DisruptionInProgress: "), "{message}");
}
