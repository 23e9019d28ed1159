//! `kubectl etcd-guard check` of several objects, in each format, and as another user.

use serde_json::{Value, json};

use test_support::{
    guard::cli,
    guarded_cluster::{GuardedCluster, START_TIMEOUT, UNRELATED_POD},
    wait::wait_for,
};

/// Returns the pods of an answer about several objects, each with its verdict, and the exit status.
async fn verdicts(etcd: &GuardedCluster, arguments: &[&str]) -> (Option<i32>, Vec<(String, String)>) {
    let (status, answer) = cli::json(etcd, "check", arguments).await;
    let items = answer["items"].as_array().unwrap_or_else(|| panic!("no items: {answer}"));
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let name = |item: &Value| text(&item["question"]).rsplit('/').next().unwrap().to_owned();
    (status, items.iter().map(|item| (name(item), text(&item["verdict"]))).collect())
}

#[tokio::test]
async fn check_of_several_objects_exits_with_worst_result() {
    let etcd = GuardedCluster::start().await;
    etcd.make_leader("etcd-2").await;
    let expected = [("etcd-0", "allowed"), ("etcd-1", "allowed"), ("etcd-2", "denied")];
    let expected = expected.map(|(pod, verdict)| (pod.to_owned(), verdict.to_owned())).to_vec();
    for arguments in
        [&["-l", "app=etcd"][..], &["pods", "--selector=app=etcd"], &["pod", "etcd-0", "etcd-1", "etcd-2"]]
    {
        // On a busy machine a member may be late, with another verdict.
        let (status, _) = wait_for("the verdicts are correct", START_TIMEOUT, async || {
            let found = verdicts(&etcd, arguments).await;
            (found.1 == expected).then_some(found)
        })
        .await;
        assert_eq!(status, Some(1), "one request is denied: {arguments:?}");
    }
    let (status, found) = verdicts(&etcd, &["etcd-0", "pod/etcd-9", UNRELATED_POD]).await;
    assert_eq!((status, found.len()), (Some(2), 2), "a failed preview hides no other one: {found:?}");

    let printed = cli::run(&etcd, "check", &["etcd-9", "etcd-8"]).await;
    assert_eq!((printed.status, printed.stdout.as_str()), (Some(2), ""), "{printed:?}");
    for text in ["error: pod ", "etcd-9 does not exist\n", "error: 2 of 2 previews failed\n"] {
        assert!(printed.stderr.contains(text), "{printed:?}");
    }
    let printed = cli::run(&etcd, "check", &["-l", "app=none"]).await;
    let expected = format!("error: no pod in namespace {} has the labels app=none\n", etcd.namespace);
    assert_eq!((printed.status, printed.stderr), (Some(2), expected));
}

#[tokio::test]
async fn check_prints_each_format() {
    let etcd = GuardedCluster::start().await;
    let run = async |format: &str| cli::run(&etcd, "check", &[UNRELATED_POD, "-o", format]).await.stdout;
    let table = run("table").await;
    assert!(table.starts_with("ALLOWED NotEtcd: delete pod "), "{table}");
    assert_eq!(run("name").await, format!("pod/{UNRELATED_POD}\n"));
    let yaml: Value = serde_saphyr::from_str(&run("yaml").await).unwrap();
    assert_eq!((&yaml["reason"], &yaml["asked"]), (&json!("NotEtcd"), &json!(true)), "{yaml}");

    let wide = cli::run(&etcd, "check", &["etcd-0", "-o", "wide"]).await.stdout;
    let pod = etcd.pods.get("etcd-0").await.unwrap();
    let (address, node) = (pod.status.unwrap().pod_ip.unwrap(), pod.spec.unwrap().node_name.unwrap());
    for (title, value) in [("ADDRESS", address), ("NODE", node)] {
        let row = wide.lines().find(|line| line.trim_start().starts_with(title));
        assert!(row.is_some_and(|row| row.ends_with(&format!(" {value}"))), "{wide}");
    }
    assert!(!table.contains("NODE"), "{table}");
}

/// `--as` changes the user who reads, `--requester` the user of the previewed request.
#[tokio::test]
async fn check_as_another_user_is_impersonation() {
    let etcd = GuardedCluster::start().await;
    let printed = cli::run(&etcd, "check", &[UNRELATED_POD, "--as", "mallory"]).await;
    assert_eq!(printed.status, Some(2), "{printed:?}");
    assert!(printed.stderr.contains("User \"mallory\" cannot get resource \"pods\""), "{printed:?}");

    let masters = [UNRELATED_POD, "--as", "alice", "--as-group", "system:masters", "--as-uid", "7"];
    let (status, answer) = cli::json(&etcd, "check", &masters).await;
    assert_eq!((status, &answer["user"]), (Some(0), &json!("alice")), "{answer}");
    let (_, answer) = cli::json(&etcd, "check", &[&masters[..], &["--requester", "bob"]].concat()).await;
    assert_eq!(answer["user"], "bob", "{answer}");
}
