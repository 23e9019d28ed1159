//! Throughput of reviews that need no probe, on one core, and the memory that they leave allocated.

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tokio::time::sleep;

use crate::{
    from_environment,
    pinned_server::{Pinned, leave_server_core},
    webhook::PATH,
    wrk::{Load, Run},
};
use test_support::{
    bench_table::{Row, ms},
    guard::{
        process::{make_certificate, program},
        reference,
        review::verdict,
    },
    guarded_cluster::GuardedCluster,
    http_client::{self, Connection},
};

/// The runs of each kind of review, which take turns; the table has the medians.
const ROUNDS: usize = 3;
const SECONDS_EACH: u64 = 5;

/// The number of connections that the bars apply to.
const CONNECTIONS: usize = 16;

/// The number of reviews for the measurement of memory.
const REVIEWS: u64 = 1_000_000;

/// The time limit of the measurement of memory; on one core of an idle machine it takes some minutes.
const MEMORY_TIMEOUT: Duration = Duration::from_secs(900);

/// The pause before the memory of a server is read.
const SETTLE_TIME: Duration = Duration::from_secs(5);

/// The promised limits.
const BAR_RATE: u64 = 10_000;
const BAR_P99: f64 = 2.0;
const BAR_IDLE: u64 = 20_000_000;
const BAR_LOADED: u64 = 30_000_000;
/// The largest growth after the first tenth of the reviews that counts as flat. Allocators cause less, a leak causes
/// more.
const MAX_GROWTH: u64 = 1_000_000;

const PROBE_ROUNDS: &str = "etcd_guard_probe_duration_seconds_count ";
const ANSWERED: &str = "etcd_guard_admission_requests_total{";

pub(crate) async fn all(etcd: &GuardedCluster) -> Vec<Row> {
    let files = tempfile::tempdir_in(&etcd.control_plane.dir).unwrap();
    let folder = files.path();
    let ca_pem = make_certificate(folder);
    let (certificate, key) = (text(&folder.join("tls.crt")), text(&folder.join("tls.key")));
    leave_server_core();
    let kubeconfig = text(&etcd.control_plane.guard_kubeconfig());
    let arguments = [
        "serve",
        "--namespace=etcd-guard",
        "--log-format=json",
        "--listen=127.0.0.1:0",
        "--admin-listen=127.0.0.1:0",
        "--kubeconfig",
        &kubeconfig,
        "--tls-cert",
        &certificate,
        "--tls-key",
        &key,
    ];
    let guard = Pinned::start(&program(), &arguments, folder.join("guard.log"), "ready").await;
    sleep(SETTLE_TIME).await;
    let idle = guard.resident();
    let served = ["serve", &certificate, &key];
    let other = Pinned::start(&reference::program(), &served, folder.join("reference.log"), "serving").await;
    sleep(SETTLE_TIME).await;
    let idle = [idle, other.resident()];

    let leader = raw_pod(etcd, &etcd.leader().await).await;
    let web = as_other_program(&leader);
    // The word "etcd" in a label makes the guard log the verdict.
    let word = web.replacen(r#""labels":{"#, r#""labels":{"other":"etcd","#, 1);
    assert_ne!(word, web);
    let (denied, free, word) =
        (pod_deletion_review(&leader), pod_deletion_review(&web), pod_deletion_review(&word));
    for (review, reason) in [(&denied, None), (&free, Some("NotEtcd")), (&word, Some("NotEtcd"))] {
        let mut connection = Connection::tls(guard.https, &ca_pem).await.unwrap();
        let body = connection.post(PATH, review.clone()).await.unwrap().body;
        assert_eq!(verdict(&body).0, reason.is_some(), "{body}");
        assert!(reason.is_none_or(|reason| body.contains(reason)), "{body}");
    }
    let mut connection = Connection::tls(other.https, &ca_pem).await.unwrap();
    assert!(
        verdict(&connection.post("/partial", free.clone()).await.unwrap().body).0,
        "the partial reference"
    );

    let no_op = Load::new(folder, "no-op", other.https, "/no-op", &free);
    let partial = Load::new(folder, "partial", other.https, "/partial", &free);
    let free = Load::new(folder, "free", guard.https, PATH, &free);
    let word = Load::new(folder, "word", guard.https, PATH, &word);
    let denied = Load::new(folder, "denied", guard.https, PATH, &denied);
    let mut runs: [Vec<Run>; 5] = Default::default();
    let seconds = from_environment("BENCH_SECONDS").unwrap_or(SECONDS_EACH);
    let mut probe_rounds = 0;
    for _ in 0..ROUNDS {
        runs[0].push(no_op.run(&other, CONNECTIONS, seconds).await);
        runs[1].push(partial.run(&other, CONNECTIONS, seconds).await);
        runs[2].push(free.run(&guard, CONNECTIONS, seconds).await);
        let before = counted(&guard, PROBE_ROUNDS).await;
        runs[3].push(denied.run(&guard, CONNECTIONS, seconds).await);
        probe_rounds += counted(&guard, PROBE_ROUNDS).await - before;
        runs[4].push(word.run(&guard, CONNECTIONS, seconds).await);
    }
    let [no_op, partial, free_run, denied_run, word] = runs.map(median);
    let mut rows = speed(&no_op, &partial, &free_run, &denied_run);
    rows.push(Row {
        quantity: String::from("the same, pod with the word \"etcd\": CPU"),
        figure: format!("{} us, {}/s", word.cpu.as_micros(), word.per_second),
        reference: String::from("partial parse, same server"),
        reference_figure: format!("{} us, {}/s", partial.cpu.as_micros(), partial.per_second),
        bar: None,
    });
    let rounds = u64::try_from(ROUNDS).unwrap();
    rows.push(Row {
        quantity: String::from("probe rounds under such denials"),
        figure: format!("{probe_rounds} in {} s", rounds * seconds),
        reference: String::from("denials in that time"),
        reference_figure: format!("{}", denied_run.requests * rounds),
        bar: Some((
            String::from("<= 2 per second, one more per turn"),
            probe_rounds <= rounds * (2 * seconds + 1),
        )),
    });
    rows.push(memory(&guard, idle, &other, [&free, &denied], seconds).await);
    rows
}

fn speed(no_op: &Run, partial: &Run, free: &Run, denied: &Run) -> Vec<Row> {
    let us = |time: Duration| format!("{} us", time.as_micros());
    let times = |one: Duration, other: Duration| one.as_secs_f64() / other.as_secs_f64();
    let p99 = times(denied.p99, no_op.p99);
    let row = |what: &str, figure: String, reference: &str, reference_figure: String, bar| Row {
        quantity: what.to_owned(),
        figure,
        reference: reference.to_owned(),
        reference_figure,
        bar,
    };
    vec![
        row("review out of scope: CPU", us(free.cpu), "partial parse, same server", us(partial.cpu), None),
        row(
            "review out of scope: on one core",
            format!("{}/s", free.per_second),
            "partial parse, same server",
            format!("{}/s", partial.per_second),
            Some((format!(">= {BAR_RATE}/s"), free.per_second >= BAR_RATE)),
        ),
        row(
            "review out of scope: 16 connections",
            format!("{}, p99 {}", ms(free.p50), ms(free.p99)),
            "no-op, same server",
            format!("{}, p99 {}", ms(no_op.p50), ms(no_op.p99)),
            None,
        ),
        row(
            "cached denial: 16 connections",
            format!("{}, p99 {}", ms(denied.p50), ms(denied.p99)),
            "no-op, same server",
            format!("{}, p99 {}", ms(no_op.p50), ms(no_op.p99)),
            Some((format!("p99 <= {BAR_P99:.0} x (is {p99:.2} x)"), p99 <= BAR_P99)),
        ),
        row(
            "cached denial: CPU",
            format!("{}, {}/s", us(denied.cpu), denied.per_second),
            "no-op, same server",
            format!("{}, {}/s", us(no_op.cpu), no_op.per_second),
            None,
        ),
    ]
}

/// Sends both kinds of reviews in turn, and measures the memory.
async fn memory(
    guard: &Pinned,
    [idle, other_idle]: [u64; 2],
    other: &Pinned,
    loads: [&Load; 2],
    seconds: u64,
) -> Row {
    let target: u64 = from_environment("BENCH_REVIEWS").unwrap_or(REVIEWS);
    let (mut sent, mut early, mut most) = (0, None, 0);
    let started = Instant::now();
    while sent < target && started.elapsed() < MEMORY_TIMEOUT {
        for load in loads {
            sent += load.run(guard, CONNECTIONS, seconds).await.requests;
        }
        let resident = guard.resident();
        eprintln!("{sent} reviews: {}", mb(resident));
        most = most.max(resident);
        if sent * 10 >= target && early.is_none() {
            early = Some(resident);
        }
    }
    let early = early.unwrap_or(most);
    let last = guard.resident();
    assert!(counted(guard, ANSWERED).await >= sent, "the guard counts every response");
    let meets_bar = sent >= target && idle <= BAR_IDLE && most <= BAR_LOADED && last <= early + MAX_GROWTH;
    Row {
        quantity: format!("memory: idle; over {sent} reviews"),
        figure: format!("{}; {} at a tenth, {} at the end", mb(idle), mb(early), mb(last)),
        reference: String::from("no-op server: idle; loaded"),
        reference_figure: format!("{}; {}", mb(other_idle), mb(other.resident())),
        bar: Some((String::from("<= 20 MB; <= 30 MB and flat"), meets_bar)),
    }
}

fn mb(bytes: u64) -> String {
    format!("{}.{} MB", bytes / 1_000_000, bytes % 1_000_000 / 100_000)
}

/// Returns the sum of all series whose line starts with this text.
async fn counted(guard: &Pinned, name: &str) -> u64 {
    let page = http_client::get(guard.http.unwrap(), "/metrics").await.unwrap();
    let lines = page.body.lines().filter(|line| line.starts_with(name));
    lines.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum()
}

/// Returns a pod as the API server serializes it, including managed fields.
async fn raw_pod(etcd: &GuardedCluster, name: &str) -> String {
    let path = format!("/api/v1/namespaces/{}/pods/{name}", etcd.namespace);
    let request = http::Request::get(path).body(Vec::new()).unwrap();
    etcd.client.request_text(request).await.unwrap()
}

/// Returns the pod with another program and other flags, so that it does not run etcd. The length is the same.
fn as_other_program(pod: &str) -> String {
    [("etcd", "webd"), ("-urls=", "-uris="), ("-cluster", "-network"), ("--data-dir=", "--work-dir=")]
        .iter()
        .fold(pod.to_owned(), |pod, (from, to)| pod.replace(from, to))
}

/// Returns a review of a pod's deletion that contains the pod unchanged.
fn pod_deletion_review(pod: &str) -> String {
    let read: Value = serde_json::from_str(pod).unwrap();
    let mut review = json!({
        "kind": "AdmissionReview",
        "apiVersion": "admission.k8s.io/v1",
        "request": {
            "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "requestKind": {"group": "", "version": "v1", "kind": "Pod"},
            "requestResource": {"group": "", "version": "v1", "resource": "pods"},
            "name": read["metadata"]["name"],
            "namespace": read["metadata"]["namespace"],
            "operation": "DELETE",
            "userInfo": {"username": "kubernetes-admin", "groups": ["system:masters", "system:authenticated"]},
            "object": null,
            "oldObject": "THE POD",
            "dryRun": false,
            "options": {"kind": "DeleteOptions", "apiVersion": "meta.k8s.io/v1", "propagationPolicy": "Background"},
        },
    })
    .to_string();
    let place = review.find(r#""THE POD""#).unwrap();
    review.replace_range(place..place + r#""THE POD""#.len(), pod);
    review
}

fn text(path: &Path) -> String {
    assert!(fs::exists(path).unwrap(), "{}", path.display());
    path.display().to_string()
}

/// Returns the median of each figure.
fn median(mut runs: Vec<Run>) -> Run {
    let middle = runs.len() / 2;
    let mut take = |key: fn(&Run) -> u128| {
        runs.sort_by_key(key);
        runs[middle]
    };
    Run {
        requests: take(|run| run.requests.into()).requests,
        per_second: take(|run| run.per_second.into()).per_second,
        p50: take(|run| run.p50.as_nanos()).p50,
        p99: take(|run| run.p99.as_nanos()).p99,
        cpu: take(|run| run.cpu.as_nanos()).cpu,
    }
}
