//! The trace of a deletion with all steps.

use test_support::{
    guarded_cluster::{GuardedCluster, START_TIMEOUT, Setup},
    telemetry::trace_receiver::{ReceivedSpan, TraceReceiver},
    wait::wait_until,
};

#[tokio::test]
async fn traces_every_step_without_the_token() {
    let receiver = TraceReceiver::start().await;
    let endpoint = receiver.endpoint();
    let etcd = GuardedCluster::start_as(Setup { otlp_endpoint: &endpoint, ..Setup::default() }).await;
    let leader = etcd.leader().await;
    let uid = etcd.uid(&leader).await;
    let output = etcd.kubectl(&["annotate", "statefulset/etcd", "etcd-guard.io/leader=transfer"]).await;
    assert!(output.success, "{output:?}");
    let dry_run = ["delete", "pod", &leader, "--dry-run=server"];
    wait_until("the policy applies", START_TIMEOUT, async || etcd.kubectl(&dry_run).await.success).await;
    let output = etcd.kubectl(&["delete", "pod", &leader, "--wait=false"]).await;
    assert!(output.success, "{output:?}");
    etcd.wait_until_replaced(&leader, &uid).await;

    let matches = |span: &ReceivedSpan| {
        span.attribute("reason") == "LeaderTransferred" && span.attribute("dry_run") == "false"
    };
    let review = receiver.span("the review", matches).await;
    assert_eq!(review.attribute("verdict"), "allowed");
    assert_eq!(review.attribute("cluster"), format!("{}/etcd", etcd.namespace));
    assert_eq!((review.attribute("voters"), review.attribute("quorum")), ("3", "2"));

    // A step ends, and is exported, before its parent.
    let spans = receiver.spans();
    let below = |parent: &ReceivedSpan| -> Vec<ReceivedSpan> {
        spans.iter().filter(|span| span.parent_id == parent.span_id).cloned().collect()
    };
    let steps = below(&review);
    for step in [
        // The reads are by name, because the dry run has filled the member pod cache.
        "reading the pods from the API server",
        "reading the reservations from the API server",
        "probing the members",
        "writing the reservation to the API server",
        "moving leadership",
    ] {
        assert!(steps.iter().any(|span| span.name == step), "{step} is not among {steps:?}");
    }
    let round = steps.iter().find(|span| span.name == "probing the members").unwrap();
    let members = below(round);
    assert_eq!(members.len(), 3, "{members:?}");
    assert!(
        members.iter().all(|span| span.name == "probing a member" && span.attribute("answer") == "serving")
    );
    let leading: Vec<&str> = members
        .iter()
        .filter(|span| span.attribute("leads") == "true")
        .map(|span| span.attribute("address"))
        .collect();
    assert_eq!(leading, [format!("http://{}:2379", etcd.address(&leader))]);

    let kubeconfig = std::fs::read_to_string(etcd.control_plane.guard_kubeconfig()).unwrap();
    let kubeconfig: serde_json::Value = serde_json::from_str(&kubeconfig).unwrap();
    let token = kubeconfig["users"][0]["user"]["token"].as_str().unwrap();
    assert!(token.len() > 100 && !receiver.has_received(token.as_bytes()));
    assert!(receiver.has_received(leader.as_bytes()), "a value in a span is found");
}
