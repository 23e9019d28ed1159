//! Members of two releases side by side, as in the middle of an upgrade.

use etcd_guard::{
    etcd::{Connections, Reply},
    guard::{Policy, Reason, assess::assess},
};

use crate::etcd_cluster::{Cluster, PASSWORD};

async fn members_of_two_releases_are_judged_as_one_cluster(from: &str, to: &str, cluster: &mut Cluster) {
    let connections = Connections::new();
    for (n, follower) in cluster.followers().await.into_iter().enumerate() {
        cluster.look(&connections).await;
        cluster.kill(follower);
        cluster.upgrade(follower, to);
        cluster.restart(follower);
        cluster.wait_until_serving(follower).await;
        let leader = cluster.leader().await;
        let snapshot = cluster.look_at_all(&connections).await;
        for pod in &snapshot.pods {
            let Reply::Serving { status, members } = &pod.reply else {
                panic!("{}: {:?}", pod.name, pod.reply)
            };
            assert_eq!(members.len(), 3);
            let expected = if pod.name == format!("etcd-{leader}") {
                Reason::LeaderProtected
            } else {
                Reason::SafeToDelete
            };
            let assessment = assess(&snapshot, pod, &Policy::default());
            assert_eq!(assessment.reason, expected, "{} ({}): {assessment:?}", pod.name, status.version);
        }
        let of_new =
            snapshot.pods.iter().filter_map(|pod| pod.reply.status()).filter(|it| it.version.starts_with(to));
        assert_eq!(of_new.count(), n + 1, "from {from} to {to}");
    }
}

macro_rules! upgrades {
    ($($name:ident: $from:literal to $to:literal,)*) => {
        $(
            /// Edge case 29.
            #[tokio::test]
            async fn $name() {
                let mut cluster = Cluster::of_three($from).await;
                // With users, because releases differ most in what they tell to whom.
                cluster.switch_auth_on().await;
                cluster.log_in_as("root", PASSWORD);
                members_of_two_releases_are_judged_as_one_cluster($from, $to, &mut cluster).await;
            }
        )*
    };
}

upgrades! {
    from_3_4: "3.4" to "3.5",
    from_3_5: "3.5" to "3.6",
    from_3_6: "3.6" to "3.7",
}
