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

/// Returns the starts of surveys in milliseconds, each of which takes 5 ms.
async fn starts(count: usize, spread: Duration) -> Vec<u128> {
    let started = Instant::now();
    let survey = || async move {
        let start = started.elapsed().as_millis();
        sleep_until(Instant::now() + Duration::from_millis(5)).await;
        start
    };
    spread_out((0..count).map(|_| survey()).collect(), started, spread).collect().await
}

#[tokio::test(start_paused = true)]
async fn periodic_survey_starts_namespaces_one_after_another() {
    assert_eq!(starts(6, Duration::from_secs(24)).await, [0, 25, 50, 75, 100, 125]);
    // Many namespaces have shorter pauses.
    let last = *starts(5000, Duration::from_secs(24)).await.last().unwrap();
    assert!((23_000..24_100).contains(&last), "{last}");
}

#[tokio::test(start_paused = true)]
async fn survey_on_request_starts_namespaces_without_pauses() {
    let starts = starts(8, Duration::ZERO).await;
    assert_eq!(starts[..4], [0; 4]);
    assert!(starts[4..].iter().all(|start| (5..8).contains(start)), "{starts:?}");
}

#[tokio::test(start_paused = true)]
async fn survey_of_one_namespace_does_not_wait_for_survey_of_all() {
    let requested = RequestedSurveys::default();
    let deadline = || Deadline::after(Duration::from_secs(15));
    let all = requested.start(None, deadline()).await.unwrap();
    let single = requested.start(Some("prod"), deadline()).await.unwrap();
    let error = requested.start(Some("prod"), deadline()).await.unwrap_err();
    assert_eq!(error.to_string(), "waiting for another survey took too long (limit 15s)");
    assert!(requested.start(None, deadline()).await.is_err());
    drop(single);
    assert!(requested.start(Some("prod"), deadline()).await.is_ok());
    drop(all);
    assert!(requested.start(None, deadline()).await.is_ok());
}
