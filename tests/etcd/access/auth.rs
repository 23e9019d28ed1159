//! Clusters with authentication.
//!
//! The permissions for status and member list changed in patch releases. Of the release lines here, 3.4 returns both
//! without a user, the others to any user. Some patch releases return the status only to root.

use std::{collections::BTreeSet, time::Instant};

use etcd_guard_core::{
    assess::assess,
    etcd::{
        endpoint::{ClientIdentity, Endpoint},
        error::MemberError,
        probe_result::ProbeResult,
    },
    policy::Policy,
    reason::Reason,
};
use etcd_guard_etcd::Connections;

use crate::{
    cluster::{Cluster, GUEST, Layout, PASSWORD, START_TIMEOUT},
    snapshots::probe_until_settled,
};

/// Asserts the verdicts for the leader and the followers of a healthy cluster.
async fn assert_verdicts(cluster: &Cluster, connections: &Connections, case: &str) {
    let snapshot = cluster.healthy_snapshot(connections).await;
    let mut reasons: Vec<Reason> =
        snapshot.pods.iter().map(|pod| assess(&snapshot, pod, &Policy::default()).reason).collect();
    reasons.sort_by_key(|reason| *reason != Reason::LeaderProtected);
    let replies: Vec<&ProbeResult> = snapshot.pods.iter().map(|pod| &pod.reply).collect();
    let expected = [Reason::LeaderProtected, Reason::SafeToDelete, Reason::SafeToDelete];
    assert_eq!(reasons, expected, "{case}: {replies:?}");
}

/// Asserts that all members reject this client. A rejected login costs as much computation as a successful one, and may
/// time out on a busy machine, so several snapshots may be needed.
async fn assert_rejected(cluster: &Cluster, connections: &Connections, words: &str) {
    let deadline = Instant::now() + START_TIMEOUT;
    let mut rejected = BTreeSet::new();
    while rejected.len() < 3 {
        assert!(Instant::now() < deadline, "only {rejected:?} were rejected");
        let snapshot = cluster.snapshot(connections).await;
        let mut is_rejected = false;
        for pod in &snapshot.pods {
            match &pod.reply {
                ProbeResult::NoStatus { cause: MemberError::CredentialsRejected(cause) } => {
                    assert!(cause.contains(words), "{cause}");
                    rejected.insert(pod.name.clone());
                    is_rejected = true;
                }
                reply => assert!(
                    matches!(reply.cause(), Some(MemberError::TimedOut(_) | MemberError::LoginTimedOut(_))),
                    "{}: {reply:?}",
                    pod.name
                ),
            }
        }
        for pod in snapshot.pods.iter().filter(|_| is_rejected) {
            let reason = assess(&snapshot, pod, &Policy::default()).reason;
            assert_eq!(reason, Reason::CredentialsRejected, "{:?}", pod.reply);
        }
    }
}

/// Takes a snapshot with existing connections. On a busy machine a login may be late, but it must not be rejected.
async fn assert_reconnects(cluster: &Cluster, connections: &Connections) {
    for pod in cluster.snapshot(connections).await.pods {
        assert!(!matches!(pod.reply.cause(), Some(MemberError::CredentialsRejected(_))), "{:?}", pod.reply);
    }
}

on_every_version! {
    /// The permissions of the user are irrelevant. etcd denies a read after the read index, which proves
    /// as much as a value.
    async fn assesses_alike_for_root_and_guest(version) {
        let mut cluster = Cluster::three_members(version).await;
        cluster.enable_auth().await;
        for name in ["root", GUEST] {
            cluster.log_in_as(name, PASSWORD);
            let connections = Connections::new();
            assert_verdicts(&cluster, &connections, &format!("{name}, new connections")).await;
            assert_verdicts(&cluster, &connections, &format!("{name}, reused connections")).await;
        }
    }

    /// No user.
    async fn assesses_without_user_if_status_is_public(version) {
        let mut cluster = Cluster::three_members(version).await;
        cluster.enable_auth().await;
        if version == "3.4" {
            assert_verdicts(&cluster, &Connections::new(), "no user").await;
        } else {
            assert_rejected(&cluster, &Connections::new(), "user name is empty: the member serves reads, but does not return its status").await;
        }
    }

    /// A wrong password.
    async fn names_rejected_credentials(version) {
        let mut cluster = Cluster::three_members(version).await;
        cluster.enable_auth().await;
        cluster.log_in_as("root", "wrong horse");
        assert_rejected(&cluster, &Connections::new(), "invalid user ID or password").await;
        cluster.log_in_as("unknown", PASSWORD);
        assert_rejected(&cluster, &Connections::new(), "invalid user ID or password").await;
    }

    /// Authentication is off, and a user is configured.
    async fn uses_configured_user_once_auth_is_enabled(version) {
        let mut cluster = Cluster::three_members(version).await;
        cluster.log_in_as("root", PASSWORD);
        let connections = Connections::new();
        assert_verdicts(&cluster, &connections, "authentication off").await;
        cluster.enable_auth().await;
        assert_reconnects(&cluster, &connections).await;
        assert_verdicts(&cluster, &connections, "authentication just switched on").await;
    }

    /// Tokens expire after five minutes, and when authentication is disabled.
    async fn replaces_expired_token(version) {
        let mut cluster = Cluster::three_members(version).await;
        cluster.enable_auth().await;
        cluster.log_in_as(GUEST, PASSWORD);
        let connections = Connections::new();
        assert_verdicts(&cluster, &connections, "first token").await;
        cluster.disable_auth().await;
        cluster.enable_auth().await;
        assert_reconnects(&cluster, &connections).await;
        assert_verdicts(&cluster, &connections, "second token").await;
    }

    /// A login is a raft proposal, which blocks for seven seconds without a quorum.
    async fn denies_in_time_if_login_has_no_quorum(version) {
        let mut cluster = Cluster::three_members(version).await;
        cluster.enable_auth().await;
        cluster.log_in_as("root", PASSWORD);
        let followers = cluster.followers().await;
        let leader = cluster.leader().await;
        cluster.kill(followers[0]);
        cluster.kill(followers[1]);
        let snapshot = cluster.settle_in_time(Connections::new).await;
        let reply = &snapshot.pods[leader].reply;
        assert!(matches!(reply.cause(), Some(MemberError::LoginTimedOut(_) | MemberError::NoLeader)), "{reply:?}");
        assert_eq!(assess(&snapshot, &snapshot.pods[leader], &Policy::default()).reason, Reason::QuorumLost, "{reply:?}");
        assert_eq!(assess(&snapshot, &snapshot.pods[followers[0]], &Policy::default()).reason, Reason::MemberNotServing);
    }

    /// The user is the common name of the certificate; the client of these clusters is root.
    async fn certificate_identifies_user(version) {
        let mut cluster = Cluster::start(Layout { version, members: 3, spare: 0, tls: true }).await;
        cluster.enable_auth().await;
        assert_verdicts(&cluster, &Connections::new(), "certificate of root").await;
    }

    async fn names_certificate_of_another_ca(version) {
        let cluster = Cluster::start(Layout { version, members: 3, spare: 0, tls: true }).await;
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = rcgen::CertificateParams::new(Vec::new()).unwrap().self_signed(&key).unwrap();
        let forged = ClientIdentity {
            certificate: certificate.pem().into_bytes().into(),
            key: key.serialize_pem().into_bytes().into(),
        };
        let with = |identity: &ClientIdentity| -> Vec<Endpoint> {
            let mut endpoints = cluster.endpoints();
            for tls in endpoints.iter_mut().filter_map(|endpoint| endpoint.tls.as_mut()) {
                tls.identity = Some(identity.clone());
            }
            endpoints
        };
        for reply in probe_until_settled(&with(&forged)).await {
            let ProbeResult::NoStatus { cause } = reply else { panic!("{reply:?}") };
            assert!(!cause.is_unanswered(), "the member counts as not serving: {cause}");
        }
        let mut strangers = cluster.endpoints();
        for tls in strangers.iter_mut().filter_map(|endpoint| endpoint.tls.as_mut()) {
            tls.ca = Some(certificate.pem().into_bytes().into());
        }
        for reply in probe_until_settled(&strangers).await {
            assert!(matches!(&reply, ProbeResult::NoStatus { cause: MemberError::Tls(_) }), "{reply:?}");
        }
    }
}

/// The last of the releases 3.5.28 to 3.5.31 and 3.6.0 to 3.6.11, which return the status only to root.
const STATUS_FOR_ROOT_ONLY: &str = "3.6.11";

/// The denial names the user, although the user's reads succeed.
#[tokio::test]
async fn names_user_without_permission_for_status() {
    let mut cluster = Cluster::three_members(STATUS_FOR_ROOT_ONLY).await;
    cluster.enable_auth().await;
    cluster.log_in_as("root", PASSWORD);
    assert_verdicts(&cluster, &Connections::new(), "root").await;
    cluster.log_in_as(GUEST, PASSWORD);
    let refusal = "permission denied: the member serves reads, but does not return its status to user guest";
    assert_rejected(&cluster, &Connections::new(), refusal).await;
    cluster.user = None;
    let refusal = "user name is empty: the member serves reads, but does not return its status to a client without a user";
    assert_rejected(&cluster, &Connections::new(), refusal).await;
}

/// The user is the common name of the certificate; the client of these clusters is root.
#[tokio::test]
async fn root_certificate_suffices_for_status() {
    let layout = Layout { version: STATUS_FOR_ROOT_ONLY, members: 3, spare: 0, tls: true };
    let mut cluster = Cluster::start(layout).await;
    cluster.enable_auth().await;
    assert_verdicts(&cluster, &Connections::new(), "certificate of root").await;
}
