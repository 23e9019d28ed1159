//! A look at all guarded clusters now and then, so that somebody hears of a missing voter before a deletion is denied for
//! it. It decides nothing, reserves nothing, and no verdict rests on it.
//!
//! Clusters are counted by their state, never named in a label: names come from users, and a label's values must not. The log
//! names a cluster when its state changes.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use tokio::time::{MissedTickBehavior, interval};

use super::{
    Guard,
    assess::{Tally, assess},
    deadline::Deadline,
    etcd_pod,
    family::Family,
    policy::Policy,
    snapshot::Snapshot,
};
use crate::k8s::pod::Pod;

/// Time for one namespace's pods and the members of one cluster, each: as much as a verdict is given.
const LOOK_LIMIT: Duration = Duration::from_secs(10);

/// What a survey finds of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// A voter could go and a quorum would remain.
    Spare,
    /// Every healthy voter is needed.
    NoSpare,
    /// It has one voter, which is always needed: its owners want it so.
    SingleMember,
    /// Fewer healthy voters than a quorum takes were proven.
    NoQuorum,
    /// It could not be asked, or gave no answer to count by.
    Unknown,
}

/// A cluster as a survey found it.
struct Found {
    state: State,
    tally: Option<Tally>,
}

// === impl Guard ===

impl Guard {
    /// Surveys every `every`, for as long as it is awaited.
    pub(super) async fn survey_for_ever(&self, every: Duration) {
        let namespaces = self.looker.annotations.guarded_namespaces();
        let mut known: BTreeMap<String, State> = BTreeMap::new();
        // An interval of nothing would be no interval.
        let mut ticks = interval(every.max(Duration::from_millis(1)));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let namespaces = namespaces.borrow().clone();
            let found = self.survey(&namespaces).await;
            self.looker.metrics.record_survey(&found.values().map(|it| it.state).collect::<Vec<_>>());
            for (cluster, found) in &found {
                tell(cluster, found, known.get(cluster).copied());
            }
            known = found.into_iter().map(|(cluster, found)| (cluster, found.state)).collect();
        }
    }

    /// All clusters of these namespaces, by name. One after the other: a survey has time.
    async fn survey(&self, namespaces: &BTreeSet<String>) -> BTreeMap<String, Found> {
        let mut found = BTreeMap::new();
        for namespace in namespaces {
            let deadline = Deadline::of(Some(LOOK_LIMIT));
            let list = self.looker.pods.list(namespace);
            let Ok(Ok(mut pods)) = deadline.within("listing the pods from the apiserver", list).await else {
                found.insert(format!("{namespace}/*"), Found { state: State::Unknown, tally: None });
                continue;
            };
            self.looker.inherit(namespace, &mut pods);
            for family in families(namespace, &pods) {
                let deadline = Deadline::of(Some(LOOK_LIMIT));
                let look = self.looker.look_at_list(&family, &pods, deadline).await;
                let name = format!("{namespace}/{}", family.name());
                found
                    .insert(name, look.map_or(Found { state: State::Unknown, tally: None }, |it| judge(&it)));
            }
        }
        found
    }
}

/// The clusters that these pods are of, each once.
fn families(namespace: &str, pods: &[Pod]) -> Vec<Family> {
    let mut families = Vec::new();
    let is_member =
        |pod: &&Pod| !pod.is_finished() && etcd_pod::read(pod, &pod.metadata.annotations).is_some();
    for family in pods.iter().filter(is_member).map(|pod| Family::of(namespace, pod)) {
        if !families.contains(&family) {
            families.push(family);
        }
    }
    families
}

/// What the numbers of a look say, whichever pod they are told for.
fn judge(snapshot: &Snapshot) -> Found {
    let policy = Policy::default();
    let tally = snapshot.pods.iter().find_map(|pod| assess(snapshot, pod, &policy).tally);
    let state = match &tally {
        // No linearizable read passed, which proves that there is no quorum only if members answered.
        None if snapshot.replies().any(|reply| reply.status().is_some()) => State::NoQuorum,
        None => State::Unknown,
        Some(Tally { voters: 1, healthy: 1, .. }) => State::SingleMember,
        Some(tally) if tally.healthy < tally.quorum => State::NoQuorum,
        Some(tally) if tally.healthy == tally.quorum => State::NoSpare,
        Some(_) => State::Spare,
    };
    Found { state, tally }
}

/// One line for each change; what is as it should be is told only after something else.
fn tell(cluster: &str, found: &Found, before: Option<State>) {
    let Found { state, tally } = found;
    if before == Some(*state) {
        return;
    }
    let (voters, healthy, quorum) = (
        tally.as_ref().map(|it| it.voters),
        tally.as_ref().map(|it| it.healthy),
        tally.as_ref().map(|it| it.quorum),
    );
    match state {
        State::NoSpare | State::NoQuorum | State::Unknown => {
            tracing::warn!(cluster, state = state.word(), voters, healthy, quorum, "survey");
        }
        State::Spare | State::SingleMember => {
            tracing::info!(cluster, state = state.word(), voters, healthy, quorum, "survey");
        }
    }
}

// === impl State ===

impl State {
    /// All states there are.
    pub(super) const ALL: [Self; 5] =
        [Self::Spare, Self::NoSpare, Self::SingleMember, Self::NoQuorum, Self::Unknown];

    /// As the metric's label and the log write it.
    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Spare => "spare",
            Self::NoSpare => "no_spare",
            Self::SingleMember => "single_member",
            Self::NoQuorum => "no_quorum",
            Self::Unknown => "unknown",
        }
    }
}

#[cfg(test)]
mod tests;
