//! Shows the plan of a drain, and runs it.

use std::{collections::BTreeSet, time::Duration};

use k8s_openapi::api::core::v1::Pod;
use tokio::time::{Instant, sleep};

use super::{
    super::{
        eviction::{EvictionResult, RETRY_INTERVAL, evict},
        health::{cluster_obstacle, unschedulable},
        leadership::{HANDOVER_INTERVAL, HANDOVER_TIMEOUT, Subject, move_leader, transferee},
        reporter::Reporter,
    },
    plan::{Action, Entry, plan},
    pods::{Handling, Permitted, handling, is_finished},
    read::{NodeView, lacks_clusters_of, member_of, names, read_node},
    report::NodeReport,
};
use crate::guard_client::GuardClient;
use etcd_guard_api::{ClusterStatus, Role};
use etcd_guard_core::escape::to_shell_word;

/// Time in which a guard with `--handover` moves leadership off a cordoned node. A request in this time could move leadership twice.
const SIGNAL_TIME: Duration = Duration::from_secs(3);

/// Pause between two reads of the leader in this time.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(500);

/// The options of a drain.
pub(crate) struct Options {
    pub(crate) node: String,
    /// Limits the time of the whole drain.
    pub(crate) timeout: Duration,
    pub(crate) is_dry_run: bool,
    /// Whether to evict all pods, instead of the etcd members only.
    pub(crate) drains_all: bool,
    pub(crate) permitted: Permitted,
}

/// A drain.
pub(crate) struct Drain<'a> {
    guard: &'a GuardClient,
    options: &'a Options,
    reporter: Reporter,
    deadline: Instant,
    /// The time of the cordon.
    cordoned: Option<Instant>,
}

// === impl Drain ===

impl<'a> Drain<'a> {
    pub(crate) fn new(guard: &'a GuardClient, options: &'a Options, is_json: bool) -> Self {
        let deadline = Instant::now() + options.timeout;
        Self { guard, options, reporter: Reporter::new(is_json), deadline, cordoned: None }
    }

    /// Drains the node. Returns whether all selected pods left it.
    pub(crate) async fn run(&mut self) -> anyhow::Result<bool> {
        let Options { node, is_dry_run, drains_all, permitted, .. } = self.options;
        let mut view = read_node(self.guard, node, *permitted).await?;
        let mut entries = plan(&view.members);
        let report = NodeReport::new(node, &view, entries.clone());
        self.reporter.plan(&report.text(), &report)?;
        view.problems.iter().for_each(|problem| self.reporter.warn(problem));
        self.refuse_pods(&view)?;
        if *is_dry_run {
            return Ok(report.completes());
        }
        anyhow::ensure!(
            !view.is_incomplete,
            "node {node} is not drained: the guard could not read all clusters, and the other pods may include \
             members. Repeat the drain when this command reports no problem: {}",
            self.guard.api_server.command("status")
        );
        // Without the permission, the drain would cordon the node and retry until its timeout.
        let evictable = entries.iter().filter(|entry| entry.order.is_some());
        for namespace in evictable.map(|entry| &entry.namespace).collect::<BTreeSet<_>>() {
            self.guard.api_server.require_evictions(namespace).await?;
        }
        self.guard.api_server.cordon(node, true).await?;
        self.cordoned = Some(Instant::now());
        self.reporter.progress(&format!("node {node} is cordoned"));
        // The scheduler can have bound pods to the node before the cordon.
        let cordoned = read_node(self.guard, node, *permitted).await?;
        if cordoned.pod_names() != view.pod_names() {
            self.refuse_pods(&cordoned)?;
            (entries, view) = (plan(&cordoned.members), cordoned);
        }
        let total = entries.iter().filter(|entry| entry.order.is_some()).count();
        self.reporter.set_progress(0, total);
        let mut left: Vec<String> = Vec::new();
        for entry in &entries {
            let Entry { namespace, pod, order, note: cause, .. } = entry;
            let Some(order) = order else {
                left.push(format!("{namespace}/{pod} stays: {}", cause.as_deref().unwrap_or_default()));
                continue;
            };
            match self.evict_member(entry).await {
                Ok(()) => self.reporter.set_progress(*order, total),
                Err(cause) => left.push(format!("{namespace}/{pod}: {cause}")),
            }
        }
        if *drains_all && left.is_empty() {
            left.extend(self.evict_others(&view.others).await);
        }
        if left.is_empty() {
            left.extend(self.remaining_members().await?);
        }
        if !left.is_empty() {
            // One line for each pod: the causes are long.
            for cause in &left {
                self.reporter.warn(cause);
            }
            let node = to_shell_word(node);
            self.reporter.aborted(&format!(
                "pods remain on the node. Continue: {} {node}. End: {} uncordon {node}",
                self.guard.api_server.command("drain"),
                self.guard.api_server.kubectl
            ));
            return Ok(false);
        }
        self.reporter.complete(&self.completed_text());
        Ok(true)
    }

    /// Returns the members that are on the node at the end: those that the drain could not evict, such as members in static
    /// pods, and successors that tolerate the cordon.
    async fn remaining_members(&self) -> anyhow::Result<Vec<String>> {
        let Options { node, .. } = self.options;
        let (pods, survey) = (self.guard.api_server.pods_on(node).await?, self.guard.status(None).await?);
        if lacks_clusters_of(&survey, pods.iter().filter(|pod| !is_finished(pod))) {
            let problems = survey.problems.join("; ");
            return Ok(vec![format!(
                "the guard does not know whether members remain on node {node}: {problems}"
            )]);
        }
        let is_member = |pod: &&Pod| {
            let (namespace, name) = names(pod);
            !is_finished(pod) && member_of(&survey, namespace, name).is_some()
        };
        let stays = |pod: &Pod| {
            let (namespace, name) = names(pod);
            format!("{namespace}/{name} runs a member on node {node}")
        };
        Ok(pods.iter().filter(is_member).map(stays).collect())
    }

    /// Returns the final message, with the command that evicts the other pods.
    fn completed_text(&self) -> String {
        let Options { node, drains_all, permitted, .. } = self.options;
        if *drains_all {
            return format!("all pods left node {node}");
        }
        let mut flags = String::from(" --ignore-daemonsets");
        if permitted.empty_dir {
            flags.push_str(" --delete-emptydir-data");
        }
        if permitted.unmanaged {
            flags.push_str(" --force");
        }
        format!(
            "all etcd members left node {node}; evict the other pods: {} drain {}{flags}",
            self.guard.api_server.kubectl,
            to_shell_word(node)
        )
    }

    /// Fails before the first change if an eviction requires a flag that is not set.
    fn refuse_pods(&self, view: &NodeView) -> anyhow::Result<()> {
        let members = view.members.iter().filter_map(|member| {
            Some(format!("{}/{}: {}", member.namespace, member.pod, member.refusal.as_ref()?))
        });
        let mut refused: Vec<String> = members.collect();
        if self.options.drains_all {
            refused.extend(view.others.iter().filter_map(|pod| {
                match handling(pod, self.options.permitted) {
                    Handling::Refuse(cause) => {
                        let (namespace, name) = names(pod);
                        Some(format!("{namespace}/{name}: {cause}"))
                    }
                    Handling::Evict | Handling::Ignore(_) => None,
                }
            }));
        }
        anyhow::ensure!(refused.is_empty(), "the drain is refused: {}", refused.join("; "));
        Ok(())
    }

    /// Evicts a member, and waits for its successor if one can be scheduled. The error is the cause at the timeout.
    async fn evict_member(&mut self, entry: &Entry) -> Result<(), String> {
        let mut last_handover: Option<Instant> = None;
        let Entry { namespace, pod: name, .. } = entry;
        if Instant::now() >= self.deadline {
            return Err(self.expired_text("its eviction was not attempted"));
        }
        loop {
            let obstacle = match self.guard.api_server.pod(namespace, name).await {
                Err(error) => format!("{error:#}"),
                Ok(pod) => {
                    let Some(pod) = pod.filter(|pod| is_on(pod, &self.options.node)) else { return Ok(()) };
                    let may_move = last_handover.is_none_or(|at| at.elapsed() > HANDOVER_INTERVAL);
                    if may_move && self.hand_over(entry, &pod).await {
                        last_handover = Some(Instant::now());
                    }
                    let uid = pod.metadata.uid.unwrap_or_default();
                    match evict(self.guard, namespace, name, &uid).await {
                        // The next attempt reads the pod that has its name now.
                        EvictionResult::Gone => format!("{namespace}/{name} was replaced or deleted"),
                        EvictionResult::Denied(cause) => {
                            format!("the eviction of {namespace}/{name} is denied: {cause}")
                        }
                        EvictionResult::Accepted => {
                            self.reporter.progress(&format!("{namespace}/{name} is evicted"));
                            return self.wait_for_successor(entry, &uid).await;
                        }
                    }
                }
            };
            self.wait(&obstacle).await?;
        }
    }

    /// Moves leadership to another node if the pod leads. Returns whether a move was requested.
    async fn hand_over(&mut self, entry: &Entry, pod: &Pod) -> bool {
        let Entry { namespace, pod: name, .. } = entry;
        let survey = loop {
            let survey = match self.guard.status(Some(namespace)).await {
                Ok(survey) => survey,
                Err(error) => {
                    self.reporter.warn(&format!("the leader is unknown: {error:#}"));
                    return false;
                }
            };
            let leads =
                member_of(&survey, namespace, name).is_some_and(|(_, member)| member.role == Role::Leader);
            if !leads {
                return false;
            }
            if self.cordoned.is_none_or(|cordoned| cordoned.elapsed() >= SIGNAL_TIME) {
                break survey;
            }
            sleep(SIGNAL_INTERVAL).await;
        };
        let Some((cluster, _)) = member_of(&survey, namespace, name) else { return false };
        let Ok(on_node) = self.guard.api_server.pods_on(&self.options.node).await else { return false };
        let on_node: BTreeSet<(&str, &str)> = on_node.iter().map(names).collect();
        let Some(to) = transferee(cluster, |pod| !on_node.contains(&(namespace, pod))) else { return false };
        self.reporter.progress(&format!(
            "leadership of {} moves from {name} to {to}",
            entry.cluster.as_deref().unwrap_or_default()
        ));
        let subject = Subject::of_pod(namespace, name, pod);
        match move_leader(self.guard, &subject, Some(to), HANDOVER_TIMEOUT).await {
            Ok(answer) if answer.is_moved => self.reporter.progress(&answer.text),
            Ok(answer) => self.reporter.warn(&format!("{}: {}", answer.reason, answer.text)),
            Err(error) => self.reporter.warn(&format!(
                "{error:#}; the eviction of {name} requires the policy etcd-guard.io/leader=transfer"
            )),
        }
        true
    }

    /// Waits until the pod is gone and, unless no other node can run its successor, the cluster is healthy again.
    async fn wait_for_successor(&mut self, entry: &Entry, uid: &str) -> Result<(), String> {
        let Entry { namespace, pod: name, cluster, action, .. } = entry;
        let waits = *action != Action::EvictLast;
        loop {
            let obstacle = match self.guard.api_server.pod(namespace, name).await {
                Err(error) => format!("{error:#}"),
                Ok(Some(pod)) if pod.metadata.uid.as_deref() == Some(uid) => {
                    format!("{namespace}/{name} is terminating")
                }
                Ok(_) if !waits => return Ok(()),
                Ok(successor) => {
                    match self.successor_obstacle(cluster.as_deref(), successor.as_ref()).await {
                        Some(obstacle) => obstacle,
                        None => {
                            self.reporter.progress(&format!("the successor of {namespace}/{name} serves"));
                            return Ok(());
                        }
                    }
                }
            };
            self.wait(&format!("no successor of {namespace}/{name} serves yet: {obstacle}")).await?;
        }
    }

    /// Returns the condition to wait for after an eviction, or `None` if the cluster is healthy again.
    async fn successor_obstacle(&self, cluster: Option<&str>, successor: Option<&Pod>) -> Option<String> {
        if let Some(message) = successor.and_then(unschedulable) {
            return Some(format!("no node can run the successor: {message}"));
        }
        let namespace = cluster.and_then(|cluster| cluster.split_once('/')).map(|(namespace, _)| namespace);
        let survey = match self.guard.status(namespace).await {
            Ok(survey) => survey,
            Err(error) => return Some(format!("{error:#}")),
        };
        let is_cluster = |status: &&ClusterStatus| {
            Some(format!("{}/{}", status.namespace, status.name)).as_deref() == cluster
        };
        match survey.clusters.iter().find(is_cluster) {
            Some(status) => cluster_obstacle(status),
            None => Some(String::from("the guard reports no such cluster")),
        }
    }

    /// Evicts the pods that run no member. Returns those that did not leave in time.
    async fn evict_others(&mut self, pods: &[Pod]) -> Vec<String> {
        let is_evicted = |pod: &&Pod| handling(pod, self.options.permitted) == Handling::Evict;
        let mut left: Vec<&Pod> = pods.iter().filter(is_evicted).collect();
        let total = left.len();
        let mut requested: BTreeSet<&str> = BTreeSet::new();
        loop {
            let mut denied: Option<String> = None;
            let mut remaining = Vec::new();
            for pod in left {
                let (namespace, name) = names(pod);
                let uid = pod.metadata.uid.as_deref().unwrap_or_default();
                if requested.contains(uid) {
                    let current = self.guard.api_server.pod(namespace, name).await.map(|current| {
                        current.filter(|pod| pod.metadata.uid.as_deref() == Some(uid)).map(|pod| pod.metadata)
                    });
                    match current {
                        Ok(None) => continue,
                        // A conflict had another cause than the uid.
                        Ok(Some(pod)) if pod.deletion_timestamp.is_none() => {
                            requested.remove(uid);
                        }
                        Ok(Some(_)) | Err(_) => {}
                    }
                } else {
                    match evict(self.guard, namespace, name, uid).await {
                        // The next round verifies that the pod is gone.
                        EvictionResult::Gone => {
                            requested.insert(uid);
                        }
                        EvictionResult::Accepted => {
                            self.reporter.progress(&format!("{namespace}/{name} is evicted"));
                            requested.insert(uid);
                        }
                        EvictionResult::Denied(cause) => {
                            denied.get_or_insert(format!(
                                "the eviction of {namespace}/{name} is denied: {cause}"
                            ));
                        }
                    }
                }
                remaining.push(pod);
            }
            left = remaining;
            self.reporter.set_progress(total - left.len(), total);
            if left.is_empty() {
                return Vec::new();
            }
            let names: Vec<String> = left
                .iter()
                .map(|pod| names(pod))
                .map(|(namespace, name)| format!("{namespace}/{name}"))
                .collect();
            let cause = denied.unwrap_or_else(|| format!("{} are terminating", names.join(", ")));
            if let Err(cause) = self.wait(&cause).await {
                return vec![format!("{}: {cause}", names.join(", "))];
            }
        }
    }

    fn expired_text(&self, cause: &str) -> String {
        format!("{cause}; the timeout of {} expired", humantime::format_duration(self.options.timeout))
    }

    /// Reports the cause of a wait, and pauses. The error is the cause at the timeout.
    async fn wait(&mut self, cause: &str) -> Result<(), String> {
        if Instant::now() >= self.deadline {
            return Err(self.expired_text(cause));
        }
        self.reporter.waiting(cause);
        sleep(RETRY_INTERVAL).await;
        Ok(())
    }
}

/// Prints how to continue after the user interrupted the drain.
pub(crate) fn report_interruption(guard: &GuardClient, options: &Options, is_json: bool) {
    let node = to_shell_word(&options.node);
    let mut reporter = Reporter::new(is_json);
    reporter.aborted(&format!(
        "interrupted; the node may remain cordoned. Continue: {} {node}. End: {} uncordon {node}",
        guard.api_server.command("drain"),
        guard.api_server.kubectl
    ));
}

fn is_on(pod: &Pod, node: &str) -> bool {
    pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) == Some(node)
}
