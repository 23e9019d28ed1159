use serde_json::json;

use super::*;

#[test]
fn lists_each_etcd_cluster_once() {
    let pod = |name: &str, owner: &str, image: &str, phase: &str| -> Pod {
        let pod = json!({
            "metadata": {
                "name": name, "namespace": "prod", "uid": name,
                "ownerReferences": [{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": owner, "uid": owner,
                    "controller": true}],
            },
            "spec": {"containers": [{"name": "main", "image": image}]},
            "status": {"phase": phase},
        });
        serde_json::from_value(pod).unwrap()
    };
    let etcd = "quay.io/coreos/etcd:v3.6.16";
    let pods = [
        pod("a-0", "a", etcd, "Running"),
        pod("a-1", "a", etcd, "Running"),
        pod("b-0", "b", etcd, "Pending"),
        pod("c-0", "c", etcd, "Failed"),
        pod("web-0", "web", "nginx", "Running"),
    ];
    let keys = cluster_keys("prod", &pods);
    let names: Vec<_> = keys.iter().map(|(key, _)| key.name()).collect();
    assert_eq!(names, ["a", "b"]);
    let others = pods.iter().filter(|pod| is_other_pod("prod", pod, &keys));
    assert_eq!(others.map(|pod| pod.metadata.name.as_str()).collect::<Vec<_>>(), ["web-0"]);
}

#[test]
fn survey_on_request_has_no_pauses_and_a_periodic_one_ends_in_time() {
    let spread = Duration::from_secs(20);
    assert_eq!(pause(1000, Duration::ZERO), Duration::ZERO);
    assert_eq!(pause(0, spread), MAX_PAUSE);
    assert_eq!(pause(3, spread), MAX_PAUSE);
    assert_eq!(pause(1000, spread), Duration::from_millis(20));
    assert_eq!(pause(5000, spread), Duration::from_millis(4));
}
