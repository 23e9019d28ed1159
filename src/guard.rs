//! The validating path: may this pod of an etcd cluster be deleted now?
//!
//! Request -> pods and members as they are -> [`assess`] (pure) -> reservation -> verdict. The cache says no, never
//! yes: a look at the cluster that is up to a second old may deny, but every yes rests on a round of its own.

pub mod assess;
mod consequence;
mod credentials;
mod deadline;
mod decision;
mod doubt;
pub mod elsewhere;
mod etcd_pod;
mod eviction;
mod explain;
mod family;
mod glance;
mod identity;
mod in_force;
mod intent;
mod intents;
mod ledger;
mod look;
mod metrics;
mod policies;
mod policy;
mod request;
mod reservations;
mod roster;
mod round;
mod scale;
mod settings;
pub mod snapshot;
mod storage;
mod survey;
mod tell;
mod transfer;
mod verdict;

use std::{sync::Arc, time::Duration};

use moka::sync::Cache;
use prometheus_client::registry::Registry;
use tokio::{sync::Mutex, time::Instant};

#[cfg(any(test, fuzzing))]
pub(crate) use self::etcd_pod::fuzzing;
use self::{
    credentials::Credentials,
    deadline::TooLate,
    eviction::InTurn,
    family::Family,
    look::Looker,
    metrics::Metrics,
    policies::{Policies, Settings},
    policy::Resolved,
    reservations::Reservations,
    roster::Roster,
    snapshot::Snapshot,
};
pub use self::{
    deadline::Deadline,
    glance::Glance,
    intent::Intent,
    policy::{LeaderPolicy, Mode, Permission, Policy},
    request::{Operation, Request, RequestError},
    settings::Setting,
    survey::{ClusterStatus, MemberStatus, ReservationStatus, Role, Survey},
    verdict::{Reason, Refusal, Verdict},
};
use crate::{
    config::Live,
    etcd::{ClusterId, Connections},
    k8s::{Annotations, Claims, Events, Leases, LookupError, Pods, Secrets, pod::Pod},
};

/// How long a look at a cluster may deny. A burst of deletions is answered from one round; whoever follows the advice
/// of a denial, and asks alone, is judged by a new one.
const LOOK_LIFE: Duration = Duration::from_millis(500);

/// How long it may deny while a new look is under way: of a crowd, only who looks waits for it.
const LOOK_LIFE_MEANWHILE: Duration = Duration::from_secs(1);

/// How long a cluster's turn and ledger are kept after their last use; longer than any reservation lives.
const CLUSTER_LIFE: Duration = Duration::from_secs(600);

/// More clusters than any guard looks after; a bound against made-up ones.
const MOST_CLUSTERS: u64 = 4096;

/// What is kept of the time that the apiserver gives, to put an answer together.
const ANSWER_SHARE: Duration = Duration::from_millis(100);

/// Judges deletions of pods.
pub struct Guard {
    looker: Looker,
    policies: Policies,
    reservations: Reservations,
    /// One decision at a time per cluster.
    turns: Cache<Family, Arc<Mutex<()>>>,
    /// The last look at each cluster.
    looks: Cache<Family, LastLook>,
    /// The id by which each cluster was known last: its record is read before the round that tells it.
    ids: Cache<Family, ClusterId>,
    /// The pods of each cluster that were all it took when they were listed last: they are read by their names.
    rosters: Cache<Family, Roster>,
    events: Events,
    /// One survey at a time.
    surveys: Mutex<()>,
}

/// The last look at a cluster.
#[derive(Clone)]
struct LastLook {
    snapshot: Arc<Snapshot>,
    /// When its verdict was there: with a member that is silent, a look takes longer than it lives.
    done_at: Instant,
}

/// What a guard reads, and whom it tells.
pub struct Sources {
    /// Pods.
    pub pods: Pods,
    /// The claims that hold their data.
    pub claims: Claims,
    /// What members ask of clients.
    pub secrets: Secrets,
    /// The owners' policies.
    pub annotations: Annotations,
    /// The server's policies.
    pub config: Live,
    /// Where verdicts are told of.
    pub events: Events,
}

/// Why there is no look at a cluster.
enum NoLook {
    Lookup(LookupError),
    Ledger(String),
    TooLate(TooLate),
    /// The pod needs no look: it is gone, or its deletion was accepted.
    Settled(Verdict),
}

/// One request, with what is known of it before any look.
struct Case<'a> {
    request: &'a Request,
    family: &'a Family,
    policy: &'a Policy,
    deadline: Deadline,
}

// === impl Guard ===

impl Guard {
    /// A guard that reads from these sources, shares its reservations through `leases`, and shows its metrics in
    /// `registry`.
    #[must_use]
    pub fn new(sources: Sources, leases: Leases, registry: &mut Registry) -> Self {
        let Sources { pods, claims, secrets, annotations, config, events } = sources;
        let metrics = Metrics::register(registry);
        let reservations = Reservations::new(leases);
        reservations.register(registry);
        Self {
            looker: Looker {
                pods,
                claims,
                annotations: annotations.clone(),
                config: config.clone(),
                credentials: Credentials::new(secrets),
                connections: Connections::new(),
                metrics,
            },
            policies: Policies::new(annotations, config),
            reservations,
            turns: Cache::builder().max_capacity(MOST_CLUSTERS).time_to_idle(CLUSTER_LIFE).build(),
            looks: Cache::builder().max_capacity(MOST_CLUSTERS).time_to_live(LOOK_LIFE_MEANWHILE).build(),
            ids: Cache::builder().max_capacity(MOST_CLUSTERS).time_to_idle(CLUSTER_LIFE).build(),
            rosters: Cache::builder().max_capacity(MOST_CLUSTERS).time_to_live(CLUSTER_LIFE).build(),
            events,
            surveys: Mutex::default(),
        }
    }

    /// Keeps house for as long as it is awaited: clears away what clusters that are gone left behind, and looks at all
    /// guarded clusters every `survey_interval`, if there is one.
    pub async fn keep_house(&self, survey_interval: Option<Duration>) {
        let survey = async {
            match survey_interval {
                Some(interval) => self.survey_for_ever(interval).await,
                None => std::future::pending().await,
            }
        };
        tokio::join!(self.reservations.clear_away(), survey);
    }

    /// The verdict on a request, in any case before the deadline.
    pub async fn judge(&self, request: &Request, deadline: Deadline) -> Verdict {
        if request.bystander {
            return not_etcd(&request.name);
        }
        // What it takes to judge is large, and would be moved about with the review of every pod that is passed by.
        Box::pin(self.judge_whole(request, deadline)).await
    }

    async fn judge_whole(&self, request: &Request, deadline: Deadline) -> Verdict {
        if let Operation::Intent(intent) = request.operation {
            return self.judge_intent(request, intent, deadline).await;
        }
        if let Some(verdict) = self.judge_by_name(request, deadline).await {
            return verdict;
        }
        match self.looker.pod_of(request, deadline).await {
            Ok(pod) => self.judge_pod(request, &pod, None, deadline).await,
            Err(no_look) => self.judge_unread(request, no_look),
        }
    }

    /// The verdict on a pod of which nothing could be read.
    fn judge_unread(&self, request: &Request, no_look: NoLook) -> Verdict {
        let verdict = no_look.verdict(request);
        self.tell_of_unread_pod(request, &verdict);
        verdict
    }

    /// `read` is what was read of its family already.
    async fn judge_pod(
        &self,
        request: &Request,
        pod: &Pod,
        read: Option<InTurn>,
        deadline: Deadline,
    ) -> Verdict {
        if let Some(verdict) = settled(pod) {
            return verdict;
        }
        if etcd_pod::read(pod, &pod.metadata.annotations).is_none() {
            return not_etcd(&pod.metadata.name);
        }
        let family = Family::of(&request.namespace, pod);
        let Resolved { policy, mistakes } = self.policies.of(&family, pod);
        let policy = policy.for_grace_period(request.grace_period(pod));
        if let Some(verdict) = self.consequence(request, pod, deadline).await {
            return verdict;
        }
        let case = Case { request, family: &family, policy: &policy, deadline };
        let mut verdict = match self.judge_member(&case, read).await {
            Ok(verdict) => verdict,
            Err(no_look) => no_look.verdict(request),
        };
        let denied = !verdict.reason.allows();
        self.apply(request, &policy, &mistakes, &mut verdict);
        if denied && verdict.allows() && !request.dry_run && !self.reserve_unasked(&case).await {
            verdict.warn(&format!(
                "that pod {} is on its way could not be recorded: delete no other member until it is back",
                request.name
            ));
        }
        self.tell_of_pod(request, pod, &verdict);
        verdict
    }

    /// What the owners make of a verdict.
    fn apply(&self, request: &Request, policy: &Policy, mistakes: &[String], verdict: &mut Verdict) {
        if !verdict.reason.allows() {
            match (&policy.break_glass, policy.mode) {
                (Some(why), _) => {
                    if !request.dry_run {
                        self.looker.metrics.record_break_glass();
                    }
                    verdict.overrule(why);
                }
                (None, Mode::Audit) => verdict.audit(),
                (None, Mode::Enforce) => {}
            }
        }
        for mistake in mistakes {
            verdict.warn(mistake);
        }
    }

    async fn judge_member(&self, case: &Case<'_>, read: Option<InTurn>) -> Result<Verdict, NoLook> {
        if let Some(denial) = self.denial_from_last_look(case, LOOK_LIFE) {
            return Ok(denial);
        }
        let (_turn, mut reads) = match read {
            Some(InTurn { turn, reads }) => (turn, Some(reads)),
            None => {
                let turn = self.turn_of(case.family);
                let turn = if let Ok(turn) = Arc::clone(&turn).try_lock_owned() {
                    turn
                } else if let Some(denial) = self.denial_from_last_look(case, LOOK_LIFE_MEANWHILE) {
                    return Ok(denial);
                } else {
                    let turn = turn.lock_owned();
                    case.deadline.within("waiting for other deletions of this cluster", turn).await?
                };
                // Whoever had the turn before may have looked just now.
                if let Some(denial) = self.denial_from_last_look(case, LOOK_LIFE) {
                    return Ok(denial);
                }
                (turn, None)
            }
        };
        loop {
            if let Some(verdict) = self.decide(case, reads.take()).await? {
                return Ok(verdict);
            }
        }
    }

    fn turn_of(&self, family: &Family) -> Arc<Mutex<()>> {
        self.turns.get_with_by_ref(family, Arc::default)
    }

    fn keep_look(&self, family: &Family, snapshot: Snapshot) {
        let look = LastLook { snapshot: Arc::new(snapshot), done_at: Instant::now() };
        self.looks.insert(family.clone(), look);
    }

    /// What the last look says, if it says no and is no older than this.
    fn denial_from_last_look(&self, case: &Case<'_>, life: Duration) -> Option<Verdict> {
        let LastLook { snapshot, .. } =
            self.looks.get(case.family).filter(|look| look.done_at.elapsed() < life)?;
        let target = snapshot.pod(&case.request.name)?;
        let assessment = assess::assess(&snapshot, target, case.policy);
        let denies = !assessment.reason.allows() && !assessment.wants_transfer(case.policy);
        denies.then(|| explain::explain(&snapshot, target, &assessment, Instant::now()))
    }
}

/// What needs no look at the cluster.
fn settled(pod: &Pod) -> Option<Verdict> {
    let name = &pod.metadata.name;
    if pod.is_terminating() {
        Some(Verdict::new(
            Reason::AlreadyTerminating,
            format!("the deletion of pod {name} was accepted before"),
        ))
    } else if pod.is_finished() {
        Some(Verdict::new(Reason::PodFinished, format!("pod {name} has ended ({})", pod.status.phase)))
    } else if pod.is_mirror() {
        Some(Verdict::new(
            Reason::MirrorPod,
            format!("pod {name} mirrors a static pod, which goes on running"),
        ))
    } else {
        None
    }
}

fn not_etcd(pod: &str) -> Verdict {
    Verdict::new(Reason::NotEtcd, format!("pod {pod} runs no etcd"))
}

fn gone(request: &Request) -> Verdict {
    Verdict::new(Reason::PodGone, format!("pod {}/{} does not exist", request.namespace, request.name))
}

// === impl NoLook ===

impl NoLook {
    /// A record that cannot be read.
    fn unreadable(error: &LookupError) -> Self {
        Self::Ledger(error.to_string())
    }

    fn verdict(self, request: &Request) -> Verdict {
        let pod = &request.name;
        match self {
            Self::Settled(verdict) => verdict,
            Self::Lookup(error) => {
                let text = format!("whether pod {pod} may go is unknown: {error}");
                Verdict::new(Reason::LookupFailed, text).with_next("Try again when the apiserver answers")
            }
            Self::Ledger(cause) => {
                let text = format!(
                    "pod {pod} could go, but the reservation that keeps others from going with it cannot be made: {cause}"
                );
                Verdict::new(Reason::LedgerUnavailable, text)
                    .with_next("Try again when the apiserver answers")
            }
            Self::TooLate(TooLate { what, limit }) => {
                let text = format!(
                    "whether pod {pod} may go could not be found out within {}: {what} took too long",
                    humantime::format_duration(limit)
                );
                Verdict::new(Reason::DeadlineExceeded, text).with_next("Try again")
            }
        }
    }
}

impl From<TooLate> for NoLook {
    fn from(too_late: TooLate) -> Self {
        Self::TooLate(too_late)
    }
}
