//! Verdicts as text: the facts of an assessment with their numbers, and a command as the remedy.
//!
//! A denial starts with its reason code and ends with a command that can be pasted. kubectl prints it on one line.

use std::time::Duration;

use k8s_openapi::jiff::SignedDuration;
use tokio::time::Instant;

use crate::{
    annotations::{ALLOW_REASON, ALLOW_UNTIL, MOVE_LEADER},
    assess,
    assess::{Assessment, describe_missing, stray::is_in_minority},
    escape::{MAX_ERROR_CHARS, to_bounded_line, to_shell_word},
    ledger::HANDOVER_TTL,
    reason::Reason,
    snapshot::{MemberPod, Snapshot, StopScript, Storage},
    tally::{Tally, quorum},
    verdict::Verdict,
    wall_clock::WallClock,
};

/// The duration of the break-glass annotation in the command of a denial. The guard accepts at most 24 hours.
const BREAK_GLASS_TIME: SignedDuration = SignedDuration::from_hours(1);

/// Renders the assessment of `target` as a verdict.
#[must_use]
pub fn explain(
    snapshot: &Snapshot,
    target: &MemberPod,
    assessment: &Assessment,
    now: Instant,
    clock: &WallClock,
) -> Verdict {
    let explanation = Explanation { snapshot, target, assessment, clock };
    let mut verdict = Verdict::new(assessment.reason, explanation.facts());
    if let Some(remedy) = explanation.remedy() {
        verdict = verdict.with_remedy(&remedy);
    }
    if assessment.reason == Reason::SafeToDelete
        && let Some(tally) = &assessment.tally
        && tally.has_no_spare()
    {
        let (cluster, pod) = (&snapshot.cluster, &target.name);
        verdict.warn(&format!(
            "etcd {cluster} has no voter to spare until {pod} is ready: {} of {} remain, quorum {}",
            tally.remaining, tally.voters, tally.quorum
        ));
    }
    if assessment.reason == Reason::SafeToDelete
        && let Some((leader, cause)) = &assessment.silent_leader
    {
        let cluster = &snapshot.cluster;
        verdict.warn(&format!(
            "the leader of etcd {cluster}, {leader}, does not answer at its client port: {cause}"
        ));
    }
    if assessment.reason.allows()
        && let Some(doubt) = &assessment.doubt
    {
        verdict.warn(doubt);
    }
    if assessment.no_space {
        verdict
            .warn(&format!("etcd {} is out of space (alarm NOSPACE) and rejects writes", snapshot.cluster));
    }
    verdict.member = assessment.member;
    verdict.tally.clone_from(&assessment.tally);
    verdict.cluster = Some(to_bounded_line(&snapshot.cluster, MAX_ERROR_CHARS));
    verdict.inaccessible_pod = explanation.inaccessible_pod().map(|pod| snapshot.namespaced_name(pod));
    verdict.data_age = Some(now.duration_since(snapshot.taken_at));
    verdict
}

/// Returns the advice to overrule the denial for `BREAK_GLASS_TIME` by break-glass annotations of the object.
#[must_use]
pub fn break_glass_advice(object: &str, clock: &WallClock) -> String {
    let now = clock.now();
    let until = now.checked_add(BREAK_GLASS_TIME).unwrap_or(now).strftime("%Y-%m-%dT%H:%M:%SZ");
    format!(
        "overrule the guard for one hour: kubectl annotate --overwrite {object} {ALLOW_UNTIL}={until} \
         {ALLOW_REASON}='REASON'"
    )
}

/// Returns the object whose annotations concern the cluster of a pod, as a word of a command: its StatefulSet, or the pod.
#[must_use]
pub fn annotated_object(snapshot: &Snapshot, pod: &MemberPod) -> String {
    let set = snapshot.cluster.split_once('/').map(|(_, set)| set);
    match set.filter(|_| pod.owner_kind == "StatefulSet") {
        Some(set) => to_shell_word(&format!("statefulset/{set}")),
        None => to_shell_word(&format!("pod/{}", pod.name)),
    }
}

/// Renders the denial of the deletion of a pod that takes over leadership at the moment.
#[must_use]
pub fn explain_transferee(
    snapshot: &Snapshot,
    target: &MemberPod,
    assessment: &Assessment,
    now: Instant,
    clock: &WallClock,
) -> Verdict {
    let explanation = Explanation { snapshot, target, assessment, clock };
    let (pod, cluster) = (&target.name, &snapshot.cluster);
    let text = format!("{pod} is taking over leadership of {cluster} ({})", explanation.numbers());
    explanation.wait(text, HANDOVER_TTL, now)
}

/// Renders the denial of the deletion of a leader because leadership moved for another deletion a moment ago. `rest` is the
/// time until it may move again.
#[must_use]
pub fn explain_recent_move(
    snapshot: &Snapshot,
    target: &MemberPod,
    assessment: &Assessment,
    rest: Duration,
    now: Instant,
    clock: &WallClock,
) -> Verdict {
    let explanation = Explanation { snapshot, target, assessment, clock };
    let text = format!(
        "{} leads {} ({}), and leadership moved for another deletion less than {} s ago",
        target.name,
        snapshot.cluster,
        explanation.numbers(),
        HANDOVER_TTL.as_secs()
    );
    explanation.wait(text, rest, now)
}

/// One assessment and the snapshot on which it is based.
struct Explanation<'a> {
    snapshot: &'a Snapshot,
    target: &'a MemberPod,
    assessment: &'a Assessment,
    clock: &'a WallClock,
}

impl Explanation<'_> {
    /// Returns the denial of a deletion that may pass after this time.
    fn wait(&self, text: String, rest: Duration, now: Instant) -> Verdict {
        let seconds = rest.as_millis().div_ceil(1000).max(1);
        let namespace = to_shell_word(&self.snapshot.namespace);
        let remedy = format!("Retry in {seconds} s: kubectl -n {namespace} get pods -w");
        let mut verdict = Verdict::new(Reason::DisruptionInProgress, text).with_remedy(&remedy);
        verdict.member = self.assessment.member;
        verdict.tally.clone_from(&self.assessment.tally);
        verdict.cluster = Some(to_bounded_line(&self.snapshot.cluster, MAX_ERROR_CHARS));
        verdict.data_age = Some(now.duration_since(self.snapshot.taken_at));
        verdict
    }

    /// The facts on which the verdict is based.
    fn facts(&self) -> String {
        let (pod, cluster) = (&self.target.name, &self.snapshot.cluster);
        let numbers = self.numbers();
        match self.assessment.reason {
            Reason::SafeToDelete => format!("{pod} can be deleted from {cluster} ({numbers})"),
            Reason::LeaderTransferred => {
                format!("{pod} no longer leads {cluster} and can be deleted ({numbers})")
            }
            Reason::SingleMemberAllowed => {
                format!("{pod} is the only voter of {cluster} and can be deleted by policy ({numbers})")
            }
            Reason::NotAVoter => format!("{pod} is not a voter of {cluster} ({numbers})"),
            Reason::MemberNotServing => {
                format!("{pod} serves no requests in {cluster}, and {}{}", self.no_loss(), self.not_healthy())
            }
            Reason::LeaderProtected => match &self.assessment.silent_leader {
                Some((_, cause)) => {
                    format!(
                        "{pod} leads {cluster} ({numbers}), and does not answer at its client port: {cause}"
                    )
                }
                None => format!("{pod} leads {cluster} ({numbers})"),
            },
            Reason::TooFewVoters => format!(
                "{cluster} has {}, fewer than the {} that etcd-guard.io/min-voters requires ({numbers})",
                voters(self.assessment.tally.as_ref().map_or(0, |tally| tally.voters)),
                self.assessment.min_voters
            ),
            Reason::QuorumAtRisk => {
                format!("{}{}{}", self.remaining_voters(), self.not_healthy(), self.unexplained_reads())
            }
            Reason::DisruptionInProgress if self.has_quorum() => format!(
                "the leader of {cluster} is being deleted ({} being deleted), and no probe proves that the other voters can \
                 reach each other ({numbers})",
                with_verb(&self.assessment.leaving)
            ),
            Reason::DisruptionInProgress => format!(
                "{}: {} being deleted{}",
                self.remaining_voters(),
                with_verb(&self.assessment.leaving),
                self.not_healthy()
            ),
            Reason::SingleMember => format!(
                "{pod} is the only voter of {cluster} ({numbers}): reads and writes stop until the pod is ready again"
            ),
            Reason::PermanentLoss => {
                format!(
                    "{}, and {cluster} has no voter to spare ({numbers}){}",
                    self.data_loss(),
                    self.not_healthy()
                )
            }
            Reason::ElectionInProgress if self.has_leader() && !self.has_quorum() => {
                format!("{cluster} has just changed its leader ({numbers}){}", self.not_healthy())
            }
            Reason::ElectionInProgress => {
                format!("{cluster} has no proven leader ({numbers}){}", self.not_healthy())
            }
            Reason::QuorumLost => {
                format!("no member of {cluster} could prove a quorum{}", self.not_healthy())
            }
            Reason::EtcdUnreachable => {
                format!("no member of {cluster} could be reached{}", self.not_healthy())
            }
            Reason::CredentialsRejected => {
                format!("the members of {cluster} rejected the guard's credentials{}", self.not_healthy())
            }
            Reason::AmbiguousMember => {
                format!("the pods of {cluster} cannot be matched with its members{}", self.not_healthy())
            }
            Reason::SplitCluster => format!(
                "the pods of {cluster} belong to different etcd clusters ({})",
                list(self.assessment.clusters.iter().map(ToString::to_string))
            ),
            Reason::MemberListWrong => match &self.assessment.contradiction {
                Some(proof) => {
                    format!("the member list of {cluster} is wrong: {proof} ({numbers} by the list)")
                }
                None => format!("the member list of {cluster} is wrong ({numbers} by the list)"),
            },
            // The remaining reasons are determined without a snapshot and have texts of their own.
            reason => format!("{pod} of {cluster}: {reason}"),
        }
    }

    /// Returns the remedy of a denial, with a command at the end.
    fn remedy(&self) -> Option<String> {
        let [pod, ns] = [&self.target.name, &self.snapshot.namespace].map(|name| to_shell_word(name));
        Some(match self.assessment.reason {
            Reason::LeaderProtected if self.assessment.silent_leader.is_some() => format!(
                "Only the leader itself can move leadership. Check its client port and the network policies, or {}",
                break_glass_advice(&format!("-n {ns} pod {pod}"), self.clock)
            ),
            Reason::LeaderProtected => self.move_leadership(),
            Reason::TooFewVoters => format!(
                "Add the missing members, then retry. List the members: {}",
                self.etcdctl(self.other_serving_pod(), "member list -w table")
            ),
            Reason::QuorumAtRisk => self.restore_missing_voter(),
            Reason::DisruptionInProgress => {
                format!("Wait until all pods are ready, then retry: kubectl -n {ns} get pods -w")
            }
            Reason::SingleMember => {
                format!(
                    "To allow the deletion: kubectl -n {ns} annotate --overwrite pod {pod} etcd-guard.io/single-member=allow"
                )
            }
            Reason::PermanentLoss => self.prevent_data_loss(),
            Reason::ElectionInProgress => format!(
                "An election takes about a second: retry in 3 s. If it persists: {}",
                self.etcdctl(self.other_serving_pod(), "endpoint status -w table")
            ),
            Reason::QuorumLost => {
                format!("Restore the members first: kubectl -n {ns} get pods -o wide")
            }
            Reason::EtcdUnreachable => format!(
                "If the pods run, check ports, TLS and network policies: kubectl -n {ns} logs {pod} -c {}",
                to_shell_word(&self.target.container)
            ),
            Reason::CredentialsRejected => {
                format!("{}: kubectl -n {ns} get secrets", assess::CREDENTIALS_REMEDY)
            }
            Reason::AmbiguousMember => format!(
                "Compare the pods with the member list: {}",
                self.etcdctl(self.other_serving_pod(), "member list -w table")
            ),
            Reason::MemberListWrong => format!(
                "Repair the list first, or upgrade etcd. List the members: {}",
                self.etcdctl(self.other_serving_pod(), "member list -w table")
            ),
            Reason::SplitCluster => {
                let compare = format!("Compare the pods: kubectl -n {ns} get pods -o wide --show-labels");
                if !is_in_minority(self.snapshot, self.target) {
                    return Some(compare);
                }
                let advice = break_glass_advice(&format!("-n {ns} pod {pod}"), self.clock);
                format!(
                    "Pod {pod} replies for the smaller cluster, which proves no quorum. {compare}. If the data of that \
                     cluster is not needed, {advice}"
                )
            }
            _ => return None,
        })
    }

    /// Returns for example `member 8e9e05c52164694d, term 7; 3 of 3 voters healthy, quorum 2`.
    fn numbers(&self) -> String {
        let member = self.assessment.member.map(|id| format!("member {id}, ")).unwrap_or_default();
        match &self.assessment.tally {
            Some(tally) => format!(
                "{member}term {}; {} of {} voters healthy, quorum {}",
                tally.term, tally.healthy, tally.voters, tally.quorum
            ),
            None => {
                let replies = self.snapshot.pods.iter().filter(|pod| pod.reply.status().is_some()).count();
                format!("{replies} of {} pods reply, no quorum is proven", self.snapshot.pods.len())
            }
        }
    }

    /// Whether the remaining voters are a quorum.
    fn has_quorum(&self) -> bool {
        self.assessment.tally.as_ref().is_some_and(Tally::has_quorum)
    }

    /// Whether the serving voters of the highest term agree on a leader.
    fn has_leader(&self) -> bool {
        self.assessment.tally.as_ref().is_some_and(|tally| tally.leader.is_some())
    }

    fn remaining_voters(&self) -> String {
        let (pod, cluster) = (&self.target.name, &self.snapshot.cluster);
        match &self.assessment.tally {
            Some(tally) => format!(
                "without {pod}, {cluster} would have {} of {} voters healthy, quorum {}",
                tally.remaining, tally.voters, tally.quorum
            ),
            None => format!("without {pod}, {cluster} would have no quorum"),
        }
    }

    /// Returns `; not healthy: etcd-2 (connection refused)`, or an empty text.
    fn not_healthy(&self) -> String {
        describe_missing(&self.assessment.missing, &self.target.owner_kind)
    }

    /// A pod because of which the deletion is denied, and whose member the guard may lack access to. The numbers of voters do
    /// not include the target. Where voters are not counted or not matched, the target is the first of these pods.
    fn inaccessible_pod(&self) -> Option<&MemberPod> {
        let Assessment { reason, missing, tally, .. } = self.assessment;
        // Missing voters do not contribute to these denials.
        let is_unrelated =
            matches!(reason, Reason::LeaderProtected | Reason::SingleMember | Reason::MemberListWrong);
        if reason.allows() || is_unrelated {
            return None;
        }
        let contributes = tally.is_none() || *reason == Reason::AmbiguousMember;
        let target = Some(self.target).filter(|target| contributes && target.may_lack_access());
        target
            .or_else(|| assess::inaccessible_pod(self.snapshot, missing, |pod| pod.name != self.target.name))
    }

    /// Names the two explanations of a read that passed with fewer voters than a quorum, or returns an empty text.
    fn unexplained_reads(&self) -> String {
        match (self.assessment.too_few_responding, &self.assessment.tally) {
            (Some(responding), Some(tally)) => format!(
                "; reads pass although only {responding} of {} voters respond: the others may vote unseen, or the member list may \
                 be wrong",
                tally.voters
            ),
            _ => String::new(),
        }
    }

    fn restore_missing_voter(&self) -> String {
        let ns = to_shell_word(&self.snapshot.namespace);
        let missing = &self.assessment.missing;
        let pods = || missing.iter().filter_map(|voter| self.snapshot.pod(&voter.name));
        let other = || pods().find(|pod| pod.name != self.target.name);
        match self.inaccessible_pod().or_else(other).or_else(|| pods().next()) {
            Some(pod) => {
                let pod = to_shell_word(&pod.name);
                format!("Restore {pod}, then retry: kubectl -n {ns} describe pod {pod}")
            }
            None => {
                let advice = if missing.is_empty() {
                    "The cluster has no voter to spare. Add a member first. List the members"
                } else {
                    "Restore or remove the voters that are not healthy first. List the members"
                };
                format!("{advice}: {}", self.etcdctl(self.other_serving_pod(), "member list -w table"))
            }
        }
    }

    /// The guard carries out the annotation, with its own credentials. It ignores an annotation whose time is not current.
    fn move_leadership(&self) -> String {
        let [pod, ns] = [&self.target.name, &self.snapshot.namespace].map(|name| to_shell_word(name));
        let Some((transferee, _)) = assess::transferee(self.snapshot, self.target, None) else {
            return format!(
                "No other healthy voter can become the leader. Wait until another voter is ready: kubectl -n {ns} get pods -w"
            );
        };
        let object = annotated_object(self.snapshot, self.target);
        let transferee = to_shell_word(&format!("{MOVE_LEADER}={}@", transferee.name));
        format!(
            "Move leadership, then retry: kubectl etcd-guard move-leader -n {ns} {pod}; without the plugin: kubectl -n {ns} \
             annotate --overwrite {object} {transferee}$(date -u +%FT%TZ)"
        )
    }

    /// Why the deletion of a pod that does not run loses nothing, or nothing that its policy keeps.
    fn no_loss(&self) -> &'static str {
        match self.target.storage {
            storage if storage.preserves_data() => "its data is preserved",
            _ if self.target.keeps_data_while_stopped() => "it has no data, because etcd never started in it",
            _ => "its policy accepts the loss of its data",
        }
    }

    fn data_loss(&self) -> String {
        let pod = &self.target.name;
        match self.target.storage {
            Storage::OnNode => format!(
                "the data of {pod} is on its node, and the replacement pod may start on another node without the data"
            ),
            Storage::ClaimTerminating => {
                format!("the claim with the data of {pod} is deleted as well, so its member cannot return")
            }
            Storage::RemovedByHook => match &self.target.stop_script {
                None => format!("a preStop hook of {pod} removes its member"),
                Some(script) => {
                    let script = to_bounded_line(&script.to_string(), MAX_ERROR_CHARS);
                    format!("a preStop hook of {pod} runs a script that may remove its member, {script}")
                }
            },
            Storage::Ephemeral | Storage::Persistent => {
                format!("the data of {pod} is deleted as well, so its member cannot return")
            }
        }
    }

    /// etcd does not remove the last voter of a cluster. If all pods are down, the policy concerns each of them.
    fn prevent_data_loss(&self) -> String {
        let [pod, ns] = [&self.target.name, &self.snapshot.namespace].map(|name| to_shell_word(name));
        let object = match self.assessment.tally {
            Some(_) => to_shell_word(&format!("pod/{}", self.target.name)),
            None => annotated_object(self.snapshot, self.target),
        };
        let accept =
            format!("kubectl -n {ns} annotate --overwrite {object} etcd-guard.io/ephemeral-data=allow");
        if self.target.storage == Storage::RemovedByHook {
            return match &self.target.stop_script {
                Some(StopScript { source: Some(_), .. }) => format!(
                    "If the script does not remove the member, annotate the pod with etcd-guard.io/ephemeral-data=allow, \
                     or let the guard read the script: kubectl etcd-guard inspect -n {ns} {pod} --role | kubectl apply -f -"
                ),
                Some(_) => format!("If the script does not remove the member: {accept}"),
                None => self.outweigh_removal(&accept),
            };
        }
        let remove = self
            .assessment
            .member
            .map(|id| self.etcdctl(self.other_serving_pod(), &format!("member remove {id}")));
        match (remove, &self.assessment.tally) {
            (Some(remove), Some(tally)) if tally.voters > 1 => format!(
                "Replace the member first (or annotate the pod with etcd-guard.io/ephemeral-data=allow): {remove}"
            ),
            _ => format!("To accept the loss: {accept}"),
        }
    }

    /// The hook itself removes the member: a removal in advance would leave as few voters as the hook.
    fn outweigh_removal(&self, accept: &str) -> String {
        let Some(tally) = self.assessment.tally.as_ref().filter(|tally| tally.voters > 1) else {
            return format!("To accept the loss: {accept}");
        };
        let ns = to_shell_word(&self.snapshot.namespace);
        if tally.can_ever_spare_two() {
            return if self.assessment.missing.is_empty() {
                format!("Wait until all pods are ready, then retry: kubectl -n {ns} get pods -w")
            } else {
                self.restore_missing_voter()
            };
        }
        let missing =
            (1..=tally.voters + 2).find(|count| tally.remaining + count > quorum(tally.voters + count));
        let added = missing.unwrap_or(1);
        let advice = format!(
            "Add {} first, so that the cluster can spare this one (or annotate the pod with etcd-guard.io/ephemeral-data=allow)",
            voters(added)
        );
        let set = self.snapshot.cluster.split_once('/').map(|(_, set)| set);
        match set.filter(|_| self.target.owner_kind == "StatefulSet") {
            Some(set) => {
                let set = to_shell_word(set);
                let replicas = tally.voters + added;
                format!("{advice}: kubectl -n {ns} scale statefulset {set} --replicas={replicas}")
            }
            None => {
                let list = self.etcdctl(self.other_serving_pod(), "member list -w table");
                format!("{advice}. List the members: {list}")
            }
        }
    }

    /// A serving pod other than the target, in which a command can run.
    fn other_serving_pod(&self) -> &MemberPod {
        let serves = |pod: &&MemberPod| pod.reply.is_healthy() && pod.name != self.target.name;
        self.snapshot.pods.iter().find(serves).unwrap_or(self.target)
    }

    fn etcdctl(&self, pod: &MemberPod, arguments: &str) -> String {
        pod.etcdctl_command(&self.snapshot.namespace, arguments)
    }
}

/// Returns `1 voter`, or `2 voters`.
fn voters(count: usize) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} voter{plural}")
}

fn list(items: impl Iterator<Item = String>) -> String {
    items.collect::<Vec<_>>().join(", ")
}

/// Returns `etcd-2 is`, or `etcd-1 and etcd-2 are`.
fn with_verb(names: &[String]) -> String {
    match names {
        [] => String::from("another pod is"),
        [name] => format!("{name} is"),
        [first @ .., last] => format!("{} and {last} are", first.join(", ")),
    }
}

/// Adds the command that inspects a pod to a denial, as its last command: to a denial that depends on what the guard reads
/// of pods, and to one because of a member to which the guard may lack access. Without such a member, the command names
/// `object`, which has a namespace and a name.
pub fn advise_inspection(verdict: &mut Verdict, object: Option<(String, String)>) {
    let concerns_discovery = !verdict.reason.allows() && verdict.reason.concerns_discovery();
    let object = verdict.inaccessible_pod.clone().or_else(|| object.filter(|_| concerns_discovery));
    if let Some((namespace, object)) = object {
        verdict.add_advice(&inspection_advice(&namespace, &object));
    }
}

/// Returns the advice to inspect an object.
pub fn inspection_advice(namespace: &str, object: &str) -> String {
    let [namespace, object] = [namespace, object].map(to_shell_word);
    format!(
        "to see what the guard reads of the pod, and the Role that it needs: kubectl etcd-guard inspect -n {namespace} {object}"
    )
}
