//! Continuous deletions: at the moment of each approval, the other members actually serve.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::Mutex,
    time::{Instant, sleep},
};

use test_support::guarded_cluster::GuardedCluster;

/// The shortest duration. The test also waits for a second approval, up to the maximum.
const MIN_DURATION: Duration = Duration::from_secs(12);
const MAX_DURATION: Duration = Duration::from_secs(120);

#[tokio::test]
async fn continuous_deletions_cost_no_write() {
    let mut etcd = GuardedCluster::start().await;
    let leader = etcd.leader().await;
    // While a follower is down, the reason for the leader would be the quorum.
    let denial = etcd.delete(&leader).await.unwrap_err();
    assert!(denial.contains("LeaderProtected"), "{denial}");
    let start = Instant::now();
    let allowed = Arc::new(Mutex::new(Vec::new()));
    let is_running = async || {
        let waits = allowed.lock().await.len() < 2 && start.elapsed() < MAX_DURATION;
        waits || start.elapsed() < MIN_DURATION
    };

    let delete_repeatedly = async |name: &'static str| {
        while is_running().await {
            if etcd.delete(name).await.is_ok() {
                for other in GuardedCluster::names().iter().filter(|other| **other != name) {
                    assert!(
                        etcd.member(other).serves().await,
                        "{other} did not serve when the deletion of {name} was approved"
                    );
                }
                allowed.lock().await.push(name);
                // Further deletions of a terminating pod are allowed without a call of the guard.
                etcd.wait_until_healthy().await;
            }
        }
    };
    let write_repeatedly = async {
        let mut client = etcd.member(&leader).client().await.unwrap();
        while is_running().await {
            client.put("key", "", None).await.expect("the leader has a quorum");
            sleep(Duration::from_millis(10)).await;
        }
    };
    let [a, b, c] = GuardedCluster::names();
    tokio::join!(delete_repeatedly(a), delete_repeatedly(b), delete_repeatedly(c), write_repeatedly);

    let allowed = allowed.lock().await;
    assert!(allowed.len() > 1, "{allowed:?}");
    assert!(!allowed.contains(&leader.as_str()), "{allowed:?}");
    assert_eq!(etcd.leader().await, leader);
    let verdicts = etcd.guard.new_verdicts().await;
    assert!(verdicts.contains(&String::from("DELETE allowed SafeToDelete")), "{verdicts:?}");
    assert!(verdicts.iter().any(|verdict| verdict.starts_with("DELETE denied ")), "{verdicts:?}");
}
