//! Who wants pods to go: deletions and evictions, and what the API said to each.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use fastrand::Rng;
use k8s_openapi::{
    api::policy::v1::Eviction,
    apimachinery::pkg::apis::meta::v1::{DeleteOptions, ObjectMeta, Preconditions},
};
use kube::{
    Error,
    api::{DeleteParams, PostParams},
};
use serde_json::Value;
use tokio::time::{Instant, sleep};

use crate::{
    scene::Scene,
    storm::Against,
    truth::{Grounds, Yes},
};

/// Longest pause of an asker between two deletions, in milliseconds. A pod is back after two seconds or three.
const MOST_PAUSE: u64 = 1000;

/// Pause until an apiserver that is not there is tried again.
const AWAY_PAUSE: Duration = Duration::from_millis(200);

/// What the API said.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Said {
    Yes,
    No,
    /// There is no such pod, or not that one any more.
    Gone,
    /// It could not ask whom it has to ask, or could not do it.
    Failed,
}

/// What was asked for, and what the API said.
#[derive(Debug, Default)]
pub(crate) struct Asked {
    count: AtomicUsize,
    said: Mutex<BTreeMap<Said, u32>>,
}

/// How a pod is asked to go.
#[derive(Clone, Copy)]
enum Way {
    Delete,
    Force,
    Evict,
}

impl Asked {
    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    pub(crate) fn said(&self, what: Said) -> u32 {
        self.said.lock().unwrap().get(&what).copied().unwrap_or_default()
    }

    fn note(&self, said: Said) {
        *self.said.lock().unwrap().entry(said).or_default() += 1;
    }
}

impl Scene {
    /// Deletes and evicts pods by chance, as long as this says that more is to be done.
    pub(crate) async fn ask(&self, mut rng: Rng, asked: &Asked, goes_on: impl Fn() -> bool) {
        while goes_on() {
            asked.count.fetch_add(1, Ordering::Relaxed);
            loop {
                // A few ask again for a pod that goes already.
                let present = self.truth.present().await;
                let takes_any = present.is_empty() || rng.u8(..10) == 0;
                let name = rng.choice(if takes_any { &self.truth.names } else { &present }).unwrap();
                let way = match rng.u8(..10) {
                    0..6 => Way::Delete,
                    6 => Way::Force,
                    _ => Way::Evict,
                };
                if let Some(said) = self.let_go(name, way).await {
                    asked.note(said);
                    break;
                }
                sleep(AWAY_PAUSE).await;
            }
            sleep(Duration::from_millis(rng.u64(..MOST_PAUSE))).await;
        }
    }

    /// Asks once for a pod to go, as whoever is alone would; whether it does.
    pub(crate) async fn let_one_go(&self, name: &str) -> bool {
        self.let_go(name, Way::Delete).await == Some(Said::Yes)
    }

    /// What the API said, if there was one. A budget is asked by evictions alone.
    async fn let_go(&self, name: &str, way: Way) -> Option<Said> {
        let result = match way {
            _ if self.against == Against::Pdb => self.evict_and_judge(name).await,
            Way::Evict => self.evict(name, None).await,
            Way::Delete => self.pods.delete(name, &DeleteParams::default()).await.map(drop),
            Way::Force => self.pods.delete(name, &DeleteParams::default().grace_period(0)).await.map(drop),
        };
        match result {
            Ok(()) => Some(Said::Yes),
            Err(Error::Api(status)) => Some(match status.code {
                403 | 429 => Said::No,
                404 | 409 => Said::Gone,
                _ => Said::Failed,
            }),
            Err(_) => None,
        }
    }

    async fn evict(&self, name: &str, uid: Option<String>) -> Result<(), Error> {
        let metadata = ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
        let preconditions = uid.map(|uid| Preconditions { uid: Some(uid), resource_version: None });
        let delete_options = Some(DeleteOptions { preconditions, ..DeleteOptions::default() });
        let eviction = Eviction { delete_options, metadata };
        let parameters = PostParams::default();
        let said: Value = self.pods.create_subresource("eviction", name, &parameters, &eviction).await?;
        drop(said);
        Ok(())
    }

    /// Where nobody sees a yes in between, it is judged when it is there.
    async fn evict_and_judge(&self, name: &str) -> Result<(), Error> {
        let before = self.truth.before(name).await;
        let (uid, before) = before.unwrap_or_default();
        let asked = Instant::now();
        self.evict(name, (!uid.is_empty()).then(|| uid.clone())).await?;
        let told = "the budget allows it";
        let yes = Yes { name, uid: &uid, is_by_name: false, asked, grounds: Grounds::Untold, told };
        self.truth.judge_done(&yes, before).await;
        Ok(())
    }
}
