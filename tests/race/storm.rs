//! Deletions from many sides, with faults in between, and calm afterwards.

use std::{
    collections::BTreeMap,
    fmt,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    time::Duration,
};

use fastrand::Rng;
use futures::future::join_all;
use k8s_openapi::{api::policy::v1::Eviction, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::api::{DeleteParams, PostParams};
use nix::sys::signal::Signal;
use serde_json::Value;
use tokio::time::{Instant, sleep};

use crate::{
    scene::{Scene, WHOLE_LIMIT},
    support::{process_node::Order, wait::until, writer::Writer},
};

/// How many ask at the same time.
const ASKERS: usize = 8;

/// Longest pause of an asker between two deletions, in milliseconds. A pod is back after two seconds or three.
const MOST_PAUSE: u64 = 1500;

/// Pods that are deleted alone in a calm.
const LONE: usize = 2;

/// Deletions between two calms.
const ROUND: usize = 100;

/// Longest that a lone deletion of a healthy cluster's pod may have to wait: a reservation that nobody used ends after 60
/// s, and the rest is for a slow machine.
const GRANT_LIMIT: Duration = Duration::from_secs(120);

/// Who answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Judge {
    Guard,
    LeaderOnly,
}

/// What is to be done.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Storm {
    pub(crate) deletes: usize,
    pub(crate) members: usize,
    pub(crate) replicas: usize,
    /// Of what is done to whom; when it happens is up to the machine.
    pub(crate) seed: u64,
    pub(crate) judge: Judge,
}

/// What became of it.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) storm: Storm,
    /// Yeses that let a pod go that was not on its way already.
    pub(crate) allowed: u32,
    /// Of these, such that broke the law.
    pub(crate) losses: Vec<String>,
    answers: BTreeMap<String, u32>,
    faults: BTreeMap<&'static str, u32>,
    longest_write_gap: Duration,
    /// How long a lone deletion had to wait at most while all members served.
    longest_grant: Duration,
    took: Duration,
}

impl Storm {
    pub(crate) async fn run(&self) -> Report {
        let scene = Scene::start(self).await;
        let began = Instant::now();
        let urls: Vec<String> =
            scene.truth.names.iter().map(|it| scene.truth.member(it).url().to_owned()).collect();
        let writer = Writer::start(&urls).await;
        let (mut faults, mut longest_grant) = (BTreeMap::new(), Duration::ZERO);
        let mut rng = Rng::with_seed(self.seed);
        let mut left = self.deletes;
        while left > 0 {
            let round = left.min(ROUND);
            left -= round;
            let asked = AtomicUsize::new(0);
            let askers = join_all((0..ASKERS).map(|_| ask(&scene, rng.fork(), &asked, round)));
            let is_over = AtomicBool::new(false);
            let ask_all = async {
                askers.await;
                is_over.store(true, Ordering::Relaxed);
            };
            tokio::join!(ask_all, do_harm(&scene, rng.fork(), &is_over, &mut faults));
            wait_until_whole(&scene).await;
            // The double would refuse the leader for ever.
            if self.judge == Judge::Guard {
                longest_grant = longest_grant.max(delete_alone(&scene, &mut rng).await);
            }
        }
        let written = writer.written();
        let (losses, allowed) = scene.truth.losses().await;
        let answers = scene.front.answers.lock().unwrap().clone();
        Report {
            storm: *self,
            allowed,
            losses,
            answers,
            faults,
            longest_write_gap: written.longest_gap,
            longest_grant,
            took: began.elapsed(),
        }
    }
}

/// Deletes and evicts pods by chance, until this many deletions were asked for by all askers together.
async fn ask(scene: &Scene, mut rng: Rng, asked: &AtomicUsize, total: usize) {
    while asked.fetch_add(1, Ordering::Relaxed) < total {
        // A few ask again for a pod that goes already.
        let present = scene.truth.present().await;
        let takes_any = present.is_empty() || rng.u8(..10) == 0;
        let name = rng.choice(if takes_any { &scene.truth.names } else { &present }).unwrap();
        // Most are refused.
        match rng.u8(..10) {
            0..6 => drop(scene.pods.delete(name, &DeleteParams::default()).await),
            6 => drop(scene.pods.delete(name, &DeleteParams::default().grace_period(0)).await),
            _ => evict(scene, name).await,
        }
        sleep(Duration::from_millis(rng.u64(..MOST_PAUSE))).await;
    }
}

async fn evict(scene: &Scene, name: &str) {
    let metadata = ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
    let eviction = Eviction { delete_options: None, metadata };
    let parameters = PostParams::default();
    let result: Result<Value, _> =
        scene.pods.create_subresource("eviction", name, &parameters, &eviction).await;
    drop(result);
}

/// Kills and freezes members and kills replicas, until the round is over. Never cut short: a fault must not be forgotten.
async fn do_harm(
    scene: &Scene,
    mut rng: Rng,
    is_over: &AtomicBool,
    faults: &mut BTreeMap<&'static str, u32>,
) {
    while !is_over.load(Ordering::Relaxed) {
        sleep(Duration::from_millis(rng.u64(200..900))).await;
        let present = scene.truth.present().await;
        let Some(name) = rng.choice(&present) else { continue };
        let what = match rng.u8(..10) {
            0..4 => scene.truth.fault(name, Order::Kill).await.then_some("members killed"),
            4..8 if scene.truth.fault(name, Order::Pause).await => {
                sleep(Duration::from_millis(rng.u64(200..2500))).await;
                scene.truth.thaw(name).await;
                Some("members frozen")
            }
            8.. => kill_a_replica(scene, &mut rng).await.then_some("replicas killed"),
            _ => None,
        };
        if let Some(what) = what {
            *faults.entry(what).or_default() += 1;
        }
    }
}

async fn kill_a_replica(scene: &Scene, rng: &mut Rng) -> bool {
    let mut replicas = scene.replicas.lock().await;
    let Some(number) = (!replicas.is_empty()).then(|| rng.usize(..replicas.len())) else { return false };
    replicas[number].signal(Signal::SIGKILL);
    replicas[number].start_again().await;
    true
}

/// Ends all faults, and waits until every member serves and every replica is there.
async fn wait_until_whole(scene: &Scene) {
    for name in &scene.truth.names {
        scene.truth.thaw(name).await;
    }
    for replica in scene.replicas.lock().await.iter() {
        replica.wait_until_ready().await;
    }
    until("all members serve", WHOLE_LIMIT, async || scene.truth.is_whole().await).await;
}

/// Deletes some pods, each alone while all members serve: how long one had to wait at most.
async fn delete_alone(scene: &Scene, rng: &mut Rng) -> Duration {
    let mut longest = Duration::ZERO;
    for name in rng.choose_multiple(&scene.truth.names, LONE) {
        let began = Instant::now();
        until(&format!("{name} may go alone"), GRANT_LIMIT, async || {
            scene.pods.delete(name, &DeleteParams::default()).await.is_ok()
        })
        .await;
        longest = longest.max(began.elapsed());
        wait_until_whole(scene).await;
    }
    longest
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Storm { deletes, members, replicas, seed, judge } = self.storm;
        writeln!(
            f,
            "storm: {deletes} deletions, {members} members, {replicas} replicas, seed {seed}, {judge:?}"
        )?;
        writeln!(f, "  pods allowed to go       {:>8}", self.allowed)?;
        writeln!(f, "  losses                   {:>8}", self.losses.len())?;
        writeln!(f, "  longest write gap        {:>8.1} s", self.longest_write_gap.as_secs_f64())?;
        writeln!(f, "  longest wait of a lone   {:>8.1} s", self.longest_grant.as_secs_f64())?;
        writeln!(f, "  took                     {:>8.1} s", self.took.as_secs_f64())?;
        for (what, count) in &self.faults {
            writeln!(f, "  {what:<24} {count:>8}")?;
        }
        writeln!(f, "  answers of the webhook:")?;
        for (what, count) in &self.answers {
            writeln!(f, "    {what:<30} {count:>6}")?;
        }
        for loss in &self.losses {
            writeln!(f, "  loss: {loss}")?;
        }
        Ok(())
    }
}
