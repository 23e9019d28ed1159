//! What arrives, as docs/requesters.md tells it, written down between the apiserver and the guard.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::DeleteOptions;
use kube::api::{DeleteParams, ListParams};
use serde_json::{Value, json};

use crate::support::{
    control_plane::SHARED_NODE,
    guarded_cluster::{BYSTANDER, GuardedCluster, START_LIMIT},
    recorder::Recorder,
    wait::{some, until},
    webhook,
};

/// Who an admin's kubeconfig says to be.
const ADMIN: &str = "admin";

/// From now on everything passes a recorder, also what the shipped `matchConditions` would keep from the guard.
async fn record(etcd: &GuardedCluster, files: &std::path::Path) -> Recorder {
    let recorder = Recorder::before(&etcd.guard, files).await;
    webhook::register_at(&etcd.client, &etcd.namespace, recorder.address, &recorder.ca_pem, |webhook| {
        drop(webhook.as_object_mut().unwrap().remove("matchConditions"));
    })
    .await;
    let dry_run = DeleteParams { dry_run: true, ..DeleteParams::default() };
    until("the apiserver asks by way of the recorder", START_LIMIT, async || {
        etcd.pods.delete(BYSTANDER, &dry_run).await.is_ok() && !recorder.news().is_empty()
    })
    .await;
    recorder
}

/// What arrived since the last time that somebody asked. One call of the API asks once or more often.
fn arrived(recorder: &Recorder) -> Vec<Value> {
    let requests = recorder.news();
    assert!(!requests.is_empty(), "nothing arrived");
    requests
}

/// The parts of a request of which the table tells.
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
async fn what_arrives_is_what_the_table_of_requesters_says() {
    let etcd = GuardedCluster::start().await;
    let files = tempfile::tempdir_in(&etcd.control_plane.dir).unwrap();
    let recorder = record(&etcd, files.path()).await;
    let leader = etcd.leader().await;
    let [follower, _] = etcd.followers().await;
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
    for request in &arrived(&recorder) {
        assert_eq!(parts(request), deletion(Some(&leader), &leader, true, Some(30), Some("Background")));
        assert_eq!(request["userInfo"]["username"], ADMIN);
    }

    etcd.kubectl(&["delete", "pod", &leader, "--force", "--grace-period=0"]).await;
    for request in &arrived(&recorder) {
        assert_eq!(parts(request), deletion(Some(&leader), &leader, false, Some(0), Some("Background")));
    }

    // Whichever members it comes to before a denial: only the old object has a name.
    let dry_run = DeleteParams { dry_run: true, ..DeleteParams::default() };
    let _ = etcd.pods.delete_collection(&dry_run, &ListParams::default().labels("app=etcd")).await;
    for request in &arrived(&recorder) {
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
    for request in &arrived(&recorder) {
        assert_eq!(parts(request), eviction);
        assert_eq!(request["object"]["deleteOptions"]["dryRun"], json!(["All"]));
    }

    for (cascade, propagation) in
        [("background", "Background"), ("foreground", "Foreground"), ("orphan", "Orphan")]
    {
        let delete = ["delete", "statefulset", "etcd", &format!("--cascade={cascade}"), "--dry-run=server"];
        etcd.kubectl(&delete).await;
        for request in &arrived(&recorder) {
            assert_eq!(parts(request)["propagation"], propagation);
        }
    }

    let uid = etcd.uid(&follower).await;
    let said = etcd.kubectl(&["delete", "pod", &follower, "--wait=false"]).await;
    assert!(said.success, "{said:?}");
    let kubelet = format!("system:node:{SHARED_NODE}");
    let last = some("the kubelet's last delete", START_LIMIT, async || {
        recorder.news().into_iter().find(|it| it["userInfo"]["username"] == *kubelet)
    })
    .await;
    assert_eq!(parts(&last)["name"], *follower);
    assert_eq!(parts(&last)["grace"], 0);
    assert_eq!(last["options"]["preconditions"]["uid"], *uid);
    assert!(last["oldObject"]["metadata"]["deletionTimestamp"].is_string());
}
