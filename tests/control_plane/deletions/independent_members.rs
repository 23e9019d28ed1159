//! A StatefulSet whose pods are clusters of one member each, such as the shards of a cache.

use std::collections::BTreeSet;

use super::never_served::{on_empty_dir, replace};
use test_support::{
    guarded_cluster::{GuardedCluster, START_TIMEOUT, Setup},
    wait::wait_until,
};

/// Makes each pod a cluster of its own, whose data goes with the pod.
fn independent(manifest: &str) -> String {
    let member = |n: u32| format!("etcd-{n}=http://etcd-{n}.etcd.$(NAMESPACE).svc:2380");
    let all = [member(0), member(1), member(2)].join(",");
    let own = "$(POD_NAME)=http://$(POD_NAME).etcd.$(NAMESPACE).svc:2380";
    let manifest = replace(manifest, &all, own);
    let manifest = replace(&manifest, "-token=$(NAMESPACE)-etcd", "-token=$(NAMESPACE)-$(POD_NAME)");
    on_empty_dir(&manifest)
}

#[tokio::test]
async fn independent_members_are_deleted_one_after_the_other() {
    let mut etcd = GuardedCluster::start_as(Setup { change_manifest: independent, ..Setup::default() }).await;
    let mut clusters = BTreeSet::new();
    for name in GuardedCluster::names() {
        clusters.insert(etcd.member(name).status().await.unwrap().header().unwrap().cluster_id());
    }
    assert_eq!(clusters.len(), 3, "{clusters:?}");

    wait_until("the loss is denied", START_TIMEOUT, async || {
        let denial = etcd.delete("etcd-0").await.expect_err("the data would be lost");
        assert!(!denial.contains("SplitCluster: "), "{denial}");
        denial.contains("PermanentLoss: ") && denial.contains("1 of 1 voters healthy")
    })
    .await;
    let allow = ["etcd-guard.io/single-member=allow", "etcd-guard.io/ephemeral-data=allow"];
    let output = etcd.kubectl(&[&["annotate", "statefulset/etcd"], &allow[..]].concat()).await;
    assert!(output.success, "{output:?}");
    for name in GuardedCluster::names() {
        let uid = etcd.uid(name).await;
        wait_until(&format!("the deletion of {name} passes"), START_TIMEOUT, async || {
            let answer = etcd.delete(name).await;
            assert!(!answer.as_ref().is_err_and(|denial| denial.contains("SplitCluster: ")), "{answer:?}");
            answer.is_ok()
        })
        .await;
        etcd.wait_until_replaced(name, &uid).await;
    }
    let verdicts = etcd.guard.new_verdicts().await;
    assert!(verdicts.contains(&String::from("DELETE allowed SingleMemberAllowed")), "{verdicts:?}");
}
