//! What a replacement will do, and why it is refused: pure functions of the reports of the guard and of the StatefulSet.

use std::fmt;

use serde::Serialize;

use super::successor::{BY_HAND, Successor, ordinal_of};
use etcd_guard_api::{ClusterStatus, MemberStatus, Role};
use etcd_guard_core::{etcd::release::addition_fix, tally::quorum};

/// The id of the member that is replaced, if the pod runs no listed member.
pub(crate) const NO_MEMBER: &str = "0";

/// A replacement that is about to begin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Plan {
    pub(crate) cluster: String,
    pub(crate) pod: String,
    /// The member that is removed, in hexadecimal; [`NO_MEMBER`] if it is not listed any more.
    pub(crate) member: String,
    pub(crate) claim: String,
    /// The state of the member in words.
    pub(crate) state: String,
    pub(crate) voters: usize,
    /// Healthy voters that stay, without this member.
    pub(crate) others: usize,
    pub(crate) leads: bool,
}

// === impl Plan ===

impl Plan {
    /// Returns the plan, or why the member must not be replaced now.
    pub(crate) fn new(cluster: &ClusterStatus, pod: &str, successor: &Successor) -> Result<Self, String> {
        let ClusterStatus { namespace, name, members, problems, .. } = cluster;
        let Successor { claim, members: template_members, is_ordered, .. } = successor;
        let Some(voters) = cluster.voters else {
            let cause = problems.first().map(|problem| format!(": {problem}")).unwrap_or_default();
            return Err(format!(
                "the voters of {namespace}/{name} could not be counted{cause}; if this does not pass: {BY_HAND}"
            ));
        };
        let own = members.iter().find(|member| member.pod.as_deref() == Some(pod));
        let listed: Vec<&MemberStatus> = members.iter().filter(|member| is_listed(member)).collect();
        let own_listed = own.filter(|member| is_listed(member));
        // Until it is replaced, nothing else tells the new member of a pod that does not exist from another one.
        if let Some(other) = listed.iter().find(|member| member.pod.is_none()) {
            return Err(format!(
                "{} runs in no known pod of namespace {namespace}, and may be the member of {pod}. Only if that member is gone for \
                 good, in a healthy member's pod: etcdctl member remove {}",
                label(other),
                other.id.as_deref().unwrap_or_default()
            ));
        }
        let is_own = |member: &MemberStatus| member.pod.as_deref() == Some(pod);
        if let Some(learner) = listed.iter().find(|member| member.role == Role::Learner && !is_own(member)) {
            return Err(format!("{} is a learner, and etcd adds no second one", label(learner)));
        }
        let is_voter = |member: &MemberStatus| matches!(member.role, Role::Leader | Role::Follower);
        let stays =
            |member: &MemberStatus| member.pod.is_some() && member.serving && member.leaving.is_none();
        let others = listed.iter().copied().filter(|member| is_voter(member) && !is_own(member));
        let (staying, missing): (Vec<&MemberStatus>, Vec<&MemberStatus>) =
            others.partition(|member| stays(member));
        // With the successor. Its promotion needs the new quorum without it.
        let after = if own_listed.is_some_and(is_voter) { voters } else { voters.saturating_add(1) };
        let needed = quorum(after.max(voters));
        if staying.len() < needed {
            let missing: Vec<String> = missing.into_iter().map(describe).collect();
            let missing =
                if missing.is_empty() { String::new() } else { format!(": {}", missing.join(", ")) };
            return Err(format!(
                "without {pod}, only {} of {voters} voters are healthy and stay, and {needed} are needed{missing}",
                staying.len()
            ));
        }
        if after.is_multiple_of(2) {
            return Err(format!(
                "{after} voters tolerate no more failures than {}: first scale in or out by one ({BY_HAND})",
                after.saturating_sub(1)
            ));
        }
        let expected = listed.len().saturating_add(usize::from(own_listed.is_none()));
        if *template_members != expected {
            return Err(format!(
                "--initial-cluster has {template_members} members, and the cluster {expected}: a new member would not start ({BY_HAND})"
            ));
        }
        let leader = listed.iter().find(|member| member.role == Role::Leader);
        let version = leader.and_then(|leader| leader.version.as_deref()).unwrap_or_default();
        if let (Some(down), Some(fixed)) = (missing.first(), addition_fix(version)) {
            return Err(format!(
                "before {fixed}, etcd adds no member while another one is down: first repair {}",
                describe(down)
            ));
        }
        let comes_first = |member: &&&MemberStatus| {
            let other = member.pod.as_deref().and_then(ordinal_of);
            other < ordinal_of(pod) && !stays(member) && !is_own(member)
        };
        if let Some(first) = listed.iter().find(comes_first).filter(|_| *is_ordered) {
            return Err(format!(
                "its StatefulSet starts pods in order (podManagementPolicy OrderedReady), so not {pod} before {}: repair that first",
                describe(first)
            ));
        }
        let state = match own_listed {
            None => String::from("not listed: only a successor is added"),
            Some(member) if member.role == Role::Learner => String::from("a learner"),
            Some(member) if member.serving => String::from("healthy: its data will be deleted nevertheless"),
            Some(member) => describe(member),
        };
        Ok(Self {
            cluster: format!("{namespace}/{name}"),
            pod: pod.to_owned(),
            member: own_listed.and_then(|member| member.id.clone()).unwrap_or_else(|| NO_MEMBER.to_owned()),
            claim: claim.clone(),
            state,
            voters,
            others: staying.len(),
            leads: own_listed.is_some_and(|member| member.role == Role::Leader),
        })
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cluster, pod, member, claim, state, voters, others, leads } = self;
        write!(
            f,
            "Replacement of {pod} of {cluster} ({state}; without it {others} of {voters} voters are healthy)"
        )?;
        let mut steps = Vec::new();
        if *leads {
            steps.push(format!("leadership leaves {pod}"));
        }
        if member != NO_MEMBER {
            steps.push(format!("member {member} is removed; until the end, the cluster has one voter less"));
        }
        steps.push(format!("PVC {claim} and pod {pod} are deleted, with all data in them"));
        steps.push(format!("{pod} is added as a learner, and starts with an empty PVC"));
        steps.push(String::from("once it has caught up, it becomes a voter"));
        for (index, step) in steps.iter().enumerate() {
            write!(f, "\n  {}. {step}", index.saturating_add(1))?;
        }
        Ok(())
    }
}

/// Whether the member list contains the member.
pub(crate) fn is_listed(member: &MemberStatus) -> bool {
    member.id.is_some() && matches!(member.role, Role::Leader | Role::Follower | Role::Learner)
}

/// Whether the member has run: it published its name, or answers.
pub(crate) fn has_started(member: &MemberStatus) -> bool {
    member.name.is_some() || member.version.is_some()
}

pub(crate) fn label(member: &MemberStatus) -> String {
    let label = member.pod.as_ref().or(member.name.as_ref()).or(member.id.as_ref());
    label.cloned().unwrap_or_else(|| String::from("an unnamed member"))
}

fn describe(member: &MemberStatus) -> String {
    let cause = match (&member.leaving, &member.cause) {
        (Some(leaving), _) => leaving.as_str(),
        (None, Some(cause)) => cause.as_str(),
        (None, None) if member.pod.is_none() => "runs in no pod of this namespace",
        (None, None) => "not healthy",
    };
    format!("{} ({cause})", label(member))
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::maintenance::health::tests::cluster;

    fn listed() -> ClusterStatus {
        let mut cluster = cluster();
        for (number, member) in cluster.members.iter_mut().enumerate() {
            member.id = Some(format!("a{number}"));
            member.role = if number == 0 { Role::Leader } else { Role::Follower };
        }
        cluster
    }

    fn plan(cluster: &ClusterStatus, pod: &str) -> Result<Plan, String> {
        Plan::new(cluster, pod, &successor(pod))
    }

    fn successor(pod: &str) -> Successor {
        Successor { pod: Value::Null, claim: format!("data-{pod}"), members: 3, is_ordered: false }
    }

    fn of_five() -> ClusterStatus {
        let mut cluster = listed();
        for n in 3..5 {
            let (pod, id) = (Some(format!("etcd-{n}")), Some(format!("a{n}")));
            cluster.members.push(MemberStatus { name: pod.clone(), pod, id, ..cluster.members[2].clone() });
        }
        cluster.voters = Some(5);
        cluster
    }

    /// Returns the index of a pod's member.
    fn index(cluster: &ClusterStatus, pod: &str) -> usize {
        cluster.members.iter().position(|member| member.pod.as_deref() == Some(pod)).unwrap()
    }

    #[test]
    fn plan_names_the_member_and_the_steps() {
        let mut cluster = listed();
        let lost = index(&cluster, "etcd-2");
        cluster.members[lost].serving = false;
        cluster.members[lost].cause = Some(String::from("connection refused"));
        let id = cluster.members[lost].id.clone().unwrap();
        let text = plan(&cluster, "etcd-2").unwrap().to_string();
        assert_eq!(
            text,
            format!(
                "Replacement of etcd-2 of prod/etcd (etcd-2 (connection refused); without it 2 of 3 voters are healthy)\n  \
                 1. member {id} is removed; until the end, the cluster has one voter less\n  \
                 2. PVC data-etcd-2 and pod etcd-2 are deleted, with all data in them\n  \
                 3. etcd-2 is added as a learner, and starts with an empty PVC\n  4. once it has caught up, it becomes a voter"
            )
        );
    }

    #[test]
    fn refuses_without_a_quorum_of_the_others() {
        let mut cluster = listed();
        let mut even = cluster.clone();
        even.voters = Some(2);
        let error = plan(&even, "etcd-2").unwrap_err();
        assert!(
            error.starts_with("2 voters tolerate no more failures than 1: first scale in or out by one"),
            "{error}"
        );
        let down = index(&cluster, "etcd-1");
        cluster.members[down].serving = false;
        cluster.members[down].cause = Some(String::from("connection refused"));
        assert_eq!(
            plan(&cluster, "etcd-2").unwrap_err(),
            "without etcd-2, only 1 of 3 voters are healthy and stay, and 2 are needed: etcd-1 (connection refused)"
        );
        cluster.members[down].serving = true;
        cluster.members[down].leaving = Some(String::from("reserved"));
        assert!(plan(&cluster, "etcd-2").unwrap_err().ends_with("etcd-1 (reserved)"));
        assert!(plan(&cluster, "etcd-1").is_ok());
    }

    #[test]
    fn refuses_what_would_strand_the_replacement() {
        let mut cluster = listed();
        assert!(
            Plan::new(&cluster, "etcd-1", &Successor { members: 2, ..successor("etcd-1") })
                .unwrap_err()
                .starts_with("--initial-cluster has 2")
        );
        let other = index(&cluster, "etcd-2");
        cluster.members[other].role = Role::Learner;
        assert_eq!(plan(&cluster, "etcd-1").unwrap_err(), "etcd-2 is a learner, and etcd adds no second one");
        assert_eq!(plan(&listed(), "etcd-1").map(|plan| plan.leads), Ok(index(&listed(), "etcd-1") == 0));
        let mut unknown = listed();
        unknown.voters = None;
        assert!(plan(&unknown, "etcd-1").unwrap_err().contains("could not be counted"));
        let ordered = |pod: &str| Successor { is_ordered: true, ..successor(pod) };
        let mut five = of_five();
        five.members[1].serving = false;
        five.members[1].cause = Some(String::from("connection refused"));
        let by = |successor: Successor| Plan::new(&five, "etcd-2", &Successor { members: 5, ..successor });
        assert!(by(successor("etcd-2")).is_ok());
        assert!(
            by(ordered("etcd-2")).unwrap_err().contains("so not etcd-2 before etcd-1 (connection refused)")
        );
        let first = Plan::new(&five, "etcd-1", &Successor { members: 5, ..ordered("etcd-1") });
        assert!(first.is_ok(), "{first:?}");
        let mut old = five.clone();
        old.members[0].version = Some(String::from("3.5.29"));
        let by_old = Plan::new(&old, "etcd-2", &Successor { members: 5, ..successor("etcd-2") });
        assert_eq!(
            by_old.unwrap_err(),
            "before 3.5.30, etcd adds no member while another one is down: first repair etcd-1 (connection refused)"
        );
        let mut nameless = listed();
        let own = index(&nameless, "etcd-1");
        nameless.members[own].pod = None;
        assert!(plan(&nameless, "etcd-1").unwrap_err().contains("may be the member of etcd-1"));
    }
}
