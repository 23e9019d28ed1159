//! Data in a directory of the node, in a template that binds its pods to a node.

use std::process;

use test_support::{
    guarded_cluster::{GuardedCluster, START_TIMEOUT, Setup},
    wait::wait_until,
};

use super::never_served::replace;

/// Returns the directory of the members of this test program.
fn directory() -> String {
    std::env::temp_dir().join(format!("etcd-guard-local-data-{}", process::id())).display().to_string()
}

fn on_bound_node(manifest: &str) -> String {
    let (set, _) = manifest.split_once("  volumeClaimTemplates:").expect("claims");
    let pod = format!(
        "      nodeSelector: {{kubernetes.io/hostname: worker}}\n      volumes: [{{name: data, hostPath: {{path: {}}}}}]\n  \
         # The default",
        directory()
    );
    let set = replace(set, "  # The default", &pod);
    replace(&set, "--data-dir=/var/lib/etcd/data", "--data-dir=/var/lib/etcd/$(POD_NAME)")
}

/// Waits until a dry run of the deletion of this pod has this result.
async fn wait_for_dry_run(etcd: &GuardedCluster, pod: &str, is_approved: bool, text: &str) {
    wait_until(text, START_TIMEOUT, async || {
        let output = etcd.kubectl(&["delete", "pod", pod, "--dry-run=server"]).await;
        output.success == is_approved && (output.stdout + &output.stderr).contains(text)
    })
    .await;
}

#[tokio::test]
async fn local_data_returns_only_on_its_own_node() {
    let etcd = GuardedCluster::start_as(Setup { change_manifest: on_bound_node, ..Setup::default() }).await;
    // A rollout begins with another pod.
    etcd.make_leader("etcd-2").await;
    wait_for_dry_run(&etcd, "etcd-0", true, "deleted").await;
    for node in ["other", "worker"] {
        let patch = format!(
            r#"{{"spec":{{"updateStrategy":{{"type":"OnDelete","rollingUpdate":null}},"template":{{"spec":{{"nodeSelector":{{"kubernetes.io/hostname":"{node}"}}}}}}}}}}"#
        );
        let output = etcd.kubectl(&["patch", "statefulset", "etcd", "-p", &patch]).await;
        assert!(output.success, "{output:?}");
        let is_own = node == "worker";
        wait_for_dry_run(&etcd, "etcd-0", is_own, if is_own { "deleted" } else { "PermanentLoss" }).await;
    }
    let free = r#"[{"op":"remove","path":"/spec/template/spec/nodeSelector"}]"#;
    let output = etcd.kubectl(&["patch", "statefulset", "etcd", "--type=json", "-p", free]).await;
    assert!(output.success, "{output:?}");
    wait_for_dry_run(&etcd, "etcd-0", false, "PermanentLoss").await;
    drop(etcd);
    // Nothing else removes it.
    let _ = std::fs::remove_dir_all(directory());
}
