//! Decides whether the next member of a cluster may be restarted: pure functions of the reports of the guard and the API
//! server.

use k8s_openapi::{
    api::core::v1::Pod,
    jiff::{SignedDuration, Timestamp},
};

use super::restart::record::RESTART;
use crate::{api_server::is_ready, durations};
use etcd_guard_api::{ClusterStatus, Role};
use etcd_guard_core::escape::{MAX_ERROR_CHARS, to_bounded_line};

/// Maximum number of raft entries that a voter may be behind the most advanced member. The linearizable read of the probe
/// proves that the voter had applied all entries that were committed before; a lag consists of the writes since then.
const MAX_LAG: u64 = 1_000;

/// The age of the backup that an upgrade or a replacement requires.
const MAX_BACKUP_AGE: SignedDuration = SignedDuration::from_hours(1);

/// The state of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PodState {
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) is_ready: bool,
    pub(crate) is_terminating: bool,
    /// The revision of the StatefulSet from which the pod was created.
    pub(crate) revision: String,
    /// The message of the scheduler, if no node can run the pod.
    pub(crate) unschedulable: Option<String>,
    /// The record of a restart that evicts this pod.
    pub(crate) record: Option<String>,
}

// === impl PodState ===

impl From<&Pod> for PodState {
    fn from(pod: &Pod) -> Self {
        let metadata = &pod.metadata;
        let revision = metadata.labels.as_ref().and_then(|labels| labels.get("controller-revision-hash"));
        Self {
            name: metadata.name.clone().unwrap_or_default(),
            uid: metadata.uid.clone().unwrap_or_default(),
            is_ready: is_ready(pod),
            is_terminating: metadata.deletion_timestamp.is_some(),
            revision: revision.cloned().unwrap_or_default(),
            unschedulable: unschedulable(pod).map(|message| to_bounded_line(message, MAX_ERROR_CHARS)),
            record: metadata.annotations.as_ref().and_then(|annotations| annotations.get(RESTART)).cloned(),
        }
    }
}

/// Returns the message of the scheduler, if no node can run the pod.
pub(crate) fn unschedulable(pod: &Pod) -> Option<&str> {
    let mut conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let scheduled = conditions.find(|condition| condition.type_ == "PodScheduled")?;
    (scheduled.status == "False")
        .then(|| scheduled.message.as_deref().unwrap_or("the scheduler found no node"))
}

/// Returns the cluster to which most of these pods belong.
pub(crate) fn cluster_of<'a>(
    clusters: &'a [ClusterStatus],
    namespace: &str,
    pods: &[PodState],
) -> Option<&'a ClusterStatus> {
    let count = |cluster: &ClusterStatus| {
        let members = cluster.members.iter().filter_map(|member| member.pod.as_deref());
        members.filter(|name| pods.iter().any(|pod| pod.name == **name)).count()
    };
    let in_namespace = clusters.iter().filter(|cluster| cluster.namespace == namespace);
    in_namespace.filter(|cluster| count(cluster) > 0).max_by_key(|cluster| count(cluster))
}

/// Returns the condition to wait for before a further voter of the cluster may leave.
pub(crate) fn cluster_obstacle(cluster: &ClusterStatus) -> Option<String> {
    let ClusterStatus { namespace, name, members, .. } = cluster;
    let (Some(voters), Some(healthy)) = (cluster.voters, cluster.healthy) else {
        let cause = cluster.problems.first().map(|problem| format!(": {problem}")).unwrap_or_default();
        return Some(format!("the voters of {namespace}/{name} could not be counted{cause}"));
    };
    let label = |member: &etcd_guard_api::MemberStatus| {
        let label = member.pod.as_ref().or(member.name.as_ref()).or(member.id.as_ref());
        label.cloned().unwrap_or_else(|| String::from("an unnamed member"))
    };
    if let Some((member, leaving)) =
        members.iter().find_map(|member| Some((member, member.leaving.as_ref()?)))
    {
        return Some(format!("{} is leaving ({leaving})", label(member)));
    }
    let is_voter = |role| matches!(role, Role::Leader | Role::Follower);
    if let Some(member) = members.iter().find(|member| is_voter(member.role) && !member.serving) {
        let cause = member.cause.as_deref().unwrap_or("no response");
        return Some(format!("{} does not serve: {cause}", label(member)));
    }
    if healthy < voters {
        return Some(format!("{healthy} of {voters} voters of {namespace}/{name} are healthy"));
    }
    if !members.iter().any(|member| member.role == Role::Leader) {
        return Some(format!("{namespace}/{name} has no proven leader"));
    }
    members.iter().filter(|member| is_voter(member.role)).find_map(|member| match member.lag {
        Some(lag) if lag > MAX_LAG => Some(format!("{} is {lag} entries behind", label(member))),
        Some(_) => None,
        None => Some(format!("{} does not report the entries that it has applied", label(member))),
    })
}

/// Returns an error if the last recorded backup is old. Its time is one of another clock, which may be ahead.
pub(crate) fn require_backup(cluster: &ClusterStatus, purpose: &str) -> anyhow::Result<()> {
    let ClusterStatus { namespace, name, last_backup, .. } = cluster;
    let is_recent = |at: &str| {
        at.parse().is_ok_and(|at: Timestamp| Timestamp::now().duration_since(at).abs() <= MAX_BACKUP_AGE)
    };
    let last = match last_backup {
        Some(backup) if is_recent(&backup.at) => return Ok(()),
        Some(backup) => format!("was {}", durations::ago(&backup.at)),
        None => String::from("is unknown"),
    };
    anyhow::bail!(
        "{purpose} requires a backup of the last hour, and the last one of {namespace}/{name} {last}. Pass --no-backup, or save one: \
         kubectl etcd-guard backup -n {namespace} statefulset/{name} ./"
    );
}

/// Returns the condition to wait for, by the states of the pods alone.
pub(crate) fn pod_obstacle(pods: &[PodState], replicas: usize) -> Option<String> {
    if let Some(pod) = pods.iter().find(|pod| pod.is_terminating) {
        return Some(format!("{} is terminating", pod.name));
    }
    if pods.len() < replicas {
        return Some(format!("{} of {replicas} pods exist", pods.len()));
    }
    pods.iter().find(|pod| !pod.is_ready).map(unready_text)
}

/// Returns the state of a pod that is not ready, with the message of the scheduler.
pub(crate) fn unready_text(pod: &PodState) -> String {
    let cause = pod.unschedulable.as_ref().map(|message| format!(": {message}")).unwrap_or_default();
    format!("{} is not ready{cause}", pod.name)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use etcd_guard_api::MemberStatus;

    /// A healthy cluster of three members, of which `etcd-0` leads.
    pub(crate) fn cluster() -> ClusterStatus {
        let member = |ordinal: u64, role| MemberStatus {
            pod: Some(format!("etcd-{ordinal}")),
            id: Some(format!("{ordinal}")),
            name: Some(format!("etcd-{ordinal}")),
            role,
            serving: true,
            version: Some(String::from("3.5.35")),
            lag: Some(0),
            ..MemberStatus::default()
        };
        ClusterStatus {
            namespace: String::from("prod"),
            name: String::from("etcd"),
            id: None,
            voters: Some(3),
            healthy: Some(3),
            quorum: Some(2),
            spare: Some(1),
            term: Some(2),
            members: vec![member(0, Role::Leader), member(1, Role::Follower), member(2, Role::Follower)],
            reservations: Vec::new(),
            policy: Vec::new(),
            problems: Vec::new(),
            traps: Vec::new(),
            last_backup: None,
        }
    }

    pub(crate) fn pod(name: &str) -> PodState {
        PodState {
            name: name.to_owned(),
            uid: format!("{name}-old"),
            is_ready: true,
            is_terminating: false,
            revision: String::from("a"),
            unschedulable: None,
            record: None,
        }
    }

    #[test]
    fn pods_that_no_node_can_run_have_the_message_of_the_scheduler() {
        let condition = serde_json::json!({
            "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes are available",
        });
        let pending = serde_json::json!({
            "metadata": {"name": "etcd-0"}, "status": {"conditions": [condition]},
        });
        let pending: Pod = serde_json::from_value(pending).unwrap();
        assert_eq!(unready_text(&PodState::from(&pending)), "etcd-0 is not ready: 0/1 nodes are available");
        assert_eq!(unready_text(&pod("etcd-1")), "etcd-1 is not ready");
    }

    #[test]
    fn healthy_cluster_has_no_obstacle() {
        assert_eq!(cluster_obstacle(&cluster()), None);
    }

    #[test]
    fn each_unhealthy_state_is_an_obstacle() {
        let obstacle = |change: fn(&mut ClusterStatus)| {
            let mut cluster = cluster();
            change(&mut cluster);
            cluster_obstacle(&cluster).unwrap_or_default()
        };
        assert_eq!(
            obstacle(|cluster| {
                cluster.members[1].serving = false;
                cluster.members[1].cause = Some(String::from("connection refused"));
            }),
            "etcd-1 does not serve: connection refused"
        );
        assert_eq!(obstacle(|cluster| cluster.healthy = Some(2)), "2 of 3 voters of prod/etcd are healthy");
        assert_eq!(
            obstacle(|cluster| cluster.members[2].leaving = Some(String::from("terminating"))),
            "etcd-2 is leaving (terminating)"
        );
        assert_eq!(
            obstacle(|cluster| cluster.members[0].role = Role::Follower),
            "prod/etcd has no proven leader"
        );
        assert_eq!(obstacle(|cluster| cluster.members[2].lag = Some(1_001)), "etcd-2 is 1001 entries behind");
        assert_eq!(
            obstacle(|cluster| cluster.members[2].lag = None),
            "etcd-2 does not report the entries that it has applied"
        );
        assert_eq!(obstacle(|cluster| cluster.voters = None), "the voters of prod/etcd could not be counted");
    }

    #[test]
    fn learner_is_no_obstacle() {
        let mut cluster = cluster();
        cluster.members[2] = MemberStatus { role: Role::Learner, serving: false, ..MemberStatus::default() };
        (cluster.voters, cluster.healthy) = (Some(2), Some(2));
        assert_eq!(cluster_obstacle(&cluster), None);
    }

    #[test]
    fn pods_must_exist_and_be_ready() {
        let pods = [pod("etcd-0"), pod("etcd-1")];
        assert_eq!(pod_obstacle(&pods, 2), None);
        assert_eq!(pod_obstacle(&pods, 3).as_deref(), Some("2 of 3 pods exist"));
        let terminating = PodState { is_terminating: true, ..pod("etcd-1") };
        assert_eq!(pod_obstacle(&[terminating], 3).as_deref(), Some("etcd-1 is terminating"));
        let unready = PodState { is_ready: false, ..pod("etcd-1") };
        assert_eq!(pod_obstacle(&[unready], 1).as_deref(), Some("etcd-1 is not ready"));
    }

    #[test]
    fn cluster_is_found_by_its_pods() {
        let clusters = [ClusterStatus { members: Vec::new(), ..cluster() }, cluster()];
        assert_eq!(cluster_of(&clusters, "prod", &[pod("etcd-1")]), Some(&clusters[1]));
        assert_eq!(cluster_of(&clusters, "prod", &[pod("web-1")]), None);
        assert_eq!(cluster_of(&clusters, "test", &[pod("etcd-1")]), None);
    }
}
