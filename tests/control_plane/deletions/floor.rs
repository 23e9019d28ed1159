//! Policies of the guard's configuration file, and their floor for annotations.

use test_support::{
    guarded_cluster::{GuardedCluster, START_TIMEOUT, Setup},
    kubernetes::kubectl::CommandOutput,
    wait::wait_until,
};

const VERSION: &str = "apiVersion: etcd-guard.io/v1alpha1\n";
const FLOOR: &str = "guard: {floor: {leader: deny, mode: enforce, breakGlass: deny}}\n";
const BELOW: &str = "is below the floor of the configuration";

#[tokio::test]
async fn ignores_annotations_below_the_floor() {
    let config = format!("{VERSION}{FLOOR}");
    let mut etcd = GuardedCluster::start_as(Setup { config: &config, ..Setup::default() }).await;
    let leader = etcd.leader().await;
    let end = k8s_openapi::jiff::Timestamp::now() + k8s_openapi::jiff::SignedDuration::from_hours(1);
    annotate(&etcd, &format!("namespace/{}", etcd.namespace), &["etcd-guard.io/mode=audit"]).await;
    annotate(&etcd, "statefulset/etcd", &["etcd-guard.io/leader=transfer"]).await;
    let glass = format!("etcd-guard.io/allow-delete-until={end}");
    annotate(&etcd, &format!("pod/{leader}"), &[&glass, "etcd-guard.io/allow-delete-reason=fire"]).await;

    wait_until("all three annotations are known and ignored", START_TIMEOUT, async || {
        let output = dry_run(&etcd, &leader).await;
        assert!(
            !output.success && output.stderr.contains(" denied the request: LeaderProtected: "),
            "{output:?}"
        );
        ["etcd-guard.io/leader=transfer", "etcd-guard.io/mode=audit", "etcd-guard.io/allow-delete-until"]
            .iter()
            .all(|annotation| output.stderr.contains(&format!("Warning: {annotation} {BELOW}")))
    })
    .await;
    assert_eq!(etcd.guard.new_verdicts().await, ["DELETE denied LeaderProtected"]);
}

#[tokio::test]
async fn applies_changed_file_and_keeps_last_valid_one() {
    let config = format!("{VERSION}guard: {{defaults: {{leader: transfer}}}}\n");
    let mut etcd = GuardedCluster::start_as(Setup { config: &config, ..Setup::default() }).await;
    let leader = etcd.leader().await;
    assert!(dry_run(&etcd, &leader).await.success, "the server's own policy is transfer");
    assert_eq!(etcd.guard.new_verdicts().await, ["DELETE allowed LeaderTransferred"]);

    let file = etcd.guard.config_file();
    std::fs::write(&file, format!("{VERSION}{FLOOR}")).unwrap();
    wait_until("the new file applies", START_TIMEOUT, async || !dry_run(&etcd, &leader).await.success).await;
    assert!(etcd.guard.new_verdicts().await.contains(&String::from("DELETE denied LeaderProtected")));

    // A default below its floor makes the whole file invalid.
    std::fs::write(
        &file,
        format!("{VERSION}guard: {{defaults: {{leader: transfer}}, floor: {{leader: deny}}}}\n"),
    )
    .unwrap();
    wait_until("the invalid file is counted", START_TIMEOUT, async || {
        etcd.guard.metric("etcd_guard_config_reloads_total{result=\"failure\"}").await == 1
    })
    .await;
    annotate(&etcd, "statefulset/etcd", &["etcd-guard.io/leader=transfer"]).await;
    wait_until("the last valid floor applies", START_TIMEOUT, async || {
        let output = dry_run(&etcd, &leader).await;
        assert!(!output.success, "{output:?}");
        output.stderr.contains(&format!("Warning: etcd-guard.io/leader=transfer {BELOW}"))
    })
    .await;
    assert!(etcd.guard.is_ready().await);
}

async fn dry_run(etcd: &GuardedCluster, pod: &str) -> CommandOutput {
    etcd.kubectl(&["delete", "pod", pod, "--dry-run=server"]).await
}

async fn annotate(etcd: &GuardedCluster, object: &str, annotations: &[&str]) {
    let output = etcd.kubectl(&[&["annotate", object], annotations].concat()).await;
    assert!(output.success, "{output:?}");
}
