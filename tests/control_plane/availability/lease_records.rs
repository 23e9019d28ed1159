//! The Leases with the reservations, under the shipped permissions.

use std::{collections::BTreeMap, time::Duration};

use futures::future::{Either, select};
use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, ResourceExt, api::ListParams};
use tokio::time::sleep;

use etcd_guard_kubernetes::{Leases, WriteError};

use crate::observability::cost::send_review;
use test_support::{
    guard::review::deletion_review,
    guarded_cluster::{GuardedCluster, START_TIMEOUT, Setup},
    kubernetes::{api_client, control_plane::ControlPlane},
    layout::Layout,
    wait::wait_until,
};

/// Longer than a probe result denies other deletions.
const CACHE_TTL: Duration = Duration::from_millis(700);

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

/// Deletes all Leases of the guard that concern this cluster: `kubectl delete lease --all` would also delete those of other tests.
async fn delete_all_leases(etcd: &GuardedCluster) {
    let leases: Api<Lease> = Api::namespaced(etcd.client.clone(), "etcd-guard");
    let listed = leases.list(&ListParams::default()).await.unwrap();
    let suffix = format!(".{}", etcd.namespace);
    let own: Vec<String> =
        listed.iter().map(ResourceExt::name_any).filter(|name| name.ends_with(&suffix)).collect();
    let ledger = format!("etcd-guard.ns{suffix}");
    assert!(own.contains(&ledger), "{own:?}");
    let own: Vec<&str> = own.iter().map(String::as_str).collect();
    let output =
        etcd.kubectl_everywhere().run(&[&["-n", "etcd-guard", "delete", "lease"], &own[..]].concat()).await;
    assert!(output.success, "{}", output.stderr);
}

/// Another webhook holds the approved deletion, while somebody deletes the Leases and another member.
#[tokio::test]
async fn held_deletion_counts_after_all_leases_are_deleted() {
    let etcd = GuardedCluster::start().await;
    let [first, second] = etcd.followers().await;
    let uid = etcd.uid(&first).await;
    let holder = etcd.add_holder_of_deletions().await;
    holder.hold_next();
    let meanwhile = async {
        wait_until("the first deletion is approved", START_TIMEOUT, async || {
            etcd.guard.verdict_counts().await.contains_key("DELETE allowed SafeToDelete")
        })
        .await;
        delete_all_leases(&etcd).await;
        sleep(CACHE_TTL).await;
        etcd.delete(&second).await
    };
    let Either::Right((answer, deletion)) = select(Box::pin(etcd.delete(&first)), Box::pin(meanwhile)).await
    else {
        panic!("the first deletion was not held until the answer to the second one");
    };
    let denial = answer.expect_err("the first deletion is approved and held");
    assert!(denial.contains("DisruptionInProgress: "), "{denial}");
    assert!(denial.contains(&format!("{first} is being deleted")), "{denial}");
    holder.release();
    deletion.await.unwrap();
    etcd.wait_until_replaced(&first, &uid).await;
    wait_until("the second deletion passes", START_TIMEOUT, async || etcd.delete(&second).await.is_ok())
        .await;
}
