//! Backups: the choice of the member, the way to it, and the check and the destination of its database.
//!
//! The database streams from the member to the destination, and never passes the guard. A destination appears under its name only after
//! the hash was verified.

pub(crate) mod checksum;
pub(crate) mod destination;
pub(crate) mod source;

use anyhow::Context;

use etcd_guard_api::{ClusterStatus, MemberStatus, Role};

/// Whether an alarm says that the data of this member differs.
pub(crate) fn is_corrupt(cluster: &ClusterStatus, member: &MemberStatus) -> bool {
    let prefix = format!("member {}: ", member.id.as_deref().unwrap_or_default());
    cluster.problems.iter().any(|problem| problem.starts_with(&prefix) && problem.contains("CORRUPT"))
}

/// Returns the member to read: this pod, or the most advanced follower that serves; the leader only if no follower serves.
pub(crate) fn choose<'a>(cluster: &'a ClusterStatus, from: Option<&str>) -> anyhow::Result<&'a MemberStatus> {
    let ClusterStatus { namespace, name, members, problems, .. } = cluster;
    let in_pods = || members.iter().filter(|member| member.pod.is_some());
    if let Some(from) = from {
        let chosen = in_pods().find(|member| member.pod.as_deref() == Some(from));
        return chosen.with_context(|| {
            let pods: Vec<&str> = in_pods().filter_map(|member| member.pod.as_deref()).collect();
            format!("pod {from} runs no member of {namespace}/{name}; its pods: {}", pods.join(", "))
        });
    }
    let rank = |member: &&MemberStatus| {
        (member.role == Role::Leader, member.lag.unwrap_or(u64::MAX), member.pod.clone())
    };
    let healthy = match (cluster.voters, cluster.healthy, cluster.quorum) {
        (Some(voters), Some(healthy), Some(quorum)) if healthy < quorum => Err(format!(
            "{healthy} of {voters} voters of {namespace}/{name} are healthy, and the quorum is {quorum}"
        )),
        (Some(voters), Some(healthy), Some(_)) => Ok(format!("{healthy} of {voters} voters are healthy")),
        _ => {
            let cause = problems.first().map(|problem| format!(" ({problem})")).unwrap_or_default();
            Err(format!("the voters of {namespace}/{name} could not be counted{cause}"))
        }
    };
    let healthy = healthy.map_err(|cause| {
        let advanced = in_pods().filter(|member| member.lag.is_some()).min_by_key(|member| member.lag);
        let pod = advanced.and_then(|member| member.pod.as_deref()).unwrap_or("POD");
        anyhow::anyhow!(
            "{cause}: no member is known to have all writes. To save the most advanced one: --from {pod}"
        )
    })?;
    let is_usable = |member: &&MemberStatus| {
        let votes = matches!(member.role, Role::Leader | Role::Follower);
        votes && member.serving && member.leaving.is_none() && !is_corrupt(cluster, member)
    };
    in_pods().filter(is_usable).min_by_key(rank).with_context(|| {
        format!(
            "no pod of {namespace}/{name} runs a voter that serves, stays and has intact data ({healthy}); choose a member: \
             --from POD"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::maintenance::health::tests::cluster;

    fn chosen(cluster: &ClusterStatus) -> String {
        choose(cluster, None).unwrap().pod.clone().unwrap()
    }

    #[test]
    fn most_advanced_follower_is_read() {
        let mut cluster = cluster();
        cluster.members[1].lag = Some(3);
        assert_eq!(chosen(&cluster), "etcd-2");
        cluster.members[2].leaving = Some(String::from("terminating"));
        assert_eq!(chosen(&cluster), "etcd-1");
        cluster.members[1].id = Some(String::from("8e9e05c52164694d"));
        cluster.problems = vec![String::from("member 8e9e05c52164694d: its data is corrupt (alarm CORRUPT)")];
        assert_eq!(chosen(&cluster), "etcd-0", "no follower is usable");
        assert_eq!(choose(&cluster, Some("etcd-1")).unwrap().lag, Some(3));
    }

    #[test]
    fn refusals_have_numbers() {
        let refusal = |cluster: &ClusterStatus, from| choose(cluster, from).unwrap_err().to_string();
        let mut cluster = cluster();
        assert_eq!(
            refusal(&cluster, Some("web-0")),
            "pod web-0 runs no member of prod/etcd; its pods: etcd-0, etcd-1, etcd-2"
        );
        (cluster.healthy, cluster.members[0].lag) = (Some(1), None);
        cluster.members[1].lag = Some(7);
        assert_eq!(
            refusal(&cluster, None),
            "1 of 3 voters of prod/etcd are healthy, and the quorum is 2: no member is known to have all writes. To save the most \
             advanced one: --from etcd-2"
        );
        (cluster.voters, cluster.problems) = (None, vec![String::from("EtcdUnreachable: nobody answers")]);
        assert_eq!(
            refusal(&cluster, None),
            "the voters of prod/etcd could not be counted (EtcdUnreachable: nobody answers): no member is known to have all \
             writes. To save the most advanced one: --from etcd-2"
        );
    }
}
