//! Pods outside the guard's scope are allowed at once, or are not sent to the guard.

use k8s_openapi::api::{apps::v1::StatefulSet, core::v1::Pod};
use kube::{Api, ResourceExt, api::PostParams};
use serde_json::{Value, json};

use test_support::{
    guard::{cli, review::dry_run_review},
    guarded_cluster::{GuardedCluster, START_TIMEOUT, Setup, UNRELATED_POD},
    http_client::{self, Connection},
    kubernetes::{
        pods::{create_pod, create_pod_with, delete, new_namespace},
        webhook::{LABEL, VALUE},
    },
    wait::wait_until,
};

/// The annotation for members that are not recognized otherwise.
const MEMBER: &str = "etcd-guard.io/member=true";

#[tokio::test]
async fn is_not_called_for_unlabelled_namespace() {
    let mut etcd = GuardedCluster::start().await;
    let calls_before = etcd.guard.request_count().await;
    let pods = Api::namespaced(etcd.client.clone(), &new_namespace(&etcd.client, false).await);
    create_pod(&pods, "free").await;
    delete(&pods, "free").await.unwrap();
    wait_until("the pod is deleted", START_TIMEOUT, async || {
        pods.get_opt("free").await.is_ok_and(|pod| pod.is_none())
    })
    .await;
    assert_eq!(etcd.guard.request_count().await, calls_before);

    // The guard is running and registered.
    etcd.delete(UNRELATED_POD).await.unwrap();
    assert_eq!(etcd.guard.new_verdicts().await, ["DELETE allowed NotEtcd"]);
}

#[tokio::test]
async fn approves_proxies_and_names_exclusion_for_unproven_members() {
    let mut etcd = GuardedCluster::start().await;
    let proxy = json!({
        "name": "proxy", "image": "quay.io/coreos/etcd:v3.6.16", "ports": [{"containerPort": 2379}],
        "command": ["etcd", "grpc-proxy", "start", "--endpoints=etcd:2379"],
    });
    let gateway = json!({
        "name": "gateway", "image": "quay.io/coreos/etcd:v3.6.16", "ports": [{"containerPort": 2379}],
        "command": ["etcd", "gateway", "start", "--endpoints=etcd:2379"],
    });
    let waiting = json!({
        "name": "app", "image": "app", "command": ["sh", "-c", "until nc -z etcd 2379; do sleep 1; done; exec app"],
    });
    let copy = json!({
        "name": "etcd", "image": "quay.io/coreos/etcd:v3.6.16", "command": ["sleep", "1d"], "ports": [{"containerPort": 2379}],
        "env": [{"name": "ETCD_LISTEN_PEER_URLS", "value": "http://0.0.0.0:2380"}],
    });
    let unproven = json!({"name": "app", "image": "app", "args": ["etcd"]});
    for (name, container) in
        [("proxy", proxy), ("gateway", gateway), ("waiting", waiting), ("copy", copy), ("unproven", unproven)]
    {
        create_pod_with(&etcd.pods, name, json!({"containers": [container]})).await;
        wait_until("the pod runs", START_TIMEOUT, async || {
            etcd.kubectl(&["get", "pod", name]).await.stdout.contains("Running")
        })
        .await;
    }
    for name in ["proxy", "gateway", "waiting", "copy"] {
        etcd.delete(name).await.unwrap();
        assert_eq!(etcd.guard.new_verdicts().await, ["DELETE allowed NotEtcd"], "{name}");
    }

    let denial = etcd.delete("unproven").await.unwrap_err();
    assert!(denial.contains("EtcdUnreachable"), "{denial}");
    let (_, command) = denial.rsplit_once("exclude it: kubectl ").unwrap();
    let (command, inspection) = command.split_once('\n').unwrap();
    let inspect = format!("kubectl etcd-guard inspect -n {} unproven", etcd.namespace);
    assert!(inspection.contains(&inspect), "{denial}");
    assert!(command.ends_with("annotate --overwrite pod unproven etcd-guard.io/member=false"), "{denial}");
    let words: Vec<&str> = command.split(' ').collect();
    let output = etcd.kubectl_everywhere().run(&words).await;
    assert!(output.success, "{output:?}");
    etcd.delete("unproven").await.unwrap();
}

/// Selects the namespace by the label of the test alone.
fn select_by_test(webhook: &mut Value) {
    webhook["namespaceSelector"]["matchLabels"].as_object_mut().unwrap().remove(LABEL);
}

#[tokio::test]
async fn warns_if_webhooks_select_another_label() {
    let mut etcd = GuardedCluster::start().await;
    etcd.register_webhook(select_by_test).await;
    for value in ["-", "=disabled"] {
        etcd.label_namespace(&[&format!("{LABEL}{value}")]).await;
        let warning = format!(
            "namespace {} lacks the label etcd-guard.io/guard=enabled, so that this request was not evaluated",
            etcd.namespace
        );
        let mut output = None;
        wait_until("the guard knows the label", START_TIMEOUT, async || {
            let printed = etcd.kubectl(&["delete", "pod", "etcd-0", "--dry-run=server"]).await;
            let is_warned = printed.stderr.contains(&warning);
            output = Some(printed);
            is_warned
        })
        .await;
        let output = output.unwrap();
        assert!(output.success, "{output:?}");
        let command = format!(
            "to guard it: kubectl label namespace {} etcd-guard.io/guard=enabled --overwrite",
            etcd.namespace
        );
        assert!(output.stderr.contains(&command), "{output:?}");
        etcd.guard.wait_for_verdict("admin", "allowed", "NamespaceNotGuarded").await;

        let set = etcd.kubectl(&["delete", "statefulset", "etcd", "--dry-run=server"]).await;
        assert!(set.success && set.stderr.contains(&warning), "{set:?}");
        let checked = cli::run(&etcd, "check", &["statefulset/etcd"]).await;
        assert!(format!("{}{}", checked.stdout, checked.stderr).contains(&warning), "{checked:?}");
    }

    // The command of the warning. A fresh read decides, before the watch shows the label.
    etcd.label_namespace(&[&format!("{LABEL}={VALUE}")]).await;
    let set = etcd.kubectl(&["delete", "statefulset", "etcd", "--dry-run=server"]).await;
    assert!(!set.success && !set.stderr.contains("lacks the label"), "{set:?}");
}

#[tokio::test]
async fn guards_namespaces_with_chosen_label() {
    let label = "example.com/etcd=guarded";
    let etcd = GuardedCluster::start_as(Setup { opt_in_label: label, ..Setup::default() }).await;
    let denial = etcd.kubectl(&["delete", "statefulset", "etcd", "--dry-run=server"]).await;
    assert!(!denial.success && denial.stderr.contains("etcd-guard"), "{denial:?}");
    let page = http_client::get(etcd.guard.http(), "/status").await.unwrap();
    let status: Value = serde_json::from_str(&page.body).unwrap();
    assert_eq!(status["optInLabel"], label);
    let namespaces: Vec<&Value> =
        status["clusters"].as_array().unwrap().iter().map(|cluster| &cluster["namespace"]).collect();
    assert_eq!(namespaces, [&json!(etcd.namespace)], "namespaces with the default label are not guarded");

    // Without the label, the API server does not call the guard.
    etcd.label_namespace(&["example.com/etcd=former"]).await;
    wait_until("the API server does not call the guard", START_TIMEOUT, async || {
        etcd.kubectl(&["delete", "statefulset", "etcd", "--dry-run=server"]).await.success
    })
    .await;
    let checked = cli::run(&etcd, "check", &["etcd-0"]).await;
    let command = format!("kubectl label namespace {} {label} --overwrite", etcd.namespace);
    assert!(checked.stderr.contains(&command), "{checked:?}");
}

/// Uses only dry runs: until the guard's watch receives the annotation, the deletion would be approved.
#[tokio::test]
async fn guards_pods_declared_members_by_namespace() {
    let etcd = GuardedCluster::start().await;
    let store = json!({"name": "store", "image": "store", "ports": [{"containerPort": 2379}]});
    create_pod_with(&etcd.pods, "store", json!({"containers": [store]})).await;
    let is_denied =
        async |pod: &str| !etcd.kubectl(&["delete", "pod", pod, "--dry-run=server"]).await.success;
    assert!(!is_denied("store").await, "the guard does not recognize the member");
    let output = etcd.kubectl(&["annotate", "namespace", &etcd.namespace, MEMBER]).await;
    assert!(output.success, "{output:?}");
    wait_until("the deletion is denied", START_TIMEOUT, async || is_denied("store").await).await;
    assert!(!is_denied(UNRELATED_POD).await, "this pod declares no port of etcd");
}

#[tokio::test]
async fn guards_pods_declared_members_by_stateful_set() {
    let etcd = GuardedCluster::start().await;
    let set = json!({
        "metadata": {"name": "plain"},
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": {"app": "plain"}},
            "serviceName": "plain",
            "template": {
                "metadata": {"labels": {"app": "plain"}},
                "spec": {"containers": [{"name": "app", "image": "app"}]},
            },
        },
    });
    let sets: Api<StatefulSet> = Api::namespaced(etcd.client.clone(), &etcd.namespace);
    let set = sets.create(&PostParams::default(), &serde_json::from_value(set).unwrap()).await.unwrap();
    let owner = json!({
        "apiVersion": "apps/v1", "kind": "StatefulSet", "name": "plain", "uid": set.uid(), "controller": true,
    });
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": "plain-7", "namespace": etcd.namespace, "uid": "u", "ownerReferences": [owner]},
        "spec": {"containers": [{"name": "app", "image": "app"}]},
        "status": {"phase": "Running"},
    }))
    .unwrap();
    assert!(is_out_of_scope(&etcd, &pod).await, "no annotation declares a member");

    let output = etcd.kubectl(&["annotate", "statefulset/plain", MEMBER]).await;
    assert!(output.success, "{output:?}");
    wait_until("the pod is evaluated as a member", START_TIMEOUT, async || {
        !is_out_of_scope(&etcd, &pod).await
    })
    .await;
}

/// Whether the guard takes this pod, which need not exist, for one without etcd.
async fn is_out_of_scope(etcd: &GuardedCluster, pod: &Pod) -> bool {
    let review = dry_run_review(pod);
    assert!(!review.contains("etcd"), "{review}");
    let mut connection = Connection::tls(etcd.guard.https(), &etcd.guard.ca_pem).await.unwrap();
    connection.post("/validate?timeout=5s", review).await.unwrap().body.contains("NotEtcd")
}
