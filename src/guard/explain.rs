//! From a reason and its numbers to what a person at a terminal reads: what is so, how many there are, what to do next.

use tokio::time::Instant;

use super::{
    assess::{self, Assessment, Missing},
    snapshot::{MemberPod, Snapshot, Storage},
    verdict::{Reason, Verdict},
};

/// Puts an assessment of `target` into words.
#[must_use]
pub(super) fn explain(
    snapshot: &Snapshot,
    target: &MemberPod,
    assessment: &Assessment,
    now: Instant,
) -> Verdict {
    let scene = Scene { snapshot, target, assessment };
    let mut verdict = Verdict::new(assessment.reason, scene.what());
    if let Some(next) = scene.next() {
        verdict = verdict.with_next(&next);
    }
    if assessment.reason == Reason::SafeToDelete
        && let Some(tally) = &assessment.tally
        && tally.remaining == tally.quorum
    {
        let (cluster, pod) = (&snapshot.cluster, &target.name);
        verdict.warn(&format!(
            "etcd {cluster} has no voter to spare until {pod} is back: {} of {} remain, quorum {}",
            tally.remaining, tally.voters, tally.quorum
        ));
    }
    if assessment.no_space {
        verdict
            .warn(&format!("etcd {} is out of space (alarm NOSPACE) and refuses writes", snapshot.cluster));
    }
    verdict.member = assessment.member;
    verdict.tally.clone_from(&assessment.tally);
    verdict.cluster = Some(snapshot.cluster.clone());
    verdict.data_age = Some(now.duration_since(snapshot.taken_at));
    verdict
}

struct Scene<'a> {
    snapshot: &'a Snapshot,
    target: &'a MemberPod,
    assessment: &'a Assessment,
}

impl Scene<'_> {
    /// What is so.
    fn what(&self) -> String {
        let (pod, cluster) = (&self.target.name, &self.snapshot.cluster);
        let numbers = self.numbers();
        match self.assessment.reason {
            Reason::SafeToDelete => format!("pod {pod} of etcd cluster {cluster} may go ({numbers})"),
            Reason::LeaderTransferred => {
                format!("pod {pod} of etcd cluster {cluster} leads no longer and may go ({numbers})")
            }
            Reason::LeaderAllowed => format!(
                "pod {pod} is the leader of etcd cluster {cluster} and may go: it has the time to hand over ({numbers})"
            ),
            Reason::SingleMemberAllowed => {
                format!("pod {pod} is the only voter of etcd cluster {cluster} and may go ({numbers})")
            }
            Reason::NotAVoter => format!("pod {pod} has no vote in etcd cluster {cluster} ({numbers})"),
            Reason::MemberNotServing => format!(
                "pod {pod} serves nothing in etcd cluster {cluster} and keeps its data{}",
                self.not_healthy()
            ),
            Reason::LeaderProtected => {
                format!("pod {pod} is the leader of etcd cluster {cluster} ({numbers})")
            }
            Reason::QuorumAtRisk => format!("{}{}", self.what_would_remain(), self.not_healthy()),
            Reason::DisruptionInProgress => format!(
                "{}: {} on the way out{}",
                self.what_would_remain(),
                be(&self.assessment.leaving),
                self.not_healthy()
            ),
            Reason::SingleMember => format!(
                "pod {pod} is the only voter of etcd cluster {cluster} ({numbers}): without it every read and write \
                 stops until it is back"
            ),
            Reason::PermanentLoss => format!(
                "{}, and etcd cluster {cluster} has no voter to spare ({numbers})",
                self.what_becomes_of_the_member()
            ),
            Reason::ElectionInProgress => {
                format!("etcd cluster {cluster} has no proven leader ({numbers}){}", self.not_healthy())
            }
            Reason::QuorumLost => {
                format!("no member of etcd cluster {cluster} could prove a quorum{}", self.not_healthy())
            }
            Reason::EtcdUnreachable => {
                format!("no member of etcd cluster {cluster} could be reached{}", self.not_healthy())
            }
            Reason::CredentialsRejected => format!(
                "the members of etcd cluster {cluster} did not accept the guard's credentials{}",
                self.not_healthy()
            ),
            Reason::AmbiguousMember => format!(
                "which member of etcd cluster {cluster} each pod runs cannot be told{}",
                self.not_healthy()
            ),
            Reason::SplitCluster => format!(
                "the pods of {cluster} answer for different etcd clusters ({}), so that none of them can be counted",
                list(self.assessment.clusters.iter().map(ToString::to_string))
            ),
            // Reasons that are found without a look at the cluster bring their own words.
            reason => format!("pod {pod} of etcd cluster {cluster}: {reason}"),
        }
    }

    /// What to do about a denial.
    fn next(&self) -> Option<String> {
        let (pod, ns) = (&self.target.name, &self.snapshot.namespace);
        Some(match self.assessment.reason {
            Reason::LeaderProtected => self.how_to_move_the_leader(),
            Reason::QuorumAtRisk => self.how_to_look_at_the_missing(),
            Reason::DisruptionInProgress => {
                format!("Wait until it is back and try again: kubectl -n {ns} get pods -w")
            }
            Reason::SingleMember => format!(
                "If that is meant: kubectl -n {ns} annotate pod {pod} etcd-guard.io/single-member=allow"
            ),
            Reason::PermanentLoss => format!(
                "Replace the member instead, first: {}, or set etcd-guard.io/ephemeral-data=allow on the pod",
                self.how_to_remove_the_member()
            ),
            Reason::ElectionInProgress => String::from("An election takes about a second: try again in 3 s"),
            Reason::QuorumLost => {
                format!("Bring its members back first: kubectl -n {ns} get pods -o wide")
            }
            Reason::EtcdUnreachable => format!(
                "If they run, look at their ports, TLS and the network policies between: kubectl -n {ns} logs {pod} -c {}",
                self.target.container
            ),
            Reason::CredentialsRejected => format!(
                "Name the right Secrets (docs/tls-and-auth.md): kubectl -n {ns} annotate pod {pod} \
                 etcd-guard.io/client-tls-secret=NAME, or etcd-guard.io/auth-secret=NAME"
            ),
            Reason::AmbiguousMember => {
                format!("Compare the pods with: {}", self.etcdctl(self.helper(), "member list -w table"))
            }
            Reason::SplitCluster => format!("Compare: kubectl -n {ns} get pods -o wide"),
            _ => return None,
        })
    }

    /// `member 8e9e05c52164694d, term 7; 3 of 3 voters healthy, quorum 2`.
    fn numbers(&self) -> String {
        let member = self.assessment.member.map(|id| format!("member {id}, ")).unwrap_or_default();
        match &self.assessment.tally {
            Some(it) => format!(
                "{member}term {}; {} of {} voters healthy, quorum {}",
                it.term, it.healthy, it.voters, it.quorum
            ),
            None => {
                let answering = self.snapshot.pods.iter().filter(|pod| pod.reply.status().is_some()).count();
                format!("{answering} of {} pods answer, none proves a quorum", self.snapshot.pods.len())
            }
        }
    }

    fn what_would_remain(&self) -> String {
        let (pod, cluster) = (&self.target.name, &self.snapshot.cluster);
        match &self.assessment.tally {
            Some(it) => format!(
                "without pod {pod} etcd cluster {cluster} would have {} of {} voters healthy, quorum {}",
                it.remaining, it.voters, it.quorum
            ),
            None => format!("without pod {pod} etcd cluster {cluster} would have no quorum"),
        }
    }

    /// `; not healthy: etcd-2 (connection refused)`, or nothing.
    fn not_healthy(&self) -> String {
        if self.assessment.missing.is_empty() {
            return String::new();
        }
        // What is wrong with several is said once: a Secret that is missing is missing for all.
        let mut groups: Vec<(Vec<&str>, &str)> = Vec::new();
        for Missing { who, why } in &self.assessment.missing {
            match groups.iter_mut().find(|(_, known)| known == why) {
                Some((names, _)) => names.push(who),
                None => groups.push((vec![who], why)),
            }
        }
        format!(
            "; not healthy: {}",
            list(groups.iter().map(|(names, why)| format!("{} ({why})", names.join(", "))))
        )
    }

    fn how_to_look_at_the_missing(&self) -> String {
        let ns = &self.snapshot.namespace;
        let is_pod = |missing: &&Missing| self.snapshot.pod(&missing.who).is_some();
        match self.assessment.missing.iter().find(is_pod) {
            Some(missing) => format!("Bring it back first: kubectl -n {ns} describe pod {}", missing.who),
            None if self.assessment.missing.is_empty() => {
                String::from("The cluster has too few voters to spare one: add a member first")
            }
            None => {
                format!("Bring it back or remove it first: {}", self.etcdctl(self.helper(), "member list"))
            }
        }
    }

    /// etcd takes this order only at the leader itself, which is the target.
    fn how_to_move_the_leader(&self) -> String {
        match assess::heir(self.snapshot, self.target) {
            Some((pod, status)) => format!(
                "Move leadership first, by etcd-guard.io/leader=transfer on the StatefulSet or by hand, for instance to \
                 {}: {}",
                pod.name,
                self.etcdctl(self.target, &format!("move-leader {}", status.member_id))
            ),
            None => String::from("No other voter could take over at the moment: try again later"),
        }
    }

    fn what_becomes_of_the_member(&self) -> String {
        let pod = &self.target.name;
        match self.target.storage {
            Storage::OnNode => format!(
                "the data of pod {pod} lies on its node, and nothing makes its successor come back there, so that the \
                 member may be lost"
            ),
            Storage::ClaimTerminating => format!(
                "the claim that holds the data of pod {pod} goes with it, so that its member can never come back"
            ),
            Storage::RemovedByHook => format!("a preStop hook of pod {pod} removes its member"),
            Storage::Ephemeral | Storage::Persistent => {
                format!("the data of pod {pod} goes with it, so that its member can never come back")
            }
        }
    }

    fn how_to_remove_the_member(&self) -> String {
        match self.assessment.member {
            Some(id) => self.etcdctl(self.helper(), &format!("member remove {id}")),
            None => self.etcdctl(self.helper(), "member list"),
        }
    }

    /// A pod that serves and stays, to run a command in.
    fn helper(&self) -> &MemberPod {
        let serves = |pod: &&MemberPod| pod.reply.is_serving() && pod.name != self.target.name;
        self.snapshot.pods.iter().find(serves).unwrap_or(self.target)
    }

    fn etcdctl(&self, pod: &MemberPod, command: &str) -> String {
        format!(
            "kubectl -n {} exec {} -c {} -- etcdctl {command}",
            self.snapshot.namespace, pod.name, pod.container
        )
    }
}

fn list(items: impl Iterator<Item = String>) -> String {
    items.collect::<Vec<_>>().join(", ")
}

/// `etcd-2 is`, `etcd-1 and etcd-2 are`.
fn be(names: &[String]) -> String {
    match names {
        [] => String::from("another pod is"),
        [one] => format!("{one} is"),
        [first @ .., last] => format!("{} and {last} are", first.join(", ")),
    }
}
