//! Concurrent deletions with disruptions in between, and quiet phases after them.

use std::{
    str::FromStr,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use fastrand::Rng;
use futures::future::join_all;
use tokio::time::Instant;

use crate::{
    API_SERVER,
    clients::RequestStats,
    disruptions::{Disruption, DisruptionCounts},
    environment::{Environment, HEALTHY_TIMEOUT},
    report::Report,
    topology::Owners,
};
use test_support::{etcd::writer::Writer, layout::Topology, wait::wait_until};

/// The number of concurrent clients.
const CLIENTS: usize = 8;

/// The interval of the heartbeat writes.
const HEARTBEAT_INTERVAL: Duration = Duration::from_millis(50);

/// The number of single deletions in a quiet phase.
const SINGLE_DELETIONS: usize = 2;

/// The number of deletions between two quiet phases.
const ROUND: usize = 200;

/// The number of rounds from one slow cascade to the next; the first one is in the second round.
const CASCADE_INTERVAL: usize = 4;

/// The longest time until a single deletion in a healthy cluster is approved, after which the test gives up. The report
/// contains the measured time.
pub(crate) const APPROVAL_TIMEOUT: Duration = Duration::from_secs(300);

/// A departure that lasts longer than a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SlowDeparture {
    /// A pod terminates slowly.
    Termination,
    /// The owner of a pod is deleted, and the pod exists as before.
    Cascade,
}

/// The subject of the test: the server that answers reviews.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Subject {
    Guard,
    LeaderOnly,
    /// A `PodDisruptionBudget` alone, which applies to evictions and not to deletions.
    Pdb,
    /// x-pdb with one budget for all members.
    XPdb,
    Nothing,
}

/// The requests of the clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Requests {
    /// Deletions, evictions and restarts.
    All,
    /// Deletions and evictions.
    Deletions,
    /// Evictions, while nothing is disrupted.
    Evictions,
}

/// The parameters of a stress test.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StressTest {
    pub(crate) deletes: usize,
    pub(crate) members: usize,
    pub(crate) replicas: usize,
    /// The seed of all random choices; their timing depends on the machine.
    pub(crate) seed: u64,
    pub(crate) subject: Subject,
    /// The owners of the pods.
    pub(crate) owners: Owners,
    /// The longest pause of a client between two deletions, in milliseconds. A pod is replaced after two or three
    /// seconds: with shorter pauses, most requests are denied because of an earlier approval.
    pub(crate) max_pause: u64,
    /// The duration of a slow termination.
    pub(crate) slow: Duration,
    /// The time after which the test ends, also before the last deletion.
    pub(crate) limit: Duration,
    /// Whether the test ends with the first violation.
    pub(crate) stops_at_violation: bool,
    /// The requests of the clients.
    pub(crate) requests: Requests,
}

impl StressTest {
    pub(crate) async fn run(&self) -> Report {
        let environment = Environment::start(self).await;
        let urls: Vec<String> = environment
            .oracle
            .names
            .iter()
            .map(|name| environment.oracle.member(name).url().to_owned())
            .collect();
        let writer = Writer::start(&urls, HEARTBEAT_INTERVAL).await;
        let recreation = environment.recreate_objects();
        let rounds = self.run_rounds(&environment, &writer);
        tokio::select! {
            report = rounds => report,
            () = recreation => unreachable!("pods are created again until the test ends"),
        }
    }

    async fn run_rounds(&self, environment: &Environment, writer: &Writer) -> Report {
        let began = Instant::now();
        let (requests, mut completed, mut longest_wait) =
            (RequestStats::default(), DisruptionCounts::new(), Duration::ZERO);
        let mut rng = Rng::with_seed(self.seed);
        for round in 0.. {
            let limit = (requests.count() + ROUND).min(self.deletes);
            // A slow departure in every round: it must outlive a reservation.
            let slow = Some(if self.has_cascade(round) {
                SlowDeparture::Cascade
            } else {
                SlowDeparture::Termination
            });
            // On the heap, because the future is large.
            Box::pin(self.run_phase(environment, &mut rng, &requests, limit, slow, &mut completed)).await;
            let guard = API_SERVER.lock().await;
            wait_until_healthy(environment).await;
            longest_wait = longest_wait.max(self.delete_alone(environment, &mut rng).await);
            drop(guard);
            let gap = writer.stats().longest_gap;
            let report =
                Report::new(*self, environment, &requests, &completed, gap, longest_wait, began.elapsed())
                    .await;
            let is_complete = requests.count() >= self.deletes || began.elapsed() > self.limit;
            if is_complete || self.is_finished(environment) {
                environment.write_trace(self).await;
                return report;
            }
            // Progress for users who wait for a long run.
            eprintln!("{report}");
        }
        unreachable!("the rounds end with a report")
    }

    /// Runs clients and disruptions until this number of requests is reached.
    async fn run_phase(
        &self,
        environment: &Environment,
        rng: &mut Rng,
        requests: &RequestStats,
        limit: usize,
        slow: Option<SlowDeparture>,
        completed: &mut DisruptionCounts,
    ) {
        // Against a guard, every kind of disruption happens at least once, independent of the number of deletions.
        let kinds = if self.subject == Subject::Guard { Disruption::of(self).len() } else { 0 };
        let has_all = AtomicBool::new(false);
        let is_running = || {
            let is_below_limit = requests.count() < limit && !self.is_finished(environment);
            is_below_limit || !has_all.load(Ordering::Relaxed)
        };
        match slow {
            // As many as the cluster tolerates.
            Some(SlowDeparture::Termination) => {
                for _ in 0..self.members.div_ceil(2) - 1 {
                    environment.terminate_slowly(self, rng, requests).await;
                }
            }
            Some(SlowDeparture::Cascade) => environment.delete_set_slowly(self, rng).await,
            None => {}
        }
        let clients =
            join_all((0..CLIENTS).map(|_| environment.run_client(self, rng.fork(), requests, &is_running)));
        let disrupt = environment.run_disruptions(self, rng.fork(), completed, |completed| {
            has_all.store(completed.len() >= kinds, Ordering::Relaxed);
            is_running()
        });
        let collect = environment.resume_collector(self, slow == Some(SlowDeparture::Cascade));
        tokio::join!(clients, disrupt, collect);
    }

    /// Whether the test deletes a StatefulSet in some rounds.
    pub(crate) fn has_cascades(&self) -> bool {
        self.owners == Owners(Topology::SetPerMember) && self.subject == Subject::Guard
    }

    /// Whether a StatefulSet is deleted in this round, whose pod the garbage collector deletes much later.
    fn has_cascade(&self, round: usize) -> bool {
        self.has_cascades() && round % CASCADE_INTERVAL == 1
    }

    fn is_finished(&self, environment: &Environment) -> bool {
        self.stops_at_violation && environment.oracle.has_violations()
    }

    /// Deletes some pods, each alone while all members serve, and returns the longest wait.
    async fn delete_alone(&self, environment: &Environment, rng: &mut Rng) -> Duration {
        let mut longest = Duration::ZERO;
        for name in rng.choose_multiple(&environment.oracle.names, SINGLE_DELETIONS) {
            // The naive guard would deny this forever.
            if self.subject == Subject::LeaderOnly && environment.oracle.leads(name).await {
                continue;
            }
            let began = Instant::now();
            wait_until(&format!("the deletion of {name} alone is approved"), APPROVAL_TIMEOUT, async || {
                environment.delete_once(name).await
            })
            .await;
            longest = longest.max(began.elapsed());
            wait_until_healthy(environment).await;
        }
        longest
    }
}

/// Ends all faults, and waits until every member serves and every replica is ready.
async fn wait_until_healthy(environment: &Environment) {
    for name in &environment.oracle.names {
        environment.oracle.thaw(name).await;
    }
    for replica in environment.replicas.lock().await.iter() {
        replica.wait_until_ready().await;
    }
    wait_until("all members serve", HEALTHY_TIMEOUT, async || environment.oracle.is_healthy().await).await;
}

impl FromStr for Subject {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "guard" => Ok(Self::Guard),
            "leader-only" => Ok(Self::LeaderOnly),
            "pdb" => Ok(Self::Pdb),
            "x-pdb" => Ok(Self::XPdb),
            "nothing" => Ok(Self::Nothing),
            other => Err(format!("unknown subject {other}: use guard, pdb, x-pdb, leader-only or nothing")),
        }
    }
}

impl FromStr for Requests {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "all" => Ok(Self::All),
            "deletions" => Ok(Self::Deletions),
            "evictions" => Ok(Self::Evictions),
            other => Err(format!("unknown requests {other}: use all, deletions or evictions")),
        }
    }
}
