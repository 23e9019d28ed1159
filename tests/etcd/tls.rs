//! Clusters that speak TLS and ask their clients for a certificate.

use etcd_guard::{
    etcd::{self, Cause, Connections, Reply},
    guard::{Policy, Reason, assess::assess},
};

use crate::{
    etcd_cluster::{Cluster, Layout, soon},
    support::in_time::in_time,
};

async fn of_three(version: &'static str) -> Cluster {
    Cluster::start(Layout { version, members: 3, spare: 0, tls: true }).await
}

on_every_version! {
    async fn with_a_client_certificate_the_members_answer(version) {
        let cluster = of_three(version).await;
        let leader = cluster.leader().await;
        let snapshot = cluster.look(&Connections::new()).await;
        assert_eq!(assess(&snapshot, &snapshot.pods[leader], &Policy::default()).reason, Reason::LeaderProtected);
        let follower = cluster.followers().await[0];
        assert_eq!(assess(&snapshot, &snapshot.pods[follower], &Policy::default()).reason, Reason::SafeToDelete);
    }

    async fn without_one_the_cause_is_told(version) {
        let cluster = of_three(version).await;
        let mut strangers = cluster.endpoints();
        for tls in strangers.iter_mut().filter_map(|endpoint| endpoint.tls.as_mut()) {
            tls.identity = None;
        }
        for reply in etcd::probe(&Connections::new(), &strangers, soon()).await {
            let Reply::Silent { cause } = reply else { panic!("a stranger was answered: {reply:?}") };
            assert!(cause.to_string().ends_with("(over TLS, without a client certificate)"), "{cause}");
        }
    }

    /// Edge case 17: the limits of the client itself leave a handshake with a frozen member unbounded.
    async fn a_handshake_with_a_frozen_member_is_given_up_in_time(version) {
        let cluster = of_three(version).await;
        let follower = cluster.followers().await[0];
        cluster.freeze(follower).await;
        let replies =
            in_time(async || etcd::probe(&Connections::new(), &cluster.endpoints(), soon()).await).await;
        assert!(matches!(replies[follower], Reply::Silent { cause: Cause::TimedOut(_) }), "{:?}", replies[follower]);
    }
}
