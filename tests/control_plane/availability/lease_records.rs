//! The Leases with the reservations, under the shipped permissions.

use std::collections::BTreeMap;

use etcd_guard_kubernetes::{Leases, WriteError};

use test_support::kubernetes::{api_client, control_plane::ControlPlane};

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
