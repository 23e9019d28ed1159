//! Verdicts as text: the facts of an assessment with their numbers, and a command as the remedy.
//!
//! A denial starts with its reason code and ends with a command that can be pasted. kubectl prints it on one line.

use std::time::Duration;

use k8s_openapi::jiff::SignedDuration;
use tokio::time::Instant;

use crate::{
    annotations::{ALLOW_REASON, ALLOW_UNTIL, AUTH_SECRET, CLIENT_TLS_SECRET, MOVE_LEADER},
    assess,
    assess::{Assessment, describe_broken, describe_missing, stray::is_in_minority},
    escape::{MAX_ERROR_CHARS, to_bounded_line, to_shell_word},
    etcd::error::MemberError,
    ledger::HANDOVER_TTL,
    reason::Reason,
    snapshot::{Departure, MemberPod, Snapshot, StopScript, Storage},
    tally::{Tally, quorum},
    verdict::Verdict,
    wall_clock::WallClock,
};

/// The duration of the break-glass annotation in the command of a denial. The guard accepts at most 24 hours.
const BREAK_GLASS_TIME: SignedDuration = SignedDuration::from_hours(1);

/// The command that shows what the guard reads of a pod.
const INSPECT: &str = "kubectl etcd-guard inspect";

/// Renders the assessment of `target` as a verdict.
pub fn explain(
    snapshot: &Snapshot,
    target: &MemberPod,
    assessment: &Assessment,
    now: Instant,
    clock: &WallClock,
) -> Verdict {
    let explanation = Explanation { snapshot, target, assessment, clock, now };
    let mut verdict = Verdict::new(assessment.reason, explanation.facts());
    for advice in explanation.remedies() {
        verdict.add_advice(&advice);
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
    if assessment.reason.allows() {
        assessment.doubts.iter().for_each(|doubt| verdict.warn(doubt));
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
pub fn break_glass_advice(object: &str, clock: &WallClock) -> String {
    let now = clock.now();
    let until = now.checked_add(BREAK_GLASS_TIME).unwrap_or(now).strftime("%Y-%m-%dT%H:%M:%SZ");
    format!(
        "overrule the guard for one hour: kubectl annotate --overwrite {object} {ALLOW_UNTIL}={until} \
         {ALLOW_REASON}='REASON'"
    )
}

/// Returns the object whose annotations concern the cluster of a pod, as a word of a command: its StatefulSet, or the pod.
pub fn annotated_object(snapshot: &Snapshot, pod: &MemberPod) -> String {
    let set = snapshot.cluster.split_once('/').map(|(_, set)| set);
    match set.filter(|_| pod.owner_kind == "StatefulSet") {
        Some(set) => to_shell_word(&format!("statefulset/{set}")),
        None => to_shell_word(&format!("pod/{}", pod.name)),
    }
}

/// Renders the denial of the deletion of a pod that takes over leadership at the moment.
pub fn explain_transferee(
    snapshot: &Snapshot,
    target: &MemberPod,
    assessment: &Assessment,
    now: Instant,
    clock: &WallClock,
) -> Verdict {
    let explanation = Explanation { snapshot, target, assessment, clock, now };
    let (pod, cluster) = (&target.name, &snapshot.cluster);
    let text = format!("{pod} is taking over leadership of {cluster} ({})", explanation.numbers());
    explanation.wait(text, HANDOVER_TTL)
}

/// Renders the denial of the deletion of a leader because leadership moved for another deletion a moment ago. `rest` is the
/// time until it may move again.
pub fn explain_recent_move(
    snapshot: &Snapshot,
    target: &MemberPod,
    assessment: &Assessment,
    rest: Duration,
    now: Instant,
    clock: &WallClock,
) -> Verdict {
    let explanation = Explanation { snapshot, target, assessment, clock, now };
    let text = format!(
        "{} leads {} ({}), and leadership moved for another deletion less than {} s ago",
        target.name,
        snapshot.cluster,
        explanation.numbers(),
        HANDOVER_TTL.as_secs()
    );
    explanation.wait(text, rest)
}

/// Renders the denial of an update that lets the pod end at a later time: its reservation would have expired by then.
pub fn explain_deadline(
    snapshot: &Snapshot,
    target: &MemberPod,
    assessment: &Assessment,
    now: Instant,
    clock: &WallClock,
) -> Verdict {
    let explanation = Explanation { snapshot, target, assessment, clock, now };
    let text = format!(
        "activeDeadlineSeconds would end {} later, when nobody counts the members of {} ({} now)",
        target.name,
        snapshot.cluster,
        explanation.numbers()
    );
    let remedy = format!(
        "Delete the pod instead: kubectl -n {} delete pod {}",
        to_shell_word(&snapshot.namespace),
        to_shell_word(&target.name)
    );
    explanation.denial(Reason::IntentProtected, text, &remedy)
}

/// One assessment and the snapshot on which it is based.
struct Explanation<'a> {
    snapshot: &'a Snapshot,
    target: &'a MemberPod,
    assessment: &'a Assessment,
    clock: &'a WallClock,
    now: Instant,
}

impl Explanation<'_> {
    /// Returns the denial of a deletion that may pass after this time.
    fn wait(&self, text: String, rest: Duration) -> Verdict {
        let seconds = rest.as_millis().div_ceil(1000).max(1);
        let namespace = to_shell_word(&self.snapshot.namespace);
        let remedy = format!("Retry in {seconds} s: kubectl -n {namespace} get pods -w");
        self.denial(Reason::DisruptionInProgress, text, &remedy)
    }

    /// Returns a denial for a cause that the assessment does not know.
    fn denial(&self, reason: Reason, text: String, remedy: &str) -> Verdict {
        let mut verdict = Verdict::new(reason, text).with_remedy(remedy);
        verdict.member = self.assessment.member;
        verdict.tally.clone_from(&self.assessment.tally);
        verdict.cluster = Some(to_bounded_line(&self.snapshot.cluster, MAX_ERROR_CHARS));
        verdict.data_age = Some(self.now.duration_since(self.snapshot.taken_at));
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
                format!("{}{}{}", self.broken_first(), self.remaining_voters(), self.unexplained_reads())
            }
            Reason::DisruptionInProgress if self.has_quorum() => format!(
                "the leader of {cluster} is on its way out: {}; no probe proves that the other voters can reach each other \
                 ({numbers})",
                self.departures()
            ),
            Reason::DisruptionInProgress => {
                format!("{}: {}{}", self.remaining_voters(), self.departures(), self.not_healthy())
            }
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
            Reason::CredentialsRejected if self.pod_without_role().is_some() => {
                format!("the guard lacks the Role to read the credentials of {cluster}{}", self.not_healthy())
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

    /// Returns the remedy of a denial, and other ways to continue. Each ends with a command.
    fn remedies(&self) -> Vec<String> {
        let [pod, ns] = [&self.target.name, &self.snapshot.namespace].map(|name| to_shell_word(name));
        match self.assessment.reason {
            Reason::LeaderProtected if self.assessment.silent_leader.is_some() => vec![
                format!(
                    "Only the leader itself can move leadership. See how the guard reaches it: {INSPECT} -n {ns} {pod}"
                ),
                capitalized(&break_glass_advice(&format!("-n {ns} pod {pod}"), self.clock)),
            ],
            Reason::LeaderProtected => self.move_leadership(),
            Reason::TooFewVoters => vec![format!(
                "Add the missing members, then retry. List the members: {}",
                self.etcdctl(self.other_serving_pod(), "member list -w table")
            )],
            Reason::QuorumAtRisk => vec![self.restore_missing_voter()],
            Reason::DisruptionInProgress => self.wait_for_departures(),
            Reason::SingleMember => vec![format!(
                "If you accept the outage: kubectl -n {ns} annotate --overwrite pod {pod} etcd-guard.io/single-member=allow"
            )],
            Reason::PermanentLoss => self.prevent_data_loss(),
            Reason::ElectionInProgress => vec![format!(
                "An election takes about a second: retry in 3 s. If it persists: {}",
                self.etcdctl(self.other_serving_pod(), "endpoint status -w table")
            )],
            Reason::QuorumLost => vec![format!(
                "Clients cannot write. Delete no running pod, and bring the others back: kubectl -n {ns} get pods -o wide"
            )],
            Reason::EtcdUnreachable => vec![
                format!(
                    "Find out whether etcd runs: kubectl -n {ns} logs {pod} -c {} --tail=50",
                    to_shell_word(&self.target.container)
                ),
                format!(
                    "If it does, look for a policy that shuts the guard out: kubectl -n {ns} get networkpolicies"
                ),
            ],
            Reason::CredentialsRejected => vec![self.repair_credentials()],
            Reason::AmbiguousMember => vec![format!(
                "Compare the pods with the member list: {}",
                self.etcdctl(self.other_serving_pod(), "member list -w table")
            )],
            Reason::MemberListWrong => vec![format!(
                "Repair the list first, or upgrade etcd. List the members: {}",
                self.etcdctl(self.other_serving_pod(), "member list -w table")
            )],
            Reason::SplitCluster => {
                let compare = format!("Compare the pods: kubectl -n {ns} get pods -o wide --show-labels");
                if !is_in_minority(self.snapshot, self.target) {
                    return vec![compare];
                }
                let advice = break_glass_advice(&format!("-n {ns} pod {pod}"), self.clock);
                vec![
                    format!("Pod {pod} replies for the smaller cluster, which proves no quorum. {compare}"),
                    format!("If you do not need the data of that cluster, {advice}"),
                ]
            }
            _ => Vec::new(),
        }
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

    /// Returns `etcd-2 is not healthy (connection refused): `, or an empty text: the voter to repair comes first, not the healthy
    /// pod of the request.
    fn broken_first(&self) -> String {
        let missing = &self.assessment.missing;
        match describe_broken(missing, &self.target.owner_kind) {
            Some(voters) if missing.len() == 1 => format!("{voters} is not healthy: "),
            Some(voters) => format!("{voters} are not healthy: "),
            None => String::new(),
        }
    }

    /// Returns which pods are leaving, and for how long their reservations can last.
    fn departures(&self) -> String {
        let departure = |name: &String| {
            let pod = self.snapshot.pod(name);
            let state = match pod.and_then(MemberPod::departure) {
                Some(Departure::Terminating) => String::from(" (it is terminating)"),
                Some(Departure::OwnerDeleted) => String::from(" (its owner was deleted)"),
                Some(Departure::Reserved) => self.describe_reservation(name),
                None => String::new(),
            };
            format!("{name} is being deleted{state}")
        };
        match self.assessment.leaving.as_slice() {
            [] => String::from("another pod is being deleted"),
            names => list(names.iter().map(departure)),
        }
    }

    fn describe_reservation(&self, pod: &str) -> String {
        match self.snapshot.reserved_until.get(pod) {
            Some(until) => format!(
                " (approved a moment ago; it counts as gone until it serves again, or for another {} s)",
                until.duration_since(self.now).as_millis().div_ceil(1000)
            ),
            None => String::from(" (approved a moment ago)"),
        }
    }

    /// The pod for which others wait can stay Pending: then only its events say why.
    fn wait_for_departures(&self) -> Vec<String> {
        let ns = to_shell_word(&self.snapshot.namespace);
        let mut pods = self.assessment.leaving.iter().filter_map(|name| self.snapshot.pod(name));
        let Some(pod) = pods.next() else {
            return vec![format!("Wait until all pods are ready, then retry: kubectl -n {ns} get pods -w")];
        };
        let pod = to_shell_word(&pod.name);
        vec![
            format!("Wait until {pod} is ready again, then retry: kubectl -n {ns} get pods -w"),
            format!("If {pod} stays Pending or Terminating, see why: kubectl -n {ns} describe pod {pod}"),
        ]
    }

    /// A pod because of whose member the deletion is denied, and whose credentials the guard may not read.
    fn pod_without_role(&self) -> Option<&MemberPod> {
        let lacks_role = |pod: &&MemberPod| self.lacks_role(pod);
        Some(self.target).filter(lacks_role).or_else(|| self.snapshot.pods.iter().find(lacks_role))
    }

    /// Whether the member rejects the guard because the guard may not read the credentials.
    fn lacks_role(&self, pod: &MemberPod) -> bool {
        let is_rejected = matches!(pod.reply.cause(), Some(MemberError::CredentialsRejected(_)));
        is_rejected && self.snapshot.without_role.contains(&pod.name)
    }

    fn repair_credentials(&self) -> String {
        match self.pod_without_role() {
            Some(pod) => role_advice(&self.snapshot.namespace, &pod.name),
            None => secret_advice(self.snapshot, self.target),
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
            Some(pod) if self.lacks_role(pod) => role_advice(&self.snapshot.namespace, &pod.name),
            Some(pod) if pod.is_running() => {
                let [pod, container] = [&pod.name, &pod.container].map(|name| to_shell_word(name));
                format!("Repair {pod}, then retry: kubectl -n {ns} logs {pod} -c {container} --tail=50")
            }
            Some(pod) => {
                let pod = to_shell_word(&pod.name);
                format!("Repair {pod}, then retry: kubectl -n {ns} describe pod {pod}")
            }
            None => {
                let advice = if missing.is_empty() {
                    "No voter can go. Add a member first. List the members"
                } else {
                    "Start or remove the members that are not healthy first. List the members"
                };
                format!("{advice}: {}", self.etcdctl(self.other_serving_pod(), "member list -w table"))
            }
        }
    }

    /// The guard carries out the annotation, with its own credentials. It ignores an annotation whose time is not current.
    fn move_leadership(&self) -> Vec<String> {
        let [pod, ns] = [&self.target.name, &self.snapshot.namespace].map(|name| to_shell_word(name));
        let Some((transferee, _)) = assess::transferee(self.snapshot, self.target, None) else {
            return vec![format!(
                "No other healthy voter can become the leader. Wait until another voter is ready: kubectl -n {ns} get pods -w"
            )];
        };
        let object = annotated_object(self.snapshot, self.target);
        let transferee = to_shell_word(&format!("{MOVE_LEADER}={}@", transferee.name));
        vec![
            format!("Move leadership, then retry: kubectl etcd-guard move-leader -n {ns} {pod}"),
            format!(
                "Without the plugin: kubectl -n {ns} annotate --overwrite {object} {transferee}$(date -u +%FT%TZ)"
            ),
        ]
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
    fn prevent_data_loss(&self) -> Vec<String> {
        let ns = to_shell_word(&self.snapshot.namespace);
        let object = match self.assessment.tally {
            Some(_) => to_shell_word(&format!("pod/{}", self.target.name)),
            None => annotated_object(self.snapshot, self.target),
        };
        let accept = format!(
            "If losing the data is fine: kubectl -n {ns} annotate --overwrite {object} etcd-guard.io/ephemeral-data=allow"
        );
        if self.target.storage == Storage::RemovedByHook {
            return match &self.target.stop_script {
                Some(StopScript { source, .. }) => {
                    let read = source.as_ref().map(|_| {
                        format!(
                            "Let the guard read the script: {}",
                            role_command(&self.snapshot.namespace, &self.target.name)
                        )
                    });
                    let keeps = accept.replacen(
                        "losing the data is fine",
                        "the script does not remove the member",
                        1,
                    );
                    read.into_iter().chain([keeps]).collect()
                }
                None => self.outweigh_removal().into_iter().chain([accept]).collect(),
            };
        }
        let remove = self
            .assessment
            .member
            .map(|id| self.etcdctl(self.other_serving_pod(), &format!("member remove {id}")));
        match (remove, &self.assessment.tally) {
            (Some(remove), Some(tally)) if tally.voters > 1 => {
                vec![format!("Replace the member, beginning with its removal: {remove}"), accept]
            }
            _ => vec![accept],
        }
    }

    /// The hook itself removes the member: a removal in advance would leave as few voters as the hook.
    fn outweigh_removal(&self) -> Option<String> {
        let tally = self.assessment.tally.as_ref().filter(|tally| tally.voters > 1)?;
        let ns = to_shell_word(&self.snapshot.namespace);
        if tally.can_ever_spare_two() {
            return Some(if self.assessment.missing.is_empty() {
                format!("Wait until all pods are ready, then retry: kubectl -n {ns} get pods -w")
            } else {
                self.restore_missing_voter()
            });
        }
        let missing =
            (1..=tally.voters + 2).find(|count| tally.remaining + count > quorum(tally.voters + count));
        let added = missing.unwrap_or(1);
        let advice = format!("Add {} first, so that the cluster can lose this one", voters(added));
        let set = self.snapshot.cluster.split_once('/').map(|(_, set)| set);
        Some(match set.filter(|_| self.target.owner_kind == "StatefulSet") {
            Some(set) => {
                let set = to_shell_word(set);
                let replicas = tally.voters + added;
                format!("{advice}: kubectl -n {ns} scale statefulset {set} --replicas={replicas}")
            }
            None => {
                let list = self.etcdctl(self.other_serving_pod(), "member list -w table");
                format!("{advice}. List the members: {list}")
            }
        })
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

/// Returns a sentence with a capital letter at its beginning.
pub fn capitalized(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map(|first| first.to_ascii_uppercase()).into_iter().chain(letters).collect()
}

/// Adds the command that inspects a pod to a denial, as its last command: to a denial that depends on what the guard reads
/// of pods, and to one because of a member to which the guard may lack access. Without such a member, the command names
/// `object`, which has a namespace and a name. If the remedy grants the Role already, nothing is left to inspect.
pub fn advise_inspection(verdict: &mut Verdict, object: Option<(String, String)>) {
    let concerns_discovery = !verdict.reason.allows() && verdict.reason.concerns_discovery();
    let object = verdict.inaccessible_pod.clone().or_else(|| object.filter(|_| concerns_discovery));
    let inspects = verdict.remedy.as_ref().is_some_and(|remedy| remedy.contains(INSPECT));
    if let Some((namespace, object)) = object.filter(|_| !inspects) {
        verdict.add_advice(&inspection_advice(&namespace, &object));
    }
}

/// Returns the advice to inspect an object.
pub fn inspection_advice(namespace: &str, object: &str) -> String {
    let [namespace, object] = [namespace, object].map(to_shell_word);
    format!(
        "See what the guard reads of the pod, and the Role that it needs: {INSPECT} -n {namespace} {object}"
    )
}

/// Returns the advice to grant the Role for the credentials of a pod.
pub fn role_advice(namespace: &str, pod: &str) -> String {
    let command = role_command(namespace, pod);
    format!(
        "Let the guard read the credentials of {}, and retry after ten seconds: {command}",
        to_shell_word(pod)
    )
}

/// Returns the advice to name another Secret for the cluster of a pod.
pub fn secret_advice(snapshot: &Snapshot, pod: &MemberPod) -> String {
    format!(
        "Name a Secret with valid credentials (of a user with a password: {AUTH_SECRET}): kubectl -n {} annotate --overwrite {} \
         {CLIENT_TLS_SECRET}=SECRET",
        to_shell_word(&snapshot.namespace),
        annotated_object(snapshot, pod)
    )
}

fn role_command(namespace: &str, pod: &str) -> String {
    let [namespace, pod] = [namespace, pod].map(to_shell_word);
    format!("{INSPECT} -n {namespace} {pod} --role | kubectl apply -f -")
}
