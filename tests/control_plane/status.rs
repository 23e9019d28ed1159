//! `etcd-guard status`.

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
