//! Clusters that require TLS and client certificates.

use etcd_guard_core::etcd::{error::MemberError, probe_result::ProbeResult};
use etcd_guard_etcd as etcd;
use etcd_guard_etcd::Connections;

use serde_json::{Value, json};

use crate::{
    cluster::{Cluster, Layout, START_TIMEOUT},
    guarded_cluster::{GuardedPods, pod, secret},
    snapshots::{probe_deadline, probe_until_settled},
};
use test_support::{deadline::within_deadline, wait::wait_until};

async fn three_members(version: &'static str) -> Cluster {
    Cluster::start(Layout { version, members: 3, spare: 0, tls: true }).await
}

on_every_version! {
    async fn names_missing_client_certificate(version) {
        let cluster = three_members(version).await;
        let mut endpoints = cluster.endpoints();
        for tls in endpoints.iter_mut().filter_map(|endpoint| endpoint.tls.as_mut()) {
            tls.identity = None;
        }
        for reply in probe_until_settled(&endpoints).await {
            let ProbeResult::NoStatus { cause } = reply else { panic!("a client without a certificate was accepted: {reply:?}") };
            assert!(cause.to_string().ends_with("(over TLS, without a client certificate)"), "{cause}");
        }
    }

    /// Etcd's own certificate names 0.0.0.0 or its listen address, and its key is on the curve P-521.
    async fn accepts_own_certificates_by_annotation(version) {
        let cluster = Cluster::start_with_own_certificates(version).await;
        let mut pods: Vec<Value> = (0..3).map(|n| pod(&cluster, n)).collect();
        for pod in &mut pods {
            let command = &mut pod["spec"]["containers"][0]["command"];
            command.as_array_mut().unwrap().retain(|word| !word.as_str().unwrap().contains("-file="));
            command.as_array_mut().unwrap().push(json!("--auto-tls"));
        }
        let (leader, follower) = (cluster.leader().await, cluster.followers().await[0]);
        let guarded = GuardedPods::start(&pods).await;
        let message = guarded.expect_dry_run(&pods[follower], "CredentialsRejected").await;
        assert!(message.contains("etcd-guard.io/accept-auto-tls=true"), "{message}");

        for pod in &mut pods {
            pod["metadata"]["annotations"]["etcd-guard.io/accept-auto-tls"] = json!("true");
        }
        let guarded = GuardedPods::start(&pods).await;
        guarded.expect_dry_run(&pods[leader], "LeaderProtected").await;
        guarded.expect_dry_run(&pods[follower], "SafeToDelete").await;
    }

    /// The client library does not limit the time of a TLS handshake with a frozen member.
    async fn limits_tls_handshake_with_frozen_member(version) {
        let cluster = three_members(version).await;
        let follower = cluster.followers().await[0];
        cluster.freeze(follower).await;
        let results =
            within_deadline(async || etcd::probe(&Connections::new(), &cluster.endpoints(), probe_deadline()).await).await;
        assert!(matches!(results[follower], ProbeResult::NoStatus { cause: MemberError::TimedOut(_) }), "{:?}", results[follower]);
    }
}

/// Returns the pod of a member that serves clients over plain HTTP.
fn plain_pod(cluster: &Cluster, n: usize) -> Value {
    let mut pod = pod(cluster, n);
    let command = pod["spec"]["containers"][0]["command"].as_array_mut().unwrap();
    command.retain(|argument| !argument.as_str().unwrap().contains("/tls/"));
    for argument in command {
        *argument = json!(argument.as_str().unwrap().replace("https://", "http://"));
    }
    pod
}

/// At each step of the rollout, the next member can be deleted.
#[tokio::test]
async fn tls_is_enabled_member_by_member() {
    let mut cluster = three_members("3.6").await;
    for n in 0..3 {
        cluster.kill(n);
        cluster.set_client_scheme(n, "http");
    }
    for n in 0..3 {
        cluster.restart(n);
    }
    let mut pods: Vec<Value> = (0..3).map(|n| plain_pod(&cluster, n)).collect();
    let guarded = GuardedPods::start(&pods).await;
    let (ca, certificate, key) = cluster.client_files();
    let credentials = secret(&[("ca.crt", ca), ("tls.crt", certificate), ("tls.key", key)]);
    guarded.objects.put("/api/v1/namespaces/prod/secrets/etcd-client-tls", 200, credentials);
    let is_deletable = async |pod: &Value| {
        // The evaluation of a leader ends with this reason if all other requirements are met.
        ["SafeToDelete", "LeaderProtected"].contains(&guarded.dry_run(pod).await.0.as_str())
    };
    for n in 0..3 {
        wait_until("the next member can be deleted", START_TIMEOUT, async || is_deletable(&pods[n]).await)
            .await;
        cluster.kill(n);
        cluster.set_client_scheme(n, "https");
        cluster.restart(n);
        pods[n] = pod(&cluster, n);
        pods[n]["metadata"]["uid"] = json!(format!("uid-{n}-tls"));
        guarded.objects.put("/api/v1/namespaces/prod/pods", 200, json!({"items": pods}));
    }
    for pod in &pods {
        wait_until("all members serve over TLS", START_TIMEOUT, async || is_deletable(pod).await).await;
    }
}
