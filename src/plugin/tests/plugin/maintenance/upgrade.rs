//! An upgrade by one minor version of etcd.

use test_support::{
    guard::cli,
    guarded_cluster::{GuardedCluster, START_TIMEOUT, Setup},
    wait::wait_for,
};

use super::{assert_followers_evicted, restored, strategy};

/// The shipped image. The process node runs the release of the tag's minor version.
const SHIPPED: &str = "quay.io/coreos/etcd:v3.6.16";

/// An image of the former minor version.
const FORMER: &str = "quay.io/coreos/etcd:v3.5.35";

fn with_former_image(manifest: &str) -> String {
    assert!(manifest.contains(SHIPPED), "the shipped manifest has another image");
    manifest.replace(SHIPPED, FORMER)
}

/// Returns the minor versions of the members.
async fn versions(etcd: &GuardedCluster) -> Vec<String> {
    let mut versions = Vec::new();
    for name in GuardedCluster::names() {
        let status = etcd.member(name).status().await.unwrap();
        versions.push(status.version().rsplit_once('.').unwrap().0.to_owned());
    }
    versions
}

#[tokio::test]
async fn restart_upgrades_by_one_minor_version() {
    let setup = Setup { change_manifest: with_former_image, ..Setup::default() };
    let etcd = GuardedCluster::start_as(setup).await;
    etcd.make_leader("etcd-2").await;
    assert_eq!(versions(&etcd).await, ["3.5"; 3]);

    let skipping = ["statefulset/etcd", "--image", "quay.io/coreos/etcd:v3.7.3"];
    let refused = cli::run(&etcd, "restart", &skipping).await;
    assert_eq!(refused.status, Some(2), "{refused:?}");
    assert!(refused.stderr.contains("upgrade by one minor version at a time"), "{refused:?}");
    assert_eq!(strategy(&etcd).await, restored());

    let upgrade = ["statefulset/etcd", "--image", SHIPPED];
    let refused = cli::run(&etcd, "restart", &upgrade).await;
    assert!(refused.stderr.contains("an upgrade requires a backup of the last hour"), "{refused:?}");
    let folder = format!("{}/", etcd.dir().display());
    let saved = cli::run(&etcd, "backup", &["statefulset/etcd", &folder, "--direct"]).await;
    assert_eq!(saved.status, Some(0), "{saved:?}");
    let output = wait_for("the guard knows the backup", START_TIMEOUT, async || {
        let output = cli::run(&etcd, "restart", &upgrade).await;
        (!output.stderr.contains("requires a backup")).then_some(output)
    })
    .await;
    assert_eq!(output.status, Some(0), "{output:?}");
    assert_followers_evicted(&output.stdout);
    assert_eq!(versions(&etcd).await, ["3.6"; 3]);
    assert_eq!(strategy(&etcd).await, restored());
    let output = etcd.kubectl(&["rollout", "status", "statefulset/etcd", "--timeout=60s"]).await;
    assert!(output.success, "the controller agrees: {output:?}");

    let back = cli::run(&etcd, "restart", &["statefulset/etcd", "--image", FORMER]).await;
    assert_eq!(back.status, Some(2), "{back:?}");
    assert!(back.stderr.contains("a downgrade requires etcdctl downgrade enable"), "{back:?}");
}
