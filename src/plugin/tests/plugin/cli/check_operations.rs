//! `kubectl etcd-guard check` for operations that cause deletions of pods, for the caused deletions, and with policies of
//! owners.

use test_support::{
    guard::{
        check_comparison::{assert_check_matches, check_verdict, impersonating},
        cli,
    },
    guarded_cluster::{GuardedCluster, START_TIMEOUT},
    wait::wait_until,
};

const COLLECTOR: &str = "system:serviceaccount:kube-system:generic-garbage-collector";

/// Adds a break-glass to an object, and waits until it applies.
async fn break_glass(etcd: &GuardedCluster, object: &str) {
    etcd.break_glass(object).await;
    wait_until("the break-glass applies", START_TIMEOUT, async || {
        cli::json(etcd, "check", &[object]).await.1["reason"] == "BreakGlass"
    })
    .await;
}

/// Adds another webhook that denies all deletions of pods, so that the pods remain. Returns the command that removes
/// it.
async fn protect_pods(etcd: &GuardedCluster) -> [String; 3] {
    ["delete", "validatingwebhookconfiguration", &etcd.reject_deletions().await].map(str::to_owned)
}

async fn release(etcd: &GuardedCluster, command: [String; 3]) {
    let output = etcd.kubectl(&command.each_ref().map(String::as_str)).await;
    assert!(output.success, "{output:?}");
}

#[tokio::test]
async fn check_matches_pods_of_deleted_stateful_set() {
    for cascade in ["--cascade=background", "--cascade=foreground"] {
        let mut etcd = GuardedCluster::start().await;
        let leader = etcd.leader().await;
        let protection = protect_pods(&etcd).await;
        let arguments = ["statefulset/etcd", cascade];
        let delete = ["delete", "statefulset", "etcd", cascade, "--wait=false"];
        assert_eq!(
            assert_check_matches(&mut etcd, &arguments, &delete).await,
            "denied IntentProtected",
            "{cascade}"
        );
        break_glass(&etcd, "statefulset/etcd").await;
        assert_eq!(
            assert_check_matches(&mut etcd, &arguments, &delete).await,
            "allowed BreakGlass",
            "{cascade}"
        );

        let collect = [&["delete", "pod", &leader][..], &impersonating(COLLECTOR)].concat();
        let output = assert_check_matches(&mut etcd, &[&leader, "--requester", COLLECTOR], &collect).await;
        assert_eq!(output, "allowed OwnerDeleted", "{cascade}");
        etcd.guard.wait_for_verdict(COLLECTOR, "allowed", "OwnerDeleted").await;
        release(&etcd, protection).await;
    }
}

#[tokio::test]
async fn check_matches_orphans() {
    let mut etcd = GuardedCluster::start().await;
    let leader = etcd.leader().await;
    let [follower, _] = etcd.followers().await;
    let delete = ["delete", "statefulset", "etcd", "--cascade=orphan"];
    let output = assert_check_matches(&mut etcd, &["sts/etcd", "--cascade=orphan"], &delete).await;
    assert_eq!(output, "allowed IntentHarmless");
    wait_until("the pods have no owner", START_TIMEOUT, async || {
        let pods = etcd.pods.list(&kube::api::ListParams::default().labels("app=etcd")).await.unwrap();
        pods.iter().all(|pod| pod.metadata.owner_references.is_none())
    })
    .await;
    for (pod, expected) in [(leader, "denied LeaderProtected"), (follower, "allowed SafeToDelete")] {
        let delete = ["delete", "pod", &pod, "--dry-run=server"];
        assert_eq!(assert_check_matches(&mut etcd, &[&pod], &delete).await, expected);
    }
}

#[tokio::test]
async fn check_matches_pods_of_deleted_namespace() {
    let mut etcd = GuardedCluster::start().await;
    let (leader, namespace) = (etcd.leader().await, etcd.namespace.clone());
    let protection = protect_pods(&etcd).await;
    let target = format!("namespace/{namespace}");
    break_glass(&etcd, &target).await;
    let delete = ["delete", "namespace", &namespace, "--wait=false"];
    assert_eq!(assert_check_matches(&mut etcd, &[&target], &delete).await, "allowed BreakGlass");
    wait_until("the guard knows that the namespace is terminating", START_TIMEOUT, async || {
        cli::json(&etcd, "check", &[&leader]).await.1["reason"] == "NamespaceTerminating"
    })
    .await;
    let output = assert_check_matches(&mut etcd, &[&leader], &["delete", "pod", &leader]).await;
    assert_eq!(output, "allowed NamespaceTerminating");
    let controller = "system:serviceaccount:kube-system:namespace-controller";
    let delete = [&["delete", "pod", &leader][..], &impersonating(controller)].concat();
    let output = assert_check_matches(&mut etcd, &[&leader, "--requester", controller], &delete).await;
    assert_eq!(output, "allowed NamespaceTerminating");
    release(&etcd, protection).await;
}

#[tokio::test]
async fn check_matches_operations_under_policies() {
    let mut etcd = GuardedCluster::start().await;
    let leader = etcd.leader().await;
    let namespace = etcd.namespace.clone();
    for (arguments, kubectl, expected) in [
        (vec!["sts/etcd"], vec!["delete", "statefulset", "etcd"], "denied IntentProtected"),
        (vec!["pvc/data-etcd-0"], vec!["delete", "pvc", "data-etcd-0"], "denied IntentProtected"),
        (
            vec!["sts/etcd", "--replicas=1"],
            vec!["scale", "statefulset", "etcd", "--replicas=1"],
            "denied IntentProtected",
        ),
        // With a warning about the member that remains a voter.
        (
            vec!["sts/etcd", "--replicas=2"],
            vec!["scale", "statefulset", "etcd", "--replicas=2"],
            "allowed IntentHarmless",
        ),
        (
            vec!["sts/etcd", "--replicas=0"],
            vec!["patch", "statefulset", "etcd", "-p", r#"{"spec":{"replicas":0}}"#],
            "denied IntentProtected",
        ),
    ] {
        let kubectl = [kubectl, vec!["--dry-run=server"]].concat();
        assert_eq!(assert_check_matches(&mut etcd, &arguments, &kubectl).await, expected, "{arguments:?}");
    }
    let (_, scaled) = cli::json(&etcd, "check", &["sts/etcd", "--replicas=2"]).await;
    assert!(scaled["warnings"][0].as_str().unwrap().contains("remains a voter of etcd"), "{scaled}");
    let target = format!("ns/{namespace}");
    let delete = ["delete", "namespace", &namespace, "--dry-run=server"];
    assert_eq!(assert_check_matches(&mut etcd, &[&target], &delete).await, "denied IntentProtected");

    for (annotation, expected) in [
        ("etcd-guard.io/mode=audit", "audited LeaderProtected"),
        ("etcd-guard.io/leader=transfer", "allowed LeaderTransferred"),
    ] {
        let output = etcd.kubectl(&["annotate", "statefulset/etcd", annotation]).await;
        assert!(output.success, "{output:?}");
        wait_until("the policy applies", START_TIMEOUT, async || {
            let (_, answer) = cli::json(&etcd, "check", &[&leader]).await;
            answer["verdict"] != "denied" && expected.ends_with(answer["reason"].as_str().unwrap())
        })
        .await;
        let delete = ["delete", "pod", &leader, "--dry-run=server"];
        assert_eq!(assert_check_matches(&mut etcd, &[&leader], &delete).await, expected);
    }
    let output = check_verdict(&etcd, &[&leader]).await;
    etcd.guard.new_verdicts().await;
    let delete = ["delete", "pod", &leader, "--wait=false"];
    etcd.kubectl(&delete).await;
    let verdicts = etcd.guard.new_verdicts().await;
    assert!(verdicts.contains(&format!("DELETE {output}")), "the verdict without a dry run: {verdicts:?}");
}
