//! For how long nobody can write while the leader's pod is deleted: through the guard under `transfer`, and without it.
//! Side by side in one run, on two clusters of three members; prints a table and asserts nothing.
//!
//! A writer puts a key every 10 ms, whatever became of the puts before; it knows all members, as a client should. What
//! counts is the longest time without an acknowledged put, from just before the deletion until all members serve again.

// What is written for tests says by a panic what is not as it should be.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::time::Duration;

use rows::{Row, Times, ms};
use support::{
    guarded_cluster::{GuardedCluster, START_LIMIT},
    wait::until,
    writer::{Writer, Written},
};

#[allow(dead_code, reason = "shared with another bench, which uses other parts of it")]
#[path = "shared/rows.rs"]
mod rows;
#[allow(dead_code, unreachable_pub, reason = "shared with tests, which use other parts of it")]
#[path = "../tests/support"]
mod support {
    pub mod api_client;
    pub mod child;
    pub mod control_plane;
    pub mod freeze;
    pub mod guard_process;
    pub mod guarded_cluster;
    pub mod http_client;
    pub mod kubectl;
    pub mod member;
    pub mod pods;
    pub mod process_node;
    pub mod testbed;
    pub mod wait;
    pub mod webhook;
    pub mod writer;
}

/// The bar is what 19 of 20 keep.
const RUNS: usize = 20;

/// What is promised of 19 of 20.
const BAR: Duration = Duration::from_millis(150);

/// How often the writer writes.
const EVERY: Duration = Duration::from_millis(10);

/// How long the reference writes while nothing happens: as long as a deletion takes.
const NOTHING: Duration = Duration::from_secs(4);

/// What is done to a cluster while somebody writes.
const CASES: [(&str, Case); 4] = [
    ("nothing is deleted", Case::Nothing),
    ("guarded, leader=transfer: kubectl delete pod", Case::Guarded(&[])),
    ("unguarded: kubectl delete pod", Case::Unguarded(&[])),
    ("unguarded: ... --force --grace-period=0", Case::Unguarded(&["--force", "--grace-period=0"])),
];

#[derive(Clone, Copy)]
enum Case {
    Nothing,
    /// With these further words.
    Guarded(&'static [&'static str]),
    Unguarded(&'static [&'static str]),
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let runs = std::env::var("TRANSFER_RUNS").map_or(RUNS, |it| it.parse().expect("TRANSFER_RUNS"));
    let (guarded, unguarded) = (GuardedCluster::start().await, GuardedCluster::start().await);
    let said = guarded.kubectl(&["annotate", "statefulset/etcd", "etcd-guard.io/leader=transfer"]).await;
    assert!(said.success, "{said:?}");
    let namespace = ["label", "namespace", &unguarded.namespace, "etcd-guard.io/guard-"];
    let said = unguarded.kubectl_everywhere().run(&namespace).await;
    assert!(said.success, "{said:?}");
    for etcd in [&guarded, &unguarded] {
        let dry_run = ["delete", "pod", &etcd.leader().await, "--dry-run=server"];
        until("the leader may go", START_LIMIT, async || etcd.kubectl(&dry_run).await.success).await;
    }
    let writers = [writer(&guarded).await, writer(&unguarded).await];

    let mut gaps = CASES.map(|_| Vec::new());
    for run in 1..=runs {
        eprintln!("run {run} of {runs}");
        for ((_, case), gaps) in CASES.iter().zip(&mut gaps) {
            gaps.push(match case {
                Case::Nothing => {
                    writers[0].reset();
                    tokio::time::sleep(NOTHING).await;
                    writers[0].written()
                }
                Case::Guarded(words) => delete_the_leader(&guarded, &writers[0], words).await,
                Case::Unguarded(words) => delete_the_leader(&unguarded, &writers[1], words).await,
            });
        }
    }
    if rows::are_wanted() {
        rows::add(&rows_of(&gaps));
    }
    print(runs, gaps);
}

/// The same for the table of all benches.
fn rows_of(gaps: &[Vec<Written>; 4]) -> [Row; 2] {
    let [nothing, guarded, unguarded, _] = gaps;
    let times = |gaps: &[Written]| Times::new(gaps.iter().map(|it| it.longest_gap).collect());
    let figure =
        |times: &Times| format!("{}, 19 of 20 {}", ms(times.percentile(50)), ms(times.percentile(95)));
    let kept = times(guarded).percentile(95) <= BAR;
    let row = |reference: &str, gaps: &[Written], bar| Row {
        what: String::from("no write while the leader goes, transfer"),
        figure: figure(&times(guarded)),
        reference: reference.to_owned(),
        reference_figure: figure(&times(gaps)),
        bar,
    };
    [
        row("nothing is deleted", nothing, Some((format!("19 of 20 <= {} ms", BAR.as_millis()), kept))),
        row("unguarded deletion", unguarded, None),
    ]
}

async fn writer(etcd: &GuardedCluster) -> Writer {
    let urls = GuardedCluster::names().map(|name| etcd.member(name).url().to_owned());
    let writer = Writer::start(&urls, EVERY).await;
    until("somebody writes", START_LIMIT, async || writer.written().acknowledged > 100).await;
    writer
}

async fn delete_the_leader(etcd: &GuardedCluster, writer: &Writer, words: &[&str]) -> Written {
    etcd.wait_until_whole().await;
    let leader = etcd.leader().await;
    let uid = etcd.uid(&leader).await;
    writer.reset();
    let said = etcd.kubectl(&[&["delete", "pod", &leader, "--wait=false"], words].concat()).await;
    assert!(said.success, "{said:?}");
    etcd.wait_until_back(&leader, &uid).await;
    writer.written()
}

fn print(runs: usize, gaps: [Vec<Written>; 4]) {
    println!("longest time without an acknowledged put, ms; {runs} runs of each\n");
    println!("{:<46} {:>6} {:>9} {:>6} {:>16}", "", "median", "19 of 20", "most", "puts failed, most");
    for ((name, _), mut gaps) in CASES.iter().zip(gaps) {
        gaps.sort_by_key(|it| it.longest_gap);
        let ms = |index: usize| gaps[index.min(gaps.len() - 1)].longest_gap.as_millis();
        let failed = gaps.iter().map(|it| it.failed).max().unwrap_or_default();
        let (median, most) = (gaps.len() / 2, gaps.len() - 1);
        let nineteen = (gaps.len() * 19).div_ceil(20).saturating_sub(1);
        println!("{name:<46} {:>6} {:>9} {:>6} {failed:>16}", ms(median), ms(nineteen), ms(most));
    }
}
