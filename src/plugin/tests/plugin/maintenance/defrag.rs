//! `kubectl etcd-guard defrag`, with a guard that acts on real members.

use serde_json::Value;
use test_support::{
    guard::cli,
    guarded_cluster::{GuardedCluster, START_TIMEOUT},
    wait::wait_until,
};

const MIB: usize = 1 << 20;

/// Writes one key again and again, and compacts its history.
async fn fragment(etcd: &GuardedCluster) {
    let mut client = etcd.member(&etcd.leader().await).client().await.unwrap();
    let mut revision = 0;
    for fill in 0..5 {
        let response = client.put("filler", vec![fill; MIB], None).await.unwrap();
        revision = response.header().unwrap().revision();
    }
    client.compact(revision, None).await.unwrap();
    wait_until("each member has free pages", START_TIMEOUT, async || {
        // They become free with the next write.
        client.put("after", "compaction", None).await.unwrap();
        are_fragmented(&sizes(etcd).await)
    })
    .await;
}

/// Returns the size of each member's file, and its free bytes.
async fn sizes(etcd: &GuardedCluster) -> Vec<(usize, usize)> {
    let mut sizes = Vec::new();
    for name in etcd.pod_names().await {
        let status = etcd.member(&name).status().await.expect("the member answers");
        let (bytes, used) = (status.db_size(), status.raft_used_db_size());
        sizes.push((bytes.try_into().unwrap(), (bytes - used).try_into().unwrap()));
    }
    sizes
}

/// Whether half of each file is free.
fn are_fragmented(sizes: &[(usize, usize)]) -> bool {
    sizes.iter().all(|(bytes, free)| *free >= 2 * MIB && *free >= bytes / 2)
}

#[tokio::test]
async fn defrag_shows_the_plan_and_then_each_member() {
    let etcd = GuardedCluster::start().await;
    fragment(&etcd).await;
    let run = async |arguments: &[&str]| {
        let output = cli::run(&etcd, "defrag", arguments).await;
        assert_eq!(output.status, Some(0), "{output:?}");
        output.stdout
    };
    let leader = etcd.leader().await;

    let plan = run(&["statefulset/etcd", "--dry-run"]).await;
    let last = plan.lines().last().unwrap();
    assert!(
        last.starts_with(&format!("  3. {leader}: ")) && last.ends_with("leadership moves first"),
        "{plan}"
    );
    assert!(are_fragmented(&sizes(&etcd).await), "a dry run changes nothing");

    let text = run(&["statefulset/etcd"]).await;
    assert!(
        text.contains(" leadership moved from ") && text.contains("3/3 complete: 3 members of "),
        "{text}"
    );
    assert_eq!(text.lines().filter(|line| line.contains(" shrank from ")).count(), 3, "{text}");
    assert!(sizes(&etcd).await.into_iter().all(|(_, free)| free < MIB), "{text}");

    let json = run(&[leader.as_str(), "--if-fragmented", "30%", "--output", "json"]).await;
    let plan: Value = serde_json::from_str(json.trim()).unwrap();
    let members = plan["members"].as_array().unwrap();
    assert!(members.len() == 3 && members.iter().all(|member| member["isDefragmented"] == false), "{json}");
}

#[tokio::test]
async fn defrag_names_what_it_does_not_find() {
    let etcd = GuardedCluster::start().await;
    let output = cli::run(&etcd, "defrag", &["statefulset/web"]).await;
    assert!(output.stderr.contains("StatefulSet web runs no guarded member in namespace "), "{output:?}");
    assert!(output.stderr.contains("kubectl etcd-guard status -n "), "{output:?}");
}
