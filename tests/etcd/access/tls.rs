//! Clusters that require TLS and client certificates.

use etcd_guard::{
    etcd::{self, Connections, MemberError, ProbeResult},
    guard::{Policy, Reason, assess::assess},
};

use crate::{
    cluster::{Cluster, Layout},
    snapshots::{followers_in, leader_of, probe_deadline, probe_until_settled},
};
use test_support::deadline::within_deadline;

async fn three_members(version: &'static str) -> Cluster {
    Cluster::start(Layout { version, members: 3, spare: 0, tls: true }).await
}

on_every_version! {
    async fn assesses_with_client_certificate(version) {
        let cluster = three_members(version).await;
        let snapshot = cluster.settled_snapshot(&Connections::new()).await;
        let leader = leader_of(&snapshot).unwrap();
        assert_eq!(assess(&snapshot, &snapshot.pods[leader], &Policy::default()).reason, Reason::LeaderProtected);
        let follower = followers_in(&snapshot)[0];
        assert_eq!(assess(&snapshot, &snapshot.pods[follower], &Policy::default()).reason, Reason::SafeToDelete);
    }

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

    /// Edge case 17: the client library does not limit the time of a TLS handshake with a frozen member.
    async fn limits_tls_handshake_with_frozen_member(version) {
        let cluster = three_members(version).await;
        let follower = cluster.followers().await[0];
        cluster.freeze(follower).await;
        let results =
            within_deadline(async || etcd::probe(&Connections::new(), &cluster.endpoints(), probe_deadline()).await).await;
        assert!(matches!(results[follower], ProbeResult::NoStatus { cause: MemberError::TimedOut(_) }), "{:?}", results[follower]);
    }
}
