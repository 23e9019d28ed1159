//! Clients that delete, evict and restart pods, and the results of their requests.

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
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::{
    environment::Environment,
    oracle::{Approval, Claim},
    stress::{APPROVAL_TIMEOUT, Requests, StressTest, Subject},
};
use test_support::{protocol_trace, wait::wait_until};

/// The longest pause of a client between two deletions during a slow termination, in milliseconds.
const MAX_CALM_PAUSE: u64 = 20_000;

/// The pause before a request to an unreachable API server is repeated.
const RETRY_PAUSE: Duration = Duration::from_millis(200);

/// The result of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum RequestResult {
    Allowed,
    Denied,
    /// The pod does not exist, or another pod has its name.
    Absent,
    /// The API server could not call a webhook, or had another error.
    Failed,
}

/// Counts of requests and their results.
#[derive(Debug, Default)]
pub(crate) struct RequestStats {
    count: AtomicUsize,
    results: Mutex<BTreeMap<RequestResult, u32>>,
}

/// The kind of request.
#[derive(Clone, Copy)]
enum Method {
    Delete,
    Force,
    Evict,
    /// A change of the image, after which the kubelet restarts the container.
    Restart,
    /// With this grace period in seconds.
    Slow(u32),
}

impl RequestStats {
    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    pub(crate) fn results(&self, result: RequestResult) -> u32 {
        self.results.lock().unwrap().get(&result).copied().unwrap_or_default()
    }

    fn record(&self, result: RequestResult) {
        *self.results.lock().unwrap().entry(result).or_default() += 1;
    }
}

impl Environment {
    /// Deletes, evicts and restarts random pods as long as the condition holds.
    pub(crate) async fn run_client(
        &self,
        test: &StressTest,
        mut rng: Rng,
        requests: &RequestStats,
        is_running: impl Fn() -> bool,
    ) {
        while is_running() {
            requests.count.fetch_add(1, Ordering::Relaxed);
            loop {
                // One in ten requests is for a pod that may be terminating already.
                let present = self.oracle.present().await;
                let takes_any = present.is_empty() || rng.u8(..10) == 0;
                let name = rng.choice(if takes_any { &self.oracle.names } else { &present }).unwrap();
                let method = match rng.u8(..10) {
                    _ if test.requests == Requests::Evictions => Method::Evict,
                    0..5 => Method::Delete,
                    5 => Method::Force,
                    // The model has no restarts.
                    6 if test.requests == Requests::All && protocol_trace::folder().is_none() => {
                        Method::Restart
                    }
                    _ => Method::Evict,
                };
                if let Some(result) = self.request_deletion(name, method).await {
                    requests.record(result);
                    break;
                }
                sleep(RETRY_PAUSE).await;
            }
            let pause = if self.is_calm().await { MAX_CALM_PAUSE } else { test.max_pause };
            sleep(Duration::from_millis(rng.u64(..pause))).await;
        }
    }

    /// Deletes a member's pod with a long grace period. The member serves until its preStop hook has ended, longer than
    /// a reservation lives. Without other clients, the deletion is approved within moments.
    pub(crate) async fn terminate_slowly(&self, test: &StressTest, rng: &mut Rng, requests: &RequestStats) {
        let Some(grace) = test.slow_grace() else { return };
        wait_until("a slow termination is approved", APPROVAL_TIMEOUT, async || {
            let present = self.oracle.present().await;
            let Some(name) = rng.choice(&present) else { return false };
            let Some(result) = self.request_deletion(name, Method::Slow(grace)).await else { return false };
            requests.count.fetch_add(1, Ordering::Relaxed);
            requests.record(result);
            result == RequestResult::Allowed
        })
        .await;
        self.calm_down(test.slow).await;
        self.slow_terminations.fetch_add(1, Ordering::Relaxed);
    }

    /// Lets clients send fewer requests for this time.
    pub(crate) async fn calm_down(&self, time: Duration) {
        *self.calm_until.lock().await = Some(Instant::now() + time);
    }

    /// Whether a slow departure is in progress. Most requests are then denied, so that clients send fewer.
    async fn is_calm(&self) -> bool {
        self.calm_until.lock().await.is_some_and(|until| Instant::now() < until)
    }

    /// Deletes a pod once, and returns whether the deletion was allowed.
    pub(crate) async fn delete_once(&self, name: &str) -> bool {
        self.request_deletion(name, Method::Delete).await == Some(RequestResult::Allowed)
    }

    /// Sends a request and returns its result, unless the API server is unreachable. Against a `PodDisruptionBudget`,
    /// every request is an eviction.
    async fn request_deletion(&self, name: &str, method: Method) -> Option<RequestResult> {
        let result = match method {
            _ if self.subject == Subject::Pdb => self.evict_and_check(name).await,
            Method::Evict => self.evict(name, None).await,
            Method::Restart => self.change_image(name).await,
            Method::Delete => self.pods.delete(name, &DeleteParams::default()).await.map(drop),
            Method::Slow(grace) => {
                self.pods.delete(name, &DeleteParams::default().grace_period(grace)).await.map(drop)
            }
            Method::Force => self.pods.delete(name, &DeleteParams::default().grace_period(0)).await.map(drop),
        };
        match result {
            Ok(()) => Some(RequestResult::Allowed),
            Err(Error::Api(status)) => Some(match status.code {
                403 | 429 => RequestResult::Denied,
                404 | 409 => RequestResult::Absent,
                _ => RequestResult::Failed,
            }),
            Err(_) => None,
        }
    }

    /// Gives the container of etcd another image, which is the same program on the process node.
    async fn change_image(&self, name: &str) -> Result<(), Error> {
        let number = self.images.fetch_add(1, Ordering::Relaxed);
        let container =
            json!({"name": "etcd", "image": format!("quay.io/coreos/etcd:v3.6.16-restart.{number}")});
        let patch = Patch::Strategic(json!({"spec": {"containers": [container]}}));
        self.pods.patch(name, &PatchParams::default(), &patch).await.map(drop)
    }

    async fn evict(&self, name: &str, uid: Option<String>) -> Result<(), Error> {
        let metadata = ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
        let preconditions = uid.map(|uid| Preconditions { uid: Some(uid), resource_version: None });
        let delete_options = Some(DeleteOptions { preconditions, ..DeleteOptions::default() });
        let eviction = Eviction { delete_options, metadata };
        let parameters = PostParams::default();
        let response: Value = self.pods.create_subresource("eviction", name, &parameters, &eviction).await?;
        drop(response);
        Ok(())
    }

    /// Evicts a pod and then checks the approval, because no webhook receives it beforehand.
    async fn evict_and_check(&self, name: &str) -> Result<(), Error> {
        let state_before = self.oracle.state_before(name).await;
        let (uid, state_before) = state_before.unwrap_or_default();
        let requested_at = Instant::now();
        self.evict(name, (!uid.is_empty()).then(|| uid.clone())).await?;
        let note = "the budget allows it";
        let approval = Approval {
            name,
            uid: &uid,
            is_by_name: false,
            is_restart: false,
            requested_at,
            claim: Claim::Unstated,
            note,
        };
        self.oracle.check_completed(&approval, state_before).await;
        Ok(())
    }
}
