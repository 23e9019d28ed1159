//! States of a cluster that do not end by themselves, each with the next command.

use std::collections::BTreeSet;

use k8s_openapi::jiff::{SignedDuration, Timestamp};

use etcd_guard_api::{ClusterStatus, MemberStatus, Role};
use etcd_guard_core::{
    escape::to_shell_word,
    etcd::member::MemberId,
    objects::{pod::Pod, stateful_set::StatefulSet},
};

/// Time for which a pod may be unready, or a learner behind. The start of a member with a large database takes minutes.
const PATIENCE: SignedDuration = SignedDuration::from_mins(10);

/// Number of raft entries that a learner which has caught up may be behind, as for a voter in a restart.
const MAX_LAG: u64 = 1_000;

/// Share of the quota in percent from which on the database is nearly full.
const FULL: u64 = 90;

/// Age of a backup that is too old: one per day, and an hour for the run of its job.
const MAX_BACKUP_AGE: SignedDuration = SignedDuration::from_hours(25);

/// What the traps depend on.
pub(super) struct Evidence<'a> {
    /// The pods of the cluster.
    pub(super) pods: &'a [&'a Pod],
    /// The StatefulSets of pods that have been unready for a long time.
    pub(super) sets: &'a [StatefulSet],
    /// The members with a NOSPACE alarm.
    pub(super) without_space: &'a BTreeSet<MemberId>,
    pub(super) now: Timestamp,
}

// === impl Evidence ===

impl Evidence<'_> {
    /// Returns one sentence per trap. The command is at its end.
    pub(super) fn traps(&self, cluster: &ClusterStatus) -> Vec<String> {
        let namespace = to_shell_word(&cluster.namespace);
        let rollouts = self.pods.iter().filter_map(|pod| self.stuck_rollout(&namespace, pod));
        let learners = cluster.members.iter().filter_map(|member| self.late_learner(&namespace, member));
        rollouts
            .chain(learners)
            .chain(self.space(&namespace, cluster))
            .chain(self.backup(&namespace, cluster))
            .collect()
    }

    /// Under `OrderedReady`, the StatefulSet controller can wait for a pod before it replaces the pod.
    fn stuck_rollout(&self, namespace: &str, pod: &Pod) -> Option<String> {
        let minutes = unready_minutes(pod, self.now)?;
        let owner = pod.controller()?;
        let set = self.sets.iter().find(|set| set.metadata.uid == owner.uid)?;
        let waits = set.starts_in_order() && pod.metadata.deletion_timestamp.is_none();
        (waits && set.replaces(pod)).then(|| {
            let (name, set) = (&pod.metadata.name, &set.metadata.name);
            format!(
                "{name} is not ready for {minutes} min, and still has the old template of StatefulSet {set}, whose rollout can wait for it \
                 forever (Kubernetes issue 67250). Delete it: kubectl -n {namespace} delete pod {name}"
            )
        })
    }

    fn late_learner(&self, namespace: &str, member: &MemberStatus) -> Option<String> {
        let name = member.pod.as_ref().filter(|_| member.role == Role::Learner)?;
        let pod = self.pods.iter().find(|pod| pod.metadata.name == *name)?;
        let minutes = minutes_since(&pod.ready_condition()?.last_transition_time, self.now)?;
        let state = match member.lag {
            None => String::from("does not answer"),
            Some(lag) if lag > MAX_LAG => format!("is {lag} entries behind"),
            Some(_) => return None,
        };
        Some(format!(
            "{name} is a learner and {state} after {minutes} min, so that it cannot become a voter. Find the cause: kubectl -n \
             {namespace} logs {name} --all-containers --tail=100"
        ))
    }

    fn space(&self, namespace: &str, cluster: &ClusterStatus) -> Option<String> {
        let is_without = |member: &&MemberStatus| {
            self.without_space.iter().any(|id| member.id.as_ref() == Some(&id.to_string()))
        };
        let is_nearly_full = |member: &&MemberStatus| {
            let (size, quota) =
                (member.database_bytes.unwrap_or_default(), member.quota_bytes.unwrap_or_default());
            quota > 0 && size.saturating_mul(100) >= quota.saturating_mul(FULL)
        };
        let names = |is_selected: &dyn Fn(&&MemberStatus) -> bool| {
            let name = |member: &MemberStatus| member.pod.clone().or_else(|| member.name.clone());
            cluster.members.iter().filter(is_selected).filter_map(name).collect::<Vec<_>>().join(", ")
        };
        let full = names(&is_nearly_full);
        let state = if !self.without_space.is_empty() {
            format!(
                "out of space (alarm NOSPACE), so that the cluster rejects writes: {}",
                names(&is_without)
            )
        } else if full.is_empty() {
            return None;
        } else {
            format!("the database has reached {FULL}% of its quota: {full}")
        };
        let target = self.target()?;
        Some(format!(
            "{state}. First compact the history (etcdctl compact), then: kubectl etcd-guard defrag -n {namespace} {target}"
        ))
    }

    fn backup(&self, namespace: &str, cluster: &ClusterStatus) -> Option<String> {
        let last = cluster.last_backup.as_ref()?;
        let age = self.now.duration_since(last.at.parse().ok()?);
        let target = self.target()?;
        (age > MAX_BACKUP_AGE).then(|| {
            format!(
                "the last backup is {} h old. Save one: kubectl etcd-guard backup -n {namespace} {target} ./",
                age.as_hours()
            )
        })
    }

    /// The StatefulSet, or a pod without one.
    fn target(&self) -> Option<String> {
        let pod = self.pods.first()?;
        let of_set = |set: &str| format!("statefulset/{}", to_shell_word(set));
        Some(pod.stateful_set().map_or_else(|| to_shell_word(&pod.metadata.name), of_set))
    }
}

/// Returns how long a pod has been unready, if that is long.
pub(super) fn unready_minutes(pod: &Pod, now: Timestamp) -> Option<i64> {
    let ready = pod.ready_condition().filter(|ready| !ready.is_true())?;
    minutes_since(&ready.last_transition_time, now)
}

/// Returns the minutes since a time, if they are many.
fn minutes_since(time: &str, now: Timestamp) -> Option<i64> {
    let passed = now.duration_since(time.parse().ok()?);
    (passed >= PATIENCE).then(|| passed.as_mins())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const NOW: &str = "2026-12-01T12:00:00Z";

    fn pod(name: &str, revision: &str, is_ready: bool, since: &str) -> Pod {
        serde_json::from_value(json!({
            "metadata": {
                "name": name, "uid": name, "labels": {"controller-revision-hash": revision},
                "ownerReferences": [
                    {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "etcd", "uid": "set", "controller": true},
                ],
            },
            "status": {"conditions": [
                {"type": "Ready", "status": if is_ready { "True" } else { "False" }, "lastTransitionTime": since},
            ]},
        }))
        .unwrap()
    }

    fn set(strategy: &Value) -> StatefulSet {
        serde_json::from_value(json!({
            "metadata": {"name": "etcd", "uid": "set"},
            "spec": {"replicas": 3, "updateStrategy": strategy},
            "status": {"currentRevision": "a", "updateRevision": "a"},
        }))
        .unwrap()
    }

    fn cluster(change: impl Fn(&mut Value)) -> ClusterStatus {
        let member = |name: &str, id: &str, role: &str| {
            json!({
                "pod": name, "id": id, "role": role, "serving": true, "lag": 0, "databaseBytes": 100, "quotaBytes": 1000,
            })
        };
        let mut status = json!({
            "namespace": "prod", "name": "etcd", "members": [
                member("etcd-0", "1", "leader"), member("etcd-1", "2", "follower"), member("etcd-2", "3", "learner"),
            ],
            "reservations": [], "policy": [], "problems": [], "traps": [],
        });
        change(&mut status);
        serde_json::from_value(status).unwrap()
    }

    fn traps(
        pods: &[&Pod],
        sets: &[StatefulSet],
        without_space: &[u64],
        cluster: &ClusterStatus,
    ) -> Vec<String> {
        let without_space = without_space.iter().map(|id| MemberId(*id)).collect();
        Evidence { pods, sets, without_space: &without_space, now: NOW.parse().unwrap() }.traps(cluster)
    }

    #[test]
    fn unready_pod_of_an_earlier_template_holds_its_rollout() {
        let rolling = json!({"type": "RollingUpdate"});
        let found = |pod: &Pod, strategy: &Value| traps(&[pod], &[set(strategy)], &[], &cluster(|_| {}));
        let broken = pod("etcd-2", "b", false, "2026-12-01T11:48:00Z");
        let text = found(&broken, &rolling).pop().unwrap();
        assert!(text.starts_with("etcd-2 is not ready for 12 min, and still has the old template"), "{text}");
        assert!(text.ends_with(" Delete it: kubectl -n prod delete pod etcd-2"), "{text}");
        assert!(
            found(&pod("etcd-2", "b", false, "2026-12-01T11:51:00Z"), &rolling).is_empty(),
            "not for long"
        );
        assert!(found(&pod("etcd-2", "b", true, "2026-12-01T11:00:00Z"), &rolling).is_empty(), "ready");
        assert!(
            found(&pod("etcd-2", "a", false, "2026-12-01T11:00:00Z"), &rolling).is_empty(),
            "the template"
        );
        assert!(found(&broken, &json!({"type": "OnDelete"})).is_empty());
        let partition = |start: u32| json!({"type": "RollingUpdate", "rollingUpdate": {"partition": start}});
        assert!(found(&broken, &partition(3)).is_empty(), "it keeps its template");
        assert_eq!(found(&broken, &partition(2)).len(), 1);
    }

    #[test]
    fn learner_that_is_behind_for_long_is_a_trap() {
        let found = |since: &str, lag: Value| {
            let pod = pod("etcd-2", "a", true, since);
            traps(&[&pod], &[], &[], &cluster(|cluster| cluster["members"][2]["lag"] = lag.clone())).pop()
        };
        let text = found("2026-12-01T11:00:00Z", json!(1_001)).unwrap();
        assert!(text.starts_with("etcd-2 is a learner and is 1001 entries behind after 60 min"), "{text}");
        assert!(found("2026-12-01T11:00:00Z", json!(null)).unwrap().contains("does not answer after 60 min"));
        assert_eq!(found("2026-12-01T11:00:00Z", json!(1_000)), None);
        assert_eq!(found("2026-12-01T11:51:00Z", json!(1_001)), None);
        let voter = pod("etcd-1", "a", true, "2026-12-01T11:00:00Z");
        let behind = cluster(|cluster| cluster["members"][1]["lag"] = json!(1_001));
        assert_eq!(traps(&[&voter], &[], &[], &behind), [""; 0]);
    }

    #[test]
    fn members_without_space_are_named() {
        let pod = pod("etcd-0", "a", true, NOW);
        let found = |without_space: &[u64], size: u64| {
            let cluster = cluster(|cluster| cluster["members"][1]["databaseBytes"] = json!(size));
            traps(&[&pod], &[], without_space, &cluster).pop()
        };
        let command = ". First compact the history (etcdctl compact), then: kubectl etcd-guard defrag -n prod statefulset/etcd";
        assert_eq!(
            found(&[1, 3], 950).unwrap(),
            format!(
                "out of space (alarm NOSPACE), so that the cluster rejects writes: etcd-0, etcd-2{command}"
            )
        );
        assert_eq!(
            found(&[], 900).unwrap(),
            format!("the database has reached 90% of its quota: etcd-1{command}")
        );
        assert_eq!(found(&[], 899), None);
        let unknown = cluster(|cluster| {
            for member in cluster["members"].as_array_mut().unwrap() {
                member["quotaBytes"] = json!(null);
            }
        });
        assert_eq!(traps(&[&pod], &[], &[], &unknown), [""; 0]);
    }

    #[test]
    fn only_a_recorded_backup_can_be_old() {
        let pod = pod("etcd-0", "a", true, NOW);
        let found = |at: &str| {
            let last = json!({"at": at, "revision": 7});
            traps(&[&pod], &[], &[], &cluster(|cluster| cluster["lastBackup"] = last.clone())).pop()
        };
        assert_eq!(
            found("2026-11-28T12:00:00Z").unwrap(),
            "the last backup is 72 h old. Save one: kubectl etcd-guard backup -n prod statefulset/etcd ./"
        );
        assert_eq!(found("2026-11-30T11:30:00Z"), None);
        assert_eq!(traps(&[&pod], &[], &[], &cluster(|_| {})), [""; 0]);
    }
}
