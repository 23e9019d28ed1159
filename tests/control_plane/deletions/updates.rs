//! Updates of pods after which the kubelet restarts or ends etcd.

use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use tokio::time::Instant;

use etcd_guard_core::ledger::RESERVATION_TTL;
use test_support::{
    guard::process::GuardProcess,
    guarded_cluster::{GuardedCluster, START_TIMEOUT},
    kubernetes::pods::create_pod_with,
    process_node::ProcessAction,
    wait::wait_until,
};

async fn patch(etcd: &GuardedCluster, pod: &str, patch: Value) -> Result<(), String> {
    match etcd.pods.patch(pod, &PatchParams::default(), &Patch::Strategic(patch)).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) => Err(status.message),
        Err(error) => panic!("patching {pod}: {error}"),
    }
}

fn image(image: &str) -> Value {
    json!({"spec": {"containers": [{"name": "etcd", "image": image}]}})
}

#[tokio::test]
async fn denies_updates_that_stop_a_second_member() {
    let mut etcd = GuardedCluster::start().await;
    let leader = etcd.leader().await;
    let [first, second] = etcd.followers().await;
    let denial = patch(&etcd, &leader, image("etcd:new")).await.unwrap_err();
    let text = "admission webhook \"update.guard.etcd-guard.io\" denied the request: LeaderProtected: ";
    assert!(denial.contains(text), "{denial}");
    // The pod would end when its reservation has expired.
    let denial = patch(&etcd, &first, json!({"spec": {"activeDeadlineSeconds": 3600}})).await.unwrap_err();
    assert!(
        denial.contains(&format!("IntentProtected: activeDeadlineSeconds would end {first} later")),
        "{denial}"
    );
    assert!(denial.contains(&format!("kubectl -n {} delete pod {first}", etcd.namespace)), "{denial}");
    // The kubelet restarts nothing, so that only the reservation counts.
    etcd.apply(&first, ProcessAction::Isolate).await;
    patch(&etcd, &first, image("etcd:new")).await.unwrap();
    for update in [image("etcd:new"), json!({"spec": {"activeDeadlineSeconds": 1}})] {
        let denial = patch(&etcd, &second, update).await.unwrap_err();
        assert!(denial.contains("would have 1 of 3 voters healthy, quorum 2"), "{denial}");
    }
    let denial = etcd.delete(&second).await.unwrap_err();
    assert!(denial.contains(&first), "{denial}");
    let verdicts = etcd.guard.new_verdicts().await;
    assert_eq!(
        verdicts,
        [
            "DELETE denied DisruptionInProgress",
            "UPDATE allowed SafeToDelete",
            "UPDATE denied DisruptionInProgress",
            "UPDATE denied IntentProtected",
            "UPDATE denied LeaderProtected",
        ]
    );

    // The guard receives no other update.
    let harmless = [
        json!({"metadata": {"labels": {"a": "b"}, "annotations": {"a": "b"}}}),
        json!({"spec": {"tolerations": [{"key": "a", "operator": "Exists"}]}}),
        image("etcd:new"),
    ];
    for update in harmless {
        patch(&etcd, &first, update).await.unwrap();
    }
    let status = Patch::Merge(json!({"status": {"message": "a"}}));
    etcd.pods.patch_status(&first, &PatchParams::default(), &status).await.unwrap();
    assert_eq!(etcd.guard.new_verdicts().await, [""; 0]);
}

/// Returns the id of the image that etcd runs in this pod.
async fn image_id(etcd: &GuardedCluster, pod: &str) -> String {
    let pod = etcd.pods.get(pod).await.unwrap();
    let statuses = pod.status.and_then(|status| status.container_statuses).unwrap_or_default();
    statuses.into_iter().find(|status| status.name == "etcd").unwrap().image_id
}

/// One replica reserves the first member, and another one evaluates the update of the second.
#[tokio::test]
async fn second_update_passes_when_first_member_serves_with_its_new_image() {
    let mut etcd = GuardedCluster::start().await;
    let [first, second] = etcd.followers().await;
    let replica = etcd.dir().join("second-replica");
    let replica = GuardProcess::start(&etcd.control_plane.guard_kubeconfig(), &replica).await;
    // The first member serves with its former image.
    etcd.apply(&first, ProcessAction::Isolate).await;
    let reserved = Instant::now();
    patch(&etcd, &first, image("etcd:new")).await.unwrap();
    assert_eq!(etcd.guard.new_verdicts().await, ["UPDATE allowed SafeToDelete"]);

    let _writer = std::mem::replace(&mut etcd.guard, replica);
    etcd.register_webhook(|_| {}).await;
    let denial = patch(&etcd, &second, image("etcd:new")).await.unwrap_err();
    assert!(denial.contains("DisruptionInProgress: ") && denial.contains(&first), "{denial}");
    assert!(etcd.member(&first).serves().await);
    assert_ne!(image_id(&etcd, &first).await, "etcd:new");

    etcd.apply(&first, ProcessAction::Rejoin).await;
    wait_until("the second update passes", START_TIMEOUT, async || {
        patch(&etcd, &second, image("etcd:new")).await.is_ok()
    })
    .await;
    assert!(reserved.elapsed() < RESERVATION_TTL, "the reservation has expired: {:?}", reserved.elapsed());
    assert_eq!(image_id(&etcd, &first).await, "etcd:new");
    assert!(etcd.member(&first).serves().await);
    let verdicts = etcd.guard.new_verdicts().await;
    assert!(verdicts.contains(&String::from("UPDATE allowed SafeToDelete")), "{verdicts:?}");
}

#[tokio::test]
async fn evaluates_resizes_that_restart_the_container() {
    let etcd = GuardedCluster::start().await;
    // The API server resizes no container that runs on a process node.
    let container = json!({
        "name": "etcd",
        "image": "etcd",
        "command": ["etcd"],
        "resources": {"requests": {"cpu": "1", "memory": "1Gi"}},
        "resizePolicy": [
            {"resourceName": "cpu", "restartPolicy": "NotRequired"},
            {"resourceName": "memory", "restartPolicy": "RestartContainer"},
        ],
    });
    let spec = json!({"schedulerName": "no-scheduler", "containers": [container]});
    create_pod_with(&etcd.pods, "resized", spec).await;
    for (resource, amount, is_evaluated) in [("cpu", "2", false), ("memory", "2Gi", true)] {
        let before = etcd.guard.request_count().await;
        let resources = json!({"requests": {resource: amount}});
        let resize = json!({"spec": {"containers": [{"name": "etcd", "resources": resources}]}}).to_string();
        let output = etcd.kubectl(&["patch", "pod", "resized", "--subresource=resize", "-p", &resize]).await;
        let is_denied = output.stderr.contains("admission webhook \"update.guard.etcd-guard.io\" denied");
        assert!(output.success || is_denied, "{output:?}");
        assert_eq!(etcd.guard.request_count().await > before, is_evaluated, "{resource}: {output:?}");
    }
}
