//! Deletions by the garbage collector. Those that follow from the deletion of an owner pass, also without the webhook
//! for the owner and after a restart of the guard in between. Those that follow from a dangling ownerReference are
//! evaluated like any other deletion.

use serde_json::{Value, json};

use super::workload_data::crash_all;
use crate::deletions::never_served::replace;
use test_support::{
    guard::process::GuardProcess,
    guarded_cluster::{GuardedCluster, LEADER_DENY, START_TIMEOUT, Setup},
    process_node::ProcessAction,
    processes::{
        child::{run_to_end, scoped_command},
        testbed,
    },
    project,
    wait::{wait_for, wait_until},
};

pub(super) use test_support::kubernetes::webhook::COLLECTOR;

/// The collector retries a denied deletion after up to 1,000 s. After the failures of these tests it waits for seconds.
const COLLECTION_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(240);

/// Removes the rules of the webhook for workload operations.
pub(super) fn leave_out_intent(webhook: &mut Value) {
    if webhook["name"] == "intent.guard.etcd-guard.io" {
        webhook["rules"] = json!([]);
    }
}

/// Starts a cluster whose owners are recorded.
async fn start(with_intent: bool) -> GuardedCluster {
    start_as(Setup::default(), with_intent).await
}

async fn start_as(setup: Setup<'_>, with_intent: bool) -> GuardedCluster {
    let mut etcd = GuardedCluster::start_as(setup).await;
    if !with_intent {
        etcd.register_webhook(leave_out_intent).await;
    }
    wait_until_recorded(&etcd).await;
    etcd
}

/// Waits until the record contains the current pods.
async fn wait_until_recorded(etcd: &GuardedCluster) {
    let mut uids = Vec::new();
    for name in GuardedCluster::names() {
        uids.push(etcd.uid(name).await);
    }
    wait_until_record_contains(etcd, &uids).await;
}

pub(super) async fn wait_until_record_contains(etcd: &GuardedCluster, texts: &[String]) {
    let lease = format!("etcd-guard-owners.{}", etcd.namespace);
    let read = ["-n", "etcd-guard", "get", "lease", &lease, "-o", "jsonpath={.metadata.annotations}"];
    wait_until("the owners are recorded", START_TIMEOUT, async || {
        let output = etcd.kubectl_everywhere().run(&read).await;
        texts.iter().all(|text| output.stdout.contains(text))
    })
    .await;
}

/// Deletes an object while the guard runs, which approves the deletion by a break-glass annotation where the webhook
/// calls it.
async fn delete_stateful_set(etcd: &GuardedCluster, cascade: &str, with_intent: bool) {
    if with_intent {
        etcd.break_glass("statefulset/etcd").await;
    }
    let delete = ["delete", "statefulset", "etcd", cascade, "--wait=false"];
    wait_until("the deletion is accepted", START_TIMEOUT, async || etcd.kubectl(&delete).await.success).await;
}

async fn remove_webhook(etcd: &GuardedCluster, name: &str) {
    let output = etcd.kubectl(&["delete", "validatingwebhookconfiguration", name]).await;
    assert!(output.success, "{output:?}");
}

async fn wait_until_members_are_deleted(etcd: &GuardedCluster) {
    wait_until("all members are deleted", COLLECTION_TIMEOUT, async || {
        let mut are_gone = true;
        for name in GuardedCluster::names() {
            are_gone &= matches!(etcd.pods.get_opt(name).await, Ok(None));
        }
        are_gone
    })
    .await;
    etcd.guard.wait_for_verdict(COLLECTOR, "allowed", "OwnerDeleted").await;
}

/// Deletes the StatefulSet, and restarts both replicas of the guard between that deletion and those of the pods.
async fn collects_members_after_restart(cascade: &str, with_intent: bool) {
    let mut etcd = start(with_intent).await;
    let mut other = start_other_replica(&etcd).await;
    let rejecting = etcd.reject_deletions().await;
    delete_stateful_set(&etcd, cascade, with_intent).await;
    kill_all(&mut etcd, &mut other);
    restart_all(&mut etcd, &mut other).await;
    remove_webhook(&etcd, &rejecting).await;
    wait_until_members_are_deleted(&etcd).await;
}

/// Starts a second replica of the guard.
async fn start_other_replica(etcd: &GuardedCluster) -> GuardProcess {
    GuardProcess::start(&etcd.control_plane.guard_kubeconfig(), &etcd.dir().join("other-replica")).await
}

fn kill_all(etcd: &mut GuardedCluster, other: &mut GuardProcess) {
    etcd.guard.kill();
    other.kill();
}

async fn restart_all(etcd: &mut GuardedCluster, other: &mut GuardProcess) {
    other.restart().await;
    etcd.guard.restart().await;
}

#[tokio::test]
async fn background_cascade_passes_after_restart() {
    collects_members_after_restart("--cascade=background", true).await;
}

#[tokio::test]
#[ignore = "another order of the same events; scripts/prove tests runs it"]
async fn foreground_cascade_passes_after_restart() {
    collects_members_after_restart("--cascade=foreground", true).await;
}

#[tokio::test]
#[ignore = "another order of the same events; scripts/prove tests runs it"]
async fn background_cascade_passes_without_intent() {
    collects_members_after_restart("--cascade=background", false).await;
}

#[tokio::test]
async fn foreground_cascade_passes_without_intent() {
    collects_members_after_restart("--cascade=foreground", false).await;
}

async fn check_orphans_remain_guarded_after_restart(with_intent: bool) {
    let mut etcd = start(with_intent).await;
    let leader = etcd.leader().await;
    let output = etcd.kubectl(&["delete", "statefulset", "etcd", "--cascade=orphan", "--wait=false"]).await;
    assert!(output.success, "{output:?}");
    etcd.guard.kill();
    etcd.guard.restart().await;
    wait_until("the pods have no owner", START_TIMEOUT, async || {
        etcd.pods.get(&leader).await.unwrap().metadata.owner_references.is_none()
    })
    .await;
    let denial = etcd.delete(&leader).await.unwrap_err();
    assert!(denial.contains("LeaderProtected: "), "{denial}");
    etcd.wait_until_healthy().await;
}

#[tokio::test]
async fn orphans_remain_guarded_after_restart() {
    check_orphans_remain_guarded_after_restart(true).await;
}

#[tokio::test]
#[ignore = "without the webhook for owners; scripts/prove tests runs it"]
async fn orphans_remain_guarded_after_restart_without_intent() {
    check_orphans_remain_guarded_after_restart(false).await;
}

/// No member reports the id of the cluster, neither before nor after the restart.
async fn check_cascade_of_dead_cluster_passes_after_restart(with_intent: bool) {
    // A frozen process ends only with its grace period.
    let change_manifest =
        |text: &str| replace(text, "terminationGracePeriodSeconds: 30", "terminationGracePeriodSeconds: 3");
    let mut etcd = start_as(Setup { change_manifest, ..Setup::default() }, with_intent).await;
    let mut other = start_other_replica(&etcd).await;
    for name in GuardedCluster::names() {
        etcd.apply(name, ProcessAction::Pause).await;
    }
    let rejecting = etcd.reject_deletions().await;
    delete_stateful_set(&etcd, "--cascade=background", with_intent).await;
    kill_all(&mut etcd, &mut other);
    restart_all(&mut etcd, &mut other).await;
    remove_webhook(&etcd, &rejecting).await;
    wait_until_members_are_deleted(&etcd).await;
}

#[tokio::test]
async fn cascade_of_dead_cluster_passes_after_restart() {
    check_cascade_of_dead_cluster_passes_after_restart(true).await;
}

#[tokio::test]
#[ignore = "without the webhook for owners; scripts/prove tests runs it"]
async fn cascade_of_dead_cluster_passes_after_restart_without_intent() {
    check_cascade_of_dead_cluster_passes_after_restart(false).await;
}

/// Creates a custom resource of this group that owns the StatefulSet, and returns its uid.
async fn create_owner(etcd: &GuardedCluster, group: &str) -> String {
    let uid = create_custom_resource(etcd, group).await;
    set_owner(etcd, &format!("{group}/v1alpha1"), "EtcdCluster", "main", &uid).await;
    uid
}

/// Creates the custom resource `main` of the kind `EtcdCluster` of this group, and returns its uid.
pub(super) async fn create_custom_resource(etcd: &GuardedCluster, group: &str) -> String {
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("etcdclusters.{group}")},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"plural": "etcdclusters", "singular": "etcdcluster", "kind": "EtcdCluster"},
            "versions": [{
                "name": "v1alpha1",
                "served": true,
                "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
            }],
        },
    });
    let owner = json!({
        "apiVersion": format!("{group}/v1alpha1"),
        "kind": "EtcdCluster",
        "metadata": {"name": "main", "namespace": etcd.namespace},
    });
    let files = tempfile::tempdir_in(&etcd.control_plane.dir).unwrap();
    for (name, object) in [("definition", definition), ("owner", owner)] {
        let file = files.path().join(name);
        std::fs::write(&file, object.to_string()).unwrap();
        let apply = ["apply", "--server-side", "-f", &file.to_string_lossy()];
        wait_until(&format!("the {name} is created"), START_TIMEOUT, async || {
            etcd.kubectl_everywhere().run(&apply).await.success
        })
        .await;
    }
    let resource = format!("etcdclusters.{group}/main");
    let uid = etcd.kubectl(&["get", &resource, "-o", "jsonpath={.metadata.uid}"]).await.stdout;
    assert!(!uid.is_empty());
    uid
}

/// Makes an object that may not exist the owner of the StatefulSet.
async fn set_owner(etcd: &GuardedCluster, api_version: &str, kind: &str, name: &str, uid: &str) {
    let owner =
        json!({"apiVersion": api_version, "kind": kind, "name": name, "uid": uid, "controller": true});
    let patch = json!({"metadata": {"ownerReferences": [owner]}}).to_string();
    let output = etcd.kubectl(&["patch", "statefulset", "etcd", "--type=merge", "-p", &patch]).await;
    assert!(output.success, "{output:?}");
}

async fn delete_owner(etcd: &GuardedCluster, group: &str) {
    let output = etcd.kubectl(&["delete", &format!("etcdclusters.{group}/main"), "--wait=false"]).await;
    assert!(output.success, "{output:?}");
}

async fn check_cascade_of_custom_resource_passes_after_restart(with_intent: bool) {
    const GROUP: &str = "operator.etcd.io";
    let mut etcd = start(with_intent).await;
    let mut other = start_other_replica(&etcd).await;
    let uid = create_owner(&etcd, GROUP).await;
    wait_until_record_contains(&etcd, &[uid]).await;
    // While the guard is down, the collector cannot delete any pod, or the StatefulSet if the webhook concerns it.
    kill_all(&mut etcd, &mut other);
    delete_owner(&etcd, GROUP).await;
    restart_all(&mut etcd, &mut other).await;
    wait_until_members_are_deleted(&etcd).await;
}

#[tokio::test]
async fn cascade_of_custom_resource_passes_after_restart() {
    check_cascade_of_custom_resource_passes_after_restart(true).await;
}

#[tokio::test]
#[ignore = "without the webhook for owners; scripts/prove tests runs it"]
async fn cascade_of_custom_resource_passes_after_restart_without_intent() {
    check_cascade_of_custom_resource_passes_after_restart(false).await;
}

/// Its claims are deleted with the StatefulSet, which the guard denies unless the record proves the cascade.
#[tokio::test]
#[ignore = "waits for more than two minutes; scripts/prove tests runs it"]
async fn cascade_of_stateful_set_without_pods_passes() {
    const GROUP: &str = "operator.etcd.io";
    let etcd = start(true).await;
    let uid = create_owner(&etcd, GROUP).await;
    wait_until_record_contains(&etcd, &[uid]).await;
    etcd.break_glass("statefulset/etcd").await;
    let patch = r#"{"spec":{"replicas":0,"persistentVolumeClaimRetentionPolicy":{"whenDeleted":"Delete"}}}"#;
    let scale = ["patch", "statefulset", "etcd", "--type=merge", "-p", patch];
    wait_until("the StatefulSet is scaled down", START_TIMEOUT, async || etcd.kubectl(&scale).await.success)
        .await;
    wait_until("no member has a pod", COLLECTION_TIMEOUT, async || {
        etcd.kubectl(&["get", "pods", "-l", "app=etcd", "-o", "name"]).await.stdout.is_empty()
    })
    .await;
    let annotations = ["etcd-guard.io/allow-delete-until-", "etcd-guard.io/allow-delete-reason-"];
    let output = etcd.kubectl(&["annotate", "statefulset", "etcd", annotations[0], annotations[1]]).await;
    assert!(output.success, "{output:?}");
    // The guard removes an object from its record that has been missing from its reads for a minute.
    for number in 0..2 {
        tokio::time::sleep(std::time::Duration::from_secs(65)).await;
        let touch = format!("example.com/touched={number}");
        let output = etcd.kubectl(&["annotate", "--overwrite", "statefulset", "etcd", &touch]).await;
        assert!(output.success, "{output:?}");
    }
    tokio::time::sleep(std::time::Duration::from_secs(5)).await;
    delete_owner(&etcd, GROUP).await;
    etcd.guard.wait_for_verdict(COLLECTOR, "allowed", "OwnerDeleted").await;
}

#[tokio::test]
async fn names_owner_of_unreadable_kind_in_denial() {
    const GROUP: &str = "unreadable.example.com";
    let etcd = start(true).await;
    create_owner(&etcd, GROUP).await;
    delete_owner(&etcd, GROUP).await;
    let line = etcd.guard.wait_for_verdict(COLLECTOR, "denied", "IntentProtected").await;
    let message = line["message"].as_str().unwrap();
    assert!(message.contains("EtcdCluster main") && message.contains("is forbidden"), "{message}");
    assert!(message.contains("etcd-guard.io/allow-delete-until="), "{message}");
    etcd.wait_until_healthy().await;
    etcd.break_glass("statefulset/etcd").await;
    wait_until_members_are_deleted(&etcd).await;
}

/// Runs the command that a denial prints to remove a dangling reference.
async fn run_printed_removal(etcd: &GuardedCluster, message: &str) {
    let (_, command) = message.split_once("kubectl -n ").unwrap();
    let (words, rest) = command.split_once(" -p '").unwrap();
    let (patch, _) = rest.split_once('\'').unwrap();
    let mut arguments = vec!["-n"];
    arguments.extend(words.split(' '));
    arguments.extend(["-p", patch]);
    let output = etcd.kubectl_everywhere().run(&arguments).await;
    assert!(output.success, "{arguments:?}: {output:?}");
}

#[tokio::test]
async fn dangling_owner_of_stateful_set_deletes_nothing() {
    let etcd = GuardedCluster::start().await;
    set_owner(&etcd, "v1", "ConfigMap", "never-existed", "00000000-0000-4000-8000-000000000001").await;
    let line = etcd.guard.wait_for_verdict(COLLECTOR, "denied", "IntentProtected").await;
    let message = line["message"].as_str().unwrap();
    assert!(message.contains("its owner ConfigMap never-existed"), "{message}");
    run_printed_removal(&etcd, message).await;
    let owners = ["get", "statefulset", "etcd", "-o", "jsonpath={.metadata.ownerReferences}"];
    assert_eq!(etcd.kubectl(&owners).await.stdout, "");
    etcd.wait_until_healthy().await;
}

/// The members may start again at any moment.
#[tokio::test]
async fn dangling_owner_deletes_no_set_of_stopped_members() {
    let etcd = GuardedCluster::start().await;
    crash_all(&etcd).await;
    set_owner(&etcd, "v1", "ConfigMap", "never-existed", "00000000-0000-4000-8000-000000000003").await;
    let line = etcd.guard.wait_for_verdict(COLLECTOR, "denied", "IntentProtected").await;
    let message = line["message"].as_str().unwrap();
    assert!(message.contains("starts 3 of them again"), "{message}");
    run_printed_removal(&etcd, message).await;
    let deletion = ["get", "statefulset", "etcd", "-o", "jsonpath={.metadata.deletionTimestamp}"];
    let output = etcd.kubectl(&deletion).await;
    assert!(output.success && output.stdout.is_empty(), "{output:?}");
}

#[tokio::test]
async fn dangling_owner_of_pods_does_not_cost_the_quorum() {
    let mut etcd = GuardedCluster::start_as(Setup { config: LEADER_DENY, ..Setup::default() }).await;
    let (leader, term) = etcd.leadership().await;
    let uid = etcd.uid(&leader).await;
    etcd.guard.new_verdicts().await;
    let patch = r#"[{"op":"replace","path":"/metadata/ownerReferences/0/uid","value":"00000000-0000-4000-8000-000000000002"}]"#;
    for name in GuardedCluster::names() {
        let output = etcd.kubectl(&["patch", "pod", name, "--type=json", "-p", patch]).await;
        assert!(output.success, "{output:?}");
    }
    let denial = wait_for("the collector may not delete the leader", START_TIMEOUT, async || {
        // Denials while another member is away name that member.
        etcd.guard.logged_deletions(&leader).into_iter().find(|line| {
            let has_command = line["message"].as_str().is_some_and(|message| message.contains(" -p '"));
            line["user"] == COLLECTOR && line["verdict"] == "denied" && has_command
        })
    })
    .await;
    // The other members are deleted one after the other, as the quorum permits. None returns before its reference is removed.
    let message = denial["message"].as_str().unwrap();
    run_printed_removal(&etcd, message).await;
    etcd.wait_until_healthy().await;
    // After an election on a busy machine, the former leader may be deleted.
    if etcd.leadership().await.1 == term {
        assert_eq!(etcd.uid(&leader).await, uid, "the leader remains");
    }
    let verdicts = etcd.guard.new_verdicts().await;
    assert!(!verdicts.iter().any(|verdict| verdict.contains("OwnerDeleted")), "{verdicts:?}");
}

/// Runs Helm in the namespace of the cluster.
async fn helm(etcd: &GuardedCluster, arguments: &[&str]) -> (bool, String) {
    let mut command = scoped_command(testbed::program("helm"));
    command.env("KUBECONFIG", etcd.control_plane.admin_kubeconfig());
    command.args(["-n", &etcd.namespace]).args(arguments);
    let output = run_to_end(command).await;
    (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// Installs the example with Helm in the namespace of the cluster, and waits until the owners are recorded.
async fn install_release(etcd: &GuardedCluster) {
    let files = tempfile::tempdir_in(&etcd.control_plane.dir).unwrap();
    std::fs::create_dir(files.path().join("templates")).unwrap();
    std::fs::write(files.path().join("Chart.yaml"), "{apiVersion: v2, name: etcd, version: 1.0.0}").unwrap();
    let manifest = project::path("etcd-manifests/plain.yaml");
    std::fs::copy(manifest, files.path().join("templates/etcd.yaml")).unwrap();
    let chart = files.path().to_string_lossy();
    let (success, errors) = helm(etcd, &["install", "etcd", &chart, "--take-ownership"]).await;
    assert!(success, "{errors}");
    etcd.wait_until_healthy().await;
    wait_until_recorded(etcd).await;
}

/// Uninstalls the release under the break-glass of this object. Afterwards no object of the release exists.
async fn uninstall_release(etcd: &GuardedCluster, break_glass: &str) {
    etcd.break_glass(break_glass).await;
    let preview = ["delete", "service", "etcd", "--dry-run=server"];
    wait_until("the break-glass applies", START_TIMEOUT, async || etcd.kubectl(&preview).await.success).await;
    let (success, errors) = helm(etcd, &["uninstall", "etcd"]).await;
    assert!(success, "{errors}");
    let left = ["get", "services,statefulsets,poddisruptionbudgets", "-o", "name"];
    wait_until("the objects of the release are deleted", COLLECTION_TIMEOUT, async || {
        let left = etcd.kubectl(&left).await;
        left.success && left.stdout.is_empty()
    })
    .await;
}

/// Two replicas; both restart after the StatefulSet was deleted, and before the collector deletes its pods. The
/// break-glass belongs to the StatefulSet, so that it no longer exists when the pods are deleted.
async fn check_helm_uninstall_passes_after_all_replicas_restarted(with_intent: bool) {
    let mut etcd = start(with_intent).await;
    let files = etcd.control_plane.dir.join(format!("{}-second", etcd.namespace));
    let mut second = GuardProcess::start(&etcd.control_plane.guard_kubeconfig(), &files).await;
    install_release(&etcd).await;
    let rejecting = etcd.reject_deletions().await;
    uninstall_release(&etcd, "statefulset/etcd").await;
    for name in GuardedCluster::names() {
        assert!(etcd.pods.get(name).await.is_ok(), "the pods still exist");
    }
    etcd.guard.kill();
    second.kill();
    second.restart().await;
    etcd.guard.restart().await;
    remove_webhook(&etcd, &rejecting).await;
    wait_until_members_are_deleted(&etcd).await;
}

#[tokio::test]
async fn helm_uninstall_passes_after_all_replicas_restarted() {
    check_helm_uninstall_passes_after_all_replicas_restarted(true).await;
}

#[tokio::test]
#[ignore = "without the webhook for owners; scripts/prove tests runs it"]
async fn helm_uninstall_passes_after_all_replicas_restarted_without_intent() {
    check_helm_uninstall_passes_after_all_replicas_restarted(false).await;
}
