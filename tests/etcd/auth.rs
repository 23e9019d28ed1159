//! Clusters that ask for a user.
//!
//! Who may ask for what changed in patch releases. Of those that are run here, 3.4 tells its status and its members to
//! anybody, the others to any user.

use etcd_guard::{
    etcd::{self, Cause, ClientIdentity, Connections, Endpoint, Reply},
    guard::{Policy, Reason, assess::assess, snapshot::MemberPod},
};

use crate::{
    etcd_cluster::{Cluster, GUEST, Layout, PASSWORD, soon},
    support::in_time::in_time,
};

/// Judges the leader and a follower of a healthy cluster.
async fn assert_judged(cluster: &Cluster, connections: &Connections, case: &str) {
    let snapshot = cluster.look_at_all(connections).await;
    let mut reasons: Vec<Reason> =
        snapshot.pods.iter().map(|pod| assess(&snapshot, pod, &Policy::default()).reason).collect();
    reasons.sort_by_key(|reason| *reason != Reason::LeaderProtected);
    let replies: Vec<&Reply> = snapshot.pods.iter().map(|pod| &pod.reply).collect();
    let expected = [Reason::LeaderProtected, Reason::SafeToDelete, Reason::SafeToDelete];
    assert_eq!(reasons, expected, "{case}: {replies:?}");
}

/// Judges all members of a cluster that says nothing to this client.
async fn assert_rejected(cluster: &Cluster, connections: &Connections, words: &str) {
    let is_late =
        |pod: &MemberPod| matches!(pod.reply.cause(), Some(Cause::TimedOut(_) | Cause::LoginTimedOut(_)));
    let mut snapshot = cluster.look(connections).await;
    // A refused login takes as much computing as a good one, and on a busy machine more time than there is.
    for _ in 0..20 {
        if !snapshot.pods.iter().any(is_late) {
            break;
        }
        snapshot = cluster.look(connections).await;
    }
    for pod in &snapshot.pods {
        assert_eq!(
            assess(&snapshot, pod, &Policy::default()).reason,
            Reason::CredentialsRejected,
            "{:?}",
            pod.reply
        );
        let Reply::Silent { cause: Cause::CredentialsRejected(why) } = &pod.reply else {
            panic!("{}: {:?}", pod.name, pod.reply)
        };
        assert!(why.contains(words), "{why}");
    }
}

/// Looks once, over connections that were made for another time. On a busy machine a login may be late, but it is tried.
async fn assert_reconnects(cluster: &Cluster, connections: &Connections) {
    for pod in cluster.look(connections).await.pods {
        assert!(!matches!(pod.reply.cause(), Some(Cause::CredentialsRejected(_))), "{:?}", pod.reply);
    }
}

on_every_version! {
    /// Edge case 16: what a user may read does not matter. A refusal comes after the read index, and proves as much as a value.
    async fn root_and_a_guest_are_answered_alike(version) {
        let mut cluster = Cluster::of_three(version).await;
        cluster.switch_auth_on().await;
        for name in ["root", GUEST] {
            cluster.log_in_as(name, PASSWORD);
            let connections = Connections::new();
            assert_judged(&cluster, &connections, &format!("{name}, new connections")).await;
            assert_judged(&cluster, &connections, &format!("{name}, kept connections")).await;
        }
    }

    /// Edge case 16: nobody.
    async fn without_a_user_releases_that_tell_their_status_to_anybody_are_judged(version) {
        let mut cluster = Cluster::of_three(version).await;
        cluster.switch_auth_on().await;
        if version == "3.4" {
            assert_judged(&cluster, &Connections::new(), "nobody").await;
        } else {
            assert_rejected(&cluster, &Connections::new(), "user name is empty: it serves reads, but does not tell its status").await;
        }
    }

    /// Edge case 16: a wrong password.
    async fn a_wrong_password_is_named(version) {
        let mut cluster = Cluster::of_three(version).await;
        cluster.switch_auth_on().await;
        cluster.log_in_as("root", "wrong horse");
        assert_rejected(&cluster, &Connections::new(), "invalid user ID or password").await;
        cluster.log_in_as("nobody", PASSWORD);
        assert_rejected(&cluster, &Connections::new(), "invalid user ID or password").await;
    }

    /// Edge case 16: authentication off, with a user set.
    async fn a_user_does_no_harm_where_there_are_none_and_is_used_once_there_are(version) {
        let mut cluster = Cluster::of_three(version).await;
        cluster.log_in_as("root", PASSWORD);
        let connections = Connections::new();
        assert_judged(&cluster, &connections, "authentication off").await;
        cluster.switch_auth_on().await;
        assert_reconnects(&cluster, &connections).await;
        assert_judged(&cluster, &connections, "authentication just switched on").await;
    }

    /// Edge case 16: tokens end after five minutes, and with the authentication that they were made for.
    async fn a_token_that_is_no_longer_good_is_replaced(version) {
        let mut cluster = Cluster::of_three(version).await;
        cluster.switch_auth_on().await;
        cluster.log_in_as(GUEST, PASSWORD);
        let connections = Connections::new();
        assert_judged(&cluster, &connections, "first token").await;
        cluster.switch_auth_off().await;
        cluster.switch_auth_on().await;
        assert_reconnects(&cluster, &connections).await;
        assert_judged(&cluster, &connections, "second token").await;
    }

    /// Edge case 16: a login is a raft proposal, and without a quorum it hangs for seven seconds.
    async fn a_login_without_a_quorum_costs_a_denial_in_time(version) {
        let mut cluster = Cluster::of_three(version).await;
        cluster.switch_auth_on().await;
        cluster.log_in_as("root", PASSWORD);
        let followers = cluster.followers().await;
        let leader = cluster.leader().await;
        cluster.kill(followers[0]);
        cluster.kill(followers[1]);
        let snapshot = in_time(async || cluster.look(&Connections::new()).await).await;
        let reply = &snapshot.pods[leader].reply;
        assert!(matches!(reply.cause(), Some(Cause::LoginTimedOut(_) | Cause::NoLeader)), "{reply:?}");
        assert_eq!(assess(&snapshot, &snapshot.pods[leader], &Policy::default()).reason, Reason::QuorumLost, "{reply:?}");
        assert_eq!(assess(&snapshot, &snapshot.pods[followers[0]], &Policy::default()).reason, Reason::MemberNotServing);
    }

    /// The user is the certificate's common name; the client of these clusters is root.
    async fn a_certificate_names_the_user(version) {
        let mut cluster = Cluster::start(Layout { version, members: 3, spare: 0, tls: true }).await;
        cluster.switch_auth_on().await;
        assert_judged(&cluster, &Connections::new(), "certificate of root").await;
    }

    async fn a_certificate_of_another_ca_is_named(version) {
        let cluster = Cluster::start(Layout { version, members: 3, spare: 0, tls: true }).await;
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = rcgen::CertificateParams::new(Vec::new()).unwrap().self_signed(&key).unwrap();
        let forged = ClientIdentity {
            certificate: certificate.pem().into_bytes().into(),
            key: key.serialize_pem().into_bytes().into(),
        };
        let with = |identity: &ClientIdentity| -> Vec<Endpoint> {
            let mut endpoints = cluster.endpoints();
            for tls in endpoints.iter_mut().filter_map(|it| it.tls.as_mut()) {
                tls.identity = Some(identity.clone());
            }
            endpoints
        };
        for reply in etcd::probe(&Connections::new(), &with(&forged), soon()).await {
            let Reply::Silent { cause } = reply else { panic!("{reply:?}") };
            assert!(!cause.is_silence(), "somebody lives there: {cause}");
        }
        let mut strangers = cluster.endpoints();
        for tls in strangers.iter_mut().filter_map(|it| it.tls.as_mut()) {
            tls.ca = Some(certificate.pem().into_bytes().into());
        }
        for reply in etcd::probe(&Connections::new(), &strangers, soon()).await {
            assert!(matches!(&reply, Reply::Silent { cause: Cause::Tls(_) }), "{reply:?}");
        }
    }
}
