//! Members that run as native sidecars, and members whose write-ahead log is lost with the pod.

use test_support::guarded_cluster::{GuardedCluster, Setup};

/// Moves etcd into an init container with the restart policy `Always`, beside another container.
fn run_etcd_as_sidecar(manifest: &str) -> String {
    let container = "      containers:\n      - name: etcd\n";
    assert!(manifest.contains(container), "{manifest}");
    let sidecar = "      containers:\n      - {name: app, image: app}\n      initContainers:\n      \
                   - name: etcd\n        restartPolicy: Always\n";
    manifest.replace(container, sidecar)
}

/// Moves the write-ahead log to an emptyDir.
fn log_to_empty_dir(manifest: &str) -> String {
    let (flag, mount) =
        ("        - --data-dir=/var/lib/etcd/data\n", "        - {name: data, mountPath: /var/lib/etcd}\n");
    assert!(manifest.contains(flag) && manifest.contains(mount), "{manifest}");
    manifest.replace(flag, &format!("{flag}        - --wal-dir=/wal/log\n")).replace(
        mount,
        &format!("{mount}        - {{name: wal, mountPath: /wal}}\n      volumes:\n      - {{name: wal, emptyDir: {{}}}}\n"),
    )
}

#[tokio::test]
async fn guards_members_that_run_as_native_sidecars() {
    let setup = Setup { change_manifest: run_etcd_as_sidecar, ..Setup::default() };
    let mut etcd = GuardedCluster::start_as(setup).await;
    let leader = etcd.leader().await;
    let denial = etcd.delete(&leader).await.unwrap_err();
    assert!(denial.contains("LeaderProtected") && denial.contains("etcd-guard.io/move-leader="), "{denial}");
    assert_eq!(etcd.guard.new_verdicts().await, ["DELETE denied LeaderProtected"]);

    let [first, second] = etcd.followers().await;
    let uid = etcd.uid(&first).await;
    etcd.delete(&first).await.unwrap();
    let denial = etcd.delete(&second).await.unwrap_err();
    assert!(denial.contains("DisruptionInProgress"), "{denial}");
    assert_eq!(
        etcd.guard.new_verdicts().await,
        ["DELETE allowed SafeToDelete", "DELETE denied DisruptionInProgress"]
    );
    etcd.wait_until_replaced(&first, &uid).await;

    let denied = etcd.kubectl(&["delete", "statefulset", "etcd", "--dry-run=server"]).await;
    assert!(denied.stderr.contains("IntentProtected"), "{denied:?}");
}

#[tokio::test]
async fn treats_members_with_ephemeral_log_as_ephemeral() {
    let setup = Setup { change_manifest: log_to_empty_dir, ..Setup::default() };
    let etcd = GuardedCluster::start_as(setup).await;
    let [follower, _] = etcd.followers().await;
    let denial = etcd.delete(&follower).await.unwrap_err();
    assert!(denial.contains("PermanentLoss"), "{denial}");
}
