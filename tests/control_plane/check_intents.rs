//! `etcd-guard check` about what deletions of pods follow from, about what follows, and under owners' policies.

use crate::support::{
    cli,
    foretold::{both, foretold, impersonating},
    guarded_cluster::{GuardedCluster, START_LIMIT},
    wait::until,
};

const COLLECTOR: &str = "system:serviceaccount:kube-system:generic-garbage-collector";

/// Returns when a break-glass on this object is in force.
async fn break_glass(etcd: &GuardedCluster, object: &str) {
    etcd.break_glass(object).await;
    until("the break-glass is in force", START_LIMIT, async || {
        cli::json(etcd, "check", &[object]).await.1["reason"] == "BreakGlass"
    })
    .await;
}

/// From now on another webhook holds the pods, so that they are there to be asked about. Returns how it is taken away.
async fn hold_pods(etcd: &GuardedCluster) -> [String; 3] {
    ["delete", "validatingwebhookconfiguration", &etcd.refuse_deletions().await].map(str::to_owned)
}

async fn release(etcd: &GuardedCluster, held: [String; 3]) {
    let said = etcd.kubectl(&held.each_ref().map(String::as_str)).await;
    assert!(said.success, "{said:?}");
}

#[tokio::test]
async fn check_says_of_pods_whose_stateful_set_goes_what_the_guard_says() {
    for cascade in ["--cascade=background", "--cascade=foreground"] {
        let mut etcd = GuardedCluster::start().await;
        let leader = etcd.leader().await;
        let held = hold_pods(&etcd).await;
        let question = ["statefulset/etcd", cascade];
        let delete = ["delete", "statefulset", "etcd", cascade, "--wait=false"];
        assert_eq!(both(&mut etcd, &question, &delete).await, "denied IntentProtected", "{cascade}");
        break_glass(&etcd, "statefulset/etcd").await;
        assert_eq!(both(&mut etcd, &question, &delete).await, "allowed BreakGlass", "{cascade}");

        let collect = [&["delete", "pod", &leader][..], &impersonating(COLLECTOR)].concat();
        let said = both(&mut etcd, &[&leader, "--as", COLLECTOR], &collect).await;
        assert_eq!(said, "allowed OwnerDeleted", "{cascade}");
        etcd.guard.told(COLLECTOR, "allowed", "OwnerDeleted").await;
        release(&etcd, held).await;
    }
}

#[tokio::test]
async fn check_says_of_orphans_and_of_what_orphans_them_what_the_guard_says() {
    let mut etcd = GuardedCluster::start().await;
    let leader = etcd.leader().await;
    let [follower, _] = etcd.followers().await;
    let delete = ["delete", "statefulset", "etcd", "--cascade=orphan"];
    let said = both(&mut etcd, &["sts/etcd", "--cascade=orphan"], &delete).await;
    assert_eq!(said, "allowed IntentHarmless");
    until("the pods have no owner", START_LIMIT, async || {
        let pods = etcd.pods.list(&kube::api::ListParams::default().labels("app=etcd")).await.unwrap();
        pods.iter().all(|it| it.metadata.owner_references.is_none())
    })
    .await;
    for (pod, expected) in [(leader, "denied LeaderProtected"), (follower, "allowed SafeToDelete")] {
        let delete = ["delete", "pod", &pod, "--dry-run=server"];
        assert_eq!(both(&mut etcd, &[&pod], &delete).await, expected);
    }
}

#[tokio::test]
async fn check_says_of_pods_whose_namespace_goes_what_the_guard_says() {
    let mut etcd = GuardedCluster::start().await;
    let (leader, namespace) = (etcd.leader().await, etcd.namespace.clone());
    let held = hold_pods(&etcd).await;
    let target = format!("namespace/{namespace}");
    break_glass(&etcd, &target).await;
    let delete = ["delete", "namespace", &namespace, "--wait=false"];
    assert_eq!(both(&mut etcd, &[&target], &delete).await, "allowed BreakGlass");
    until("the guard knows that the namespace goes", START_LIMIT, async || {
        cli::json(&etcd, "check", &[&leader]).await.1["reason"] == "NamespaceTerminating"
    })
    .await;
    let said = both(&mut etcd, &[&leader], &["delete", "pod", &leader]).await;
    assert_eq!(said, "allowed NamespaceTerminating");
    let controller = "system:serviceaccount:kube-system:namespace-controller";
    let delete = [&["delete", "pod", &leader][..], &impersonating(controller)].concat();
    let said = both(&mut etcd, &[&leader, "--as", controller], &delete).await;
    assert_eq!(said, "allowed NamespaceTerminating");
    release(&etcd, held).await;
}

#[tokio::test]
async fn check_says_of_intents_and_under_policies_what_the_guard_says() {
    let mut etcd = GuardedCluster::start().await;
    let leader = etcd.leader().await;
    let namespace = etcd.namespace.clone();
    for (question, kubectl, expected) in [
        (vec!["sts/etcd"], vec!["delete", "statefulset", "etcd"], "denied IntentProtected"),
        (vec!["pvc/data-etcd-0"], vec!["delete", "pvc", "data-etcd-0"], "denied IntentProtected"),
        (
            vec!["sts/etcd", "--replicas=1"],
            vec!["scale", "statefulset", "etcd", "--replicas=1"],
            "denied IntentProtected",
        ),
        // With a warning of the member that stays a voter.
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
        assert_eq!(both(&mut etcd, &question, &kubectl).await, expected, "{question:?}");
    }
    let (_, scaled) = cli::json(&etcd, "check", &["sts/etcd", "--replicas=2"]).await;
    assert!(scaled["warnings"][0].as_str().unwrap().contains("stays a voter of etcd"), "{scaled}");
    let target = format!("ns/{namespace}");
    let delete = ["delete", "namespace", &namespace, "--dry-run=server"];
    assert_eq!(both(&mut etcd, &[&target], &delete).await, "denied IntentProtected");

    for (annotation, expected) in [
        ("etcd-guard.io/mode=audit", "audited LeaderProtected"),
        ("etcd-guard.io/leader=transfer", "allowed LeaderTransferred"),
    ] {
        let said = etcd.kubectl(&["annotate", "statefulset/etcd", annotation]).await;
        assert!(said.success, "{said:?}");
        until("the policy is in force", START_LIMIT, async || {
            let (_, answer) = cli::json(&etcd, "check", &[&leader]).await;
            answer["verdict"] != "denied" && expected.ends_with(answer["reason"].as_str().unwrap())
        })
        .await;
        let delete = ["delete", "pod", &leader, "--dry-run=server"];
        assert_eq!(both(&mut etcd, &[&leader], &delete).await, expected);
    }
    let said = foretold(&etcd, &[&leader]).await;
    etcd.guard.news().await;
    let moved = ["delete", "pod", &leader, "--wait=false"];
    etcd.kubectl(&moved).await;
    let news = etcd.guard.news().await;
    assert!(news.contains(&format!("DELETE {said}")), "and so it is without a dry run: {news:?}");
}
