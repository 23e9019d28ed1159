//! The permissions of the component for handovers.

use serde_json::json;

use super::{DEPLOYMENTS, Installation, NODES};

/// Returns the states of the line about the account of the servers if it cannot watch nodes.
async fn states_without_watch(arguments: &[&str]) -> Vec<String> {
    let mut it = Installation::correct();
    it.objects.remove(NODES);
    it.denied.push("etcd-guard watch nodes");
    let deployment = &mut it.objects.get_mut(DEPLOYMENTS).unwrap()["items"][0];
    deployment["spec"]["template"]["spec"]["containers"][0]["args"] = json!(arguments);
    let lines = it.examine().await;
    let is_wanted = |line: &&serde_json::Value| {
        line["check"] == "permissions" && line["message"].to_string().contains("account etcd-guard: ")
    };
    lines.iter().filter(is_wanted).map(|line| line["state"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn handovers_require_permission_to_watch_nodes() {
    assert_eq!(states_without_watch(&["serve", "--handover"]).await, ["failure"]);
    assert_eq!(states_without_watch(&["serve"]).await, ["ok"]);
}
