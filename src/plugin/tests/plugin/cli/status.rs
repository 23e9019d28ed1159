//! The output of `kubectl etcd-guard status`.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::{Api, api::PostParams};
use serde_json::{Value, json};

use test_support::{
    etcd::fourth_member::{FOURTH, start_learner},
    guard::cli,
    guarded_cluster::{GuardedCluster, START_TIMEOUT, Setup, without_priority_class},
    kubernetes::{control_plane::ControlPlane, pods::create_pod_with},
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

/// A time in which further surveys run, at an interval of a second.
const FURTHER_SURVEYS: Duration = Duration::from_secs(3);

#[tokio::test]
async fn status_warns_of_pods_below_the_guards_priority() {
    let client = ControlPlane::shared().client().await;
    let own = json!({
        "metadata": {"name": "own-priority"},
        "spec": {
            "priorityClassName": "system-cluster-critical",
            "nodeSelector": {"kubernetes.io/hostname": "none"},
            // The guard's namespace enforces the level `restricted`.
            "securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{"name": "guard", "image": "etcd-guard", "securityContext": {
                "allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]},
            }}],
        },
    });
    let own: Pod = serde_json::from_value(own).unwrap();
    let pods: Api<Pod> = Api::namespaced(client, "etcd-guard");
    wait_until("the guard's pod is accepted", START_TIMEOUT, async || {
        pods.create(&PostParams::default(), &own).await.is_ok()
    })
    .await;
    let problems = async |change_manifest| {
        let setup =
            Setup { pod_name: "own-priority", survey_interval: "1s", change_manifest, ..Setup::default() };
        let etcd = GuardedCluster::start_as(setup).await;
        let (code, survey) = cli::json(&etcd, "status", &[]).await;
        assert_eq!(code, Some(0), "a warning is no failure: {survey}");
        // The pod `unrelated` does not mention etcd, so its deletion fails open.
        assert_eq!(survey["warnings"], json!([]), "{survey}");
        let client = json!({"name": "app", "image": "app", "args": ["--etcd-servers=http://etcd:2379"]});
        create_pod_with(&etcd.pods, "client", json!({"containers": [client]})).await;
        let (_, survey) = cli::json(&etcd, "status", &[]).await;
        let expected = format!(
            "namespace {}: 1 pod that mentions etcd: priority below the guard's (2000000000): client. ",
            etcd.namespace
        );
        let warning = survey["warnings"][0].as_str().unwrap_or_default();
        assert!(warning.starts_with(&expected), "{survey}");
        let printed = cli::run(&etcd, "status", &[]).await;
        assert!(printed.stdout.contains(&expected), "{printed:?}");
        // The background survey logs each warning once, although it finds the pods in every round.
        let members = format!("{}/etcd", etcd.namespace);
        etcd.guard.wait_for_survey(&members, "spare").await;
        let logged = |field: &str, text: &str| etcd.guard.count_values(field, text);
        wait_until("the survey logs the warning", START_TIMEOUT, async || logged("warning", &expected) > 0)
            .await;
        let problems = survey["clusters"][0]["problems"].clone();
        if let Some(problem) = problems[0].as_str() {
            wait_until("the survey logs the problem", START_TIMEOUT, async || logged("problem", problem) > 0)
                .await;
        }
        tokio::time::sleep(FURTHER_SURVEYS).await;
        assert_eq!(logged("warning", &expected), 1);
        // An earlier survey can have found a part of the pods, and has then logged a shorter list.
        if let Some(problem) = problems[0].as_str() {
            assert_eq!(logged("problem", problem), 1);
        }
        problems
    };
    let found = Box::pin(problems(without_priority_class)).await;
    let text = found[0].as_str().unwrap_or_default();
    assert!(text.starts_with("priority below the guard's (2000000000): etcd-0, etcd-1, etcd-2."), "{found}");
    assert_eq!(Box::pin(problems(str::to_owned)).await, json!([]), "with the shipped class");
}

#[tokio::test]
async fn status_reports_members_that_may_not_be_recognized() {
    let etcd = GuardedCluster::start().await;
    let gaps = async || cli::json(&etcd, "status", &[]).await.1["gaps"].clone();
    assert_eq!(gaps().await, json!([]));
    let store = json!({"name": "store", "image": "store", "ports": [{"containerPort": 2379}]});
    create_pod_with(&etcd.pods, "store", json!({"containers": [store]})).await;
    let found = gaps().await;
    assert_eq!((&found[0]["pod"], found.as_array().map(Vec::len)), (&"store".into(), Some(1)), "{found}");
    let text = found[0]["text"].as_str().unwrap();
    let (_, command) = text.rsplit_once("Otherwise: kubectl ").unwrap();
    let words: Vec<&str> = command.split(' ').collect();
    let output = etcd.kubectl_everywhere().run(&words).await;
    assert!(output.success, "{output:?}");
    assert_eq!(gaps().await, json!([]), "the pod is excluded");
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
        let text =
            |lag: Option<u64>| lag.map_or_else(|| String::from("<none>"), |entries| entries.to_string());
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
