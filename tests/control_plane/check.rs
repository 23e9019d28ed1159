//! `etcd-guard check` says before a deletion what the guard says at it: both are run, for each kind of requester in
//! docs/requesters.md, and compared.

use std::time::{Duration, Instant};

use k8s_openapi::jiff::{SignedDuration, Timestamp};

use crate::support::{
    cli,
    guarded_cluster::{BYSTANDER, GuardedCluster, START_LIMIT},
    pods::create_failed_pod,
    process_node::Order,
    wait::until,
};

/// What `check` says: `VERDICT REASON`.
async fn foretold(etcd: &GuardedCluster, arguments: &[&str]) -> String {
    let (status, answer) = cli::json(etcd, "check", arguments).await;
    let verdict = answer["verdict"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned();
    assert_eq!(status, Some(i32::from(verdict == "denied")), "{answer}");
    assert_eq!(answer["asked"], true, "{answer}");
    format!("{verdict} {}", answer["reason"].as_str().unwrap_or_default())
}

/// Asks `check`, then does it by kubectl, and compares. Returns what both said.
async fn both(etcd: &mut GuardedCluster, question: &[&str], kubectl: &[&str]) -> String {
    let started = Instant::now();
    loop {
        let before = foretold(etcd, question).await;
        etcd.guard.news().await;
        etcd.kubectl(kubectl).await;
        let news = etcd.guard.news().await;
        // A kubelet or a controller may have asked as well.
        let told: Vec<&str> = news.iter().filter_map(|it| it.split_once(' ').map(|(_, rest)| rest)).collect();
        if told.contains(&before.as_str()) {
            return before;
        }
        // Pods come and go. If it is still so, it was so when kubectl asked. And an apiserver learns of a changed webhook by a
        // watch: until then it does not ask.
        let now = foretold(etcd, question).await;
        assert!(
            (now != before || told.is_empty()) && started.elapsed() < START_LIMIT,
            "check {question:?}: {before}, then {now}; kubectl {kubectl:?}: {told:?}"
        );
    }
}

/// A finalizer: what is deleted stays, on its way out.
async fn hold(etcd: &GuardedCluster, object: &str) {
    finalizers(etcd, object, r#"["etcd-guard.io/test"]"#).await;
}

/// Lets it go.
async fn release(etcd: &GuardedCluster, object: &str) {
    finalizers(etcd, object, "null").await;
}

async fn finalizers(etcd: &GuardedCluster, object: &str, these: &str) {
    let patch = format!(r#"{{"metadata":{{"finalizers":{these}}}}}"#);
    let said = etcd.kubectl(&["patch", object, "--type=merge", "-p", &patch]).await;
    assert!(said.success, "{said:?}");
}

#[tokio::test]
async fn check_says_before_a_deletion_what_the_guard_says_at_it() {
    let mut etcd = GuardedCluster::start().await;
    let leader = etcd.leader().await;
    let [follower, other] = etcd.followers().await;

    assert_eq!(both(&mut etcd, &[&leader], &["delete", "pod", &leader]).await, "denied LeaderProtected");
    let force = ["delete", "pod", &leader, "--force", "--grace-period=0"];
    assert_eq!(both(&mut etcd, &[&leader, "--force"], &force).await, "denied LeaderProtected");
    let dry_run = ["delete", "pod", BYSTANDER, "--dry-run=server"];
    assert_eq!(both(&mut etcd, &[BYSTANDER], &dry_run).await, "allowed NotEtcd");

    // Controllers delete pods like anybody else.
    for controller in [
        "system:serviceaccount:kube-system:statefulset-controller",
        "system:serviceaccount:kube-system:node-controller",
        "system:serviceaccount:kube-system:generic-garbage-collector",
        "system:kube-scheduler",
    ] {
        let delete = ["delete", "pod", &leader, &format!("--as={controller}"), "--as-group=system:masters"];
        let said = both(&mut etcd, &[&leader, "--as", controller], &delete).await;
        assert_eq!(said, "denied LeaderProtected", "{controller}");
    }

    etcd.guard.news().await;
    let said = foretold(&etcd, &[&leader, "--evict"]).await;
    assert_eq!(etcd.guard.news().await, [""; 0], "a question is no request");
    etcd.evict(&leader, None).await.unwrap_err();
    assert_eq!(etcd.guard.news().await, [format!("CREATE {said}")]);

    let delete = ["delete", "pod", &follower, "--wait=false"];
    assert_eq!(both(&mut etcd, &[&follower], &delete).await, "allowed SafeToDelete");
    let said = both(&mut etcd, &[&other], &["delete", "pod", &other]).await;
    assert!(["denied DisruptionInProgress", "denied QuorumAtRisk"].contains(&said.as_str()), "{said}");
    etcd.wait_until_whole().await;

    etcd.order(&follower, Order::Pause).await;
    let said = both(&mut etcd, &[&other], &["delete", "pod", &other]).await;
    assert_eq!(said, "denied QuorumAtRisk");
    etcd.order(&follower, Order::Resume).await;
}

#[tokio::test]
async fn check_knows_of_pods_that_are_on_their_way_out_and_of_owners_that_are_gone() {
    let mut etcd = GuardedCluster::start().await;
    etcd.register_webhook(|webhook| drop(webhook.as_object_mut().unwrap().remove("matchConditions"))).await;
    for object in [&format!("pod/{BYSTANDER}"), "statefulset/etcd"] {
        hold(&etcd, object).await;
    }
    let said = etcd.kubectl(&["delete", "pod", BYSTANDER, "--wait=false"]).await;
    assert!(said.success, "{said:?}");
    let delete = ["delete", "pod", BYSTANDER, "--wait=false"];
    assert_eq!(both(&mut etcd, &[BYSTANDER], &delete).await, "allowed AlreadyTerminating");

    create_failed_pod(&etcd.pods, "ended").await;
    assert_eq!(both(&mut etcd, &["ended"], &["delete", "pod", "ended"]).await, "allowed PodFinished");

    annotate_break_glass(&etcd, "statefulset/etcd").await;
    until("the break-glass is in force", START_LIMIT, async || {
        cli::json(&etcd, "check", &["statefulset/etcd"]).await.1["reason"] == "BreakGlass"
    })
    .await;
    let delete = ["delete", "statefulset", "etcd", "--wait=false"];
    assert_eq!(both(&mut etcd, &["sts/etcd"], &delete).await, "allowed BreakGlass");
    // The set stays as long as its finalizer does; the garbage collector's own deletion is the same request.
    let leader = etcd.leader().await;
    let collector = "system:serviceaccount:kube-system:generic-garbage-collector";
    let delete = [
        "delete",
        "pod",
        &leader,
        "--dry-run=server",
        &format!("--as={collector}"),
        "--as-group=system:masters",
    ];
    let said = both(&mut etcd, &[&leader, "--as", collector], &delete).await;
    assert_eq!(said, "allowed OwnerDeleted");
    for object in [&format!("pod/{BYSTANDER}"), "statefulset/etcd"] {
        release(&etcd, object).await;
    }
}

#[tokio::test]
async fn check_says_of_pods_whose_namespace_goes_what_the_guard_says() {
    let mut etcd = GuardedCluster::start().await;
    let (leader, namespace) = (etcd.leader().await, etcd.namespace.clone());
    // Another webhook holds the pods, so that they are there to be asked about.
    let refusing = etcd.refuse_deletions().await;
    let target = format!("ns/{namespace}");
    annotate_break_glass(&etcd, &target).await;
    until("the break-glass is in force", START_LIMIT, async || {
        cli::json(&etcd, "check", &[&target]).await.1["reason"] == "BreakGlass"
    })
    .await;
    let said = etcd.kubectl(&["delete", "namespace", &namespace, "--wait=false"]).await;
    assert!(said.success, "{said:?}");
    until("the guard knows that the namespace goes", START_LIMIT, async || {
        cli::json(&etcd, "check", &[&leader]).await.1["reason"] == "NamespaceTerminating"
    })
    .await;
    let said = both(&mut etcd, &[&leader], &["delete", "pod", &leader]).await;
    assert_eq!(said, "allowed NamespaceTerminating");
    let said = etcd.kubectl(&["delete", "validatingwebhookconfiguration", &refusing]).await;
    assert!(said.success, "{said:?}");
}

#[tokio::test]
async fn check_says_of_intents_and_under_policies_what_the_guard_says() {
    let mut etcd = GuardedCluster::start().await;
    let leader = etcd.leader().await;
    let namespace = etcd.namespace.clone();
    for (question, kubectl, expected) in [
        (vec!["sts/etcd"], vec!["delete", "statefulset", "etcd"], "denied IntentProtected"),
        (
            vec!["sts/etcd", "--cascade=orphan"],
            vec!["delete", "statefulset", "etcd", "--cascade=orphan"],
            "allowed IntentHarmless",
        ),
        (vec!["pvc/data-etcd-0"], vec!["delete", "pvc", "data-etcd-0"], "denied IntentProtected"),
        (
            vec!["sts/etcd", "--replicas=1"],
            vec!["scale", "statefulset", "etcd", "--replicas=1"],
            "denied IntentProtected",
        ),
    ] {
        let kubectl = [kubectl, vec!["--dry-run=server"]].concat();
        assert_eq!(both(&mut etcd, &question, &kubectl).await, expected, "{question:?}");
    }
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
    assert_eq!(etcd.guard.news().await, [format!("DELETE {said}")], "and so it is without a dry run");
}

#[tokio::test]
async fn check_tells_what_it_cannot_tell_and_what_nobody_asks_for() {
    let etcd = GuardedCluster::start().await;
    let printed = cli::run(&etcd, "check", &["etcd-9"]).await;
    assert_eq!(printed.status, Some(2), "{printed:?}");
    assert!(printed.stderr.contains(&format!("pod {}/etcd-9 does not exist", etcd.namespace)), "{printed:?}");

    let printed = cli::run(&etcd, "check", &["etcd-0"]).await;
    assert!(!printed.stdout.contains('\u{1b}'), "no colours in a pipe: {printed:?}");
    assert!(!printed.stderr.contains("Not guarded"), "{printed:?}");

    let label = etcd.kubectl_everywhere();
    let unlabel = format!("{}-", crate::support::webhook::LABEL);
    let said = label.run(&["label", "namespace", &etcd.namespace, &unlabel]).await;
    assert!(said.success, "{said:?}");
    let printed = cli::run(&etcd, "check", &["etcd-0"]).await;
    let text = format!("does not select namespace {}: kubectl label namespace", etcd.namespace);
    assert!(printed.stderr.contains(&text), "{printed:?}");
}

async fn annotate_break_glass(etcd: &GuardedCluster, object: &str) {
    let end = Timestamp::now() + SignedDuration::try_from(Duration::from_secs(600)).unwrap();
    let until = format!("etcd-guard.io/allow-delete-until={end}");
    let said =
        etcd.kubectl(&["annotate", object, &until, "etcd-guard.io/allow-delete-reason=it is meant"]).await;
    assert!(said.success, "{said:?}");
}
