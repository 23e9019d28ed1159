//! Drains: a node is cordoned, and a member that led on this node is evicted afterwards, while one of three replicas of the
//! guard is killed at a random time. Leadership of all clusters on this node must have moved before the eviction.

use std::{collections::BTreeSet, fmt, rc::Rc, time::Duration};

use fastrand::Rng;
use futures::{StreamExt, future::join_all, stream};
use kube::api::DeleteParams;
use nix::sys::signal::Signal;
use tokio::{
    task::{JoinSet, LocalSet},
    time::{Instant, sleep},
};

use test_support::{
    guard::process::{ALL_NETWORKS, GuardProcess},
    guarded_cluster::{GuardedCluster, START_TIMEOUT, Setup, UNRELATED_POD},
    kubernetes::{control_plane::DRAINED_NODES, webhook},
    process_node::IS_FRUGAL,
    wait::{wait_for, wait_until},
};

use crate::cluster::{Turn, annotate, cordon, node_of, start_replica, uncordon};

/// Number of replicas of the guard. Each watches all clusters, and answers the reviews of a third of them.
const REPLICAS: usize = 3;

/// Number of clusters that are started at the same time.
const CONCURRENT_STARTS: usize = 2;

/// A replica is killed within this time after the cordon: before, during or after the move.
const MAX_KILL_DELAY_MS: u64 = 500;

/// Pause between two queries for the leaders, multiplied by the number of clusters, so that the queries leave processor time for
/// the moves.
const POLL_PAUSE: Duration = Duration::from_millis(5);

/// Share of the moves that have to end before the first eviction, in percent.
const MIN_SHARE: usize = 95;

/// A series of drains.
struct Drains {
    clusters: usize,
    events: usize,
    seed: u64,
    handover: bool,
    /// Longest time between the cordon and the eviction. The eviction follows earlier if the replica was killed and all
    /// leaders have moved.
    eviction_delay: Duration,
    limit: Duration,
}

/// The results of a series.
#[derive(Default)]
struct Report {
    clusters: usize,
    events: usize,
    /// Leaders on a node when it was cordoned.
    due: usize,
    /// Times from the cordon until another member led, for all moves that ended before the eviction.
    moves: Vec<Duration>,
    /// Clusters whose term increased by more than one in an event. Elections without a move count as well.
    repeated: usize,
    /// Clusters whose term increased in an event although their leaders were on another node.
    others: usize,
    /// Approved evictions after which another member did not serve.
    violations: usize,
    killed: usize,
    evicted: usize,
}

// === impl Report ===

impl Report {
    /// Returns the time of the move in which `percent` of the moves had ended.
    fn percentile(&self, percent: usize) -> u128 {
        let mut moves = self.moves.clone();
        moves.sort();
        let last = moves.len().saturating_sub(1);
        moves.get(last * percent / 100).map_or(0, Duration::as_millis)
    }

    fn is_in_time(&self) -> bool {
        self.moves.len() * 100 >= self.due * MIN_SHARE
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { clusters, events, due, moves, repeated, others, violations, killed, evicted } = self;
        write!(
            f,
            "{events} drains over {clusters} clusters: {} of {due} leaders moved before the first eviction, {} of them within a second \
             (median {} ms, 19 of 20 {} ms, longest {} ms), {repeated} clusters with more than one move in a drain, \
             {others} changes of leaders on other nodes, {evicted} evictions, {violations} violations, {killed} replicas killed",
            moves.len(),
            moves.iter().filter(|taken| **taken <= Duration::from_secs(1)).count(),
            self.percentile(50),
            self.percentile(95),
            self.percentile(100),
        )
    }
}

// === impl Drains ===

impl Drains {
    async fn run(&self) -> Report {
        LocalSet::new().run_until(Box::pin(self.run_locally())).await
    }

    async fn run_locally(&self) -> Report {
        let starts = stream::iter(0..self.clusters).map(|_| start_without_guard());
        let clusters: Vec<GuardedCluster> = starts.buffer_unordered(CONCURRENT_STARTS).collect().await;
        let mut replicas = Vec::new();
        for number in 0..REPLICAS {
            replicas.push(start_replica(&clusters[0], number, self.handover).await);
        }
        for (number, etcd) in clusters.iter().enumerate() {
            share_replica(etcd, &replicas[number % REPLICAS]).await;
        }
        let mut series = Series {
            clusters: clusters.into_iter().map(Rc::new).collect(),
            replicas,
            recovering: JoinSet::new(),
            busy: BTreeSet::new(),
            last: Vec::new(),
            random: Rng::with_seed(self.seed),
            eviction_delay: self.eviction_delay,
            report: Report { clusters: self.clusters, ..Report::default() },
        };
        let started = Instant::now();
        while series.report.events < self.events && started.elapsed() < self.limit {
            series.event().await;
            if series.report.events.is_multiple_of(10) {
                println!("{} s: {}", started.elapsed().as_secs(), series.report);
            }
        }
        while let Some(recovered) = series.recovering.join_next().await {
            recovered.expect("the cluster recovers");
        }
        let leaders = join_all(series.clusters.iter().map(|etcd| leader(etcd))).await;
        series.compare_terms(&leaders);
        series.report
    }
}

/// Starts a cluster, and stops its own guard: each guard would serve all clusters. The members
/// are frugal, because sixty members with the default heartbeats and a probe every 200 ms occupy two cores.
async fn start_without_guard() -> GuardedCluster {
    let setup = Setup {
        nodes: &DRAINED_NODES,
        config: ALL_NETWORKS,
        change_manifest: with_frugal_members,
        ..Setup::default()
    };
    let mut etcd = GuardedCluster::start_as(setup).await;
    annotate(&etcd, "statefulset/etcd", "etcd-guard.io/leader=transfer").await;
    etcd.guard.kill();
    etcd
}

fn with_frugal_members(manifest: &str) -> String {
    let labels = "    metadata:\n      labels: {app: etcd}\n    spec:\n";
    assert!(manifest.contains(labels), "the template of the shipped manifest has other metadata");
    let annotated = format!(
        "    metadata:\n      labels: {{app: etcd}}\n      annotations: {{{IS_FRUGAL}: \"true\"}}\n    spec:\n"
    );
    manifest.replacen(labels, &annotated, 1)
}

/// Registers a replica for the reviews of a cluster.
async fn share_replica(etcd: &GuardedCluster, replica: &GuardProcess) {
    webhook::register(&etcd.client, &etcd.namespace, replica, |_| {}).await;
    let dry_run = DeleteParams { dry_run: true, ..DeleteParams::default() };
    wait_until("the API server calls the shared replica", START_TIMEOUT, async || {
        let before = replica.request_count().await;
        etcd.pods.delete(UNRELATED_POD, &dry_run).await.is_ok() && replica.request_count().await > before
    })
    .await;
}

/// The state of a series between two drains.
struct Series {
    clusters: Vec<Rc<GuardedCluster>>,
    replicas: Vec<GuardProcess>,
    /// Clusters whose evicted member does not serve yet.
    recovering: JoinSet<usize>,
    busy: BTreeSet<usize>,
    /// The leaders at the beginning of the last drain, and whether each had to move.
    last: Vec<(Leader, bool)>,
    random: Rng,
    eviction_delay: Duration,
    report: Report,
}

/// The leader of a cluster.
#[derive(Clone)]
struct Leader {
    pod: &'static str,
    term: u64,
}

// === impl Series ===

impl Series {
    /// Drains the node of the leader of a random cluster.
    async fn event(&mut self) {
        let drained = self.choose_cluster().await;
        let leaders = join_all(self.clusters.iter().map(|etcd| leader(etcd))).await;
        self.compare_terms(&leaders);
        let (pod, node) = (leaders[drained].pod, node_of(leaders[drained].pod));
        // The webhook of the drained cluster stays available.
        let killed = (drained % REPLICAS + 1 + self.random.usize(..REPLICAS - 1)) % REPLICAS;
        let kill_delay = Duration::from_millis(self.random.u64(..MAX_KILL_DELAY_MS));
        let mut waiting: Vec<usize> =
            (0..leaders.len()).filter(|number| node_of(leaders[*number].pod) == node).collect();
        self.report.due += waiting.len();
        self.last = leaders.iter().map(|leader| (leader.clone(), node_of(leader.pod) == node)).collect();

        let etcd = Rc::clone(&self.clusters[drained]);
        cordon(&etcd, node).await;
        let cordoned = Instant::now();
        let mut is_killed = false;
        while cordoned.elapsed() < self.eviction_delay && !(is_killed && waiting.is_empty()) {
            if !is_killed && cordoned.elapsed() >= kill_delay {
                self.replicas[killed].signal(Signal::SIGKILL);
                is_killed = true;
            }
            let members = waiting.iter().map(|number| leads(&self.clusters[*number], leaders[*number].pod));
            let states = join_all(members).await;
            let (elapsed, before) = (cordoned.elapsed(), waiting.len());
            let mut states = states.into_iter();
            waiting.retain(|_| !matches!(states.next(), Some(Some((false, _)))));
            self.report.moves.extend((waiting.len()..before).map(|_| elapsed));
            sleep(self.poll_pause()).await;
        }
        if !is_killed {
            self.replicas[killed].signal(Signal::SIGKILL);
        }
        self.report.killed += 1;
        let uid = etcd.uid(pod).await;
        if etcd.evict(pod, None).await.is_ok() {
            self.report.evicted += 1;
            for other in GuardedCluster::names().into_iter().filter(|other| *other != pod) {
                self.report.violations += usize::from(!etcd.member(other).serves().await);
            }
            self.busy.insert(drained);
            self.recovering.spawn_local(async move {
                etcd.wait_until_replaced(pod, &uid).await;
                drained
            });
        }
        uncordon(&self.clusters[drained], node).await;
        self.replicas[killed].restart().await;
        self.report.events += 1;
    }

    fn poll_pause(&self) -> Duration {
        POLL_PAUSE * u32::try_from(self.clusters.len()).expect("a small number")
    }

    /// Returns a random cluster whose members all serve.
    async fn choose_cluster(&mut self) -> usize {
        loop {
            while let Some(recovered) = self.recovering.try_join_next() {
                self.busy.remove(&recovered.expect("the cluster recovers"));
            }
            let idle: Vec<usize> =
                (0..self.clusters.len()).filter(|number| !self.busy.contains(number)).collect();
            if !idle.is_empty() {
                return idle[self.random.usize(..idle.len())];
            }
            sleep(self.poll_pause()).await;
        }
    }

    /// Compares the terms with those at the beginning of the last drain.
    fn compare_terms(&mut self, now: &[Leader]) {
        for ((before, is_due), now) in self.last.iter().zip(now) {
            self.report.repeated += usize::from(*is_due && now.term > before.term + 1);
            self.report.others += usize::from(!is_due && now.term > before.term);
        }
    }
}

/// Returns the leader of a cluster, of which one member may be restarting.
async fn leader(etcd: &GuardedCluster) -> Leader {
    wait_for("a leader", START_TIMEOUT, async || {
        let states = join_all(GuardedCluster::names().map(|pod| leads(etcd, pod))).await;
        let states = GuardedCluster::names().into_iter().zip(states);
        let leaders = states.filter_map(|(pod, state)| match state {
            Some((true, term)) => Some(Leader { pod, term }),
            _ => None,
        });
        leaders.max_by_key(|leader| leader.term)
    })
    .await
}

/// Returns whether the member of this pod leads, and its term, if it answers.
async fn leads(etcd: &GuardedCluster, pod: &str) -> Option<(bool, u64)> {
    let status = etcd.member(pod).status().await?;
    let leads = status.leader() == status.header()?.member_id();
    // A member that knows no leader proves no move.
    (status.leader() != 0).then_some((leads, status.raft_term()))
}

/// The eviction of this series waits for a slow machine: the series has to end, and asserts no duration.
const SHORT: Drains = Drains {
    clusters: 3,
    events: 6,
    seed: 1,
    handover: true,
    eviction_delay: Duration::from_secs(20),
    limit: Duration::from_secs(100),
};

#[tokio::test]
async fn leadership_moves_before_the_first_eviction_of_a_drain() {
    let _turn = Turn::start().await;
    let report = SHORT.run().await;
    println!("{report}");
    assert!(report.is_in_time(), "{report}");
    assert_eq!((report.repeated, report.violations), (0, 0), "{report}");
    assert!(report.evicted > 0, "{report}");
}

/// `scripts/prove handover` runs this with variables from its options.
#[tokio::test]
#[ignore = "takes hours; scripts/prove runs it"]
async fn drains_by_environment() {
    let _turn = Turn::start().await;
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect(name));
    let to_usize = |number: u64| usize::try_from(number).expect("a small number");
    let handover = std::env::var("DRAIN_HANDOVER").as_deref() != Ok("off");
    let events = number("DRAIN_EVENTS").map_or(1000, to_usize);
    let report = Drains {
        clusters: number("DRAIN_CLUSTERS").map_or(20, to_usize),
        events,
        seed: number("DRAIN_SEED").unwrap_or(1),
        handover,
        // The cluster autoscaler waits for this time between its taint and the first eviction, unless
        // `--node-delete-delay-after-taint` sets another one.
        eviction_delay: Duration::from_millis(number("DRAIN_DELAY_MS").unwrap_or(5000)),
        limit: Duration::from_secs(60 * number("DRAIN_MINUTES").unwrap_or(120)),
    }
    .run()
    .await;
    println!("result: handover {}: {report}", if handover { "on" } else { "off" });
    assert_eq!(report.events, events, "the time limit ended the series: {report}");
    assert!(report.is_in_time(), "{report}");
    assert_eq!((report.repeated, report.violations), (0, 0), "{report}");
    // On a busy machine, up to 1 % of the drains may contain an unrelated election.
    assert!(report.others * 100 <= report.events, "{report}");
}
