//! Deletions without end, against the truth: at the moment of every yes, the others truly serve.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::Mutex,
    time::{Instant, sleep},
};

use crate::support::guarded_cluster::GuardedCluster;

/// At least this long, and until a pod has gone a second time; on any machine that is up before the limit.
const STORM: Duration = Duration::from_secs(12);
const STORM_LIMIT: Duration = Duration::from_secs(120);

#[tokio::test]
async fn a_storm_of_deletions_takes_the_followers_in_turns_and_costs_no_write() {
    let mut etcd = GuardedCluster::start().await;
    let leader = etcd.leader().await;
    // While a follower is away, the leader is denied for the quorum's sake.
    let denial = etcd.delete(&leader).await.unwrap_err();
    assert!(denial.contains("LeaderProtected"), "{denial}");
    let start = Instant::now();
    let allowed = Arc::new(Mutex::new(Vec::new()));
    let goes_on = async || {
        let waits = allowed.lock().await.len() < 2 && start.elapsed() < STORM_LIMIT;
        waits || start.elapsed() < STORM
    };

    let delete_again_and_again = async |name: &'static str| {
        while goes_on().await {
            if etcd.delete(name).await.is_ok() {
                for other in GuardedCluster::names().iter().filter(|other| **other != name) {
                    assert!(
                        etcd.member(other).serves().await,
                        "{other} did not serve when {name} was allowed to go"
                    );
                }
                allowed.lock().await.push(name);
                // A terminating pod's further deletions pass unasked.
                etcd.wait_until_whole().await;
            }
        }
    };
    let write_again_and_again = async {
        let mut client = etcd.member(&leader).client().await.unwrap();
        while goes_on().await {
            client.put("storm", "", None).await.expect("the leader stays, with a quorum behind it");
            sleep(Duration::from_millis(10)).await;
        }
    };
    let [a, b, c] = GuardedCluster::names();
    tokio::join!(
        delete_again_and_again(a),
        delete_again_and_again(b),
        delete_again_and_again(c),
        write_again_and_again
    );

    let allowed = allowed.lock().await;
    assert!(allowed.len() > 1, "{allowed:?}");
    assert!(!allowed.contains(&leader.as_str()), "{allowed:?}");
    assert_eq!(etcd.leader().await, leader);
    let news = etcd.guard.news().await;
    assert!(news.contains(&String::from("DELETE allowed SafeToDelete")), "{news:?}");
    assert!(news.iter().any(|it| it.starts_with("DELETE denied ")), "{news:?}");
}
