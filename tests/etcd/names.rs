//! Which member is which: names that say nothing, clusters that look like one, and clusters that are hardly any.

use etcd_guard::{
    etcd::{Connections, MemberId},
    guard::{Permission, Policy, Reason, assess::assess, snapshot::Snapshot},
};

use crate::{
    etcd_cluster::{Cluster, Layout, START_LIMIT},
    support::wait::some,
};

fn member(snapshot: &Snapshot, n: usize) -> Option<MemberId> {
    assess(snapshot, &snapshot.pods[n], &Policy::default()).member
}

on_every_version! {
    /// Edge case 14: a prefix before every name, a name that two members have, and one that has none yet.
    async fn members_are_known_whatever_their_names(version) {
        let layout = Layout { version, members: 3, spare: 2, tls: false };
        let mut cluster = Cluster::start_named(layout, |n| format!("prefix-etcd-{n}")).await;
        let connections = Connections::new();
        let mut client = cluster.client(0).await;
        let mut added = Vec::new();
        for (n, name) in [(3, Some("prefix-etcd-0")), (4, None)] {
            cluster.add(&mut client, n).await;
            if let Some(name) = name {
                cluster.rename(n, name, &[(0, "other")]);
                cluster.restart(n);
                cluster.wait_until_serving(n).await;
            }
            let list = client.member_list().await.unwrap();
            let own = |it: &&etcd_client::Member| it.peer_urls() == [cluster.peer_url(n)];
            let listed = list.members().iter().find(own).unwrap();
            assert_eq!(listed.name(), name.unwrap_or_default());
            added.push(MemberId(listed.id()));
        }
        let answered: Vec<_> = some("all four serve", START_LIMIT, async || {
                let snapshot = cluster.look(&connections).await;
                let ids: Vec<_> =
                    snapshot.pods[..4].iter().filter_map(|it| it.reply.status().map(|it| it.member_id)).collect();
                let serving = assess(&snapshot, &snapshot.pods[0], &Policy::default()).tally.is_some_and(|it| it.healthy == 4);
                (serving && ids.len() == 4).then_some(ids)
            })
            .await;
        assert_eq!(answered[3], added[0]);
        // The twin of a name, and the nameless one, are known while nothing answers for them.
        cluster.kill(3);
        let snapshot = cluster.look(&connections).await;
        let known: Vec<_> = (0..5).map(|n| member(&snapshot, n)).collect();
        let expected: Vec<_> = answered.iter().chain([&added[1]]).copied().map(Some).collect();
        assert_eq!(known, expected);
    }

    /// Edge case 15.
    async fn two_clusters_behind_one_selector_are_told_apart_and_nobody_goes(version) {
        let (one, other) = (Cluster::of_three(version).await, Cluster::of_one(version).await);
        let connections = Connections::new();
        let mut snapshot = one.look_at_all(&connections).await;
        let mut stranger = other.look_at_all(&connections).await.pods.remove(0);
        stranger.name = String::from("etcd-3");
        snapshot.pods.push(stranger);
        for pod in &snapshot.pods {
            let assessment = assess(&snapshot, pod, &Policy::default());
            assert_eq!(assessment.reason, Reason::SplitCluster, "{}", pod.name);
            assert_eq!(assessment.clusters.len(), 2);
        }
    }

    /// Edge case 25.
    async fn of_one_or_two_members_none_is_to_spare(version) {
        let lone = Cluster::of_one(version).await;
        let snapshot = lone.look_at_all(&Connections::new()).await;
        assert_eq!(assess(&snapshot, &snapshot.pods[0], &Policy::default()).reason, Reason::SingleMember);
        let allowed = Policy { single_member: Permission::Allow, ..Policy::default() };
        assert_eq!(assess(&snapshot, &snapshot.pods[0], &allowed).reason, Reason::SingleMemberAllowed);

        let two = Cluster::start(Layout { version, members: 2, spare: 0, tls: false }).await;
        let snapshot = two.look_at_all(&Connections::new()).await;
        for pod in &snapshot.pods {
            let assessment = assess(&snapshot, pod, &allowed);
            assert_eq!(assessment.reason, Reason::QuorumAtRisk, "{}", pod.name);
            let tally = assessment.tally.unwrap();
            assert_eq!((tally.voters, tally.quorum, tally.remaining), (2, 2, 1));
        }
    }
}
