//! Sidecars in a cluster with an old kubelet.

use serde_json::json;

use crate::mutated_cluster::{MutatedCluster, pod};

const AGENT: &str = "
sidecars:
  templates:
  - name: agent
    containers: [{name: agent, image: 'agent:1'}]
";

#[tokio::test]
async fn old_kubelet_gets_no_sidecar_that_never_ends() {
    let cluster = MutatedCluster::start_with_kubelet(AGENT, "v1.28.15").await;
    let mut job = pod(json!({"etcd-guard.io/inject": "agent"}));
    job["spec"]["restartPolicy"] = json!("Never");
    let (stored, output) = cluster.applied(&job).await;
    assert!(output.stderr.contains("template agent was not injected: the pod would not end"), "{output:?}");
    assert_eq!(stored["spec"]["containers"].as_array().unwrap().len(), 1);
    assert_eq!(stored["spec"].get("initContainers"), None);
    // A pod that never ends gets an ordinary container.
    let mut service = pod(json!({"etcd-guard.io/inject": "agent"}));
    service["metadata"]["name"] = json!("service");
    let (stored, _) = cluster.applied(&service).await;
    assert_eq!(stored["spec"]["containers"][1]["name"], "agent");
}
