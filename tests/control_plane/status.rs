//! `etcd-guard status`, and the events that `kubectl describe` shows.

use serde_json::Value;

use crate::support::{
    cli,
    guarded_cluster::{GuardedCluster, START_LIMIT},
    process_node::Order,
    wait::{some, until},
};

async fn status(etcd: &GuardedCluster) -> Value {
    let (status, survey) = cli::json(etcd, "status", &[]).await;
    assert_eq!(status, Some(0), "{survey}");
    let clusters = survey["clusters"].as_array().unwrap();
    assert_eq!(clusters.len(), 1, "{survey}");
    clusters[0].clone()
}

fn member<'a>(cluster: &'a Value, pod: &str) -> &'a Value {
    cluster["members"].as_array().unwrap().iter().find(|it| it["pod"] == pod).unwrap()
}

#[tokio::test]
async fn status_tells_members_quorum_spare_voters_reservations_and_policies() {
    let etcd = GuardedCluster::start().await;
    let leader = etcd.leader().await;
    let [follower, other] = etcd.followers().await;
    let whole = status(&etcd).await;
    for (field, number) in [("voters", 3), ("healthy", 3), ("quorum", 2), ("spare", 1)] {
        assert_eq!(whole[field], number, "{field}: {whole}");
    }
    assert_eq!(whole["problems"], serde_json::json!([]));
    for pod in GuardedCluster::names() {
        let it = member(&whole, pod);
        assert_eq!(it["role"], if pod == leader { "leader" } else { "follower" });
        assert_eq!(
            (&it["serving"], &it["storage"], &it["name"]),
            (&true.into(), &"persistent".into(), &pod.into())
        );
        assert!(it["version"].as_str().unwrap().starts_with("3.6."), "{it}");
    }

    let said = etcd.kubectl(&["annotate", "statefulset/etcd", "etcd-guard.io/leader=transfer"]).await;
    assert!(said.success, "{said:?}");
    until("the policy is told", START_LIMIT, async || {
        let cluster = status(&etcd).await;
        let policy =
            cluster["policy"].as_array().unwrap().iter().find(|it| it["name"] == "etcd-guard.io/leader");
        policy.is_some_and(|it| it["value"] == "transfer" && it["from"] == "StatefulSet etcd")
    })
    .await;

    etcd.order(&follower, Order::Pause).await;
    let frozen = status(&etcd).await;
    assert_eq!((&frozen["healthy"], &frozen["spare"]), (&2.into(), &0.into()), "{frozen}");
    assert!(member(&frozen, &follower)["cause"].as_str().unwrap().contains("no answer within"), "{frozen}");
    assert!(frozen["problems"][0].as_str().unwrap().starts_with(&follower), "{frozen}");
    let printed = cli::run(&etcd, "status", &["-A"]).await;
    assert!(printed.stdout.contains("3 voters, 2 healthy, quorum 2, none to spare"), "{printed:?}");
    etcd.order(&follower, Order::Resume).await;
    etcd.wait_until_whole().await;

    let uid = etcd.uid(&other).await;
    etcd.delete(&other).await.unwrap();
    let reserved = some("the reservation is told", START_LIMIT, async || {
        status(&etcd).await["reservations"].as_array().and_then(|it| it.first().cloned())
    })
    .await;
    assert_eq!((&reserved["pod"], &reserved["by"]), (&other.as_str().into(), &"admin".into()));
    etcd.wait_until_back(&other, &uid).await;
}

/// What is told of an object: `TYPE REASON`, each once.
async fn told(etcd: &GuardedCluster, object: &str) -> Vec<String> {
    let said = etcd.kubectl(&["get", "events", "-o", "json"]).await;
    assert!(said.success, "{said:?}");
    let events: Value = serde_json::from_str(&said.stdout).unwrap();
    let of_object = events["items"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|it| it["reportingComponent"] == "etcd-guard" && it["involvedObject"]["name"] == object);
    of_object
        .map(|it| format!("{} {}", it["type"].as_str().unwrap(), it["reason"].as_str().unwrap()))
        .collect()
}

#[tokio::test]
async fn a_denial_is_an_event_on_the_pod_and_its_stateful_set_and_a_dry_run_is_none() {
    let mut etcd = GuardedCluster::start().await;
    let leader = etcd.leader().await;
    let [follower, other] = etcd.followers().await;
    etcd.kubectl(&["delete", "pod", &leader, "--dry-run=server"]).await;
    assert_eq!(etcd.guard.news().await, ["DELETE denied LeaderProtected"]);
    // Were the dry run told of, it would be before what comes after it.
    etcd.order(&follower, Order::Pause).await;
    for _ in 0..2 {
        etcd.kubectl(&["delete", "pod", &other]).await;
    }
    let news = etcd.guard.news().await;
    assert_eq!(news, ["DELETE denied QuorumAtRisk"]);
    until("the denial is told of the pod", START_LIMIT, async || told(&etcd, &other).await.len() == 1).await;
    assert_eq!(told(&etcd, &other).await, ["Warning QuorumAtRisk"]);
    until("the denial is told of the set", START_LIMIT, async || told(&etcd, "etcd").await.len() == 1).await;
    assert_eq!(told(&etcd, "etcd").await, ["Warning QuorumAtRisk"]);
    assert_eq!(told(&etcd, &leader).await, [""; 0], "a dry run leaves no trace");
    etcd.order(&follower, Order::Resume).await;
}

#[tokio::test]
async fn a_transfer_is_an_event_that_warns_of_nothing() {
    let etcd = GuardedCluster::start().await;
    let leader = etcd.leader().await;
    let said = etcd.kubectl(&["annotate", "statefulset/etcd", "etcd-guard.io/leader=transfer"]).await;
    assert!(said.success, "{said:?}");
    until("the leader may go", START_LIMIT, async || etcd.delete(&leader).await.is_ok()).await;
    until("the transfer is told", START_LIMIT, async || {
        told(&etcd, &leader).await.contains(&String::from("Normal LeaderTransferred"))
    })
    .await;
}
