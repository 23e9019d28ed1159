//! The leader stays until somebody moves leadership.

use std::process::Stdio;

use crate::support::{
    child::mortal,
    guarded_cluster::{GuardedCluster, START_LIMIT},
    testbed,
    wait::until,
};

#[tokio::test]
async fn deleting_the_leader_is_denied_until_the_printed_command_has_moved_leadership() {
    let mut etcd = GuardedCluster::start().await;
    let leader = etcd.leader().await;
    let (uid, member) = (etcd.uid(&leader).await, etcd.member(&leader));

    let said = etcd.kubectl(&["delete", "pod", &leader]).await;
    assert!(!said.success, "{said:?}");
    assert_eq!(etcd.guard.news().await, ["DELETE denied LeaderProtected"]);
    let ns = &etcd.namespace;
    let (id, term) = (member.id().await, member.status().await.unwrap().raft_term());
    let denial = format!(
        "Error from server (Forbidden): admission webhook \"guard.etcd-guard.io\" denied the request: pod {leader} is \
         the leader of etcd cluster {ns}/etcd (member {id}, term {term}; 3 of 3 voters healthy, quorum 2). "
    );
    assert!(said.stderr.contains(&denial), "{}", said.stderr);

    let printed = format!("kubectl -n {ns} exec {leader} -c etcd -- etcdctl ");
    let (_, command) = said.stderr.split_once(&printed).expect(&said.stderr);
    let words: Vec<&str> = command.split_whitespace().take_while(|word| !word.starts_with('[')).collect();
    etcdctl_in(&etcd, &leader, &words);
    assert_ne!(etcd.leader().await, leader);

    until("the former leader's deletion passes", START_LIMIT, async || {
        etcd.kubectl(&["delete", "pod", &leader, "--wait=false"]).await.success
    })
    .await;
    assert!(etcd.guard.news().await.contains(&String::from("DELETE allowed SafeToDelete")));
    etcd.wait_until_back(&leader, &uid).await;
}

/// Edge case 21.
#[tokio::test]
async fn a_forced_deletion_of_the_leader_is_denied_and_leaves_its_pod_alone() {
    let mut etcd = GuardedCluster::start().await;
    let leader = etcd.leader().await;
    let uid = etcd.uid(&leader).await;

    let said = etcd.kubectl(&["delete", "pod", &leader, "--force", "--grace-period=0"]).await;
    assert!(!said.success, "{said:?}");
    assert!(said.stderr.contains(&format!("pod {leader} is the leader of etcd cluster")), "{}", said.stderr);
    assert_eq!(etcd.guard.news().await, ["DELETE denied LeaderProtected"]);

    let pod = etcd.pods.get(&leader).await.unwrap();
    assert_eq!((pod.metadata.uid.unwrap(), pod.metadata.deletion_timestamp), (uid, None));
    assert_eq!(etcd.leader().await, leader);
}

/// What `kubectl exec POD -c etcd -- etcdctl WORDS` does in a pod, where etcdctl's default endpoint is the member.
fn etcdctl_in(etcd: &GuardedCluster, pod: &str, words: &[&str]) {
    let output = mortal(testbed::program("etcdctl-3.6"))
        .args(words)
        .env("ETCDCTL_ENDPOINTS", etcd.member(pod).url())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(output.status.success(), "etcdctl {words:?}: {}", String::from_utf8_lossy(&output.stderr));
}
