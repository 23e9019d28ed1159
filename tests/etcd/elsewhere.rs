//! Members that run in none of the pods that are seen.

use etcd_guard::{
    etcd::{Connections, MemberId, Reply},
    guard::{Policy, Reason, assess::assess, elsewhere, snapshot::Snapshot},
};

use serde_json::json;

use crate::{
    etcd_cluster::{Cluster, START_LIMIT, soon},
    scene::{Scene, pod},
    support::wait::until,
};

/// A look that misses the pod of one follower, the follower that it sees, and what is missing.
async fn look_without_one(cluster: &Cluster, connections: &Connections) -> (Snapshot, usize, MemberId) {
    let followers = cluster.followers().await;
    let mut snapshot = cluster.look(connections).await;
    let hidden = snapshot.pods.remove(followers[1]);
    (snapshot, followers[0], hidden.reply.status().unwrap().member_id)
}

on_every_version! {
    /// Edge case 13.
    async fn a_member_without_a_pod_counts_if_it_answers_for_itself(version) {
        let cluster = Cluster::of_three(version).await;
        let connections = Connections::new();
        let (mut snapshot, follower, hidden) = look_without_one(&cluster, &connections).await;
        assert_eq!(assess(&snapshot, &snapshot.pods[follower], &Policy::default()).reason, Reason::QuorumAtRisk);
        let unseen = elsewhere::unseen(&snapshot);
        assert_eq!(unseen.iter().map(|it| it.id).collect::<Vec<_>>(), [hidden]);
        snapshot.elsewhere =
            elsewhere::ask(&connections, &cluster.endpoint(follower), &snapshot, &unseen, soon()).await;
        assert!(matches!(&snapshot.elsewhere[0].reply, Reply::Serving { status, .. } if status.member_id == hidden));
        let assessment = assess(&snapshot, &snapshot.pods[follower], &Policy::default());
        assert_eq!(assessment.reason, Reason::SafeToDelete);
        assert_eq!(assessment.tally.unwrap().healthy, 3);
        assert!(elsewhere::unseen(&cluster.look(&connections).await).is_empty());
    }

    /// Edge case 13: one Service for all members; whoever answers there is not the one that was looked for.
    async fn a_name_that_leads_to_another_member_proves_nothing(version) {
        let cluster = Cluster::of_three(version).await;
        let connections = Connections::new();
        let (snapshot, follower, _) = look_without_one(&cluster, &connections).await;
        let known = cluster.endpoint(follower);
        let mut unseen = elsewhere::unseen(&snapshot);
        unseen[0].client_urls = vec![known.url.clone()];
        let found = elsewhere::ask(&connections, &known, &snapshot, &unseen, soon()).await;
        assert!(found.is_empty(), "{found:?}");
    }
}

/// One StatefulSet per member, as some operators make them: a member that is silent has no sibling to ask.
#[tokio::test]
async fn members_under_owners_of_their_own_answer_for_a_silent_one() {
    let cluster = Cluster::of_three("3.6").await;
    let followers = cluster.followers().await;
    let with_own_set = |n: usize| {
        let mut pod = pod(&cluster, n);
        let owner = &mut pod["metadata"]["ownerReferences"][0];
        owner["name"] = json!(format!("etcd-{n}"));
        owner["uid"] = json!(format!("set-{n}"));
        pod
    };
    let pods: Vec<_> = (0..3).map(with_own_set).collect();
    let scene = Scene::before(&pods).await;
    cluster.freeze(followers[0]).await;
    let is_told = async |n: usize, reason| scene.ask(&pods[followers[n]]).await.0 == reason;
    until("the frozen one may go", START_LIMIT, async || is_told(0, "SafeToDelete").await).await;
    until("the other stays", START_LIMIT, async || is_told(1, "QuorumAtRisk").await).await;
}
