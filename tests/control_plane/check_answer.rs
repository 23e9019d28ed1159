//! How `etcd-guard check` answers: people by a table, programs by JSON, both in the words of the webhook.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::support::{
    cli,
    guarded_cluster::{GuardedCluster, START_LIMIT},
    wait::{some, until},
};

/// What is printed below the verdict: the values under each title, which all begin in one column.
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

/// What stands in a table where JSON has it: as people read it.
fn expected(answer: &Value) -> BTreeMap<String, Vec<String>> {
    let text = |it: &Value| it.as_str().map_or_else(|| it.to_string(), str::to_owned);
    let mut rows = BTreeMap::new();
    for title in ["NEXT", "CLUSTER", "MEMBER", "ROLE", "LEADER", "VOTERS", "HEALTHY", "QUORUM", "REMAINING"] {
        let value = &answer[title.to_lowercase()];
        if !value.is_null() {
            rows.insert(title.to_owned(), vec![text(value)]);
        }
    }
    let policy = answer["policy"].as_array().unwrap().iter().map(|it| {
        let name = text(&it["name"]);
        format!(
            "{}: {} ({})",
            name.trim_start_matches("etcd-guard.io/"),
            text(&it["value"]),
            text(&it["from"])
        )
    });
    let policy: Vec<String> = policy.collect();
    if !policy.is_empty() {
        rows.insert(String::from("POLICY"), policy);
    }
    rows
}

/// Asks for both until they tell the same: in between a member may have been late.
async fn answered(etcd: &GuardedCluster, question: &[&str]) -> (Value, BTreeMap<String, Vec<String>>) {
    some("people and programs are told the same", START_LIMIT, async || {
        let (_, answer) = cli::json(etcd, "check", question).await;
        let printed = cli::run(etcd, "check", question).await;
        let (verdict, reason) = (answer["verdict"].as_str().unwrap(), answer["reason"].as_str().unwrap());
        let head = format!("{} {reason}: ", verdict.to_uppercase());
        let mut told = table(&printed.stdout);
        let why = told.remove("WHY").unwrap().concat();
        let next = told.get("NEXT").map(|it| format!(". {}", it.concat())).unwrap_or_default();
        let is_same = printed.stdout.starts_with(&head)
            && answer["message"] == format!("{why}{next}")
            && told == expected(&answer);
        is_same.then_some((answer, told))
    })
    .await
}

#[tokio::test]
async fn a_table_has_the_words_of_the_denial_and_the_facts_and_the_policy_that_it_rests_on() {
    let etcd = GuardedCluster::start().await;
    let leader = etcd.leader().await;
    let [follower, _] = etcd.followers().await;
    let said = etcd.kubectl(&["annotate", "statefulset/etcd", "etcd-guard.io/single-member=allow"]).await;
    assert!(said.success, "{said:?}");
    let chosen = String::from("single-member: allow (StatefulSet etcd)");
    until("the policy is told", START_LIMIT, async || {
        answered(&etcd, &[&leader]).await.1["POLICY"].contains(&chosen)
    })
    .await;

    for (question, reason, role) in [
        (vec![leader.as_str()], "LeaderProtected", "leader"),
        (vec![leader.as_str(), "--evict"], "LeaderProtected", "leader"),
        (vec![follower.as_str()], "SafeToDelete", "follower"),
    ] {
        // On a busy machine a member may be late, and the reason another one.
        let (answer, told) = some(reason, START_LIMIT, async || {
            let both = answered(&etcd, &question).await;
            (both.0["reason"] == reason && both.0["healthy"] == 3).then_some(both)
        })
        .await;
        let told = |title: &str| told[title].join("\n");
        assert_eq!(told("MEMBER"), etcd.member(question[0]).id().await, "{answer}");
        assert_eq!(told("LEADER"), etcd.member(&leader).id().await, "{answer}");
        assert_eq!(told("CLUSTER"), format!("{}/etcd", etcd.namespace));
        assert_eq!(
            ["ROLE", "VOTERS", "HEALTHY", "QUORUM", "REMAINING"].map(told),
            [role, "3", "3", "2", "2"],
            "{answer}"
        );
        assert!(told("POLICY").contains("leader: deny (configuration)"), "{answer}");
        let is_denied = reason == "LeaderProtected";
        assert_eq!(answer["next"].is_null(), !is_denied, "only a denial wants a next step: {answer}");
    }

    // The table's words are those of the webhook.
    until("kubectl prints the same words", START_LIMIT, async || {
        let (answer, told) = answered(&etcd, &[&leader]).await;
        let said = etcd.kubectl(&["delete", "pod", &leader]).await;
        assert!(!said.success, "{said:?}");
        let next = told.get("NEXT").map(|it| it.concat()).unwrap_or_default();
        let words =
            format!("{} [{}]", answer["message"].as_str().unwrap(), answer["reason"].as_str().unwrap());
        answer["reason"] == "LeaderProtected" && words.contains(&next) && said.stderr.contains(&words)
    })
    .await;
}

#[tokio::test]
async fn a_table_of_what_is_no_pod_has_what_matters_to_it() {
    let etcd = GuardedCluster::start().await;
    let said = etcd.kubectl(&["annotate", "statefulset/etcd", "etcd-guard.io/mode=audit"]).await;
    assert!(said.success, "{said:?}");
    until("the policy is told", START_LIMIT, async || {
        answered(&etcd, &["sts/etcd"]).await.1.get("POLICY").map(|it| it.concat())
            == Some(String::from("mode: audit (StatefulSet etcd)"))
    })
    .await;
    let (answer, told) = answered(&etcd, &["pvc/data-etcd-0"]).await;
    assert_eq!(told["POLICY"], ["mode: enforce (configuration)"], "{answer}");
    assert!(told["NEXT"].concat().starts_with("Remove the member first: "), "{answer}");
    // Of a pod without etcd there is nothing to tell but that.
    let (_, told) = answered(&etcd, &["bystander"]).await;
    assert_eq!(told, BTreeMap::new());
}

#[tokio::test]
async fn a_leader_without_time_to_hand_over_is_kept_and_the_policy_says_for_what_reason() {
    let etcd = GuardedCluster::start().await;
    let leader = etcd.leader().await;
    let said = etcd.kubectl(&["annotate", "statefulset/etcd", "etcd-guard.io/leader=allow"]).await;
    assert!(said.success, "{said:?}");
    let chosen_by = async |question: &[&str]| {
        let (_, answer) = cli::json(&etcd, "check", question).await;
        let policy = answer["policy"].as_array().unwrap().clone();
        let leader = policy.iter().find(|it| it["name"] == "etcd-guard.io/leader").unwrap();
        format!("{} {} {}", answer["reason"], leader["value"], leader["from"]).replace('"', "")
    };
    until("the annotation is known", START_LIMIT, async || {
        chosen_by(&[&leader]).await == "LeaderAllowed allow StatefulSet etcd"
    })
    .await;
    assert_eq!(chosen_by(&[&leader, "--force"]).await, "LeaderProtected deny a grace period of 0 s");
}
