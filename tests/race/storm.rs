//! Deletions from many sides, with faults in between, and calm afterwards.

use std::{
    str::FromStr,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use fastrand::Rng;
use futures::future::join_all;
use tokio::time::Instant;

use crate::{
    askers::Asked,
    harm::{Done, Harm},
    report::Report,
    scene::{Scene, WHOLE_LIMIT},
    support::{wait::until, writer::Writer},
};

/// How many ask at the same time.
const ASKERS: usize = 8;

/// How often the heartbeat writes.
const HEARTBEAT: Duration = Duration::from_millis(50);

/// Pods that are deleted alone in a calm.
const LONE: usize = 2;

/// Deletions between two calms.
const ROUND: usize = 200;

/// Longest that a lone deletion of a healthy cluster's pod may have to wait: a reservation that nobody used ends after 60
/// s, and may be followed by one more.
const GRANT_LIMIT: Duration = Duration::from_secs(300);

/// Who answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Against {
    Guard,
    LeaderOnly,
    /// A `PodDisruptionBudget` alone, which evictions ask and deletions do not.
    Pdb,
    Nothing,
}

/// What is to be done.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Storm {
    pub(crate) deletes: usize,
    pub(crate) members: usize,
    pub(crate) replicas: usize,
    /// Of what is done to whom; when it happens is up to the machine.
    pub(crate) seed: u64,
    pub(crate) against: Against,
    /// Whether it ends with the first loss.
    pub(crate) ends_with_loss: bool,
}

impl Storm {
    pub(crate) async fn run(&self) -> Report {
        let scene = Scene::start(self).await;
        let began = Instant::now();
        let urls: Vec<String> =
            scene.truth.names.iter().map(|it| scene.truth.member(it).url().to_owned()).collect();
        let writer = Writer::start(&urls, HEARTBEAT).await;
        let (asked, mut done, mut longest_wait) = (Asked::default(), Done::new(), Duration::ZERO);
        let mut rng = Rng::with_seed(self.seed);
        loop {
            let enough = (asked.count() + ROUND).min(self.deletes);
            self.rage(&scene, &mut rng, &asked, enough, &mut done).await;
            wait_until_whole(&scene).await;
            longest_wait = longest_wait.max(self.delete_alone(&scene, &mut rng).await);
            let gap = writer.written().longest_gap;
            let report = Report::of(*self, &scene, &asked, &done, gap, longest_wait, began.elapsed()).await;
            if asked.count() >= self.deletes || self.is_over(&scene) {
                return report;
            }
            // Who waits for an hour may want to know.
            eprintln!("{report}");
        }
    }

    /// Asks and does harm until enough was asked for.
    async fn rage(&self, scene: &Scene, rng: &mut Rng, asked: &Asked, enough: usize, done: &mut Done) {
        // Where there is a guard everything happens at least once, however few deletions are asked for.
        let kinds = if self.against == Against::Guard { Harm::against(self.against).len() } else { 0 };
        let has_all = AtomicBool::new(false);
        let goes_on = || {
            let asks = asked.count() < enough && !self.is_over(scene);
            asks || !has_all.load(Ordering::Relaxed)
        };
        let askers = join_all((0..ASKERS).map(|_| scene.ask(rng.fork(), asked, &goes_on)));
        let harm = scene.do_harm(rng.fork(), done, |done| {
            has_all.store(done.len() >= kinds, Ordering::Relaxed);
            goes_on()
        });
        tokio::join!(askers, harm);
    }

    fn is_over(&self, scene: &Scene) -> bool {
        self.ends_with_loss && scene.truth.has_losses()
    }

    /// Deletes some pods, each alone while all members serve: how long one had to wait at most.
    async fn delete_alone(&self, scene: &Scene, rng: &mut Rng) -> Duration {
        let mut longest = Duration::ZERO;
        for name in rng.choose_multiple(&scene.truth.names, LONE) {
            // It would be refused for ever.
            if self.against == Against::LeaderOnly && scene.truth.leads(name).await {
                continue;
            }
            let began = Instant::now();
            until(&format!("{name} may go alone"), GRANT_LIMIT, async || scene.let_one_go(name).await).await;
            longest = longest.max(began.elapsed());
            wait_until_whole(scene).await;
        }
        longest
    }
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

impl FromStr for Against {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "guard" => Ok(Self::Guard),
            "leader-only" => Ok(Self::LeaderOnly),
            "pdb" => Ok(Self::Pdb),
            "nothing" => Ok(Self::Nothing),
            other => Err(format!("against {other}? guard, pdb, leader-only or nothing")),
        }
    }
}
