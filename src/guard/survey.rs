//! All guarded clusters as they are now, for people who look before anything goes. It reads what a verdict reads and counts as
//! a verdict counts, and reserves nothing.

mod status;

use futures::{StreamExt, stream};

pub use self::status::{ClusterStatus, MemberStatus, ReservationStatus, Role, Survey};
use super::{
    Deadline, Guard, NoLook, Settings,
    assess::census,
    etcd_pod,
    family::Family,
    ledger::Reservation,
    look::{Looker, Siblings},
    snapshot::Snapshot,
    storage,
};
use crate::k8s::pod::Pod;

/// How many namespaces are looked at side by side: enough that one with a frozen member does not hold up the others, and
/// few enough that a survey is no storm.
const AT_ONCE: usize = 4;

// === impl Guard ===

impl Guard {
    /// Looks at every etcd cluster of this namespace, or of all that carry the guard's label. One survey at a time: who
    /// watches costs the clusters no more than who asks once.
    pub async fn survey(&self, namespace: Option<&str>, deadline: Deadline) -> Survey {
        let mut survey = Survey::default();
        let turn = deadline.within("waiting for another survey", self.surveys.lock()).await;
        let _turn = match turn {
            Ok(turn) => turn,
            Err(late) => return survey.with_problem(NoLook::TooLate(late).problem("a survey")),
        };
        let read =
            deadline.within("reading the reservations from the apiserver", self.reservations.read_all());
        let reserved = match read.await {
            Ok(Ok(reserved)) => reserved,
            Ok(Err(error)) => {
                survey.problems.push(format!("the reservations are not known: {error}"));
                Vec::new()
            }
            Err(late) => return survey.with_problem(NoLook::TooLate(late).problem("the reservations")),
        };
        let guarded = self.looker.annotations.guarded_namespaces().borrow().clone();
        let namespaces = match namespace {
            Some(one) => {
                if !guarded.contains(one) {
                    survey.problems.push(format!(
                        "namespace {one} is not guarded: kubectl label namespace {one} etcd-guard.io/guard=enabled"
                    ));
                }
                vec![one.to_owned()]
            }
            None => guarded.into_iter().collect(),
        };
        let looks: Vec<_> = namespaces
            .iter()
            .map(|namespace| self.survey_namespace(namespace, &reserved, deadline))
            .collect();
        let mut looks = stream::iter(looks).buffered(AT_ONCE);
        while let Some(look) = looks.next().await {
            match look {
                Ok(clusters) => survey.clusters.extend(clusters),
                Err(problem) => survey.problems.push(problem),
            }
        }
        survey
    }

    async fn survey_namespace(
        &self,
        namespace: &str,
        reserved: &[Reservation],
        deadline: Deadline,
    ) -> Result<Vec<ClusterStatus>, String> {
        let listed = deadline.within("listing the pods", self.looker.pods.list(namespace)).await;
        let listed = match listed {
            Ok(pods) => pods.map_err(NoLook::Lookup),
            Err(late) => Err(NoLook::TooLate(late)),
        };
        let mut pods = listed.map_err(|it| it.problem(&format!("namespace {namespace}")))?;
        self.looker.inherit(namespace, &mut pods);
        let mut clusters: Vec<ClusterStatus> = Vec::new();
        for (family, first) in families(namespace, &pods) {
            let snapshot = self.looker.survey(&family, &pods, reserved, deadline).await;
            let Settings { settings, mistakes } = self.policies.settings(&family, first);
            let status = ClusterStatus::of(&snapshot, &census(&snapshot), reserved, settings, mistakes);
            // Where every member has a StatefulSet of its own, each of them leads to the same cluster.
            let same = |it: &&mut ClusterStatus| it.id.is_some() && it.id == status.id;
            match clusters.iter_mut().find(same) {
                Some(known) => known.name = format!("{},{}", known.name, status.name),
                None => clusters.push(status),
            }
        }
        Ok(clusters)
    }
}

/// Each family that runs etcd, in the order of names, with one of its pods.
fn families<'a>(namespace: &str, pods: &'a [Pod]) -> Vec<(Family, &'a Pod)> {
    let mut families: Vec<(Family, &Pod)> = Vec::new();
    for pod in pods {
        if pod.is_finished() || pod.is_mirror() || etcd_pod::read(pod, &pod.metadata.annotations).is_none() {
            continue;
        }
        let family = Family::of(namespace, pod);
        if !families.iter().any(|(known, _)| *known == family) {
            families.push((family, pod));
        }
    }
    families
}

// === impl Looker ===

impl Looker {
    /// A look at one family of a list that was read already, with what would become of each pod's data.
    async fn survey(
        &self,
        family: &Family,
        pods: &[Pod],
        reserved: &[Reservation],
        deadline: Deadline,
    ) -> Snapshot {
        let siblings = self.complete(Siblings::of(family, pods.to_vec()), deadline).await;
        let mut snapshot = self.look_from(&siblings, None, reserved, deadline).await.snapshot;
        for (pod, etcd_pod) in &siblings.pods {
            let storage = storage::of_pod(&self.claims, family.namespace(), "", pod, etcd_pod);
            // What is not known now the status leaves as the pod tells it.
            let Ok(Ok(storage)) = deadline.within("reading a claim", storage).await else { continue };
            for it in snapshot.pods.iter_mut().filter(|it| it.uid == pod.metadata.uid) {
                it.storage = storage;
            }
        }
        snapshot
    }
}

// === impl NoLook ===

impl NoLook {
    fn problem(self, what: &str) -> String {
        match self {
            Self::Lookup(error) => format!("{what}: {error}"),
            Self::Ledger(cause) => format!("{what}: {cause}"),
            Self::TooLate(late) => {
                let limit = humantime::format_duration(late.limit);
                format!("{what}: {} took longer than {limit}", late.what)
            }
            Self::Settled(verdict) => format!("{what}: {}", verdict.message),
        }
    }
}
