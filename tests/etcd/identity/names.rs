//! The relation between pods and members with ambiguous names.

use etcd_guard_core::{assess::assess, etcd::member::MemberId, policy::Policy, snapshot::Snapshot};
use etcd_guard_etcd::Connections;

use crate::cluster::{Cluster, Layout, START_TIMEOUT};
use test_support::wait::wait_for;

fn member(snapshot: &Snapshot, n: usize) -> Option<MemberId> {
    assess(snapshot, &snapshot.pods[n], &Policy::default()).member
}

on_every_version! {
    /// Names with a prefix, a name that two members have, and a member without a name.
    async fn identifies_members_with_ambiguous_names(version) {
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
            let own = |member: &&etcd_client::Member| member.peer_urls() == [cluster.peer_url(n)];
            let listed = list.members().iter().find(own).unwrap();
            assert_eq!(listed.name(), name.unwrap_or_default());
            added.push(MemberId(listed.id()));
        }
        let answered: Vec<_> = wait_for("all four serve", START_TIMEOUT, async || {
                let snapshot = cluster.snapshot(&connections).await;
                let ids: Vec<_> =
                    snapshot.pods[..4].iter().filter_map(|pod| pod.reply.status().map(|status| status.member_id)).collect();
                let serving = assess(&snapshot, &snapshot.pods[0], &Policy::default()).tally.is_some_and(|tally| tally.healthy == 4);
                (serving && ids.len() == 4).then_some(ids)
            })
            .await;
        assert_eq!(answered[3], added[0]);
        // The duplicate name and the missing name are resolved without a response of these members.
        cluster.kill(3);
        let snapshot = cluster.settled_snapshot(&connections).await;
        let known: Vec<_> = (0..5).map(|n| member(&snapshot, n)).collect();
        let expected: Vec<_> = answered.iter().chain([&added[1]]).copied().map(Some).collect();
        assert_eq!(known, expected);
    }

}
