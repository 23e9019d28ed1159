//! The admission requests that docs/requesters.md describes, recorded between the API server and the guard.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::DeleteOptions;
use kube::api::{DeleteParams, ListParams};
use serde_json::{Value, json};

use test_support::{
    guarded_cluster::{GuardedCluster, START_TIMEOUT, UNRELATED_POD},
    kubernetes::{control_plane::SHARED_NODE, review_recorder::ReviewRecorder, webhook},
    wait::{wait_for, wait_until},
};

/// The user name in the admin's kubeconfig.
const ADMIN: &str = "admin";

/// Starts a recorder that also receives the requests that the shipped `matchConditions` exclude.
async fn start_recorder(etcd: &GuardedCluster, files: &std::path::Path) -> ReviewRecorder {
    let recorder = ReviewRecorder::start(&etcd.guard, files).await;
    webhook::register_at(&etcd.client, &etcd.namespace, recorder.address, &recorder.ca_pem, |webhook| {
        drop(webhook.as_object_mut().unwrap().remove("matchConditions"));
    })
    .await;
    let dry_run = DeleteParams { dry_run: true, ..DeleteParams::default() };
    wait_until("the API server calls the recorder", START_TIMEOUT, async || {
        etcd.pods.delete(UNRELATED_POD, &dry_run).await.is_ok() && !recorder.take_requests().is_empty()
    })
    .await;
    recorder
}

/// Returns the requests since the last call. One API request calls the webhook once or several times.
fn recorded(recorder: &ReviewRecorder) -> Vec<Value> {
    let requests = recorder.take_requests();
    assert!(!requests.is_empty(), "no request was recorded");
    requests
}

/// Returns the fields of a request that the table describes.
fn parts(request: &Value) -> Value {
    json!({
        "operation": request["operation"],
        "subResource": request["subResource"],
        "name": request["name"],
        "old": request["oldObject"]["metadata"]["name"],
        "dryRun": request["dryRun"],
        "grace": request["options"]["gracePeriodSeconds"],
        "propagation": request["options"]["propagationPolicy"],
    })
}

#[tokio::test]
async fn admission_requests_match_table_of_requesters() {
    let etcd = GuardedCluster::start().await;
    let files = tempfile::tempdir_in(&etcd.control_plane.dir).unwrap();
    let recorder = start_recorder(&etcd, files.path()).await;
    let leader = etcd.leader().await;
    let deletion = |name: Option<&str>,
                    old: &str,
                    dry_run: bool,
                    grace: Option<u32>,
                    propagation: Option<&str>| {
        json!({
            "operation": "DELETE", "subResource": null, "name": name, "old": old, "dryRun": dry_run, "grace": grace,
            "propagation": propagation,
        })
    };

    etcd.kubectl(&["delete", "pod", &leader, "--dry-run=server"]).await;
    for request in &recorded(&recorder) {
        assert_eq!(parts(request), deletion(Some(&leader), &leader, true, Some(30), Some("Background")));
        assert_eq!(request["userInfo"]["username"], ADMIN);
    }

    etcd.kubectl(&["delete", "pod", &leader, "--force", "--grace-period=0"]).await;
    for request in &recorded(&recorder) {
        assert_eq!(parts(request), deletion(Some(&leader), &leader, false, Some(0), Some("Background")));
    }

    // The order of the members is not fixed; only the old object has a name.
    let dry_run = DeleteParams { dry_run: true, ..DeleteParams::default() };
    let _ = etcd.pods.delete_collection(&dry_run, &ListParams::default().labels("app=etcd")).await;
    for request in &recorded(&recorder) {
        let old = request["oldObject"]["metadata"]["name"].as_str().unwrap();
        assert!(GuardedCluster::names().contains(&old), "{old}");
        let name = request["name"].as_str().filter(|name| !name.is_empty());
        assert_eq!((name, &request["dryRun"]), (None, &json!(true)), "{}", parts(request));
    }

    let options = DeleteOptions { dry_run: Some(vec![String::from("All")]), ..DeleteOptions::default() };
    let _ = etcd.evict(&leader, Some(options)).await;
    let eviction = json!({
        "operation": "CREATE", "subResource": "eviction", "name": leader, "old": null, "dryRun": false, "grace": null,
        "propagation": null,
    });
    for request in &recorded(&recorder) {
        assert_eq!(parts(request), eviction);
        assert_eq!(request["object"]["deleteOptions"]["dryRun"], json!(["All"]));
    }

    for (cascade, propagation) in
        [("background", "Background"), ("foreground", "Foreground"), ("orphan", "Orphan")]
    {
        let delete = ["delete", "statefulset", "etcd", &format!("--cascade={cascade}"), "--dry-run=server"];
        etcd.kubectl(&delete).await;
        for request in &recorded(&recorder) {
            assert_eq!(parts(request)["propagation"], propagation);
        }
    }

    // An election on a busy machine can make the follower the leader before the request.
    let (follower, uid) = wait_for("the deletion of a follower", START_TIMEOUT, async || {
        let [follower, _] = etcd.followers().await;
        let uid = etcd.uid(&follower).await;
        let output = etcd.kubectl(&["delete", "pod", &follower, "--wait=false"]).await;
        assert!(output.success || output.stderr.contains("LeaderProtected"), "{output:?}");
        output.success.then_some((follower, uid))
    })
    .await;
    let kubelet = format!("system:node:{SHARED_NODE}");
    let last = wait_for("the kubelet's final delete", START_TIMEOUT, async || {
        recorder.take_requests().into_iter().find(|request| request["userInfo"]["username"] == *kubelet)
    })
    .await;
    assert_eq!(parts(&last)["name"], *follower);
    assert_eq!(parts(&last)["grace"], 0);
    assert_eq!(last["options"]["preconditions"]["uid"], *uid);
    assert!(last["oldObject"]["metadata"]["deletionTimestamp"].is_string());
}
