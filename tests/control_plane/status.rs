//! `etcd-guard status`.

use serde_json::Value;

use crate::support::{
    cli,
    fourth_member::{FOURTH, start_a_learner},
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

/// So many keys are written while somebody cannot hear of them.
const KEYS: u64 = 20;

/// The lag of each member's pod, as programs get it.
fn lags(cluster: &Value) -> Vec<(&str, Option<u64>)> {
    let members = cluster["members"].as_array().unwrap().iter();
    members.map(|it| (it["pod"].as_str().unwrap(), it["lag"].as_u64())).collect()
}

/// The same as people get it: what stands below LAG.
fn printed_lags(table: &str) -> Vec<(&str, &str)> {
    let mut lines = table.lines().skip_while(|line| !line.trim_start().starts_with("POD "));
    let titles = lines.next().unwrap_or_else(|| panic!("{table}"));
    let (start, end) = (titles.find("LAG").unwrap(), titles.find("DATA").unwrap());
    let rows = lines.take_while(|line| line.trim_start().starts_with("etcd-"));
    rows.map(|row| (row.split_whitespace().next().unwrap(), row[start..end].trim())).collect()
}

/// How many entries the member has applied, by its own word.
async fn applied(etcd: &GuardedCluster, pod: &str) -> Option<u64> {
    etcd.member(pod).status().await.map(|it| it.raft_applied_index())
}

/// A learner that was frozen while others went on finds no leader when it is back: two voters of three are frozen by then.
/// So it stays behind for as long as anybody looks, and who is ahead can be asked as well.
#[tokio::test]
async fn status_tells_how_far_behind_each_member_is_that_can_be_asked() {
    let etcd = GuardedCluster::start().await;
    start_a_learner(&etcd).await;
    let everybody = [GuardedCluster::names().as_slice(), &[FOURTH]].concat();
    let nobody_is_behind = async || {
        until("nobody is behind", START_LIMIT, async || {
            let cluster = status(&etcd).await;
            lags(&cluster) == everybody.iter().map(|it| (*it, Some(0))).collect::<Vec<_>>()
                && member(&cluster, FOURTH)["role"] == "learner"
        })
        .await;
    };
    nobody_is_behind().await;

    etcd.order(FOURTH, Order::Pause).await;
    // A new leader sends nobody more than one entry before it is answered, so that the keys do not wait at the learner.
    let [ahead, _] = etcd.followers().await;
    etcd.let_lead(&ahead).await;
    let client = etcd.member(&ahead).client().await.unwrap();
    for n in 0..KEYS {
        until("a key is written", START_LIMIT, async || {
            client.clone().put(format!("key-{n}"), "value", None).await.is_ok()
        })
        .await;
    }
    let frozen: Vec<&str> = GuardedCluster::names().into_iter().filter(|it| *it != ahead).collect();
    for pod in &frozen {
        etcd.order(pod, Order::Pause).await;
    }
    until("nobody leads", START_LIMIT, async || {
        etcd.member(&ahead).status().await.is_some_and(|it| it.leader() == 0)
    })
    .await;
    etcd.order(FOURTH, Order::Resume).await;

    // What waited at the learner it takes in at once, and nobody sends more.
    until("each lag is the true one", START_LIMIT, async || {
        let (Some(most), Some(least)) = (applied(&etcd, &ahead).await, applied(&etcd, FOURTH).await) else {
            return false;
        };
        assert!(most >= least + KEYS, "the learner is behind: {least} of {most}");
        let cluster = status(&etcd).await;
        let expected = |pod: &&str| match *pod {
            FOURTH => Some(most - least),
            pod if pod == ahead => Some(0),
            _ => None,
        };
        let told = lags(&cluster);
        let printed = cli::run(&etcd, "status", &[]).await;
        let printed = printed_lags(&printed.stdout);
        let text = |lag: Option<u64>| lag.map_or_else(|| String::from("-"), |it| it.to_string());
        told == everybody.iter().map(|it| (*it, expected(it))).collect::<Vec<_>>()
            && printed.iter().map(|(pod, lag)| (*pod, (*lag).to_owned())).collect::<Vec<_>>()
                == everybody.iter().map(|it| (*it, text(expected(it)))).collect::<Vec<_>>()
    })
    .await;

    for pod in &frozen {
        etcd.order(pod, Order::Resume).await;
    }
    nobody_is_behind().await;
}
