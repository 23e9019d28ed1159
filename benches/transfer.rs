//! Measures how long writes fail while the leader's pod is deleted: through the guard under `leader=transfer`, and
//! without
//! the guard. Both are measured in one run on two clusters of three members. The bench prints a table and asserts
//! nothing.
//!
//! A writer starts a put every 10 ms, independent of earlier results, and knows all members, as clients should. The
//! result
//! is the longest time without an acknowledged put, from just before the deletion until all members serve again.

// A bench fails by a panic.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::time::Duration;

use test_support::{
    bench_table::{self, Row, Times, ms},
    etcd::writer::{WriteStats, Writer},
    guarded_cluster::{GuardedCluster, START_TIMEOUT},
    plot_data::Figure,
    wait::wait_until,
};

/// The number of runs; the bar applies to 19 of 20.
const RUNS: usize = 20;

/// The promised upper limit for 19 of 20 runs.
const BAR: Duration = Duration::from_millis(150);

/// The interval of the writer.
const INTERVAL: Duration = Duration::from_millis(10);

/// How long the reference writes without a deletion: as long as a deletion takes.
const IDLE_TIME: Duration = Duration::from_secs(4);

/// The operations on a cluster during the writes.
const CASES: [(&str, Case); 4] = [
    ("nothing is deleted", Case::Nothing),
    ("guarded, leader=transfer: kubectl delete pod", Case::Guarded(&[])),
    ("unguarded: kubectl delete pod", Case::Unguarded(&[])),
    ("unguarded: ... --force --grace-period=0", Case::Unguarded(&["--force", "--grace-period=0"])),
];

#[derive(Clone, Copy)]
enum Case {
    Nothing,
    /// `kubectl delete pod` with these further arguments.
    Guarded(&'static [&'static str]),
    Unguarded(&'static [&'static str]),
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let runs = std::env::var("TRANSFER_RUNS").map_or(RUNS, |number| number.parse().expect("TRANSFER_RUNS"));
    let (guarded, unguarded) = (GuardedCluster::start().await, GuardedCluster::start().await);
    let output = guarded.kubectl(&["annotate", "statefulset/etcd", "etcd-guard.io/leader=transfer"]).await;
    assert!(output.success, "{output:?}");
    let namespace = ["label", "namespace", &unguarded.namespace, "etcd-guard.io/guard-"];
    let output = unguarded.kubectl_everywhere().run(&namespace).await;
    assert!(output.success, "{output:?}");
    for etcd in [&guarded, &unguarded] {
        let dry_run = ["delete", "pod", &etcd.leader().await, "--dry-run=server"];
        wait_until("the deletion of the leader is approved", START_TIMEOUT, async || {
            etcd.kubectl(&dry_run).await.success
        })
        .await;
    }
    let writers = [writer(&guarded).await, writer(&unguarded).await];

    let mut gaps = CASES.map(|_| Vec::new());
    for run in 1..=runs {
        eprintln!("run {run} of {runs}");
        for ((_, case), gaps) in CASES.iter().zip(&mut gaps) {
            gaps.push(match case {
                Case::Nothing => {
                    writers[0].reset();
                    tokio::time::sleep(IDLE_TIME).await;
                    writers[0].stats()
                }
                Case::Guarded(flags) => delete_leader(&guarded, &writers[0], flags).await,
                Case::Unguarded(flags) => delete_leader(&unguarded, &writers[1], flags).await,
            });
        }
    }
    plot(&gaps);
    if bench_table::is_requested() {
        bench_table::append(&table_rows(&gaps));
    }
    print(runs, gaps);
}

/// Writes the data of the figure `write-gaps`.
fn plot(gaps: &[Vec<WriteStats>; 4]) {
    let title = "Longest time without an acknowledged put while the leader is deleted";
    let mut figure = Figure::strips(title);
    for ((name, _), gaps) in CASES.iter().zip(gaps) {
        let times = gaps.iter().map(|stats| stats.longest_gap).collect();
        figure = figure.times(name, &Times::new(times));
    }
    figure.write("write-gaps");
}

/// Returns the results for the table of all benches.
fn table_rows(gaps: &[Vec<WriteStats>; 4]) -> [Row; 2] {
    let [nothing, guarded, unguarded, _] = gaps;
    let times = |gaps: &[WriteStats]| Times::new(gaps.iter().map(|stats| stats.longest_gap).collect());
    let figure =
        |times: &Times| format!("{}, 19 of 20 {}", ms(times.percentile(50)), ms(times.percentile(95)));
    let meets_bar = times(guarded).percentile(95) <= BAR;
    let row = |reference: &str, gaps: &[WriteStats], bar| Row {
        quantity: String::from("no write while the leader is deleted"),
        figure: figure(&times(guarded)),
        reference: reference.to_owned(),
        reference_figure: figure(&times(gaps)),
        bar,
    };
    [
        row("nothing is deleted", nothing, Some((format!("19 of 20 <= {} ms", BAR.as_millis()), meets_bar))),
        row("unguarded deletion", unguarded, None),
    ]
}

async fn writer(etcd: &GuardedCluster) -> Writer {
    let urls = GuardedCluster::names().map(|name| etcd.member(name).url().to_owned());
    let writer = Writer::start(&urls, INTERVAL).await;
    wait_until("writes are acknowledged", START_TIMEOUT, async || writer.stats().acknowledged > 100).await;
    writer
}

async fn delete_leader(etcd: &GuardedCluster, writer: &Writer, flags: &[&str]) -> WriteStats {
    etcd.wait_until_healthy().await;
    let leader = etcd.leader().await;
    let uid = etcd.uid(&leader).await;
    writer.reset();
    let output = etcd.kubectl(&[&["delete", "pod", &leader, "--wait=false"], flags].concat()).await;
    assert!(output.success, "{output:?}");
    etcd.wait_until_replaced(&leader, &uid).await;
    writer.stats()
}

fn print(runs: usize, gaps: [Vec<WriteStats>; 4]) {
    println!("longest time without an acknowledged put, ms; {runs} runs of each\n");
    println!("{:<46} {:>6} {:>9} {:>6} {:>16}", "", "median", "19 of 20", "most", "puts failed, most");
    for ((name, _), mut gaps) in CASES.iter().zip(gaps) {
        gaps.sort_by_key(|stats| stats.longest_gap);
        let ms = |index: usize| gaps[index.min(gaps.len() - 1)].longest_gap.as_millis();
        let failed = gaps.iter().map(|stats| stats.failed).max().unwrap_or_default();
        let (median, most) = (gaps.len() / 2, gaps.len() - 1);
        let nineteen = (gaps.len() * 19).div_ceil(20).saturating_sub(1);
        println!("{name:<46} {:>6} {:>9} {:>6} {failed:>16}", ms(median), ms(nineteen), ms(most));
    }
}
