//! The plan of a drain: which members leave the node, in which order, and which cannot.

use std::{collections::BTreeMap, fmt::Write};

use serde::Serialize;

use etcd_guard_api::Role;

/// A member on the drained node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Member {
    pub(crate) namespace: String,
    pub(crate) pod: String,
    /// `NAMESPACE/NAME` of its cluster.
    pub(crate) cluster: String,
    pub(crate) role: Role,
    pub(crate) is_serving: bool,
    /// The verdict on its eviction at the moment.
    pub(crate) verdict: Verdict,
    /// The constraint by which its successor can run on no other node.
    pub(crate) obstacle: Option<String>,
    /// Whether a controller creates a successor.
    pub(crate) has_controller: bool,
    /// The voter on another node that can lead.
    pub(crate) transferee: Option<String>,
    /// The flag that its eviction requires.
    pub(crate) refusal: Option<String>,
}

/// The verdict of the guard on an eviction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) is_denied: bool,
    pub(crate) reason: String,
    pub(crate) message: String,
}

/// The action of a drain for a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Action {
    /// Evict the pod, and wait until its successor serves.
    Evict,
    /// Move leadership to another node first.
    MoveLeader,
    /// Evict the pod last. Its successor waits until the node is uncordoned.
    EvictLast,
    /// The eviction is denied at the moment; the cause may end.
    WaitForApproval,
    /// The pod stays.
    Stay,
}

/// A row of the plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Entry {
    /// The position in the order of evictions.
    pub(crate) order: Option<usize>,
    pub(crate) namespace: String,
    pub(crate) pod: String,
    /// The cluster; `None` for a pod that runs no member.
    pub(crate) cluster: Option<String>,
    pub(crate) role: Option<Role>,
    pub(crate) action: Action,
    /// Whether the guard would deny the eviction at the moment.
    pub(crate) is_denied: bool,
    /// The reason code of the guard.
    pub(crate) reason: Option<String>,
    /// The cause of the action.
    pub(crate) note: Option<String>,
    /// The pod that leads afterwards.
    pub(crate) transferee: Option<String>,
}

/// Returns the plan for these members. Members of one cluster leave one after the other, the leader last. Clusters whose
/// members can leave at once precede clusters that have to wait.
pub(crate) fn plan(members: &[Member]) -> Vec<Entry> {
    let mut clusters: BTreeMap<&str, Vec<&Member>> = BTreeMap::new();
    for member in members {
        clusters.entry(&member.cluster).or_default().push(member);
    }
    let mut groups: Vec<Vec<Entry>> = clusters.into_values().map(entries_of_cluster).collect();
    groups.sort_by_key(|entries| entries.iter().map(|entry| rank(entry.action)).max());
    let mut entries: Vec<Entry> = groups.into_iter().flatten().collect();
    let mut position = 0;
    for entry in entries.iter_mut().filter(|entry| entry.action != Action::Stay) {
        position += 1;
        entry.order = Some(position);
    }
    entries.sort_by_key(|entry| entry.order.unwrap_or(usize::MAX));
    entries
}

const fn rank(action: Action) -> u8 {
    match action {
        Action::Evict => 0,
        Action::MoveLeader => 1,
        Action::EvictLast => 2,
        Action::WaitForApproval => 3,
        Action::Stay => 4,
    }
}

fn entries_of_cluster(members: Vec<&Member>) -> Vec<Entry> {
    let bound = members.iter().filter(|member| member.obstacle.is_some() || !member.has_controller).count();
    let mut entries: Vec<(bool, Entry)> = members
        .into_iter()
        .map(|member| {
            let (action, note) = action(member, bound);
            let entry = Entry {
                order: None,
                namespace: member.namespace.clone(),
                pod: member.pod.clone(),
                cluster: Some(member.cluster.clone()),
                role: Some(member.role),
                action,
                is_denied: member.verdict.is_denied,
                reason: Some(member.verdict.reason.clone()),
                note,
                transferee: member.transferee.clone().filter(|_| member.role == Role::Leader),
            };
            (member.is_serving, entry)
        })
        .collect();
    // A member that does not serve costs nothing, and its eviction may repair it.
    entries.sort_by_key(|(is_serving, entry)| {
        (*is_serving, entry.action == Action::EvictLast, entry.role == Some(Role::Leader), entry.pod.clone())
    });
    entries.into_iter().map(|(_, entry)| entry).collect()
}

/// Returns the action for a member of a cluster of which `bound` members on the node cannot run elsewhere.
fn action(member: &Member, bound: usize) -> (Action, Option<String>) {
    let Member { obstacle, verdict, transferee, refusal, role, cluster, has_controller, .. } = member;
    if let Some(refusal) = refusal {
        return (Action::Stay, Some(refusal.clone()));
    }
    let obstacle = match obstacle {
        _ if !has_controller => Some("no controller creates the pod again"),
        obstacle => obstacle.as_deref(),
    };
    if let Some(obstacle) = obstacle {
        if bound > 1 {
            let note = format!(
                "{obstacle}; {bound} members of {cluster} are bound to this node, and only one may be down: replace one of \
                 them on another node"
            );
            return (Action::Stay, Some(note));
        }
        let note = match has_controller {
            true => format!("{obstacle}; its successor waits until the node is uncordoned"),
            false => format!("{obstacle}: create the pod on another node"),
        };
        if *role == Role::Leader && transferee.is_none() {
            return (Action::Stay, Some(format!("{obstacle}; no voter on another node can lead")));
        }
        if !verdict.is_denied || is_cured_by_move(verdict) {
            return (Action::EvictLast, Some(note));
        }
    }
    if *role == Role::Leader && (!verdict.is_denied || is_cured_by_move(verdict)) {
        return match transferee {
            Some(pod) => (Action::MoveLeader, Some(format!("leadership moves to {pod} first"))),
            None => (Action::WaitForApproval, Some(String::from("no voter on another node can lead"))),
        };
    }
    if verdict.is_denied {
        return (Action::WaitForApproval, Some(verdict.message.clone()));
    }
    (Action::Evict, None)
}

/// Whether the verdict concerns only the leadership of the pod.
fn is_cured_by_move(verdict: &Verdict) -> bool {
    matches!(verdict.reason.as_str(), "LeaderProtected" | "TransferFailed")
}

/// Whether every member can leave the node without a repair of its cluster.
pub(crate) fn can_complete(entries: &[Entry]) -> bool {
    entries.iter().all(|entry| !matches!(entry.action, Action::WaitForApproval | Action::Stay))
}

/// Returns the plan as a table.
pub(crate) fn table(title: &str, entries: &[Entry]) -> String {
    let mut text = format!("{title}\n");
    if entries.is_empty() {
        text.push_str("  no etcd member runs on the node\n");
        return text;
    }
    let rows = entries.iter().map(|entry| {
        let Entry { order, namespace, pod, role, action, is_denied, reason, note, .. } = entry;
        let order = order.map_or_else(|| String::from("-"), |order| order.to_string());
        let verdict = if *is_denied { "DENIED" } else { "ALLOWED" };
        let action = match action {
            Action::Evict => "evict",
            Action::MoveLeader => "move leader, evict",
            Action::EvictLast => "evict, no successor",
            Action::WaitForApproval => "wait",
            Action::Stay => "stays",
        };
        let role = role.unwrap_or_default().as_str();
        let verdict = format!("{verdict} {}", reason.as_deref().unwrap_or_default());
        let pod = format!("{namespace}/{pod}");
        [order, pod, role.to_owned(), verdict, action.to_owned(), note.clone().unwrap_or_default()]
    });
    let header = ["ORDER", "POD", "ROLE", "VERDICT", "ACTION", "NOTE"].map(str::to_owned);
    let rows: Vec<[String; 6]> = std::iter::once(header).chain(rows).collect();
    let width =
        |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..6).map(|column| width(column).unwrap_or_default()).collect();
    for row in &rows {
        let mut line = String::from(" ");
        for (cell, width) in row.iter().zip(&widths) {
            // Writing to a String does not fail.
            let _ = write!(line, " {cell:width$} ", width = *width);
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(cluster: &str, pod: &str, role: Role) -> Member {
        Member {
            namespace: String::from("prod"),
            pod: pod.to_owned(),
            cluster: format!("prod/{cluster}"),
            role,
            is_serving: true,
            verdict: Verdict { reason: String::from("SafeToDelete"), ..Verdict::default() },
            has_controller: true,
            ..Member::default()
        }
    }

    fn leader(cluster: &str, pod: &str) -> Member {
        Member { transferee: Some(String::from("elsewhere")), ..member(cluster, pod, Role::Leader) }
    }

    fn denied(reason: &str) -> Verdict {
        Verdict { is_denied: true, reason: reason.to_owned(), message: format!("{reason}: text") }
    }

    fn bound(member: Member) -> Member {
        Member { obstacle: Some(String::from("the volume is bound")), ..member }
    }

    fn order(members: &[Member]) -> Vec<(String, Action)> {
        plan(members).into_iter().map(|entry| (entry.pod, entry.action)).collect()
    }

    #[test]
    fn clusters_without_a_leader_on_the_node_are_first() {
        let members =
            [leader("a", "a-0"), member("a", "a-1", Role::Follower), member("b", "b-1", Role::Follower)];
        let expected = [("b-1", Action::Evict), ("a-1", Action::Evict), ("a-0", Action::MoveLeader)];
        assert_eq!(order(&members), expected.map(|(pod, action)| (pod.to_owned(), action)));
        assert!(can_complete(&plan(&members)));
    }

    #[test]
    fn members_that_do_not_serve_are_first() {
        let stopped = Member { is_serving: false, ..member("a", "a-2", Role::Follower) };
        assert_eq!(order(&[member("a", "a-1", Role::Follower), stopped])[0].0, "a-2");
    }

    #[test]
    fn denied_leader_is_evicted_after_the_move() {
        let protected = Member { verdict: denied("LeaderProtected"), ..leader("a", "a-0") };
        assert_eq!(order(std::slice::from_ref(&protected))[0].1, Action::MoveLeader);
        let alone = Member { transferee: None, ..protected };
        assert_eq!(order(&[alone])[0].1, Action::WaitForApproval);
    }

    #[test]
    fn denials_of_other_causes_wait() {
        let members = [Member { verdict: denied("QuorumAtRisk"), ..member("a", "a-1", Role::Follower) }];
        let plan = plan(&members);
        assert_eq!(plan[0].action, Action::WaitForApproval);
        assert_eq!(plan[0].note.as_deref(), Some("QuorumAtRisk: text"));
        assert!(!can_complete(&plan));
    }

    #[test]
    fn one_bound_member_leaves_last() {
        let members = [bound(member("a", "a-0", Role::Follower)), leader("a", "a-1")];
        let expected = [("a-1", Action::MoveLeader), ("a-0", Action::EvictLast)];
        assert_eq!(order(&members), expected.map(|(pod, action)| (pod.to_owned(), action)));
        assert!(can_complete(&plan(&members)));
    }

    /// The drain does not wait for a pod that nothing creates.
    #[test]
    fn member_without_a_controller_leaves_last() {
        let bare = Member { has_controller: false, ..member("a", "a-0", Role::Follower) };
        let entries = plan(&[bare, member("a", "a-1", Role::Follower)]);
        let last = entries.last().unwrap();
        assert_eq!((last.pod.as_str(), last.action), ("a-0", Action::EvictLast));
        assert!(last.note.as_deref().unwrap().starts_with("no controller creates the pod again"));
    }

    #[test]
    fn two_bound_members_of_a_cluster_stay() {
        let members = [
            bound(member("a", "a-0", Role::Follower)),
            bound(member("a", "a-1", Role::Follower)),
            member("b", "b-0", Role::Follower),
        ];
        let entries = plan(&members);
        let order: Vec<_> =
            entries.iter().map(|entry| (entry.pod.as_str(), entry.action, entry.order)).collect();
        assert_eq!(
            order,
            [("b-0", Action::Evict, Some(1)), ("a-0", Action::Stay, None), ("a-1", Action::Stay, None)]
        );
        assert!(entries[1].note.as_deref().unwrap().contains("2 members of prod/a are bound to this node"));
        assert!(!can_complete(&entries));
    }

    #[test]
    fn table_has_order_verdict_and_cause() {
        let members = [leader("a", "a-0"), bound(member("b", "b-0", Role::Follower))];
        let expected = "\
Drain of node worker
  ORDER  POD       ROLE      VERDICT               ACTION               NOTE
  1      prod/a-0  leader    ALLOWED SafeToDelete  move leader, evict   leadership moves to elsewhere first
  2      prod/b-0  follower  ALLOWED SafeToDelete  evict, no successor  the volume is bound; its successor waits until the node is uncordoned
";
        assert_eq!(table("Drain of node worker", &plan(&members)), expected);
    }
}
