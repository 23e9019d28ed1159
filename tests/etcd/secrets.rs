//! Clusters with TLS and users whose credentials come from Secrets.

use serde_json::{Value, json};

use crate::{
    etcd_cluster::{Cluster, Layout, PASSWORD},
    scene::{Scene, forbidden, pod, secret},
};

#[tokio::test]
async fn certificates_come_from_a_secret_that_is_found_by_name() {
    let cluster = Cluster::start(Layout { version: "3.6", members: 3, spare: 0, tls: true }).await;
    let pods: Vec<Value> = (0..3).map(|n| pod(&cluster, n)).collect();
    let (leader, follower) = (&pods[cluster.leader().await], &pods[cluster.followers().await[0]]);
    let scene = Scene::before(&pods).await;
    let path = "/api/v1/namespaces/prod/secrets/etcd-client-tls";

    scene.objects.put(path, 403, forbidden());
    let (reason, message) = scene.ask(follower).await;
    assert_eq!(reason, "CredentialsRejected", "{message}");
    let words =
        "the guard may not read Secret prod/etcd-client-tls: apply Role etcd-guard-secrets in namespace prod";
    assert!(message.contains(words), "{message}");

    // The Role was applied: the next try reads anew.
    let (ca, certificate, key) = cluster.client_files();
    scene.objects.put(path, 200, secret(&[("ca.crt", ca), ("tls.crt", certificate), ("tls.key", key)]));
    assert_eq!(scene.ask(leader).await.0, "LeaderProtected");
    assert_eq!(scene.ask(follower).await.0, "SafeToDelete");

    // Somebody deletes the follower's claim: its pod is all that keeps it.
    let claim = format!("data-{}", follower["metadata"]["name"].as_str().unwrap());
    let deleted = json!({"metadata": {"name": claim, "deletionTimestamp": "2026-01-01T00:00:00Z"}});
    scene.objects.put(&format!("/api/v1/namespaces/prod/persistentvolumeclaims/{claim}"), 200, deleted);
    let (reason, message) = scene.ask(follower).await;
    assert_eq!(reason, "PermanentLoss", "{message}");
    assert!(message.contains("goes with it"), "{message}");
}

/// The member that is missing among the pods runs in another namespace. Edge cases 13 and 16.
#[tokio::test]
async fn a_password_comes_from_an_annotated_secret_and_reaches_members_without_a_pod() {
    let mut cluster = Cluster::of_three("3.6").await;
    let (leader, followers) = (cluster.leader().await, cluster.followers().await);
    cluster.switch_auth_on().await;
    let mut pods: Vec<Value> = [leader, followers[0]].map(|n| pod(&cluster, n)).into();
    for pod in &mut pods {
        pod["metadata"]["annotations"] = json!({"etcd-guard.io/auth-secret": "etcd-guard-user"});
    }
    let scene = Scene::before(&pods).await;
    let path = "/api/v1/namespaces/prod/secrets/etcd-guard-user";

    let (reason, message) = scene.ask(&pods[1]).await;
    assert_eq!(reason, "CredentialsRejected", "{message}");
    assert!(message.contains("Secret prod/etcd-guard-user does not exist"), "{message}");

    scene.objects.put(path, 200, secret(&[("username", b"root"), ("password", b"wrong horse")]));
    let (reason, message) = scene.ask(&pods[1]).await;
    assert_eq!(reason, "CredentialsRejected", "{message}");
    assert!(message.contains("invalid user ID or password") && !message.contains("wrong horse"), "{message}");

    scene.objects.put(path, 200, secret(&[("username", b"root"), ("password", PASSWORD.as_bytes())]));
    assert_eq!(scene.ask(&pods[1]).await.0, "SafeToDelete");
    assert_eq!(scene.ask(&pods[0]).await.0, "LeaderProtected");
    cluster.kill(followers[1]);
    assert_eq!(scene.ask(&pods[1]).await.0, "QuorumAtRisk");
}
