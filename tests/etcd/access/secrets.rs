//! Clusters with TLS and users whose credentials are stored in Secrets.

use serde_json::{Value, json};

use crate::{
    cluster::{Cluster, GUEST, Layout, PASSWORD},
    guarded_cluster::{GuardedPods, annotated_pod, forbidden, pod, secret},
};

/// The denial names the Secret, and the answers of the admin port do not.
#[tokio::test]
async fn reads_certificates_from_secret_with_known_name() {
    let cluster = Cluster::start(Layout { version: "3.6", members: 3, spare: 0, tls: true }).await;
    let pods: Vec<Value> = (0..3).map(|n| pod(&cluster, n)).collect();
    let (leader, follower) = (&pods[cluster.leader().await], &pods[cluster.followers().await[0]]);
    let guarded = GuardedPods::start(&pods).await;
    let path = "/api/v1/namespaces/prod/secrets/etcd-client-tls";

    guarded.objects.put(path, 403, forbidden());
    let message = guarded.expect_dry_run(follower, "CredentialsRejected").await;
    let expected = "the guard is not allowed to read Secret prod/etcd-client-tls: apply the Role that kubectl etcd-guard inspect --role prints";
    assert!(message.contains(expected), "{message}");
    for answer in [guarded.check(follower).await, guarded.status().await] {
        assert!(
            answer.contains("is not allowed to read a Secret in namespace prod: apply the Role"),
            "{answer}"
        );
        assert!(!answer.contains("etcd-client-tls"), "{answer}");
    }
    let scale_down = guarded.expect_scale_down((3, 2), "CredentialsRejected").await;
    for denial in [&message, &scale_down] {
        assert!(denial.contains(expected), "{denial}");
        assert!(denial.contains(": kubectl etcd-guard inspect -n prod etcd-"), "{denial}");
        assert!(denial.contains(" --role | kubectl apply -f -\n"), "{denial}");
    }

    // After the Role is applied, the next request reads the Secret again.
    let (ca, certificate, key) = cluster.client_files();
    guarded.objects.put(path, 200, secret(&[("ca.crt", ca), ("tls.crt", certificate), ("tls.key", key)]));
    guarded.expect_dry_run(leader, "LeaderProtected").await;
    guarded.expect_dry_run(follower, "SafeToDelete").await;
    guarded.expect_scale_down((3, 2), "IntentHarmless").await;

    // The claim is deleted, and only the pod still protects it.
    let claim = format!("data-{}", follower["metadata"]["name"].as_str().unwrap());
    let deleted = json!({"metadata": {"name": claim, "deletionTimestamp": "2026-01-01T00:00:00Z"}});
    guarded.objects.put(&format!("/api/v1/namespaces/prod/persistentvolumeclaims/{claim}"), 200, deleted);
    let message = guarded.expect_dry_run(follower, "PermanentLoss").await;
    assert!(message.contains("is deleted as well"), "{message}");
}

/// The member without a visible pod runs in another namespace.
#[tokio::test]
async fn uses_annotated_password_for_members_without_pod() {
    let mut cluster = Cluster::three_members("3.6").await;
    let (leader, followers) = (cluster.leader().await, cluster.followers().await);
    cluster.enable_auth().await;
    let mut pods: Vec<Value> = [leader, followers[0]].map(|n| pod(&cluster, n)).into();
    for pod in &mut pods {
        pod["metadata"]["annotations"] = json!({"etcd-guard.io/auth-secret": "etcd-guard-user"});
    }
    let guarded = GuardedPods::start(&pods).await;
    let path = "/api/v1/namespaces/prod/secrets/etcd-guard-user";

    let message = guarded.expect_dry_run(&pods[1], "CredentialsRejected").await;
    assert!(message.contains("Secret prod/etcd-guard-user does not exist"), "{message}");

    guarded.objects.put(path, 200, secret(&[("username", b"root"), ("password", b"wrong horse")]));
    let message = guarded.expect_dry_run(&pods[1], "CredentialsRejected").await;
    assert!(message.contains("invalid user ID or password") && !message.contains("wrong horse"), "{message}");

    guarded.objects.put(path, 200, secret(&[("username", b"root"), ("password", PASSWORD.as_bytes())]));
    guarded.expect_dry_run(&pods[1], "SafeToDelete").await;
    guarded.expect_dry_run(&pods[0], "LeaderProtected").await;
    cluster.kill(followers[1]);
    guarded.expect_dry_run(&pods[1], "QuorumAtRisk").await;
}

/// etcd permits root alone to move leadership.
#[tokio::test]
async fn denial_names_the_role_that_a_move_requires() {
    let mut cluster = Cluster::three_members("3.6").await;
    let leader = cluster.leader().await;
    cluster.enable_auth().await;
    let annotations =
        [("etcd-guard.io/auth-secret", "etcd-guard-user"), ("etcd-guard.io/leader", "transfer")];
    let pods: Vec<Value> = (0..3).map(|n| annotated_pod(&cluster, n, &annotations)).collect();
    let guarded = GuardedPods::start(&pods).await;
    let path = "/api/v1/namespaces/prod/secrets/etcd-guard-user";
    guarded.objects.put(
        path,
        200,
        secret(&[("username", GUEST.as_bytes()), ("password", PASSWORD.as_bytes())]),
    );
    let message = guarded.expect_deletion(&pods[leader], "TransferFailed").await;
    let expected = format!(
        "Give it to the user of the guard, {GUEST}, as root: kubectl -n prod exec -it etcd-{leader} "
    );
    assert!(message.contains(&expected), "{message}");
    assert!(message.contains(&format!("--user=root user grant-role {GUEST} root\n")), "{message}");
    cluster.log_in_as("root", PASSWORD);
    assert_eq!(cluster.leader().await, leader);
}
