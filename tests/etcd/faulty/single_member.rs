//! Deletions of single members that do not answer, by the whole program.

use etcd_guard_etcd::Connections;
use serde_json::{Value, json};

use crate::{
    cluster::{Cluster, Layout},
    guarded_cluster::{GuardedPods, annotated_pod, secret},
};

const STATEFUL_SET: &str = "/apis/apps/v1/namespaces/prod/statefulsets/etcd";
const PODS: &str = "/api/v1/namespaces/prod/pods";

/// Returns the pod of the first member, with the policy and these initial members.
fn allowed_pod(cluster: &Cluster, initial: &str) -> Value {
    let mut pod = annotated_pod(cluster, 0, &[("etcd-guard.io/single-member", "allow")]);
    let command = pod["spec"]["containers"][0]["command"].as_array_mut().unwrap();
    command.push(json!(format!("--initial-cluster={initial}")));
    pod
}

fn stateful_set(replicas: u32) -> Value {
    json!({"metadata": {"name": "etcd", "uid": "set"}, "spec": {"replicas": replicas}})
}

on_every_version! {
    async fn frozen_single_member_is_deleted_with_evidence(version) {
        let cluster = Cluster::single_member(version).await;
        let alone = format!("etcd-0={}", cluster.peer_url(0));
        let pod = allowed_pod(&cluster, &alone);
        let guarded = GuardedPods::start(std::slice::from_ref(&pod)).await;
        guarded.objects.put(STATEFUL_SET, 200, stateful_set(1));
        cluster.freeze(0).await;
        guarded.expect_deletion(&pod, "SingleMemberAllowed").await;

        guarded.objects.put(STATEFUL_SET, 200, stateful_set(3));
        guarded.expect_deletion(&pod, "EtcdUnreachable").await;
        guarded.objects.put(STATEFUL_SET, 200, stateful_set(1));
        let several = allowed_pod(&cluster, &format!("{alone},etcd-1=http://etcd-1.etcd:2380"));
        guarded.objects.put(PODS, 200, json!({"items": [several]}));
        guarded.expect_deletion(&several, "EtcdUnreachable").await;
        // A member of another owner that joined later, and does not answer.
        let mut joined = allowed_pod(&cluster, &format!("{alone},other-0=http://other-0.other:2380"));
        joined["metadata"]["name"] = json!("other-0");
        joined["metadata"]["uid"] = json!("uid-other");
        joined["metadata"]["ownerReferences"][0]["uid"] = json!("other");
        joined["metadata"]["ownerReferences"][0]["name"] = json!("other");
        guarded.objects.put(PODS, 200, json!({"items": [pod, joined]}));
        guarded.expect_deletion(&pod, "EtcdUnreachable").await;
        guarded.objects.put(PODS, 200, json!({"items": [pod]}));
        guarded.expect_deletion(&pod, "SingleMemberAllowed").await;
        cluster.thaw(0);
    }

    /// The guard has seen more voters, although all objects describe a single member.
    async fn frozen_member_of_a_grown_cluster_is_not_deleted(version) {
        let cluster = Cluster::start(Layout { version, members: 3, spare: 0, tls: false }).await;
        let pod = allowed_pod(&cluster, &format!("etcd-0={}", cluster.peer_url(0)));
        let mut guarded = GuardedPods::start(std::slice::from_ref(&pod)).await;
        guarded.objects.put(STATEFUL_SET, 200, stateful_set(1));
        cluster.healthy_snapshot(&Connections::new()).await;
        let (reason, message) = guarded.dry_run(&pod).await;
        assert!(["SafeToDelete", "LeaderProtected"].contains(&reason.as_str()), "{message}");
        for n in 0..3 {
            cluster.freeze(n).await;
        }
        guarded.expect_deletion(&pod, "EtcdUnreachable").await;
        guarded.restart_after_recording("several_voters").await;
        guarded.expect_deletion(&pod, "EtcdUnreachable").await;
        for n in 0..3 {
            cluster.thaw(n);
        }
    }
}

/// The Secret with the credentials is missing, and then contains the CA of another cluster.
#[tokio::test]
async fn single_member_with_broken_tls_is_deleted_with_evidence() {
    let layout = || Layout { version: "3.6", members: 1, spare: 0, tls: true };
    let (cluster, other) = (Cluster::start(layout()).await, Cluster::start(layout()).await);
    let pod = allowed_pod(&cluster, &format!("etcd-0={}", cluster.peer_url(0)));
    let guarded = GuardedPods::start(std::slice::from_ref(&pod)).await;
    let secret_path = "/api/v1/namespaces/prod/secrets/etcd-client-tls";
    let credentials = |of: &Cluster| {
        let (ca, certificate, key) = of.client_files();
        secret(&[("ca.crt", ca), ("tls.crt", certificate), ("tls.key", key)])
    };
    guarded.objects.put(STATEFUL_SET, 200, stateful_set(3));
    guarded.expect_deletion(&pod, "CredentialsRejected").await;
    guarded.objects.put(STATEFUL_SET, 200, stateful_set(1));
    guarded.expect_deletion(&pod, "SingleMemberAllowed").await;

    guarded.objects.put(secret_path, 200, credentials(&other));
    guarded.expect_deletion(&pod, "SingleMemberAllowed").await;
    guarded.objects.put(STATEFUL_SET, 200, stateful_set(3));
    let (reason, message) = guarded.dry_run(&pod).await;
    assert!(["CredentialsRejected", "EtcdUnreachable"].contains(&reason.as_str()), "{reason}: {message}");

    // A member that answers needs no further evidence.
    guarded.objects.put(secret_path, 200, credentials(&cluster));
    guarded.expect_deletion(&pod, "SingleMemberAllowed").await;
}
