//! Members without a visible pod.

use std::sync::Arc;

use etcd_guard_core::{
    assess::assess,
    config::policies::Policies,
    etcd::{member::MemberId, probe_result::ProbeResult},
    policy::Policy,
    reason::Reason,
    snapshot::Snapshot,
};
use etcd_guard_etcd::Connections;
use etcd_guard_guard::observe::{
    external,
    external::{ApiServers, ClusterAccess, ProbeGate, probe_external_members},
};

use serde_json::{Value, json};

use crate::{
    cluster::{Cluster, START_TIMEOUT},
    guarded_cluster::{GuardedPods, forbidden, pod},
    snapshots::{followers_in, probe_deadline},
};
use test_support::wait::{wait_for, wait_until};

/// Returns a snapshot without the pod of one follower, the index of the other follower, and the id of the hidden
/// member.
async fn snapshot_without_one(cluster: &Cluster, connections: &Connections) -> (Snapshot, usize, MemberId) {
    let mut snapshot = cluster.healthy_snapshot(connections).await;
    let followers = followers_in(&snapshot);
    let hidden = snapshot.pods.remove(followers[1]);
    (snapshot, followers[0], hidden.reply.status().unwrap().member_id)
}

/// Returns a gate that admits the loopback addresses of the members.
fn open_gate() -> ProbeGate {
    let mut policies = Policies::default();
    policies.probe.denied_networks.clear();
    ProbeGate::new(tokio::sync::watch::channel(Arc::new(policies)).1, ApiServers::fixed(Vec::new()))
}

on_every_version! {
    async fn member_without_pod_counts_if_it_responds(version) {
        let cluster = Cluster::three_members(version).await;
        let connections = Connections::new();
        let (mut snapshot, follower, hidden) = snapshot_without_one(&cluster, &connections).await;
        assert_eq!(assess(&snapshot, &snapshot.pods[follower], &Policy::default()).reason, Reason::QuorumAtRisk);
        let unseen = external::voters_without_pod(&snapshot);
        assert_eq!(unseen.iter().map(|member| member.id).collect::<Vec<_>>(), [hidden]);
        let access = ClusterAccess::new([&cluster.endpoint(follower)]);
        let gate = open_gate();
        snapshot.external_members = wait_for("the member without a pod answers", START_TIMEOUT, async || {
            let found = probe_external_members(&connections, &gate, &access, &snapshot, &unseen, probe_deadline()).await.members;
            found.iter().any(|member| matches!(member.reply, ProbeResult::Healthy { .. })).then_some(found)
        })
        .await;
        assert!(matches!(&snapshot.external_members[0].reply, ProbeResult::Healthy { status, .. } if status.member_id == hidden));
        let assessment = assess(&snapshot, &snapshot.pods[follower], &Policy::default());
        assert_eq!(assessment.reason, Reason::SafeToDelete);
        assert_eq!(assessment.tally.unwrap().healthy, 3);
        assert!(external::voters_without_pod(&cluster.settled_snapshot(&connections).await).is_empty());
    }

    /// All members share one Service, so that another member answers.
    async fn url_of_another_member_proves_nothing(version) {
        let cluster = Cluster::three_members(version).await;
        let connections = Connections::new();
        let (snapshot, follower, _) = snapshot_without_one(&cluster, &connections).await;
        let known = cluster.endpoint(follower);
        let mut unseen = external::voters_without_pod(&snapshot);
        unseen[0].client_urls = vec![known.url.clone()];
        let access = ClusterAccess::new([&known]);
        let found = probe_external_members(&connections, &open_gate(), &access, &snapshot, &unseen, probe_deadline()).await;
        assert!(found.members.is_empty(), "{found:?}");
    }
}

/// Some operators create one StatefulSet per member, so that a silent member has no sibling with the same owner.
#[tokio::test]
async fn members_with_separate_owners_form_one_cluster() {
    let cluster = Cluster::three_members("3.6").await;
    let followers = cluster.followers().await;
    let with_own_set = |n: usize| {
        let mut pod = pod(&cluster, n);
        let owner = &mut pod["metadata"]["ownerReferences"][0];
        owner["name"] = json!(format!("etcd-{n}"));
        owner["uid"] = json!(format!("set-{n}"));
        pod
    };
    let pods: Vec<_> = (0..3).map(with_own_set).collect();
    let guarded = GuardedPods::start(&pods).await;
    cluster.freeze(followers[0]).await;
    let has_reason = async |n: usize, reason| guarded.dry_run(&pods[followers[n]]).await.0 == reason;
    wait_until("the deletion of the frozen member is approved", START_TIMEOUT, async || {
        has_reason(0, "SafeToDelete").await
    })
    .await;
    wait_until("the deletion of the other follower is denied", START_TIMEOUT, async || {
        has_reason(1, "QuorumAtRisk").await
    })
    .await;
}

/// The voter in the other namespace terminates slowly, and its reservation has expired.
#[tokio::test]
async fn terminating_voter_of_another_namespace_is_leaving() {
    let cluster = Cluster::three_members("3.6").await;
    let (leader, followers) = (cluster.leader().await, cluster.followers().await);
    let pods = [leader, followers[0]].map(|n| pod(&cluster, n));
    let mut elsewhere = pod(&cluster, followers[1]);
    elsewhere["metadata"]["namespace"] = json!("other");
    let guarded = GuardedPods::start(&pods).await;
    let put = |pod: &Value| guarded.objects.put("/api/v1/pods", 200, json!({"items": [pod]}));
    put(&elsewhere);
    guarded.expect_dry_run(&pods[1], "SafeToDelete").await;
    elsewhere["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    put(&elsewhere);
    guarded.expect_dry_run(&pods[1], "QuorumAtRisk").await;
    guarded.objects.put("/api/v1/pods", 403, forbidden());
    let message = guarded.expect_dry_run(&pods[1], "LookupFailed").await;
    assert!(message.contains("the pods with address"), "{message}");
}

/// The voter and a pod that runs no etcd use the address of their node. Only an annotation of the StatefulSet
/// declares the voter.
#[tokio::test]
async fn terminating_voter_with_an_inherited_annotation_is_leaving() {
    let cluster = Cluster::three_members("3.6").await;
    let (leader, followers) = (cluster.leader().await, cluster.followers().await);
    let pods = [leader, followers[0]].map(|n| pod(&cluster, n));
    let mut elsewhere = pod(&cluster, followers[1]);
    elsewhere["metadata"]["namespace"] = json!("other");
    elsewhere["metadata"]["ownerReferences"][0]["name"] = json!("store");
    elsewhere["spec"]["containers"] = json!([{"name": "store", "image": "registry.example.com/store:1"}]);
    let mut agent = elsewhere.clone();
    agent["metadata"] = json!({"name": "agent", "namespace": "monitoring", "uid": "agent"});
    let store = json!({
        "metadata": {"name": "store", "namespace": "other", "uid": "set", "annotations": {"etcd-guard.io/member": "true"}}
    });
    let guarded = GuardedPods::start_with_other_namespace(&pods, &store).await;
    let put = |voter: &Value| guarded.objects.put("/api/v1/pods", 200, json!({"items": [agent, voter]}));
    put(&elsewhere);
    guarded.expect_dry_run(&pods[1], "SafeToDelete").await;
    elsewhere["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    put(&elsewhere);
    guarded.expect_dry_run(&pods[1], "QuorumAtRisk").await;
}

/// A cluster moves from a StatefulSet to a custom resource.
#[tokio::test]
async fn members_of_owners_of_mixed_kinds_are_evaluated() {
    let mut cluster = Cluster::three_members("3.6").await;
    let [migrated, follower] = cluster.followers().await[..] else { panic!("two followers") };
    let mut pods: Vec<_> = (0..3).map(|n| pod(&cluster, n)).collect();
    pods[migrated]["metadata"]["ownerReferences"] = json!([{
        "apiVersion": "etcd.example.com/v1", "kind": "EtcdMember", "name": "m", "uid": "m", "controller": true
    }]);
    let guarded = GuardedPods::start(&pods).await;
    for n in [migrated, follower] {
        guarded.expect_dry_run(&pods[n], "SafeToDelete").await;
    }
    let status: Value = serde_json::from_str(&guarded.status().await).unwrap();
    let kind_of = |name: String| {
        let members = status["clusters"][0]["members"].as_array().unwrap();
        members.iter().find(|member| member["pod"] == json!(name)).unwrap()["ownerKind"].clone()
    };
    assert_eq!(kind_of(format!("etcd-{migrated}")), json!("EtcdMember"), "{status}");
    assert_eq!(kind_of(format!("etcd-{follower}")), json!("StatefulSet"), "{status}");
    cluster.kill(migrated);
    let message = guarded.expect_dry_run(&pods[follower], "QuorumAtRisk").await;
    assert!(message.contains(&format!("etcd-{migrated} of EtcdMember (")), "{message}");
    guarded.expect_dry_run(&pods[migrated], "SafeToDelete").await;
}

/// A pod of a set whose other pods run another cluster. The other members of its cluster have another owner.
#[tokio::test]
async fn stray_pod_is_evaluated_by_its_own_cluster() {
    let (cluster, mut other) = (Cluster::three_members("3.6").await, Cluster::three_members("3.6").await);
    let [stray, follower] = other.followers().await[..] else { panic!("two followers") };
    let of_other = |n: usize| {
        let mut pod = pod(&other, n);
        (pod["metadata"]["name"], pod["metadata"]["uid"]) =
            (json!(format!("other-{n}")), json!(format!("other-{n}")));
        if n != stray {
            pod["metadata"]["ownerReferences"][0]["uid"] = json!("other");
        }
        pod
    };
    let others: Vec<_> = (0..3).map(of_other).collect();
    let pods: Vec<_> = (0..3).map(|n| pod(&cluster, n)).chain(others.clone()).collect();
    let guarded = GuardedPods::start(&pods).await;
    let has_reason = async |pod, reason| guarded.dry_run(pod).await.0 == reason;
    wait_until("the deletion of the stray pod is approved", START_TIMEOUT, async || {
        has_reason(&others[stray], "SafeToDelete").await
    })
    .await;
    assert!(has_reason(&pods[0], "SplitCluster").await);
    other.kill(follower);
    wait_until("its own cluster needs the stray pod", START_TIMEOUT, async || {
        has_reason(&others[stray], "QuorumAtRisk").await
    })
    .await;
}
