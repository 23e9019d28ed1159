//! Deletions in a namespace whose label the watch of the guard does not show yet.

use serde_json::json;

use crate::guarded_cluster::GuardedPods;

/// Annotations of the namespace or of the StatefulSet, which are not known yet, could declare the pod a member.
#[tokio::test]
async fn denies_pods_in_namespace_that_the_watch_does_not_show() {
    let pod = |app: &str| {
        json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "web-0", "namespace": "prod", "uid": "u", "labels": {"app": app}},
            "spec": {"containers": [{"name": "web", "image": "nginx"}]},
            "status": {"phase": "Running", "podIP": "10.0.0.1"},
        })
    };
    // The guard parses only the second review completely, because it contains the word "etcd".
    for pod in [pod("web"), pod("etcd-browser")] {
        let guarded = GuardedPods::start_before_watch_shows_label(std::slice::from_ref(&pod)).await;
        let (reason, message) = guarded.delete(&pod).await;
        assert_eq!(reason, "DeadlineExceeded", "{message}");
        assert!(message.contains("the watch of namespaces"), "{message}");
    }
}
