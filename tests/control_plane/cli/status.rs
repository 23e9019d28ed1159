//! The output of `etcd-guard status`.

use serde_json::Value;

use test_support::{
    etcd::fourth_member::{FOURTH, start_learner},
    guard::cli,
    guarded_cluster::{GuardedCluster, START_TIMEOUT},
    process_node::ProcessAction,
    wait::{wait_for, wait_until},
};

async fn status(etcd: &GuardedCluster) -> Value {
    let (status, survey) = cli::json(etcd, "status", &[]).await;
    assert_eq!(status, Some(0), "{survey}");
    let clusters = survey["clusters"].as_array().unwrap();
    assert_eq!(clusters.len(), 1, "{survey}");
    clusters[0].clone()
}

fn member<'a>(cluster: &'a Value, pod: &str) -> &'a Value {
    cluster["members"].as_array().unwrap().iter().find(|member| member["pod"] == pod).unwrap()
}

#[tokio::test]
async fn status_has_members_reservations_and_policies() {
    let etcd = GuardedCluster::start().await;
    let leader = etcd.leader().await;
    let [follower, other] = etcd.followers().await;
    let whole = status(&etcd).await;
    for (field, number) in [("voters", 3), ("healthy", 3), ("quorum", 2), ("spare", 1)] {
        assert_eq!(whole[field], number, "{field}: {whole}");
    }
    assert_eq!(whole["problems"], serde_json::json!([]));
    for pod in GuardedCluster::names() {
        let member = member(&whole, pod);
        assert_eq!(member["role"], if pod == leader { "leader" } else { "follower" });
        assert_eq!(
            (&member["serving"], &member["storage"], &member["name"]),
            (&true.into(), &"persistent".into(), &pod.into())
        );
        assert!(member["version"].as_str().unwrap().starts_with("3.6."), "{member}");
    }

    let output = etcd.kubectl(&["annotate", "statefulset/etcd", "etcd-guard.io/leader=transfer"]).await;
    assert!(output.success, "{output:?}");
    wait_until("the status has the policy", START_TIMEOUT, async || {
        let cluster = status(&etcd).await;
        let policy = cluster["policy"]
            .as_array()
            .unwrap()
            .iter()
            .find(|entry| entry["name"] == "etcd-guard.io/leader");
        policy.is_some_and(|entry| entry["value"] == "transfer" && entry["from"] == "StatefulSet etcd")
    })
    .await;

    etcd.apply(&follower, ProcessAction::Pause).await;
    let frozen = status(&etcd).await;
    assert_eq!((&frozen["healthy"], &frozen["spare"]), (&2.into(), &0.into()), "{frozen}");
    assert!(member(&frozen, &follower)["cause"].as_str().unwrap().contains("no answer within"), "{frozen}");
    assert!(frozen["problems"][0].as_str().unwrap().starts_with(&follower), "{frozen}");
    let printed = cli::run(&etcd, "status", &["-A"]).await;
    assert!(printed.stdout.contains("3 voters, 2 healthy, quorum 2, 0 to spare"), "{printed:?}");
    etcd.apply(&follower, ProcessAction::Resume).await;
    etcd.wait_until_healthy().await;

    let uid = etcd.uid(&other).await;
    etcd.delete(&other).await.unwrap();
    let reserved = wait_for("the status has the reservation", START_TIMEOUT, async || {
        status(&etcd).await["reservations"].as_array().and_then(|reservations| reservations.first().cloned())
    })
    .await;
    assert_eq!((&reserved["pod"], &reserved["by"]), (&other.as_str().into(), &"admin".into()));
    etcd.wait_until_replaced(&other, &uid).await;
}

/// The number of keys that are written while the learner is frozen.
const KEYS: u64 = 20;

/// Returns the lag of each member in the JSON output.
fn lags(cluster: &Value) -> Vec<(&str, Option<u64>)> {
    let members = cluster["members"].as_array().unwrap().iter();
    members.map(|member| (member["pod"].as_str().unwrap(), member["lag"].as_u64())).collect()
}

/// Returns the lag of each member in the table, from the column LAG.
fn printed_lags(table: &str) -> Vec<(&str, &str)> {
    let mut lines = table.lines().skip_while(|line| !line.trim_start().starts_with("POD "));
    let titles = lines.next().unwrap_or_else(|| panic!("{table}"));
    let (start, end) = (titles.find("LAG").unwrap(), titles.find("DATA").unwrap());
    let rows = lines.take_while(|line| line.trim_start().starts_with("etcd-"));
    rows.map(|row| (row.split_whitespace().next().unwrap(), row[start..end].trim())).collect()
}

/// Returns the number of entries that a member has applied.
async fn applied(etcd: &GuardedCluster, pod: &str) -> Option<u64> {
    etcd.member(pod).status().await.map(|status| status.raft_applied_index())
}

/// A learner is frozen while others write, and finds no leader when it resumes, because two of three voters are frozen
/// by then. So its lag is constant, and the most recent member still responds.
#[tokio::test]
async fn status_has_lag_of_each_responding_member() {
    let etcd = GuardedCluster::start().await;
    start_learner(&etcd).await;
    let members = [GuardedCluster::names().as_slice(), &[FOURTH]].concat();
    let wait_for_no_lag = async || {
        wait_until("no member lags behind", START_TIMEOUT, async || {
            let cluster = status(&etcd).await;
            lags(&cluster) == members.iter().map(|pod| (*pod, Some(0))).collect::<Vec<_>>()
                && member(&cluster, FOURTH)["role"] == "learner"
        })
        .await;
    };
    wait_for_no_lag().await;

    etcd.apply(FOURTH, ProcessAction::Pause).await;
    // Until the learner responds, a new leader sends it at most one entry, so that the keys are not queued for the
    // learner.
    let [ahead, _] = etcd.followers().await;
    etcd.make_leader(&ahead).await;
    let client = etcd.member(&ahead).client().await.unwrap();
    for n in 0..KEYS {
        wait_until("a key is written", START_TIMEOUT, async || {
            client.clone().put(format!("key-{n}"), "value", None).await.is_ok()
        })
        .await;
    }
    let frozen: Vec<&str> = GuardedCluster::names().into_iter().filter(|pod| *pod != ahead).collect();
    for pod in &frozen {
        etcd.apply(pod, ProcessAction::Pause).await;
    }
    wait_until("there is no leader", START_TIMEOUT, async || {
        etcd.member(&ahead).status().await.is_some_and(|status| status.leader() == 0)
    })
    .await;
    etcd.apply(FOURTH, ProcessAction::Resume).await;

    // The learner applies the queued entry, and receives no more entries.
    wait_until("each lag is correct", START_TIMEOUT, async || {
        let (Some(leader_index), Some(learner_index)) =
            (applied(&etcd, &ahead).await, applied(&etcd, FOURTH).await)
        else {
            return false;
        };
        assert!(
            leader_index >= learner_index + KEYS,
            "the learner lags behind: {learner_index} of {leader_index}"
        );
        let cluster = status(&etcd).await;
        let expected = |pod: &&str| match *pod {
            FOURTH => Some(leader_index - learner_index),
            pod if pod == ahead => Some(0),
            _ => None,
        };
        let reported = lags(&cluster);
        let printed = cli::run(&etcd, "status", &[]).await;
        let printed = printed_lags(&printed.stdout);
        let text = |lag: Option<u64>| lag.map_or_else(|| String::from("-"), |entries| entries.to_string());
        reported == members.iter().map(|pod| (*pod, expected(pod))).collect::<Vec<_>>()
            && printed.iter().map(|(pod, lag)| (*pod, (*lag).to_owned())).collect::<Vec<_>>()
                == members.iter().map(|pod| (*pod, text(expected(pod)))).collect::<Vec<_>>()
    })
    .await;

    for pod in &frozen {
        etcd.apply(pod, ProcessAction::Resume).await;
    }
    wait_for_no_lag().await;
}
