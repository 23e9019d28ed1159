//! Over-commit: what becomes of nodes' status.

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
    let said =
        cluster.kubectl(&["patch", "node", node, "--subresource=status", "--type=merge", "-p", &patch]).await;
    assert!(said.success, "{said:?}");
}

#[tokio::test]
async fn a_labelled_node_offers_more_whoever_writes_and_its_own_without_the_label_or_the_guard() {
    // The label goes before the entry; and without the label the entry says nothing.
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
    assert_eq!(cluster.guard.news().await, ["UPDATE allowed OverCommitted"]);
    let raised = (String::from("7840m"), String::from("7920m"));
    assert_eq!(cpu(&cluster, &name), raised);

    for turn in 0..3 {
        let other = json!({"status": {"volumesInUse": [format!("volume-{turn}")]}});
        patch_status(&cluster, &name, &other).await;
        assert_eq!(cpu(&cluster, &name), raised, "another writer, {turn}");
        patch_status(&cluster, &name, &raw).await;
        assert_eq!(cpu(&cluster, &name), raised, "the kubelet, {turn}");
    }

    // Nobody tells the guard of this. What the next writer sends may be the machine's own or not: the kubelet is asked.
    cluster.must(&["annotate", "node", &name, "etcd-guard.io/over-commit-"]);
    patch_status(&cluster, &name, &json!({"status": {"volumesInUse": []}})).await;
    assert!(cluster.guard.news().await.contains(&String::from("UPDATE allowed KubeletAsked")));
    assert_eq!(cpu(&cluster, &name), (String::from("7839m"), String::from("7919m")));
    patch_status(&cluster, &name, &raw).await;
    assert_eq!(cpu(&cluster, &name), raised, "the kubelet, which finds that it is not what it has");

    cluster.must(&["label", "node", &name, &format!("{LABEL}-")]);
    patch_status(&cluster, &name, &json!({"status": {"volumesInUse": []}})).await;
    assert!(cluster.guard.news().await.contains(&String::from("UPDATE allowed Restored")));
    assert_eq!(cpu(&cluster, &name), (String::from("3920m"), String::from("4")));
    assert_eq!(
        cluster.get(&["node", &name])["metadata"]["annotations"].get("etcd-guard.io/over-commit"),
        None
    );

    cluster.must(&["label", "node", &name, &format!("{LABEL}=configured")]);
    let half = json!({"status": {
        "allocatable": {"cpu": "1960m", "memory": "512Mi"},
        "capacity": {"cpu": "2", "memory": "1536Mi"},
    }});
    patch_status(&cluster, &name, &half).await;
    assert!(cluster.guard.news().await.contains(&String::from("UPDATE allowed OverCommitted")));
    assert_eq!(cpu(&cluster, &name), (String::from("5880m"), String::from("5920m")), "by the entry");
    let status = &cluster.get(&["node", &name])["status"];
    let memory = (&status["allocatable"]["memory"], &status["capacity"]["memory"]);
    assert_eq!(memory, (&json!("805306368"), &json!("1879048192")), "half as much again, in bytes");
    cluster.must(&["label", "node", &name, &format!("{LABEL}-")]);
    patch_status(&cluster, &name, &json!({"status": {"volumesInUse": ["volume"]}})).await;
    assert!(cluster.guard.news().await.contains(&String::from("UPDATE allowed Restored")));
    assert_eq!(cpu(&cluster, &name), (String::from("1960m"), String::from("2")));

    // In the same test, as the entry is the whole cluster's: another guard would have its say about these nodes as well.
    cluster.must(&["label", "node", &name, &format!("{LABEL}=2")]);
    patch_status(&cluster, &name, &json!({"status": {"volumesInUse": []}})).await;
    assert!(
        cluster.guard.news().await.contains(&String::from("UPDATE allowed KubeletAsked")),
        "asked while there"
    );
    cluster.guard.kill();
    let smaller = json!({"status": {"allocatable": {"cpu": "2"}, "capacity": {"cpu": "3"}}});
    patch_status(&cluster, &name, &smaller).await;
    assert_eq!(
        cpu(&cluster, &name),
        (String::from("2"), String::from("3")),
        "written while the guard is gone"
    );
}
