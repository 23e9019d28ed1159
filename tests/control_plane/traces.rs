//! What a trace tells of a deletion that took all steps there are.

use crate::support::{
    guarded_cluster::{GuardedCluster, START_LIMIT, Setup},
    trace_receiver::{Arrived, TraceReceiver},
    wait::until,
};

#[tokio::test]
async fn a_transfer_is_traced_step_by_step_and_the_guards_token_is_in_no_step() {
    let receiver = TraceReceiver::start().await;
    let endpoint = receiver.endpoint();
    let etcd = GuardedCluster::start_as(Setup { otlp_endpoint: &endpoint, ..Setup::default() }).await;
    let leader = etcd.leader().await;
    let uid = etcd.uid(&leader).await;
    let said = etcd.kubectl(&["annotate", "statefulset/etcd", "etcd-guard.io/leader=transfer"]).await;
    assert!(said.success, "{said:?}");
    let dry_run = ["delete", "pod", &leader, "--dry-run=server"];
    until("the policy is in force", START_LIMIT, async || etcd.kubectl(&dry_run).await.success).await;
    let said = etcd.kubectl(&["delete", "pod", &leader, "--wait=false"]).await;
    assert!(said.success, "{said:?}");
    etcd.wait_until_back(&leader, &uid).await;

    let is_it =
        |it: &Arrived| it.attribute("reason") == "LeaderTransferred" && it.attribute("dry_run") == "false";
    let review = receiver.span("the review", is_it).await;
    assert_eq!(review.attribute("verdict"), "allowed");
    assert_eq!(review.attribute("cluster"), format!("{}/etcd", etcd.namespace));
    assert_eq!((review.attribute("voters"), review.attribute("quorum")), ("3", "2"));

    // Steps end, and so arrive, before what they are steps of.
    let spans = receiver.spans();
    let below = |parent: &Arrived| -> Vec<Arrived> {
        spans.iter().filter(|it| it.parent_id == parent.span_id).cloned().collect()
    };
    let steps = below(&review);
    for step in [
        // By their names, which the dry run has found out.
        "reading the pods from the apiserver",
        "reading the reservations from the apiserver",
        "asking the members",
        "writing the reservation to the apiserver",
        "moving leadership",
    ] {
        assert!(steps.iter().any(|it| it.name == step), "{step} is not among {steps:?}");
    }
    let round = steps.iter().find(|it| it.name == "asking the members").unwrap();
    let members = below(round);
    assert_eq!(members.len(), 3, "{members:?}");
    assert!(members.iter().all(|it| it.name == "asking a member" && it.attribute("answer") == "serving"));
    let leading: Vec<&str> = members
        .iter()
        .filter(|it| it.attribute("leads") == "true")
        .map(|it| it.attribute("address"))
        .collect();
    assert_eq!(leading, [format!("http://{}:2379", etcd.address(&leader))]);

    let kubeconfig = std::fs::read_to_string(etcd.control_plane.guard_kubeconfig()).unwrap();
    let kubeconfig: serde_json::Value = serde_json::from_str(&kubeconfig).unwrap();
    let token = kubeconfig["users"][0]["user"]["token"].as_str().unwrap();
    assert!(token.len() > 100 && !receiver.has_heard(token.as_bytes()));
    assert!(receiver.has_heard(leader.as_bytes()), "what is heard is found");
}
