//! Templates in namespaces with quotas and limit ranges.

use std::time::Duration;

use serde_json::{Value, json};

use test_support::wait::wait_until;

use crate::{
    mutated_cluster::{MutatedCluster, pod},
    templates::check,
};

const TEMPLATES: &str = "
sidecars:
  templates:
  - {name: plain, containers: [{name: plain, image: 'plain:1'}]}
  - {name: limited, containers: [{name: limited, image: 'limited:1', resources: {limits: {cpu: 10m, memory: 64Mi}}}]}
  - {name: setup, initContainers: [{name: setup, image: 'setup:1', resources: {limits: {cpu: 10m, memory: 200Mi}}}]}
";

/// The longest time until the API server learns of an object by a watch, on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Creates an object of the namespace.
async fn create(cluster: &MutatedCluster, kind: &str, spec: Value) {
    let object = json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": "compute"}, "spec": spec});
    let output = cluster.create(&object, &[]).await;
    assert!(output.success, "{output:?}");
}

/// Creates a quota with the status that its controller would write.
async fn create_quota(cluster: &MutatedCluster, hard: Value) {
    create(cluster, "ResourceQuota", json!({"hard": hard})).await;
    let used: Value = hard.as_object().unwrap().keys().map(|name| (name.clone(), json!("0"))).collect();
    let status = json!({"status": {"hard": hard, "used": used}}).to_string();
    cluster.run_checked(&[
        "patch",
        "resourcequota",
        "compute",
        "--subresource=status",
        "--type=merge",
        "-p",
        &status,
    ]);
}

/// Waits until the API server rejects a pod without a template. The guard reads nothing for such a pod.
async fn wait_until_rejected(cluster: &MutatedCluster, memory: Option<&str>) {
    let mut plain = pod_with("false", memory.unwrap_or("1Mi"));
    if memory.is_none() {
        plain["spec"]["containers"][0]["resources"] = json!({});
    }
    wait_until("the limits are in effect", TIMEOUT, async || {
        !cluster.create(&plain, &["--dry-run=server"]).await.success
    })
    .await;
}

/// A pod with this memory that requests a template.
fn pod_with(template: &str, memory: &str) -> Value {
    let mut pod = pod(json!({"etcd-guard.io/inject": template}));
    pod["spec"]["containers"][0]["resources"] = json!({"limits": {"cpu": "10m", "memory": memory}});
    pod
}

/// Creates a pod as a dry run. Asserts that the warning is present if and only if the API server rejects the pod.
async fn assert_judged(cluster: &MutatedCluster, pod: &Value, warning: Option<&str>) {
    let mut judged = pod.clone();
    judged["metadata"]["name"] = json!("judged");
    let output = cluster.create(&judged, &["--dry-run=server"]).await;
    assert_eq!(output.success, warning.is_none(), "{output:?}");
    match warning {
        Some(warning) => assert!(output.stderr.contains(&format!("Warning: {warning}")), "{output:?}"),
        None => assert!(!output.stderr.contains("Warning"), "{output:?}"),
    }
}

#[tokio::test]
async fn quota_that_rejects_a_template_causes_a_warning() {
    let cluster = MutatedCluster::start(TEMPLATES, &[], &["inject"]).await;
    create_quota(&cluster, json!({"limits.memory": "10Gi", "requests.cpu": "10"})).await;
    wait_until_rejected(&cluster, None).await;
    let plain = "ResourceQuota compute requires limits.memory: the injected container plain has none";
    assert_judged(&cluster, &pod_with("plain", "1Mi"), Some(plain)).await;
    assert_judged(&cluster, &pod_with("limited", "1Mi"), None).await;
    // With resources of the pod as a whole, the quota requires none in containers.
    let mut whole = pod_with("plain", "1Mi");
    whole["spec"]["resources"] =
        json!({"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "1", "memory": "1Gi"}});
    assert_judged(&cluster, &whole, None).await;

    let admin = cluster.files.parent().unwrap().join("admin.kubeconfig");
    let checked = json!([
        {"name": "plain", "containers": [{"name": "plain", "image": "plain:1"}]},
        {"name": "limited", "containers": [
            {"name": "limited", "image": "limited:1", "resources": {"limits": {"cpu": "10m", "memory": "64Mi"}}}]},
    ]);
    let output = check(&cluster, &checked, &admin);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("template plain: ") && stderr.contains("must specify limits.memory"), "{stderr}");
    assert!(stderr.contains("1 of 2 templates failed") && !stderr.contains("template limited"), "{stderr}");
}

/// The API server applies the defaults to injected containers, after the webhooks.
#[tokio::test]
async fn limit_range_supplies_amounts_or_causes_a_warning() {
    let cluster = MutatedCluster::start(TEMPLATES, &[], &["inject"]).await;
    create_quota(&cluster, json!({"limits.memory": "10Gi", "requests.memory": "10Gi"})).await;
    wait_until_rejected(&cluster, None).await;
    let container = json!({
        "type": "Container",
        "min": {"memory": "32Mi"},
        "max": {"memory": "100Mi"},
        "default": {"memory": "48Mi"},
        "defaultRequest": {"memory": "40Mi"},
    });
    create(
        &cluster,
        "LimitRange",
        json!({"limits": [container, {"type": "Pod", "max": {"memory": "120Mi"}}]}),
    )
    .await;

    wait_until_rejected(&cluster, Some("200Mi")).await;
    let (stored, output) = cluster.applied(&pod_with("plain", "64Mi")).await;
    assert!(!output.stderr.contains("Warning"), "{output:?}");
    let resources = &stored["spec"]["initContainers"][0]["resources"];
    assert_eq!(resources, &json!({"limits": {"memory": "48Mi"}, "requests": {"memory": "40Mi"}}));

    let of_container =
        "LimitRange compute rejects the injected container setup: the maximum of memory is 100Mi";
    assert_judged(&cluster, &pod_with("setup", "64Mi"), Some(of_container)).await;
    let of_pod = "LimitRange compute permits memory 120Mi per pod: injected containers exceed it";
    assert_judged(&cluster, &pod_with("limited", "64Mi"), Some(of_pod)).await;
    assert_judged(&cluster, &pod_with("limited", "56Mi"), None).await;

    // 1 MiB is below the minimum. The check uses the resources of the template.
    let admin = cluster.files.parent().unwrap().join("admin.kubeconfig");
    let checked = |name: &str, memory: &str| {
        let resources = json!({"limits": {"cpu": "10m", "memory": memory}});
        json!([{"name": name, "containers": [{"name": name, "image": "i", "resources": resources}]}])
    };
    assert!(check(&cluster, &checked("fine", "56Mi"), &admin).status.success());
    let output = check(&cluster, &checked("large", "64Mi"), &admin);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        stderr.contains("template large: ") && stderr.contains("maximum memory usage per Pod"),
        "{stderr}"
    );
}
