//! The states that `status` and `doctor` name because they do not end by themselves, on real members.

use std::process::Command;

use serde_json::{Value, json};
use test_support::{
    etcd::fourth_member::{FOURTH, start_learner},
    guard::cli,
    guarded_cluster::{GuardedCluster, START_TIMEOUT, Setup},
    process_node::{MISSING_TAG, ProcessAction},
    processes::child::run_to_end,
    wait::{wait_for, wait_until},
};

/// Larger than an etcd process needs, and soon full.
const QUOTA: u64 = 16 << 20;

async fn traps(etcd: &GuardedCluster) -> Vec<String> {
    let (_, survey) = cli::json(etcd, "status", &[]).await;
    let traps = survey["clusters"][0]["traps"].as_array().unwrap_or_else(|| panic!("{survey}"));
    traps.iter().map(|trap| trap.as_str().unwrap().to_owned()).collect()
}

/// Waits for the only trap.
async fn wait_for_trap(etcd: &GuardedCluster) -> String {
    wait_for("the status has a trap", START_TIMEOUT, async || {
        let traps = traps(etcd).await;
        assert!(traps.len() < 2, "{traps:?}");
        traps.into_iter().next()
    })
    .await
}

/// Moves the last change of a pod's readiness to the past: the test cannot wait for minutes.
async fn age(etcd: &GuardedCluster, pod: &str) {
    let condition = json!({"type": "Ready", "lastTransitionTime": "2026-01-01T00:00:00Z"});
    let patch = json!({"status": {"conditions": [condition]}}).to_string();
    let output = etcd.kubectl(&["patch", "pod", pod, "--subresource=status", "-p", &patch]).await;
    assert!(output.success, "{output:?}");
}

/// Runs `kubectl` with these words of a command, as the admin.
async fn run_command(etcd: &GuardedCluster, command: &str) {
    let arguments: Vec<&str> = command.strip_prefix("kubectl ").unwrap().split(' ').collect();
    let output = etcd.kubectl_everywhere().run(&arguments).await;
    assert!(output.success, "{command}: {output:?}");
}

/// A template with an image that does not exist, and then the former template.
#[tokio::test]
async fn status_names_the_pod_for_which_a_rollout_waits() {
    let etcd = GuardedCluster::start().await;
    etcd.make_leader("etcd-0").await;
    // A StatefulSet with the default policy creates its pods one after the other, so that a new etcd cluster does not start.
    let set = etcd.kubectl(&["get", "statefulset", "etcd", "-o", "json"]).await.stdout;
    let mut set: Value = serde_json::from_str(&set).unwrap();
    set["spec"]["podManagementPolicy"] = json!("OrderedReady");
    let metadata = json!({"name": "etcd", "labels": set["metadata"]["labels"]});
    (set["metadata"], set["status"]) = (metadata, Value::Null);
    let file = etcd.dir().join("ordered.json");
    std::fs::write(&file, set.to_string()).unwrap();
    let deleted = etcd.kubectl(&["delete", "statefulset", "etcd", "--cascade=orphan"]).await;
    assert!(deleted.success, "{deleted:?}");
    let created = etcd.kubectl(&["create", "-f", &file.to_string_lossy()]).await;
    assert!(created.success, "{created:?}");
    let broken = format!("etcd=quay.io/coreos/etcd{MISSING_TAG}");
    let before = etcd.uid("etcd-2").await;
    assert!(etcd.kubectl(&["set", "image", "statefulset/etcd", &broken]).await.success);
    wait_until("the controller replaces the first pod", START_TIMEOUT, async || {
        etcd.pods.get("etcd-2").await.is_ok_and(|pod| pod.metadata.uid.as_ref() != Some(&before))
    })
    .await;
    let broken = etcd.uid("etcd-2").await;
    let jsonpath = ["get", "pod", "etcd-2", "-o", "jsonpath={.status.conditions[?(@.type=='Ready')].status}"];
    wait_until("the kubelet reports the pod", START_TIMEOUT, async || {
        etcd.kubectl(&jsonpath).await.stdout == "False"
    })
    .await;
    age(&etcd, "etcd-2").await;
    assert_eq!(traps(&etcd).await, [""; 0], "the pod has the newest template");

    assert!(etcd.kubectl(&["rollout", "undo", "statefulset/etcd"]).await.success);
    let trap = wait_for_trap(&etcd).await;
    assert!(
        trap.starts_with("etcd-2 is not ready for ")
            && trap.contains(" the old template of StatefulSet etcd, "),
        "{trap}"
    );
    tokio::time::sleep(std::time::Duration::from_secs(5)).await;
    assert_eq!(etcd.uid("etcd-2").await, broken, "the controller waits");
    let printed = cli::run(&etcd, "status", &[]).await;
    // The minutes may have changed.
    let end = trap.split_once(" min, ").unwrap().1;
    assert!(printed.stdout.contains(&format!(" min, {end}\n")), "{printed:?}");

    run_command(&etcd, trap.split_once("Delete it: ").unwrap().1).await;
    etcd.wait_until_healthy().await;
    assert_eq!(traps(&etcd).await, [""; 0]);
}

#[tokio::test]
async fn status_names_a_learner_that_does_not_catch_up() {
    let etcd = GuardedCluster::start().await;
    start_learner(&etcd).await;
    age(&etcd, FOURTH).await;
    wait_until("a learner that has caught up is no trap", START_TIMEOUT, async || {
        traps(&etcd).await.is_empty()
    })
    .await;
    etcd.apply(FOURTH, ProcessAction::Pause).await;
    let trap = wait_for_trap(&etcd).await;
    assert!(trap.starts_with("etcd-3 is a learner and does not answer after "), "{trap}");
    let command = format!("kubectl -n {} logs etcd-3 --all-containers --tail=100", etcd.namespace);
    assert!(trap.ends_with(&command), "{trap}");
}

#[tokio::test]
async fn status_and_doctor_name_full_databases_and_old_backups() {
    let with_quota = |manifest: &str| {
        let flag = "- --initial-cluster-state=new";
        assert!(manifest.contains(flag));
        manifest.replace(flag, &format!("- --quota-backend-bytes={QUOTA}\n        {flag}"))
    };
    let etcd = GuardedCluster::start_as(Setup { change_manifest: with_quota, ..Setup::default() }).await;
    assert_eq!(traps(&etcd).await, [""; 0]);
    let (_, survey) = cli::json(&etcd, "status", &[]).await;
    assert_eq!(survey["clusters"][0]["members"][0]["quotaBytes"], QUOTA, "{survey}");

    let old = "etcd-guard.io/last-backup=7@2026-01-01T00:00:00Z";
    assert!(etcd.kubectl(&["annotate", "statefulset/etcd", old]).await.success);
    let trap = wait_for_trap(&etcd).await;
    assert!(trap.starts_with("the last backup is ") && trap.contains(" h old. Save one: "), "{trap}");
    let words: Vec<&str> = trap.split_once("kubectl etcd-guard ").unwrap().1.split(' ').collect();
    let ["backup", "-n", namespace, "statefulset/etcd", "./"] = words[..] else { panic!("{trap}") };
    assert_eq!(namespace, etcd.namespace);
    let mut backup: Command = cli::program(&etcd, "backup", &["statefulset/etcd", "./", "--direct"]);
    let output = run_to_end({
        backup.current_dir(etcd.dir());
        backup
    })
    .await;
    assert!(output.status.success(), "{output:?}");
    wait_until("the backup is new", START_TIMEOUT, async || traps(&etcd).await.is_empty()).await;

    let mut client = etcd.member(&etcd.leader().await).client().await.unwrap();
    let mut are_found = [false; 2];
    while !are_found[1] {
        let put = client.put("filler", vec![1; 100 << 10], None).await;
        let is_full = put.is_err_and(|error| error.to_string().contains("database space exceeded"));
        let trap = traps(&etcd).await.pop().unwrap_or_default();
        let command = format!(
            ". First compact the history (etcdctl compact), then: kubectl etcd-guard defrag -n {} statefulset/etcd",
            etcd.namespace
        );
        are_found[0] |=
            trap.starts_with("the database has reached 90% of its quota: etcd-") && trap.ends_with(&command);
        are_found[1] =
            is_full && trap.starts_with("out of space (alarm NOSPACE), ") && trap.ends_with(&command);
    }
    assert!(are_found[0], "the warning comes before the alarm");
    let doctor = cli::run(&etcd, "doctor", &[]).await;
    let line =
        doctor.stdout.lines().find(|line| line.contains(" traps ")).unwrap_or_else(|| panic!("{doctor:?}"));
    assert!(line.contains(&format!("{}/etcd: out of space (alarm NOSPACE)", etcd.namespace)), "{line}");
}
