//! Policies of the guard's configuration file, and how far annotations may go.

use crate::support::{
    guarded_cluster::{GuardedCluster, START_LIMIT, Setup},
    kubectl::Said,
    wait::until,
};

const VERSION: &str = "apiVersion: etcd-guard.io/v1alpha1\n";
const FLOOR: &str = "guard: {floor: {leader: deny, mode: enforce, breakGlass: deny}}\n";
const BELOW: &str = "is below the server's floor";

#[tokio::test]
async fn no_annotation_goes_below_the_floor_of_the_configuration_file() {
    let config = format!("{VERSION}{FLOOR}");
    let mut etcd = GuardedCluster::start_as(Setup { config: &config, ..Setup::default() }).await;
    let leader = etcd.leader().await;
    let end = k8s_openapi::jiff::Timestamp::now() + k8s_openapi::jiff::SignedDuration::from_hours(1);
    annotate(&etcd, &format!("namespace/{}", etcd.namespace), &["etcd-guard.io/mode=audit"]).await;
    annotate(&etcd, "statefulset/etcd", &["etcd-guard.io/leader=allow"]).await;
    let glass = format!("etcd-guard.io/allow-delete-until={end}");
    annotate(&etcd, &format!("pod/{leader}"), &[&glass, "etcd-guard.io/allow-delete-reason=fire"]).await;

    until("all three annotations are known, and none is followed", START_LIMIT, async || {
        let said = ask(&etcd, &leader).await;
        assert!(!said.success && said.stderr.contains("is the leader of etcd cluster"), "{said:?}");
        ["etcd-guard.io/leader=allow", "etcd-guard.io/mode=audit", "etcd-guard.io/allow-delete-until"]
            .iter()
            .all(|it| said.stderr.contains(&format!("Warning: {it} {BELOW}")))
    })
    .await;
    assert_eq!(etcd.guard.news().await, ["DELETE denied LeaderProtected"]);
}

#[tokio::test]
async fn a_changed_file_counts_at_once_and_of_a_bad_one_nothing_does() {
    let config = format!("{VERSION}guard: {{defaults: {{leader: transfer}}}}\n");
    let mut etcd = GuardedCluster::start_as(Setup { config: &config, ..Setup::default() }).await;
    let leader = etcd.leader().await;
    assert!(ask(&etcd, &leader).await.success, "the server's own policy is transfer");
    assert_eq!(etcd.guard.news().await, ["DELETE allowed LeaderTransferred"]);

    let file = etcd.guard.config_file();
    std::fs::write(&file, format!("{VERSION}{FLOOR}")).unwrap();
    until("the new file counts", START_LIMIT, async || !ask(&etcd, &leader).await.success).await;
    assert!(etcd.guard.news().await.contains(&String::from("DELETE denied LeaderProtected")));

    // A default below its floor: a mistake as a whole, although its first half would be good.
    std::fs::write(
        &file,
        format!("{VERSION}guard: {{defaults: {{leader: allow}}, floor: {{leader: deny}}}}\n"),
    )
    .unwrap();
    until("the bad file is counted", START_LIMIT, async || {
        etcd.guard.metric("etcd_guard_config_reloads_total{result=\"failure\"}").await == 1
    })
    .await;
    annotate(&etcd, "statefulset/etcd", &["etcd-guard.io/leader=transfer"]).await;
    until("the last good floor stays", START_LIMIT, async || {
        let said = ask(&etcd, &leader).await;
        assert!(!said.success, "{said:?}");
        said.stderr.contains(&format!("Warning: etcd-guard.io/leader=transfer {BELOW}"))
    })
    .await;
    assert!(etcd.guard.is_ready().await);
}

async fn ask(etcd: &GuardedCluster, pod: &str) -> Said {
    etcd.kubectl(&["delete", "pod", pod, "--dry-run=server"]).await
}

async fn annotate(etcd: &GuardedCluster, object: &str, annotations: &[&str]) {
    let said = etcd.kubectl(&[&["annotate", object], annotations].concat()).await;
    assert!(said.success, "{said:?}");
}
