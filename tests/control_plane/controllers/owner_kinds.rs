//! Owners that are no StatefulSet: a Deployment per member, and a custom resource above them. Their annotations choose
//! policies, and their deletions and scale-downs are evaluated.

use k8s_openapi::api::apps::v1::ReplicaSet;
use kube::{Api, api::ListParams};
use serde_json::{Value, json};
use test_support::{
    guarded_cluster::{GuardedCluster, START_TIMEOUT, Setup},
    layout::{Layout, Topology},
    process_node::ProcessAction,
    wait::wait_until,
};

use super::ownership::{COLLECTOR, create_custom_resource};

/// A group whose resource the shipped role permits to read.
const GROUP: &str = "operator.etcd.io";

const CONFIG: &str = "\
apiVersion: etcd-guard.io/v1alpha1
guard:
  probe: {deniedNetworks: []}
  ownerKinds:
  - {group: operator.etcd.io, version: v1alpha1, resource: etcdclusters, kind: EtcdCluster}
";

async fn start(config: &str) -> GuardedCluster {
    let layout = Layout::new(Topology::DeploymentPerMember);
    GuardedCluster::start_as(Setup { layout, config, ..Setup::default() }).await
}

/// Returns the Deployment of a pod.
async fn deployment(etcd: &GuardedCluster, pod: &str) -> String {
    etcd.pods.get(pod).await.unwrap().metadata.labels.unwrap()["member"].clone()
}

async fn wait_until_gone(etcd: &GuardedCluster, pod: &str) {
    wait_until(&format!("{pod} is gone"), START_TIMEOUT, async || {
        matches!(etcd.pods.get_opt(pod).await, Ok(None))
    })
    .await;
}

#[tokio::test]
async fn policy_of_deployment_applies_to_its_pod() {
    let mut etcd = start("").await;
    let leader = etcd.leader().await;
    let denial = etcd.delete(&leader).await.unwrap_err();
    assert!(denial.contains("LeaderProtected: "), "{denial}");
    let object = format!("deployment/{}", deployment(&etcd, &leader).await);
    let output = etcd.kubectl(&["annotate", &object, "etcd-guard.io/leader=transfer"]).await;
    assert!(output.success, "{output:?}");
    etcd.guard.new_verdicts().await;
    // Owners are read live, so that the policy applies at once.
    etcd.delete(&leader).await.unwrap();
    assert_eq!(etcd.guard.new_verdicts().await, ["DELETE allowed LeaderTransferred"]);
}

#[tokio::test]
async fn deployment_of_member_is_deleted_under_break_glass_only() {
    let mut etcd = start("").await;
    let member = etcd.followers().await[0].clone();
    let name = deployment(&etcd, &member).await;
    let delete = ["delete", "deployment", &name, "--wait=false"];
    let output = etcd.kubectl(&delete).await;
    let text = format!("IntentProtected: Deployment {name} owns 1 running etcd members, including {member}");
    assert!(!output.success && output.stderr.contains(&text), "{output:?}");
    let advice = format!("kubectl annotate --overwrite -n {} deployments.apps {name} ", etcd.namespace);
    assert!(output.stderr.contains(&advice), "{output:?}");
    assert_eq!(etcd.guard.new_verdicts().await, ["DELETE denied IntentProtected"]);

    etcd.break_glass(&format!("deployment/{name}")).await;
    let output = etcd.kubectl(&delete).await;
    assert!(output.success && output.stderr.contains("break-glass overrules IntentProtected"), "{output:?}");
    // The collector deletes the ReplicaSet and then the pod.
    wait_until_gone(&etcd, &member).await;
    etcd.guard.wait_for_verdict(COLLECTOR, "allowed", "OwnerDeleted").await;
    let output = etcd.kubectl(&["get", "replicasets", "-l", &format!("member={name}"), "-o", "name"]).await;
    assert!(output.success && output.stdout.is_empty(), "{output:?}");
    // The quorum needs both remaining members.
    for pod in etcd.pod_names().await {
        let denial = etcd.delete(&pod).await.unwrap_err();
        assert!(denial.contains("of 3 voters healthy, quorum 2"), "{denial}");
    }
}

#[tokio::test]
async fn denies_scale_down_of_deployment_below_quorum() {
    let mut etcd = start("").await;
    let [member, other] = etcd.followers().await;
    let name = deployment(&etcd, &member).await;
    let object = format!("deployment/{name}");
    etcd.apply(&other, ProcessAction::Pause).await;
    let output = etcd.kubectl(&["scale", &object, "--replicas=0"]).await;
    let text = format!("scaling Deployment {name} down to 0 replicas would leave 1 of 3 voters");
    assert!(!output.success && output.stderr.contains(&text), "{output:?}");
    let patch = r#"{"spec":{"replicas":0}}"#;
    let output = etcd.kubectl(&["patch", &object, "--type=merge", "-p", patch]).await;
    assert!(!output.success && output.stderr.contains(&text), "{output:?}");
    assert_eq!(etcd.guard.new_verdicts().await, ["UPDATE denied IntentProtected"]);

    etcd.apply(&other, ProcessAction::Resume).await;
    etcd.wait_until_healthy().await;
    let output = etcd.kubectl(&["scale", &object, "--replicas=0", "--dry-run=server"]).await;
    assert!(output.success && output.stderr.contains("remains a voter of etcd"), "{output:?}");

    // A rollout scales the old ReplicaSet down. The deletion of its pod is evaluated.
    etcd.guard.new_verdicts().await;
    let output = etcd.kubectl(&["rollout", "restart", &object]).await;
    assert!(output.success, "{output:?}");
    wait_until_gone(&etcd, &member).await;
    etcd.wait_until_healthy().await;
    assert_eq!(etcd.guard.new_verdicts().await, ["DELETE allowed SafeToDelete"]);
}

/// The Deployment exists, and never had this uid.
#[tokio::test]
async fn dangling_owner_of_replica_set_deletes_nothing() {
    let etcd = start("").await;
    let member = etcd.followers().await[0].clone();
    let name = deployment(&etcd, &member).await;
    let set = set_of(&etcd, &name).await;
    let patch = r#"[{"op":"replace","path":"/metadata/ownerReferences/0/uid","value":"00000000-0000-4000-8000-000000000004"}]"#;
    let output = etcd.kubectl(&["patch", "replicaset", &set, "--type=json", "-p", patch]).await;
    assert!(output.success, "{output:?}");
    let line = etcd.guard.wait_for_verdict(COLLECTOR, "denied", "IntentProtected").await;
    let message = line["message"].as_str().unwrap();
    assert!(message.contains(&format!("ReplicaSet {set} owns 1 running etcd members")), "{message}");
    assert!(message.contains(&format!("its owner Deployment {name}")), "{message}");
    assert!(message.contains(&format!("patch replicasets.apps {set} --type=json")), "{message}");
    let output =
        etcd.kubectl(&["get", "replicaset", &set, "-o", "jsonpath={.metadata.deletionTimestamp}"]).await;
    assert!(output.success && output.stdout.is_empty(), "{output:?}");
    assert!(etcd.member(&member).serves().await);
}

/// The pod of the member is absent, because a quota prevents its creation for a moment.
#[tokio::test]
async fn dangling_owner_deletes_no_set_without_pods() {
    let etcd = start("").await;
    let member = etcd.followers().await[0].clone();
    let name = deployment(&etcd, &member).await;
    let output = etcd.kubectl(&["create", "quota", "no-pods", "--hard=pods=0"]).await;
    assert!(output.success, "{output:?}");
    // The status that its controller would write.
    let status = r#"{"status":{"hard":{"pods":"0"},"used":{"pods":"0"}}}"#;
    let patch = ["patch", "quota", "no-pods", "--subresource=status", "--type=merge", "-p", status];
    let output = etcd.kubectl(&patch).await;
    assert!(output.success, "{output:?}");
    let run = ["run", "probe", "--image=probe", "--dry-run=server"];
    wait_until("the quota applies", START_TIMEOUT, async || !etcd.kubectl(&run).await.success).await;
    etcd.delete(&member).await.unwrap();
    wait_until_gone(&etcd, &member).await;
    let set = set_of(&etcd, &name).await;
    let patch = r#"[{"op":"replace","path":"/metadata/ownerReferences/0/uid","value":"00000000-0000-4000-8000-000000000005"}]"#;
    let output = etcd.kubectl(&["patch", "replicaset", &set, "--type=json", "-p", patch]).await;
    assert!(output.success, "{output:?}");
    let line = etcd.guard.wait_for_verdict(COLLECTOR, "denied", "IntentProtected").await;
    let message = line["message"].as_str().unwrap();
    assert!(message.contains(&format!("ReplicaSet {set} runs no etcd member at the moment")), "{message}");
    assert!(message.contains("it starts 1 of them again"), "{message}");
    let output = etcd.kubectl(&["get", "replicaset", &set]).await;
    assert!(output.success, "{output:?}");
}

/// Returns the name of the `ReplicaSet` of this Deployment.
async fn set_of(etcd: &GuardedCluster, deployment: &str) -> String {
    let sets: Api<ReplicaSet> = Api::namespaced(etcd.client.clone(), &etcd.namespace);
    let listed = sets.list(&ListParams::default().labels(&format!("member={deployment}"))).await.unwrap();
    listed.items[0].metadata.name.clone().unwrap()
}

/// Sends deletions of the custom resource to the guard.
fn add_custom_rule(webhook: &mut Value) {
    if webhook["name"] == "intent.guard.etcd-guard.io" {
        let rule = json!({
            "apiGroups": [GROUP], "apiVersions": ["*"], "operations": ["DELETE"], "resources": ["etcdclusters"],
            "scope": "Namespaced",
        });
        webhook["rules"].as_array_mut().unwrap().push(rule);
    }
}

/// Makes the custom resource the owner of all Deployments.
async fn own_deployments(etcd: &GuardedCluster, uid: &str) {
    let owner = json!({
        "apiVersion": format!("{GROUP}/v1alpha1"), "kind": "EtcdCluster", "name": "main", "uid": uid, "controller": true,
    });
    let patch = json!({"metadata": {"ownerReferences": [owner]}}).to_string();
    let names = etcd.kubectl(&["get", "deployments", "-o", "name"]).await.stdout;
    for name in names.lines() {
        let output = etcd.kubectl(&["patch", name, "--type=merge", "-p", &patch]).await;
        assert!(output.success, "{output:?}");
    }
}

#[tokio::test]
async fn break_glass_of_custom_owner_applies_to_its_members() {
    let mut etcd = start(CONFIG).await;
    etcd.register_webhook(add_custom_rule).await;
    let uid = create_custom_resource(&etcd, GROUP).await;
    own_deployments(&etcd, &uid).await;
    let resource = format!("etcdclusters.{GROUP}/main");
    let delete = ["delete", &resource, "--wait=false"];
    // The API server may not know the changed rules yet. A dry run changes nothing.
    wait_until("the API server calls the guard for the custom resource", START_TIMEOUT, async || {
        !etcd.kubectl(&["delete", &resource, "--dry-run=server"]).await.success
    })
    .await;
    etcd.guard.new_verdicts().await;
    let output = etcd.kubectl(&delete).await;
    let text = "IntentProtected: EtcdCluster main owns 3 running etcd members";
    assert!(!output.success && output.stderr.contains(text), "{output:?}");
    assert_eq!(etcd.guard.new_verdicts().await, ["DELETE denied IntentProtected"]);

    etcd.break_glass(&resource).await;
    let leader = etcd.leader().await;
    let output = etcd.kubectl(&["delete", "pod", &leader, "--dry-run=server"]).await;
    assert!(output.success && output.stderr.contains("break-glass overrules LeaderProtected"), "{output:?}");
    let members = etcd.pod_names().await;
    let output = etcd.kubectl(&delete).await;
    assert!(output.success && output.stderr.contains("break-glass overrules IntentProtected"), "{output:?}");
    for member in members {
        wait_until_gone(&etcd, &member).await;
    }
    etcd.guard.wait_for_verdict(COLLECTOR, "allowed", "OwnerDeleted").await;
}
