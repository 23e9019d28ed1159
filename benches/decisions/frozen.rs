//! What a verdict costs while one member takes connections and answers nothing.

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Pod;
use tokio::time::sleep;

use crate::{
    allow::PATH,
    rows::{Row, Times, ms},
    support::{
        guarded_cluster::{GuardedCluster, START_LIMIT},
        http_client::Connection,
        process_node::Order,
        review::{dry_run_of, verdict},
        wait::until,
    },
};

/// How often each of both followers is asked about.
const TIMES: usize = 10;

/// Longer than a look may deny: each verdict has to look for itself.
const PAUSE: Duration = Duration::from_millis(600);

/// What is promised.
const BAR: Duration = Duration::from_millis(1200);

pub(crate) async fn one(etcd: &GuardedCluster) -> Row {
    etcd.wait_until_whole().await;
    let [frozen, other] = etcd.followers().await;
    let pods = [etcd.pods.get(&frozen).await.unwrap(), etcd.pods.get(&other).await.unwrap()];
    let mut connection = Connection::tls(etcd.guard.https(), &etcd.guard.ca_pem).await.unwrap();
    until("a follower may go", START_LIMIT, async || ask(&mut connection, &pods[1]).await.1).await;
    let well = all(&mut connection, &pods, [true, true]).await;
    etcd.order(&frozen, Order::Pause).await;
    // The one that does not answer serves nobody; of the others both are needed.
    let times = all(&mut connection, &pods, [true, false]).await;
    etcd.order(&frozen, Order::Resume).await;
    etcd.wait_until_whole().await;
    Row {
        what: String::from("verdict with one member frozen, longest of 20"),
        figure: ms(times.longest()),
        reference: String::from("no member frozen"),
        reference_figure: ms(well.longest()),
        bar: Some((format!("<= {} ms", BAR.as_millis()), times.longest() <= BAR)),
    }
}

async fn all(connection: &mut Connection, pods: &[Pod; 2], may_go: [bool; 2]) -> Times {
    let mut times = Vec::new();
    for _ in 0..TIMES {
        for (pod, may_go) in pods.iter().zip(may_go) {
            sleep(PAUSE).await;
            let (took, allowed, message) = ask(connection, pod).await;
            assert_eq!(allowed, may_go, "{:?}: {message}", pod.metadata.name);
            times.push(took);
        }
    }
    Times::new(times)
}

async fn ask(connection: &mut Connection, pod: &Pod) -> (Duration, bool, String) {
    let review = dry_run_of(pod);
    let began = Instant::now();
    let answer = connection.post(PATH, review).await.unwrap();
    let took = began.elapsed();
    let (allowed, message) = verdict(&answer.body);
    (took, allowed, message)
}
