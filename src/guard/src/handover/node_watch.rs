//! The watch of nodes: moves leadership off nodes that show a signal.

use std::{
    collections::{BTreeMap, BTreeSet},
    pin::pin,
    sync::Arc,
    time::Duration,
};

use futures::{StreamExt, stream};
use tokio::{
    task::JoinSet,
    time::{Instant, MissedTickBehavior, interval, sleep},
};

use crate::{
    deadline::Deadline,
    handover::{
        doomed_nodes::DoomedNodes,
        mover::{Mover, Task},
        report::{Outcome, Subject},
        signals::signals,
        withdrawals::Withdrawals,
    },
};
use etcd_guard_core::{cluster_key::ClusterKey, discovery::etcd_pod, handover::Signal, objects::pod::Pod};
use etcd_guard_kubernetes::{EventRecord, NodeReader, NodeState, NodeStateEvent};

/// Interval at which nodes with a signal are evaluated again: leadership may have moved to such a node, and a voter that
/// could not take over may have recovered.
const RECHECK_INTERVAL: Duration = Duration::from_secs(15);

/// Maximum number of clusters of one node that are evaluated at the same time.
const MAX_CONCURRENT_CLUSTERS: usize = 8;

/// Time limit for finding the members on a node.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(10);

/// Follows the states of nodes.
pub(super) struct NodeWatch {
    mover: Arc<Mover>,
    doomed: DoomedNodes,
    nodes: NodeReader,
}

/// The nodes whose evaluation is in progress. True if the node has changed meanwhile.
type Running = BTreeMap<String, bool>;

// === impl NodeWatch ===

impl NodeWatch {
    pub(super) fn new(mover: Arc<Mover>, doomed: DoomedNodes, nodes: NodeReader) -> Self {
        Self { mover, doomed, nodes }
    }

    /// Moves leadership off nodes with signals until the future is dropped.
    pub(super) async fn run(&self) {
        while !self.mover.services.observer.annotations.wait_until_synced().await {
            sleep(RECHECK_INTERVAL).await;
        }
        let mut events = pin!(self.nodes.watch());
        let mut recheck = interval(RECHECK_INTERVAL);
        recheck.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut tasks: JoinSet<(String, Option<Duration>)> = JoinSet::new();
        let mut delays: JoinSet<String> = JoinSet::new();
        let mut withdrawals = Withdrawals::new(Arc::clone(&self.mover), self.nodes.clone());
        let mut running = Running::new();
        // The names in the list that is being read. Until the first list is complete, the nodes that exclude a transferee
        // are not known.
        let mut listing: Option<BTreeSet<String>> = Some(BTreeSet::new());
        let mut is_synced = false;
        loop {
            let due: Vec<String> = tokio::select! {
                // Events last, so that a long list of nodes does not delay the branches above.
                biased;
                _ = recheck.tick() => {
                    withdrawals.start();
                    if is_synced { self.doomed.names() } else { Vec::new() }
                }
                Some(ended) = tasks.join_next(), if !tasks.is_empty() => match ended {
                    Ok((node, delay)) => {
                        if let Some(delay) = delay {
                            let node = node.clone();
                            delays.spawn(async move {
                                sleep(delay).await;
                                node
                            });
                        }
                        if self.doomed.signals(&node).is_empty() {
                            // The handover may have been recorded after the removal of the withdrawn signal.
                            withdrawals.add();
                        }
                        let has_changed = running.remove(&node).unwrap_or_default();
                        Some(node).filter(|_| has_changed).into_iter().collect()
                    }
                    // A task that panicked: its node is evaluated at the next recheck.
                    Err(_) => {
                        running.clear();
                        Vec::new()
                    }
                },
                Some(delayed) = delays.join_next(), if !delays.is_empty() => delayed.into_iter().collect(),
                () = withdrawals.finish(), if withdrawals.is_running() => Vec::new(),
                event = events.next() => match event {
                    Some(NodeStateEvent::Listing) => {
                        listing = Some(BTreeSet::new());
                        Vec::new()
                    }
                    Some(NodeStateEvent::Changed(node)) => {
                        if let Some(names) = &mut listing {
                            names.insert(node.name.clone());
                        }
                        let (name, has_new, is_withdrawn) = self.apply(&node);
                        if is_withdrawn {
                            withdrawals.add();
                        }
                        Some(name).filter(|_| has_new && is_synced).into_iter().collect()
                    }
                    Some(NodeStateEvent::Deleted(name)) => {
                        if !self.doomed.set(&name, Vec::new()).is_empty() {
                            withdrawals.add();
                        }
                        Vec::new()
                    }
                    Some(NodeStateEvent::Listed) => {
                        let names = listing.take().unwrap_or_default();
                        for name in self.doomed.names().into_iter().filter(|name| !names.contains(name)) {
                            self.doomed.set(&name, Vec::new());
                        }
                        is_synced = true;
                        // Signals may have been withdrawn while no replica ran.
                        withdrawals.add();
                        self.doomed.names()
                    }
                    None => return,
                },
            };
            for node in due {
                match running.get_mut(&node) {
                    Some(has_changed) => *has_changed = true,
                    None => {
                        running.insert(node.clone(), false);
                        let (mover, doomed) = (Arc::clone(&self.mover), self.doomed.clone());
                        tasks.spawn(async move {
                            let delay = evacuate(&mover, &doomed, &node).await;
                            (node, delay)
                        });
                    }
                }
            }
        }
    }

    /// Stores the signals of a node. Returns its name, whether a signal is new, and whether one was withdrawn.
    fn apply(&self, node: &NodeState) -> (String, bool, bool) {
        let found = signals(node, &self.mover.configured_taints());
        let former = self.doomed.set(&node.name, found.clone());
        let has_new = found.iter().any(|signal| !former.contains(signal));
        let is_withdrawn = former.iter().any(|signal| !found.contains(signal));
        (node.name.clone(), has_new, is_withdrawn)
    }
}

/// Moves the leadership of each cluster that this node leads, if its policy is `transfer`. Returns the time after which
/// the node has to be evaluated again, because another replica acts at the moment and may end before the transfer.
async fn evacuate(mover: &Mover, doomed: &DoomedNodes, node: &str) -> Option<Duration> {
    let signals = doomed.signals(node);
    if signals.is_empty() {
        return None;
    }
    let clusters = match clusters_on(mover, node).await {
        Ok(clusters) => clusters,
        Err(error) => {
            tracing::warn!(node, error, "could not find the members on a node that is about to be disrupted");
            return None;
        }
    };
    let evacuations = clusters.iter().map(|(key, pods)| evacuate_cluster(mover, &signals, node, key, pods));
    let mut evacuations =
        stream::iter(evacuations.collect::<Vec<_>>()).buffer_unordered(MAX_CONCURRENT_CLUSTERS);
    let mut longest = None;
    while let Some(delay) = evacuations.next().await {
        longest = longest.max(delay);
    }
    longest
}

async fn evacuate_cluster(
    mover: &Mover,
    signals: &[Signal],
    node: &str,
    key: &ClusterKey,
    on_node: &[Pod],
) -> Option<Duration> {
    let deadline = Deadline::from_timeout(Some(LOOKUP_TIMEOUT));
    let pod = on_node.first()?;
    let resolved = mover.services.policies.resolve_for_pod(key.namespace(), pod, deadline).await;
    if resolved.has_unreadable_owner || !resolved.policy.leader.transfers() {
        return None;
    }
    let is_on_node = |pods: &[Pod], leader: &str| {
        pods.iter().any(|pod| pod.metadata.name == leader && pod.spec.node_name == node)
    };
    // The next signal counts only if an earlier one was handled before: leadership has returned to the node.
    for signal in signals {
        let started = Instant::now();
        let task = Task { cluster_key: key, signal, transferee: None, leaves: &is_on_node, node: Some(node) };
        let outcome = mover.hand_over(&task).await;
        let namespace = key.namespace();
        let leads = |pod: &&Pod| outcome.leader() == Some(pod.metadata.name.as_str());
        let leader = on_node.iter().find(leads).unwrap_or(pod);
        let subject = Subject {
            object: EventRecord::pod(namespace, leader),
            stateful_set: EventRecord::stateful_set(namespace, leader),
        };
        let cluster = format!("{namespace}/{}", key.name());
        mover.reporter.report_signal(&cluster, signal, &outcome, started.elapsed(), (namespace, subject));
        match outcome {
            Outcome::Handled | Outcome::Withdrawn => {}
            Outcome::InProgress(rest) => return Some(rest),
            _ => return None,
        }
    }
    None
}

/// Returns the clusters with members on this node, each with its member pods on the node.
async fn clusters_on(mover: &Mover, node: &str) -> Result<Vec<(ClusterKey, Vec<Pod>)>, String> {
    let observer = &mover.services.observer;
    let deadline = Deadline::from_timeout(Some(LOOKUP_TIMEOUT));
    let guarded = observer.annotations.guarded_namespaces().borrow().clone();
    let list = observer.pods.list_pods_of_node(node, &guarded);
    let listed = deadline.within("listing the pods of the node", list).await;
    let listed = listed.map_err(|late| late.to_string())?.map_err(|error| error.to_string())?;
    let mut by_namespace: BTreeMap<String, Vec<Pod>> = BTreeMap::new();
    for pod in listed {
        by_namespace.entry(pod.metadata.namespace.clone()).or_default().push(pod);
    }
    let mut clusters: Vec<(ClusterKey, Vec<Pod>)> = Vec::new();
    for (namespace, mut pods) in by_namespace {
        if let Err(error) = observer.add_inherited(&namespace, &mut pods, deadline).await {
            // The members of other namespaces leave the node nevertheless.
            tracing::warn!(namespace, %error, "members on a node were not evaluated for a handover");
            continue;
        }
        for pod in pods {
            let is_member = !pod.is_finished()
                && !pod.is_mirror()
                && etcd_pod::read(&pod, &pod.metadata.annotations).is_some();
            if !is_member {
                continue;
            }
            let key = ClusterKey::from_pod(&namespace, &pod);
            match clusters.iter_mut().find(|(known, _)| *known == key) {
                Some((_, pods)) => pods.push(pod),
                None => clusters.push((key, vec![pod])),
            }
        }
    }
    Ok(clusters)
}
