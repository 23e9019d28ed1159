//! The output of `kubectl etcd-guard check`: a table or JSON, both with the text of the webhook.

use std::collections::BTreeMap;

use etcd_guard_core::{documentation::Manual, reason::Reason};
use serde_json::{Value, json};

use test_support::{
    guard::cli,
    guarded_cluster::{GuardedCluster, START_TIMEOUT},
    wait::{wait_for, wait_until},
};

/// Parses the table below the verdict: the values for each title, which are aligned in one column.
fn table(printed: &str) -> BTreeMap<String, Vec<String>> {
    let mut lines = printed.lines().skip(1).peekable();
    let first = lines.peek().unwrap_or_else(|| panic!("no table: {printed}"));
    let start = first.len() - first.trim_start().trim_start_matches("WHY").trim_start().len();
    let mut table: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut title = String::new();
    for line in lines {
        let (name, value) = line.split_at(start);
        assert!(name.ends_with("  ") && !value.starts_with(' '), "not aligned: {printed}");
        if !name.trim().is_empty() {
            name.trim().clone_into(&mut title);
        }
        table.entry(title.clone()).or_default().push(value.to_owned());
    }
    table
}

/// Returns the table that corresponds to a JSON answer.
fn expected(answer: &Value) -> BTreeMap<String, Vec<String>> {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let mut rows = BTreeMap::new();
    for title in ["NEXT", "CLUSTER", "MEMBER", "ROLE", "LEADER", "VOTERS", "HEALTHY", "QUORUM", "REMAINING"] {
        let value = &answer[title.to_lowercase()];
        if !value.is_null() {
            rows.insert(title.to_owned(), vec![text(value)]);
        }
    }
    if !answer["documentation"].is_null() {
        rows.insert(String::from("SEE"), vec![text(&answer["documentation"])]);
    }
    let policy = answer["policy"].as_array().unwrap().iter().map(|entry| {
        let name = text(&entry["name"]);
        format!(
            "{}: {} ({})",
            name.trim_start_matches("etcd-guard.io/"),
            text(&entry["value"]),
            text(&entry["from"])
        )
    });
    let policy: Vec<String> = policy.collect();
    if !policy.is_empty() {
        rows.insert(String::from("POLICY"), policy);
    }
    rows
}

/// Runs `check` in both formats until they match, because a member may be late in between.
async fn matching_outputs(
    etcd: &GuardedCluster,
    arguments: &[&str],
) -> (Value, BTreeMap<String, Vec<String>>) {
    wait_for("the table and the JSON answer match", START_TIMEOUT, async || {
        let (_, answer) = cli::json(etcd, "check", arguments).await;
        let printed = cli::run(etcd, "check", arguments).await;
        let (verdict, reason) = (answer["verdict"].as_str().unwrap(), answer["reason"].as_str().unwrap());
        let head = format!("{} {reason}: ", verdict.to_uppercase());
        let mut rows = table(&printed.stdout);
        let why = rows.remove("WHY").unwrap().concat();
        let next = rows.get("NEXT").map(|lines| format!(". {}", lines.concat())).unwrap_or_default();
        let is_same = printed.stdout.starts_with(&head)
            && answer["message"] == format!("{why}{next}")
            && rows == expected(&answer);
        is_same.then_some((answer, rows))
    })
    .await
}

#[tokio::test]
async fn table_has_message_state_and_policy() {
    let etcd = GuardedCluster::start().await;
    let leader = etcd.leader().await;
    let [follower, _] = etcd.followers().await;
    let output = etcd.kubectl(&["annotate", "statefulset/etcd", "etcd-guard.io/single-member=allow"]).await;
    assert!(output.success, "{output:?}");
    let expected = String::from("single-member: allow (StatefulSet etcd)");
    wait_until("the table has the policy", START_TIMEOUT, async || {
        matching_outputs(&etcd, &[&leader]).await.1["POLICY"].contains(&expected)
    })
    .await;

    for (arguments, reason, role) in [
        (vec![leader.as_str()], "LeaderProtected", "leader"),
        (vec![leader.as_str(), "--evict"], "LeaderTransferred", "leader"),
        (vec![follower.as_str()], "SafeToDelete", "follower"),
    ] {
        // On a busy machine a member may be late, with another reason.
        let (answer, rows) = wait_for(reason, START_TIMEOUT, async || {
            let outputs = matching_outputs(&etcd, &arguments).await;
            (outputs.0["reason"] == reason && outputs.0["healthy"] == 3).then_some(outputs)
        })
        .await;
        let value = |title: &str| rows[title].join("\n");
        assert_eq!(value("MEMBER"), etcd.member(arguments[0]).id().await, "{answer}");
        assert_eq!(value("LEADER"), etcd.member(&leader).id().await, "{answer}");
        assert_eq!(value("CLUSTER"), format!("{}/etcd", etcd.namespace));
        assert_eq!(
            ["ROLE", "VOTERS", "HEALTHY", "QUORUM", "REMAINING"].map(value),
            [role, "3", "3", "2", "2"],
            "{answer}"
        );
        assert!(value("POLICY").contains("leader: auto (configuration)"), "{answer}");
        let is_denied = reason == "LeaderProtected";
        assert_eq!(answer["next"].is_null(), !is_denied, "only a denial has a next step: {answer}");
        let section = is_denied.then(|| Manual::default().reason(Reason::LeaderProtected));
        assert_eq!(answer["documentation"], json!(section), "{answer}");
    }

    // The table has the text of the webhook.
    wait_until("kubectl prints the same text", START_TIMEOUT, async || {
        let (answer, rows) = matching_outputs(&etcd, &[&leader]).await;
        let output = etcd.kubectl(&["delete", "pod", &leader]).await;
        assert!(!output.success, "{output:?}");
        let next = rows.get("NEXT").map(|lines| lines.concat()).unwrap_or_default();
        let text = format!("{}: {}", answer["reason"].as_str().unwrap(), answer["message"].as_str().unwrap());
        // kubectl prints each advice on a line of its own.
        let printed = output.stderr.replace('\n', "; ");
        answer["reason"] == "LeaderProtected" && text.contains(&next) && printed.contains(&text)
    })
    .await;
}

#[tokio::test]
async fn table_of_other_objects_has_their_policy() {
    let etcd = GuardedCluster::start().await;
    let output = etcd.kubectl(&["annotate", "statefulset/etcd", "etcd-guard.io/mode=audit"]).await;
    assert!(output.success, "{output:?}");
    wait_until("the table has the policy", START_TIMEOUT, async || {
        matching_outputs(&etcd, &["sts/etcd"]).await.1.get("POLICY").map(|lines| lines.concat())
            == Some(String::from("mode: audit (StatefulSet etcd)"))
    })
    .await;
    let (answer, rows) = matching_outputs(&etcd, &["pvc/data-etcd-0"]).await;
    assert_eq!(rows["POLICY"], ["mode: enforce (configuration)"], "{answer}");
    assert!(rows["NEXT"].concat().starts_with("Remove the member from the cluster first"), "{answer}");
    // A pod without etcd has no further rows.
    let (_, rows) = matching_outputs(&etcd, &["unrelated"]).await;
    assert_eq!(rows, BTreeMap::new());
}

#[tokio::test]
async fn leader_policy_transfers_leadership() {
    let etcd = GuardedCluster::start().await;
    let leader = etcd.leader().await;
    let output = etcd.kubectl(&["annotate", "statefulset/etcd", "etcd-guard.io/leader=transfer"]).await;
    assert!(output.success, "{output:?}");
    let chosen_by = async |arguments: &[&str]| {
        let (_, answer) = cli::json(&etcd, "check", arguments).await;
        let policy = answer["policy"].as_array().unwrap().clone();
        let leader = policy.iter().find(|policy| policy["name"] == "etcd-guard.io/leader").unwrap();
        format!("{} {} {}", answer["reason"], leader["value"], leader["from"]).replace('"', "")
    };
    wait_until("the annotation is known", START_TIMEOUT, async || {
        chosen_by(&[&leader]).await == "LeaderTransferred transfer StatefulSet etcd"
    })
    .await;
    assert_eq!(chosen_by(&[&leader, "--force"]).await, "LeaderTransferred transfer StatefulSet etcd");
}
