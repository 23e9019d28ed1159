//! StatefulSets whose pods never served: a change of the template repairs them, without break-glass.

use test_support::{
    guarded_cluster::{GuardedCluster, START_TIMEOUT, Setup},
    process_node::MISSING_TAG,
    wait::wait_until,
};

/// The annotation that the denial of the deletion of a crashing pod names.
const ACCEPT_LOSS: &str = "annotate --overwrite statefulset/etcd etcd-guard.io/ephemeral-data=allow";

fn with_wrong_image(manifest: &str) -> String {
    replace(manifest, ":v3.6.16", MISSING_TAG)
}

fn without_node(manifest: &str) -> String {
    replace(
        manifest,
        "      automountServiceAccountToken",
        "      schedulerName: none\n      automountServiceAccountToken",
    )
}

fn with_unknown_flag(manifest: &str) -> String {
    replace(manifest, "--initial-cluster-state=new", "--initial-cluster-state=new\n        - --unknown-flag")
}

pub(crate) fn on_empty_dir(manifest: &str) -> String {
    let (set, claims) = manifest.split_once("  volumeClaimTemplates:").expect("claims");
    assert!(claims.contains("storage: 1Gi"));
    let volumes = "      volumes: [{name: data, emptyDir: {}}]\n  # The default";
    replace(set, "  # The default", volumes)
}

pub(crate) fn replace(text: &str, old: &str, new: &str) -> String {
    assert!(text.contains(old), "{old}");
    text.replace(old, new)
}

async fn start(change_manifest: fn(&str) -> String) -> GuardedCluster {
    GuardedCluster::start_as(Setup { change_manifest, is_broken: true, ..Setup::default() }).await
}

/// Waits until all pods have this text in their status.
async fn wait_for_status(etcd: &GuardedCluster, status: &str) {
    wait_until("all pods are broken", START_TIMEOUT, async || {
        let output = etcd.kubectl(&["get", "pods", "-l", "app=etcd", "--no-headers"]).await;
        output.stdout.lines().filter(|line| line.contains(status)).count() == 3
    })
    .await;
}

/// Repairs the template. The controller replaces etcd-2. Some versions then wait until it is ready, which it does not become
/// without the others, so that a person deletes these.
async fn repair(etcd: &mut GuardedCluster, change: &[&str]) {
    let mut uids = Vec::new();
    for name in ["etcd-2", "etcd-1", "etcd-0"] {
        uids.push((name, etcd.uid(name).await));
    }
    let output = etcd.kubectl(change).await;
    assert!(output.success, "{}", output.stderr);
    for (name, uid) in &uids {
        wait_until(&format!("{name} is replaced"), START_TIMEOUT, async || {
            let pod = etcd.pods.get_opt(name).await.expect("an answer");
            let is_old = pod.is_some_and(|pod| pod.metadata.uid.as_ref() == Some(uid));
            if is_old && *name != "etcd-2" {
                etcd.kubectl(&["delete", "pod", name, "--wait=false"]).await;
            }
            !is_old
        })
        .await;
    }
    etcd.wait_until_healthy().await;
    let verdicts = etcd.guard.new_verdicts().await;
    assert!(verdicts.contains(&String::from("DELETE allowed MemberNotServing")), "{verdicts:?}");
    assert!(!verdicts.iter().any(|verdict| verdict.ends_with("BreakGlass")), "{verdicts:?}");
}

const SET_IMAGE: [&str; 4] = ["set", "image", "statefulset/etcd", "etcd=quay.io/coreos/etcd:v3.6.16"];

const REMOVE_FLAG: [&str; 4] = [
    "patch",
    "statefulset/etcd",
    "--type=json",
    r#"-p=[{"op":"remove","path":"/spec/template/spec/containers/0/command/10"}]"#,
];

const SET_SCHEDULER: [&str; 4] = [
    "patch",
    "statefulset/etcd",
    "--type=merge",
    r#"-p={"spec":{"template":{"spec":{"schedulerName":"default-scheduler"}}}}"#,
];

#[tokio::test]
async fn set_with_wrong_image_is_repaired() {
    let mut etcd = start(|manifest| on_empty_dir(&with_wrong_image(manifest))).await;
    wait_for_status(&etcd, "ImagePullBackOff").await;
    repair(&mut etcd, &SET_IMAGE).await;
}

#[tokio::test]
async fn set_without_nodes_is_repaired() {
    let mut etcd = start(without_node).await;
    wait_for_status(&etcd, "Pending").await;
    repair(&mut etcd, &SET_SCHEDULER).await;
}

#[tokio::test]
async fn set_with_unknown_flag_is_repaired() {
    let mut etcd = start(with_unknown_flag).await;
    wait_for_status(&etcd, "CrashLoopBackOff").await;
    repair(&mut etcd, &REMOVE_FLAG).await;
}

/// Nobody knows whether the members had data before they crashed.
#[tokio::test]
async fn set_with_unknown_flag_on_empty_volumes_needs_the_annotation() {
    let mut etcd = start(|manifest| on_empty_dir(&with_unknown_flag(manifest))).await;
    wait_for_status(&etcd, "CrashLoopBackOff").await;
    let denial = etcd.kubectl(&["delete", "pod", "etcd-2"]).await;
    assert!(!denial.success && denial.stderr.contains("PermanentLoss"), "{}", denial.stderr);
    assert!(denial.stderr.contains(ACCEPT_LOSS), "{}", denial.stderr);
    let arguments: Vec<&str> = ACCEPT_LOSS.split(' ').collect();
    let output = etcd.kubectl(&arguments).await;
    assert!(output.success, "{}", output.stderr);
    repair(&mut etcd, &REMOVE_FLAG).await;
}
