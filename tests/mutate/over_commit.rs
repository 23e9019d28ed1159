//! Over-commit of the resources of nodes.

use serde_json::{Value, json};

use crate::mutated_cluster::MutatedCluster;

const LABEL: &str = "node-restriction.kubernetes.io/over-commit";

fn cpu(cluster: &MutatedCluster, node: &str) -> (String, String) {
    let node = cluster.get(&["node", node]);
    let text = |list: &str| node["status"][list]["cpu"].as_str().unwrap().to_owned();
    (text("allocatable"), text("capacity"))
}

async fn patch_status(cluster: &MutatedCluster, node: &str, patch: &Value) {
    let patch = patch.to_string();
    let output =
        cluster.kubectl(&["patch", "node", node, "--subresource=status", "--type=merge", "-p", &patch]).await;
    assert!(output.success, "{output:?}");
}

#[tokio::test]
async fn raises_and_restores_resources_of_labelled_node() {
    // The label has precedence over the entry, and the entry requires the label.
    let settings = "overCommit: {nodes: [{selector: {}, cpu: 3, memory: 1.5}]}";
    let mut cluster = MutatedCluster::start(settings, &[], &["over-commit"]).await;
    let name = format!("node-{}", cluster.namespace);
    let node =
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {LABEL: "2"}}});
    assert!(cluster.create(&node, &[]).await.success);

    let raw = json!({"status": {
        "allocatable": {"cpu": "3920m", "memory": "1Gi", "pods": "110"},
        "capacity": {"cpu": "4", "memory": "2Gi", "pods": "110"},
    }});
    patch_status(&cluster, &name, &raw).await;
    assert_eq!(cluster.guard.new_verdicts().await, ["UPDATE allowed OverCommitted"]);
    let raised = (String::from("7840m"), String::from("7920m"));
    assert_eq!(cpu(&cluster, &name), raised);

    for round in 0..3 {
        let other = json!({"status": {"volumesInUse": [format!("volume-{round}")]}});
        patch_status(&cluster, &name, &other).await;
        assert_eq!(cpu(&cluster, &name), raised, "another writer, {round}");
        patch_status(&cluster, &name, &raw).await;
        assert_eq!(cpu(&cluster, &name), raised, "the kubelet, {round}");
    }

    // The guard does not learn of this change. The next written values may be the machine's own or not, so the kubelet
    // has to report again.
    cluster.run_checked(&["annotate", "node", &name, "etcd-guard.io/over-commit-"]);
    patch_status(&cluster, &name, &json!({"status": {"volumesInUse": []}})).await;
    assert!(cluster.guard.new_verdicts().await.contains(&String::from("UPDATE allowed KubeletAsked")));
    assert_eq!(cpu(&cluster, &name), (String::from("7839m"), String::from("7919m")));
    patch_status(&cluster, &name, &raw).await;
    assert_eq!(cpu(&cluster, &name), raised, "the kubelet writes its own values again");

    cluster.run_checked(&["label", "node", &name, &format!("{LABEL}-")]);
    patch_status(&cluster, &name, &json!({"status": {"volumesInUse": []}})).await;
    assert!(cluster.guard.new_verdicts().await.contains(&String::from("UPDATE allowed Restored")));
    assert_eq!(cpu(&cluster, &name), (String::from("3920m"), String::from("4")));
    assert_eq!(
        cluster.get(&["node", &name])["metadata"]["annotations"].get("etcd-guard.io/over-commit"),
        None
    );

    cluster.run_checked(&["label", "node", &name, &format!("{LABEL}=configured")]);
    let half = json!({"status": {
        "allocatable": {"cpu": "1960m", "memory": "512Mi"},
        "capacity": {"cpu": "2", "memory": "1536Mi"},
    }});
    patch_status(&cluster, &name, &half).await;
    assert!(cluster.guard.new_verdicts().await.contains(&String::from("UPDATE allowed OverCommitted")));
    assert_eq!(cpu(&cluster, &name), (String::from("5880m"), String::from("5920m")), "by the entry");
    let status = &cluster.get(&["node", &name])["status"];
    let memory = (&status["allocatable"]["memory"], &status["capacity"]["memory"]);
    assert_eq!(
        memory,
        (&json!("805306368"), &json!("1879048192")),
        "one and a half times the value, in bytes"
    );
    cluster.run_checked(&["label", "node", &name, &format!("{LABEL}-")]);
    patch_status(&cluster, &name, &json!({"status": {"volumesInUse": ["volume"]}})).await;
    assert!(cluster.guard.new_verdicts().await.contains(&String::from("UPDATE allowed Restored")));
    assert_eq!(cpu(&cluster, &name), (String::from("1960m"), String::from("2")));

    // In the same test, because the entry applies to the whole cluster and another guard would change these nodes, too.
    cluster.run_checked(&["label", "node", &name, &format!("{LABEL}=2")]);
    patch_status(&cluster, &name, &json!({"status": {"volumesInUse": []}})).await;
    assert!(
        cluster.guard.new_verdicts().await.contains(&String::from("UPDATE allowed KubeletAsked")),
        "the API server calls the running guard"
    );
    cluster.guard.kill();
    let smaller = json!({"status": {"allocatable": {"cpu": "2"}, "capacity": {"cpu": "3"}}});
    patch_status(&cluster, &name, &smaller).await;
    assert_eq!(cpu(&cluster, &name), (String::from("2"), String::from("3")), "written without a guard");
}
