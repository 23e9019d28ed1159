//! The figures of one guard with a fleet.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    time::{Duration, Instant},
};

use k8s_openapi::api::core::v1::Pod;
use test_support::{
    bench_table::Times,
    etcd::fleet::Fleet,
    guard::{
        process::{GuardProcess, SURVEY_INTERVAL},
        reference::Calls,
        review::{deletion_review, dry_run_review, verdict},
    },
    http_client::{self, Connection},
    kubernetes::{api_proxy::ApiServerProxy, control_plane::ControlPlane},
    wait::wait_until,
};
use tokio::time::sleep;

use super::first_approvals::{FirstApprovals, FirstApprovalsBench, PAUSE, is_of_cluster};

const PATH: &str = "/validate?timeout=10s";

/// The number of approvals that are measured in clusters with earlier approvals, and of their calls without the guard. Their
/// 99th percentile depends on the garbage collections of the API server, of which a shorter measurement contains few.
const APPROVALS: usize = 5000;

/// Length of a block. Blocks of approvals in different clusters and blocks in one cluster alternate, so that a change of the
/// machine's load affects both series.
const BLOCK: usize = 250;

/// The number of denials that are measured.
const DENIALS: usize = 1000;

/// The number of consecutive denials of one leader.
const REPEATED: usize = 20;

/// Longer than the guard uses a snapshot for denials.
const SNAPSHOT_TIME: Duration = Duration::from_secs(1);

/// The number of approvals and of denials whose calls of the API server are counted.
const COUNTED: usize = 100;

/// The number of clusters whose first approval is measured.
const COLD: usize = 1000;

/// The largest number of clusters whose first approval follows a pause. The first approvals of the other clusters follow each
/// other without pauses.
const PAUSED: usize = 200;

/// The largest number of records during the approvals after pauses, which is one page of a list.
const GROUP: usize = 100;

/// The interval in which the guard reads the pods of a namespace again.
const RESCAN_INTERVAL: Duration = Duration::from_secs(300);

/// The least number of first approvals after a pause. With fewer clusters, further guards are started for them.
const MIN_COLD: usize = 100;

/// The time from the readiness of a guard until its watches have listed a single cluster. A dry run would read the id of the
/// cluster, which a guard does not know at a first approval.
const WATCH_TIME: Duration = Duration::from_secs(1);

/// The largest number of clusters whose first approval at another replica is measured.
const FAILED_OVER: usize = 100;

/// The longest time until the guard is ready, and until it approves a deletion afterwards. The guard lists the
/// objects of each namespace separately, which takes long with many namespaces.
const READY_TIMEOUT: Duration = Duration::from_secs(300);

/// The interval of periodic surveys, which is the one of the manifests.
const INTERVAL: Duration = Duration::from_secs(60);

/// Length in seconds of the window over which the processor share of a survey is averaged. A survey of 1,000 clusters without
/// pauses takes less time.
const WINDOW: usize = 5;

/// The number of intervals in which the processor time of periodic surveys is measured.
const OBSERVED: u32 = 2;

/// The metric that counts probe rounds.
const ROUNDS: &str = "etcd_guard_probe_duration_seconds_count";

/// The time from the readiness of a guard until it has read the records of all namespaces.
const START_TIME: Duration = Duration::from_secs(30);

/// The figures of a guard.
#[derive(Clone, Debug)]
pub(crate) struct Figures {
    /// Time from the start of the process until it is ready.
    pub(crate) start: Duration,
    /// The first and the second approvals in some of the clusters after the start of a guard, each after a pause, while at most
    /// [`GROUP`] records exist. With few clusters, further guards are started. The records are deleted before the first approvals of
    /// each group and of each further guard.
    pub(crate) after_pauses: [FirstApprovals; 2],
    /// First approvals in the other clusters, each one immediately after another approval, and then the second ones in the same way.
    /// Without values if all clusters belong to `after_pauses`.
    pub(crate) in_a_row: [FirstApprovals; 2],
    /// Approvals in clusters with two earlier approvals.
    pub(crate) warm_approvals: Times,
    /// Approvals in one of these clusters, in blocks between those of `warm_approvals`. The guard reuses its connections to the
    /// members.
    pub(crate) repeated_approvals: Times,
    /// The calls of approvals without the guard, while the guard is running.
    pub(crate) bare: Calls,
    /// Denials of leaders with a probe round.
    pub(crate) fresh_denials: Times,
    /// Denials of leaders from the snapshot of an earlier denial.
    pub(crate) cached_denials: Times,
    /// The calls of the API server that an approval makes.
    pub(crate) calls: String,
    /// Duration of a survey of all clusters.
    pub(crate) survey: Duration,
    /// Processor time of the guard during the survey.
    pub(crate) survey_processor: Duration,
    /// First approvals at another replica after this one was killed, each on a new connection.
    pub(crate) failover: Times,
    /// The periodic surveys of a guard without requests.
    pub(crate) periodic: PeriodicSurveys,
    /// Resident memory at the end, in bytes.
    pub(crate) resident: u64,
}

/// The processor time of a guard that surveys periodically, as shares of one core between 0 and 1.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeriodicSurveys {
    /// The mean over [`OBSERVED`] intervals.
    pub(crate) mean: f64,
    /// The largest share in [`WINDOW`] seconds.
    pub(crate) survey: f64,
    /// The largest share in one second.
    pub(crate) busiest: f64,
    /// The longest duration of a survey, in whole seconds.
    pub(crate) duration: Duration,
}

impl Figures {
    /// Returns the share of one core that a survey uses, between 0 and 1.
    pub(crate) fn survey_processor_share(&self) -> f64 {
        self.survey_processor.as_secs_f64() / self.survey.as_secs_f64()
    }
}

/// Starts a guard and measures it.
pub(crate) async fn measure(control_plane: &ControlPlane, fleet: &Fleet) -> Figures {
    let files = tempfile::tempdir_in(&control_plane.dir).expect("a directory");
    let started = Instant::now();
    let guard = start(&control_plane.guard_kubeconfig(), &files.path().join("guard")).await;
    let start_time = started.elapsed();
    let follower = |cluster: usize| &fleet.clusters[cluster % fleet.clusters.len()][1];
    let leader = |cluster: usize| &fleet.clusters[cluster % fleet.clusters.len()][0];
    if fleet.clusters.len() > 1 {
        wait_until_approved(&mut connect(&guard).await, follower(fleet.clusters.len() - 1)).await;
    }
    sleep(WATCH_TIME).await;
    let followers: Vec<&Pod> = (0..COLD.min(fleet.clusters.len())).map(follower).collect();
    let [after_pauses, in_a_row] = first_approvals(control_plane, &guard, files.path(), &followers).await;
    let mut connection = connect(&guard).await;
    let (mut warm_approvals, mut repeated_approvals) = (Vec::new(), Vec::new());
    for block in 0..APPROVALS / BLOCK {
        let numbers = block * BLOCK..(block + 1) * BLOCK;
        let different = numbers.map(|number| follower(number % COLD));
        warm_approvals.extend(approvals(&mut connection, different).await);
        // Opens the connections again, which the other clusters have replaced.
        approvals(&mut connection, std::iter::once(follower(0))).await;
        let repeated = std::iter::repeat_n(follower(0), BLOCK);
        repeated_approvals.extend(approvals(&mut connection, repeated).await);
    }
    let kubeconfig = control_plane.guard_kubeconfig();
    let client_files = fleet.client_files(files.path());
    let bare = Calls::measure(
        APPROVALS,
        &kubeconfig,
        &fleet.namespaces(),
        &fleet.pod_names(),
        &fleet.urls(),
        client_files.as_ref(),
    );
    let (mut fresh_denials, mut cached_denials) = (Vec::new(), Vec::new());
    for number in 0..DENIALS / REPEATED {
        // A leader that was denied a moment ago would be denied from the snapshot of that time.
        if number >= fleet.clusters.len() {
            sleep(SNAPSHOT_TIME).await;
        }
        // The deletions of a leader follow each other, as an impatient client sends them.
        for repetition in 0..REPEATED {
            let (time, allowed) = review(&mut connection, leader(number)).await;
            assert!(!allowed, "the leader is needed");
            let times = if repetition == 0 { &mut fresh_denials } else { &mut cached_denials };
            times.push(time);
        }
    }
    assert_eq!(fleet.repeated_events().await, BTreeSet::new(), "programs other than the guard repeat Events");
    let (survey, survey_processor) = survey(&guard, fleet.clusters.len()).await;
    let calls = calls(control_plane, &files.path().join("proxy"), &fleet.clusters[0]).await;
    let resident = guard.resident_memory();
    let failover = failover(control_plane, &files.path().join("other"), guard, fleet).await;
    let periodic = periodic_surveys(control_plane, &files.path().join("periodic")).await;
    let (warm_approvals, fresh_denials) = (Times::new(warm_approvals), Times::new(fresh_denials));
    let cached_denials = Times::new(cached_denials);
    let repeated_approvals = Times::new(repeated_approvals);
    Figures {
        start: start_time,
        after_pauses,
        in_a_row,
        warm_approvals,
        repeated_approvals,
        bare,
        fresh_denials,
        cached_denials,
        calls,
        survey,
        survey_processor,
        failover: Times::new(failover),
        periodic,
        resident,
    }
}

/// Measures the first and the second approvals after pauses, and those without pauses. Afterwards, each cluster has had two
/// approvals since its record was created. A pod stands for its cluster.
async fn first_approvals(
    control_plane: &ControlPlane,
    guard: &GuardProcess,
    files: &Path,
    followers: &[&Pod],
) -> [[FirstApprovals; 2]; 2] {
    let bench = FirstApprovalsBench::new(control_plane.client().await);
    let (paused, others) = followers.split_at(PAUSED.min(followers.len().div_ceil(2)));
    // The guard knows the id of the last cluster, which it has evaluated in a dry run.
    let (known, others) = others.split_last().map_or((None, others), |(last, others)| (Some(last), others));
    let [mut after_pauses, mut in_a_row] = <[[FirstApprovals; 2]; 2]>::default();
    if !bench.wait_until_idle().await {
        eprintln!("the guard reads pods of other namespaces during the first approvals");
    }
    let rescan = Instant::now() + RESCAN_INTERVAL;
    let mut connection = connect(guard).await;
    // The second approval completes the record of its cluster. Until then, an evaluation also reads the provisional record.
    for group in paused.chunks(GROUP) {
        bench.delete_records().await;
        for series in &mut after_pauses {
            bench.measure(&mut connection, group, PAUSE, series).await;
        }
    }
    while after_pauses[0].len() < MIN_COLD {
        let files = files.join(format!("first-{}", after_pauses[0].len()));
        let other = start(&control_plane.guard_kubeconfig(), &files).await;
        sleep(WATCH_TIME).await;
        if paused.len() > 1 {
            bench.wait_until_idle().await;
        }
        bench.delete_records().await;
        let mut connection = connect(&other).await;
        for series in &mut after_pauses {
            bench.measure(&mut connection, paused, PAUSE, series).await;
        }
    }
    // The guard closes connections that are idle for minutes, as during the measurements of other guards.
    let mut connection = connect(guard).await;
    // The records of all groups before the last one were deleted.
    let without_record = &paused[..paused.len().saturating_sub(1) / GROUP * GROUP];
    for _ in 0..2 {
        approvals(&mut connection, without_record.iter().chain(known).copied()).await;
    }
    for series in &mut in_a_row {
        bench.measure(&mut connection, others, Duration::ZERO, series).await;
    }
    // With one cluster, the guard reads one namespace again.
    if followers.len() > 1 {
        sleep(rescan.saturating_duration_since(Instant::now())).await;
        bench.wait_until_idle().await;
    }
    [after_pauses, in_a_row]
}

/// Waits until the guard approves the deletion in a dry run: it reads the annotations of the namespace first, and waits for the
/// watches. A dry run reads and probes, and reserves nothing.
async fn wait_until_approved(connection: &mut Connection, pod: &Pod) {
    wait_until("the guard approves a deletion", READY_TIMEOUT, async || {
        verdict(&connection.post(PATH, dry_run_review(pod)).await.unwrap().body).0
    })
    .await;
}

/// Starts a guard and waits until it is ready.
async fn start(kubeconfig: &Path, files: &Path) -> GuardProcess {
    let guard = GuardProcess::launch(kubeconfig, files);
    wait_until("the guard is ready", READY_TIMEOUT, async || guard.is_ready().await).await;
    guard
}

/// Opens a connection to the guard.
async fn connect(guard: &GuardProcess) -> Connection {
    Connection::tls(guard.https(), &guard.ca_pem).await.unwrap()
}

/// Sends the review of a pod's deletion. Returns the time until the response, and whether the deletion is approved.
pub(crate) async fn review(connection: &mut Connection, pod: &Pod) -> (Duration, bool) {
    let text = deletion_review(pod);
    let started = Instant::now();
    let response = connection.post(PATH, text).await.unwrap();
    (started.elapsed(), verdict(&response.body).0)
}

async fn approvals(connection: &mut Connection, pods: impl Iterator<Item = &Pod>) -> Vec<Duration> {
    let mut times = Vec::new();
    for pod in pods {
        let (time, allowed) = review(connection, pod).await;
        assert!(allowed, "the deletion of a follower is approved");
        times.push(time);
    }
    times
}

/// Requests a survey. Returns its duration and the processor time of the guard.
async fn survey(guard: &GuardProcess, clusters: usize) -> (Duration, Duration) {
    let (processor, started) = (guard.processor_time(), Instant::now());
    let response = http_client::get(guard.http(), "/status").await.expect("a survey");
    let (duration, processor) = (started.elapsed(), guard.processor_time().saturating_sub(processor));
    let survey: serde_json::Value = serde_json::from_str(&response.body).expect("JSON");
    let problems = &survey["problems"];
    assert_eq!(problems.as_array().map(Vec::len), Some(0), "{problems}");
    let listed = survey["clusters"].as_array().expect("clusters");
    assert_eq!(listed.len(), clusters);
    assert!(listed.iter().all(|cluster| cluster["healthy"] == 3), "all members answer");
    (duration, processor)
}

/// Kills a replica, and returns the durations of approvals at another one, which was ready and has evaluated no deletion of
/// these clusters. The first one contains the time from the kill.
async fn failover(
    control_plane: &ControlPlane,
    files: &Path,
    mut killed: GuardProcess,
    fleet: &Fleet,
) -> Vec<Duration> {
    let other = start(&control_plane.guard_kubeconfig(), files).await;
    let (last, clusters) = fleet.clusters.split_last().expect("a cluster");
    let mut connection = connect(&other).await;
    wait_until_approved(&mut connection, &last[1]).await;
    sleep(START_TIME).await;
    // With one cluster, the other replica has evaluated its deletion in a dry run.
    let clusters = if clusters.is_empty() { std::slice::from_ref(last) } else { clusters };
    let mut times = Vec::new();
    let mut started = Instant::now();
    killed.kill();
    for cluster in clusters.iter().take(FAILED_OVER) {
        let mut connection = connect(&other).await;
        assert!(review(&mut connection, &cluster[1]).await.1, "the other replica approves");
        times.push(started.elapsed());
        started = Instant::now();
    }
    times
}

/// Measures another guard, which surveys periodically.
async fn periodic_surveys(control_plane: &ControlPlane, files: &Path) -> PeriodicSurveys {
    std::fs::create_dir_all(files).expect("a directory");
    std::fs::write(files.join(SURVEY_INTERVAL), format!("{}s", INTERVAL.as_secs())).expect("a file");
    let guard = start(&control_plane.guard_kubeconfig(), files).await;
    sleep(START_TIME).await;
    let started = Instant::now();
    let mut samples = vec![(started, guard.processor_time())];
    let (mut rounds, mut surveyed_since, mut duration) = (guard.metric(ROUNDS).await, None, Duration::ZERO);
    while started.elapsed() < INTERVAL * OBSERVED {
        sleep(Duration::from_secs(1)).await;
        samples.push((Instant::now(), guard.processor_time()));
        // Only surveys probe this guard's clusters.
        let before = std::mem::replace(&mut rounds, guard.metric(ROUNDS).await);
        surveyed_since = (rounds > before).then(|| surveyed_since.unwrap_or_else(Instant::now));
        duration = duration
            .max(surveyed_since.map_or(Duration::ZERO, |since| since.elapsed() + Duration::from_secs(1)));
    }
    let share = |from: usize, to: usize| {
        let used = samples[to].1.saturating_sub(samples[from].1);
        used.as_secs_f64() / (samples[to].0 - samples[from].0).as_secs_f64()
    };
    let largest =
        |seconds: usize| (seconds..samples.len()).map(|to| share(to - seconds, to)).fold(0.0_f64, f64::max);
    let mean = share(0, samples.len() - 1);
    PeriodicSurveys { mean, survey: largest(WINDOW), busiest: largest(1), duration }
}

/// Returns the calls of warm approvals and of denials. Another guard reaches the API server through a proxy, which counts.
async fn calls(control_plane: &ControlPlane, files: &Path, cluster: &[Pod]) -> String {
    std::fs::create_dir_all(files).expect("a directory");
    let (leader, follower) = (&cluster[0], &cluster[1]);
    let proxy = ApiServerProxy::start(&control_plane.guard_kubeconfig(), files.join("kubeconfig")).await;
    let guard = start(&proxy.kubeconfig, &files.join("guard")).await;
    let mut connection = connect(&guard).await;
    wait_until_approved(&mut connection, follower).await;
    // The second approval completes the record of the cluster.
    for _ in 0..2 {
        assert!(review(&mut connection, follower).await.1);
    }
    wait_until("the watch of claims has synchronized", READY_TIMEOUT, async || {
        proxy.take_calls();
        assert!(review(&mut connection, follower).await.1);
        !proxy.take_calls().iter().any(|call| call.path.contains("/persistentvolumeclaims/"))
    })
    .await;
    let namespace = follower.metadata.namespace.as_deref().unwrap_or_default();
    let mut counts: [BTreeMap<usize, usize>; 2] = Default::default();
    for _ in 0..COUNTED {
        for (pod, counts) in [follower, leader].into_iter().zip(&mut counts) {
            proxy.take_calls();
            let allowed = review(&mut connection, pod).await.1;
            assert_eq!(allowed, pod.metadata.name == follower.metadata.name);
            let calls = proxy.take_calls();
            let calls: Vec<_> = calls.iter().filter(|call| is_of_cluster(call, namespace)).collect();
            let before = counts.keys().next().copied();
            if before.is_some_and(|before| before != calls.len()) {
                let paths: Vec<String> =
                    calls.iter().map(|call| format!("{} {}", call.method, call.path)).collect();
                eprintln!("a review with {} calls: {}", calls.len(), paths.join(", "));
            }
            *counts.entry(calls.len()).or_default() += 1;
        }
    }
    let [approvals, denials] = counts.map(|counts| {
        let texts = counts.iter().map(|(calls, reviews)| format!("{calls} calls: {reviews}"));
        texts.collect::<Vec<_>>().join(", ")
    });
    let other = start(&proxy.kubeconfig, &files.join("other")).await;
    sleep(WATCH_TIME).await;
    let bench = FirstApprovalsBench::new(control_plane.client().await);
    let [first, second, third] = bench.calls(&mut connect(&other).await, &proxy, follower).await;
    format!(
        "{approvals} approvals; {denials} denials; first three approvals at a new guard: {first}, {second}, {third} calls"
    )
}
