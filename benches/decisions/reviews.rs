//! Reviews that need no look at a cluster, by the thousand on one core; and the memory that they leave behind.

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tokio::time::sleep;

use crate::{
    allow::PATH,
    from_environment,
    pinned::{Pinned, leave_core},
    reference,
    rows::{Row, ms},
    support::{
        guard_process::{make_certificate, program},
        guarded_cluster::GuardedCluster,
        http_client::{self, Connection},
        review::verdict,
    },
    wrk::{Question, Run},
};

/// Each question is asked in turn, so often and so long; the medians count.
const TURNS: usize = 3;
const SECONDS_EACH: u64 = 5;

/// As many as the bars are for.
const CONNECTIONS: usize = 16;

/// How many reviews the memory is watched over.
const REVIEWS: u64 = 1_000_000;

/// Longest that this is watched; on one core of a quiet machine it takes some minutes.
const WATCH_LIMIT: Duration = Duration::from_secs(900);

/// How long a server rests before its memory is read.
const REST: Duration = Duration::from_secs(5);

/// What is promised.
const BAR_CPU: f64 = 1.3;
const BAR_RATE: u64 = 20_000;
const BAR_P99: f64 = 2.0;
const BAR_IDLE: u64 = 20_000_000;
const BAR_LOADED: u64 = 30_000_000;
/// What counts as flat, from a tenth of the reviews on: more is a leak, less is what allocators do.
const FLAT: u64 = 1_000_000;

const ROUNDS: &str = "etcd_guard_probe_duration_seconds_count ";
const ANSWERED: &str = "etcd_guard_admission_requests_total{";

pub(crate) async fn all(etcd: &GuardedCluster) -> Vec<Row> {
    let files = tempfile::tempdir_in(&etcd.control_plane.dir).unwrap();
    let folder = files.path();
    let ca_pem = make_certificate(folder);
    let (certificate, key) = (text(&folder.join("tls.crt")), text(&folder.join("tls.key")));
    leave_core();
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
    sleep(REST).await;
    let idle = guard.resident();
    let served = ["serve", &certificate, &key];
    let other = Pinned::start(&reference(), &served, folder.join("reference.log"), "serving").await;
    sleep(REST).await;
    let idle = [idle, other.resident()];

    let leader = raw_pod(etcd, &etcd.leader().await).await;
    // The same pod to the last character but for its program: one that runs no etcd.
    let web = leader.replace("etcd", "webd");
    // And one that has the word somewhere: it is read as a whole.
    let word = web.replacen(r#""labels":{"#, r#""labels":{"beside":"etcd","#, 1);
    assert_ne!(word, web);
    let (denied, free, word) = (review_of(&leader), review_of(&web), review_of(&word));
    for (review, allowed) in [(&denied, false), (&free, true), (&word, true)] {
        let mut connection = Connection::tls(guard.https, &ca_pem).await.unwrap();
        let (said, message) = verdict(&connection.post(PATH, review.clone()).await.unwrap().body);
        assert_eq!(said, allowed, "{message}");
    }
    let mut connection = Connection::tls(other.https, &ca_pem).await.unwrap();
    assert!(
        verdict(&connection.post("/partial", free.clone()).await.unwrap().body).0,
        "the partial reference"
    );

    let no_op = Question::new(folder, "no-op", other.https, "/no-op", &free);
    let partial = Question::new(folder, "partial", other.https, "/partial", &free);
    let free = Question::new(folder, "free", guard.https, PATH, &free);
    let word = Question::new(folder, "word", guard.https, PATH, &word);
    let denied = Question::new(folder, "denied", guard.https, PATH, &denied);
    let mut runs: [Vec<Run>; 5] = Default::default();
    let seconds = from_environment("BENCH_SECONDS").unwrap_or(SECONDS_EACH);
    let mut rounds = 0;
    for _ in 0..TURNS {
        runs[0].push(no_op.ask(&other, CONNECTIONS, seconds).await);
        runs[1].push(partial.ask(&other, CONNECTIONS, seconds).await);
        runs[2].push(free.ask(&guard, CONNECTIONS, seconds).await);
        let before = counted(&guard, ROUNDS).await;
        runs[3].push(denied.ask(&guard, CONNECTIONS, seconds).await);
        rounds += counted(&guard, ROUNDS).await - before;
        runs[4].push(word.ask(&guard, CONNECTIONS, seconds).await);
    }
    let [no_op, partial, free_run, denied_run, word] = runs.map(median);
    let mut rows = speed(&no_op, &partial, &free_run, &denied_run);
    rows.push(Row {
        what: String::from("the same of a pod that has the word \"etcd\": CPU"),
        figure: format!("{} us, {}/s", word.cpu.as_micros(), word.per_second),
        reference: String::from("partial parse, same server"),
        reference_figure: format!("{} us, {}/s", partial.cpu.as_micros(), partial.per_second),
        bar: None,
    });
    let turns = u64::try_from(TURNS).unwrap();
    rows.push(Row {
        what: String::from("probe rounds under such denials"),
        figure: format!("{rounds} in {} s", turns * seconds),
        reference: String::from("denials meanwhile"),
        reference_figure: format!("{}", denied_run.requests * turns),
        bar: Some((String::from("<= 2 per second, one more per turn"), rounds <= turns * (2 * seconds + 1))),
    });
    rows.push(memory(&guard, idle, &other, [&free, &denied], seconds).await);
    rows
}

fn speed(no_op: &Run, partial: &Run, free: &Run, denied: &Run) -> Vec<Row> {
    let us = |time: Duration| format!("{} us", time.as_micros());
    let times = |one: Duration, other: Duration| one.as_secs_f64() / other.as_secs_f64();
    let (cpu, p99) = (times(free.cpu, partial.cpu), times(denied.p99, no_op.p99));
    let row = |what: &str, figure: String, reference: &str, reference_figure: String, bar| Row {
        what: what.to_owned(),
        figure,
        reference: reference.to_owned(),
        reference_figure,
        bar,
    };
    vec![
        row(
            "review out of scope: CPU",
            us(free.cpu),
            "partial parse, same server",
            us(partial.cpu),
            Some((format!("<= {BAR_CPU} x (is {cpu:.2} x)"), cpu <= BAR_CPU)),
        ),
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

/// Asks on, both questions in turn, and watches the memory.
async fn memory(
    guard: &Pinned,
    [idle, other_idle]: [u64; 2],
    other: &Pinned,
    questions: [&Question; 2],
    seconds: u64,
) -> Row {
    let wanted: u64 = from_environment("BENCH_REVIEWS").unwrap_or(REVIEWS);
    let (mut asked, mut early, mut most) = (0, None, 0);
    let began = Instant::now();
    while asked < wanted && began.elapsed() < WATCH_LIMIT {
        for question in questions {
            asked += question.ask(guard, CONNECTIONS, seconds).await.requests;
        }
        let resident = guard.resident();
        eprintln!("{asked} reviews: {}", mb(resident));
        most = most.max(resident);
        if asked * 10 >= wanted && early.is_none() {
            early = Some(resident);
        }
    }
    let early = early.unwrap_or(most);
    let last = guard.resident();
    assert!(counted(guard, ANSWERED).await >= asked, "the guard counts what it answered");
    let is_kept = asked >= wanted && idle <= BAR_IDLE && most <= BAR_LOADED && last <= early + FLAT;
    Row {
        what: format!("memory: idle; over {asked} reviews"),
        figure: format!("{}; {} at a tenth, {} at the end", mb(idle), mb(early), mb(last)),
        reference: String::from("no-op server: idle; loaded"),
        reference_figure: format!("{}; {}", mb(other_idle), mb(other.resident())),
        bar: Some((String::from("<= 20 MB; <= 30 MB and flat"), is_kept)),
    }
}

fn mb(bytes: u64) -> String {
    format!("{}.{} MB", bytes / 1_000_000, bytes % 1_000_000 / 100_000)
}

/// The sum of all lines of the metrics page that begin so.
async fn counted(guard: &Pinned, name: &str) -> u64 {
    let page = http_client::get(guard.http.unwrap(), "/metrics").await.unwrap();
    let lines = page.body.lines().filter(|line| line.starts_with(name));
    lines.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum()
}

/// A pod as the apiserver writes it, managed fields and all.
async fn raw_pod(etcd: &GuardedCluster, name: &str) -> String {
    let path = format!("/api/v1/namespaces/{}/pods/{name}", etcd.namespace);
    let request = http::Request::get(path).body(Vec::new()).unwrap();
    etcd.client.request_text(request).await.unwrap()
}

/// "May this pod be deleted?", the pod as it is.
fn review_of(pod: &str) -> String {
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

/// Of some runs each figure's median.
fn median(mut runs: Vec<Run>) -> Run {
    let middle = runs.len() / 2;
    let mut take = |key: fn(&Run) -> u128| {
        runs.sort_by_key(key);
        runs[middle]
    };
    Run {
        requests: take(|it| it.requests.into()).requests,
        per_second: take(|it| it.per_second.into()).per_second,
        p50: take(|it| it.p50.as_nanos()).p50,
        p99: take(|it| it.p99.as_nanos()).p99,
        cpu: take(|it| it.cpu.as_nanos()).cpu,
    }
}
