//! A pod that answers with the public ids of a cluster, in the place of a member that is down.

use serde_json::{Value, json};

use crate::{
    cluster::{Cluster, Layout},
    guarded_cluster::{GuardedPods, pod, secret},
};
use test_support::etcd::fake_member::{FakeListed, FakeMember, FakeReplies};

/// Returns the replies that a process needs to pass for member `n`, from public responses of another member.
async fn replies_of(cluster: &Cluster, n: usize, other: usize, scheme: Option<&str>) -> FakeReplies {
    let mut client = cluster.client(other).await;
    let status = client.status().await.unwrap();
    let list = client.member_list().await.unwrap();
    let url = cluster.peer_url(n);
    let members: Vec<FakeListed> = list
        .members()
        .iter()
        .map(|member| FakeListed {
            id: member.id(),
            name: member.name().to_owned(),
            peer_urls: member.peer_urls().to_vec(),
            client_urls: match scheme {
                Some(scheme) => member.client_urls().iter().map(|url| url.replace("https", scheme)).collect(),
                None => member.client_urls().to_vec(),
            },
        })
        .collect();
    FakeReplies {
        cluster_id: status.header().unwrap().cluster_id(),
        member_id: members.iter().find(|member| member.peer_urls.contains(&url)).unwrap().id,
        leader: status.leader(),
        term: status.raft_term(),
        members,
    }
}

/// The member is down, and a pod with its name answers over plain HTTP.
#[tokio::test]
async fn plain_impostor_is_no_voter_of_tls_cluster() {
    let mut cluster = Cluster::start(Layout { version: "3.6", members: 3, spare: 0, tls: true }).await;
    let followers = cluster.followers().await;
    let (absent, target) = (followers[0], followers[1]);
    let mut pods: Vec<Value> = (0..3).map(|n| pod(&cluster, n)).collect();
    let guarded = GuardedPods::start(&pods).await;
    let (ca, certificate, key) = cluster.client_files();
    let secret = secret(&[("ca.crt", ca), ("tls.crt", certificate), ("tls.key", key)]);
    guarded.objects.put("/api/v1/namespaces/prod/secrets/etcd-client-tls", 200, secret);
    assert_eq!(guarded.dry_run(&pods[target]).await.0, "SafeToDelete");

    let url = format!("http://{}:2379", cluster.address(absent));
    pods[absent]["metadata"]["uid"] = json!("impostor");
    pods[absent]["spec"]["containers"][0]["command"] = json!([
        "etcd",
        format!("--name=etcd-{absent}"),
        format!("--advertise-client-urls={url}"),
        "--data-dir=/data"
    ]);
    guarded.objects.put("/api/v1/namespaces/prod/pods", 200, json!({"items": pods}));
    // The impostor returns the list unchanged, or claims that the members advertise plain HTTP.
    for scheme in [None, Some("http")] {
        let replies = replies_of(&cluster, absent, target, scheme).await;
        cluster.kill(absent);
        let address = format!("{}:2379", cluster.address(absent)).parse().unwrap();
        let impostor = FakeMember::start(address, replies).await;
        let (reason, message) = guarded.dry_run(&pods[target]).await;
        assert_eq!(reason, "QuorumAtRisk", "{message}");
        let cause =
            format!("etcd-{absent} (it replies over http, but advertises no client URL with this scheme)");
        assert!(message.contains(&cause), "{message}");
        drop(impostor);
        cluster.restart(absent);
        cluster.wait_until_serving(absent).await;
    }
}

/// No member has a quorum, and a pod of another owner claims over plain HTTP to be the only voter.
#[tokio::test]
async fn plain_impostor_does_not_decide_without_quorum() {
    let mut cluster = Cluster::start(Layout { version: "3.6", members: 3, spare: 0, tls: true }).await;
    let (target, followers) = (cluster.leader().await, cluster.followers().await);
    let mut pods: Vec<Value> = (0..3).map(|n| pod(&cluster, n)).collect();
    let mut replies = replies_of(&cluster, followers[0], target, Some("http")).await;
    replies.members.retain(|member| member.id == replies.member_id);
    replies.leader = replies.member_id;
    let (network, _) = cluster.address(0).rsplit_once('.').unwrap();
    let address = format!("{network}.99");
    let mut impostor = pods[followers[0]].clone();
    impostor["metadata"]["name"] = json!("app-0");
    impostor["metadata"]["uid"] = json!("impostor");
    impostor["metadata"]["ownerReferences"][0] = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "app", "uid": "app", "controller": true});
    impostor["status"]["podIP"] = json!(address);
    impostor["spec"]["containers"][0]["command"] = json!([
        "etcd",
        "--name=app-0",
        format!("--advertise-client-urls=http://{address}:2379"),
        "--data-dir=/data"
    ]);
    pods.push(impostor);
    let _impostor = FakeMember::start(format!("{address}:2379").parse().unwrap(), replies).await;

    let guarded = GuardedPods::start(&pods).await;
    let (ca, certificate, key) = cluster.client_files();
    let secret = secret(&[("ca.crt", ca), ("tls.crt", certificate), ("tls.key", key)]);
    guarded.objects.put("/api/v1/namespaces/prod/secrets/etcd-client-tls", 200, secret);
    for follower in followers {
        cluster.kill(follower);
    }
    let (reason, message) = guarded.dry_run(&pods[target]).await;
    assert!(["QuorumLost", "ElectionInProgress"].contains(&reason.as_str()), "{reason}: {message}");
}
