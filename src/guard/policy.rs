//! What the owners of a cluster want where safety leaves a choice. Pure: annotations in, policy out.
//!
//! The weakest source comes first and the nearest to the pod wins: the server's own policy, the namespace, the
//! StatefulSet, the pod. None of them goes below the server's floor.

use std::collections::BTreeMap;

use k8s_openapi::jiff::{SignedDuration, Timestamp};

use super::etcd_pod::{MEMBER_ANNOTATION, OVERRULED};
use crate::config::{Choice, Defaults, Floor};
pub use crate::config::{LeaderPolicy, Mode, Permission};

/// etcd drains its clients for up to seven seconds before it hands leadership over; two more for the rest.
const GRACEFUL_SECONDS: i64 = 9;

/// Longest that a break-glass may be in force from now on.
const LONGEST_BREAK_GLASS: SignedDuration = SignedDuration::from_hours(24);

pub(super) const LEADER: &str = "etcd-guard.io/leader";
pub(super) const SINGLE_MEMBER: &str = "etcd-guard.io/single-member";
pub(super) const EPHEMERAL_DATA: &str = "etcd-guard.io/ephemeral-data";
pub(super) const MODE: &str = "etcd-guard.io/mode";
pub(super) const ALLOW_UNTIL: &str = "etcd-guard.io/allow-delete-until";
pub(super) const ALLOW_REASON: &str = "etcd-guard.io/allow-delete-reason";

/// The policy in force for one pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// Deletions of the leader.
    pub leader: LeaderPolicy,
    /// Deletions of the only member.
    pub single_member: Permission,
    /// Deletions that take a member's data along while no voter is to spare.
    pub ephemeral_data: Permission,
    /// Whether denials are denials.
    pub mode: Mode,
    /// Why denials are overruled for now, in the words of who did it.
    pub break_glass: Option<String>,
}

/// A policy, and what was wrong with the annotations that it was read from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Resolved {
    /// The policy in force.
    pub(super) policy: Policy,
    /// One line for each annotation that says nothing that could be followed.
    pub(super) mistakes: Vec<String>,
}

/// Resolves the policy for a pod from annotations, the weakest source first.
#[must_use]
pub(super) fn resolve(
    server: &Defaults,
    floor: &Floor,
    sources: &[&BTreeMap<String, String>],
    now: Timestamp,
) -> Resolved {
    let mut resolved = Resolved { policy: Policy::of(server), mistakes: Vec::new() };
    for annotations in sources {
        resolved.apply(annotations, now);
    }
    let overruled = sources.iter().any(|it| it.get(MEMBER_ANNOTATION).is_some_and(|it| it == OVERRULED));
    resolved.raise_to(floor, overruled);
    resolved
}

// === impl Policy ===

impl Policy {
    fn of(defaults: &Defaults) -> Self {
        let Defaults { leader, single_member, ephemeral_data, mode } = *defaults;
        Self { leader, single_member, ephemeral_data, mode, break_glass: None }
    }

    /// The policy for a deletion with this grace period: a leader that has no time to hand over is not let go.
    #[must_use]
    pub fn for_grace_period(mut self, seconds: Option<i64>) -> Self {
        if self.leader == LeaderPolicy::Allow && Self::is_too_short(seconds) {
            self.leader = LeaderPolicy::Deny;
        }
        self
    }

    /// Whether a leader has no time to hand over in this grace period.
    pub(super) fn is_too_short(seconds: Option<i64>) -> bool {
        seconds.is_some_and(|seconds| seconds < GRACEFUL_SECONDS)
    }
}

// === impl Resolved ===

impl Resolved {
    fn apply(&mut self, annotations: &BTreeMap<String, String>, now: Timestamp) {
        let Self { policy, mistakes } = self;
        choose(annotations, LEADER, &mut policy.leader, mistakes);
        choose(annotations, SINGLE_MEMBER, &mut policy.single_member, mistakes);
        choose(annotations, EPHEMERAL_DATA, &mut policy.ephemeral_data, mistakes);
        choose(annotations, MODE, &mut policy.mode, mistakes);
        if let Some(until) = annotations.get(ALLOW_UNTIL) {
            match break_glass(until, annotations.get(ALLOW_REASON), now) {
                Ok(reason) => policy.break_glass = Some(reason),
                Err(mistake) => mistakes.push(mistake),
            }
        }
    }

    fn raise_to(&mut self, floor: &Floor, overruled: bool) {
        let Self { policy, mistakes } = self;
        raise(LEADER, &mut policy.leader, floor.leader, mistakes);
        raise(SINGLE_MEMBER, &mut policy.single_member, floor.single_member, mistakes);
        raise(EPHEMERAL_DATA, &mut policy.ephemeral_data, floor.ephemeral_data, mistakes);
        raise(MODE, &mut policy.mode, floor.mode, mistakes);
        if overruled {
            mistakes.push(format!(
                "{MEMBER_ANNOTATION}=false is below the server's floor: a pod that runs etcd is a member"
            ));
        }
        if floor.break_glass == Permission::Deny && policy.break_glass.take().is_some() {
            mistakes.push(format!("{ALLOW_UNTIL} is below the server's floor: denials stand"));
        }
    }
}

fn choose<T: Choice>(
    annotations: &BTreeMap<String, String>,
    name: &str,
    chosen: &mut T,
    mistakes: &mut Vec<String>,
) {
    let Some(text) = annotations.get(name) else { return };
    match T::of(text) {
        Some(value) => *chosen = value,
        None => {
            let words: Vec<&str> = T::WORDS.iter().map(|(word, _)| *word).collect();
            mistakes.push(format!("{name}={text:?} is not followed: it is one of {}", words.join(", ")));
        }
    }
}

/// The server's own choice is not below its floor: what is, annotations chose.
fn raise<T: Choice>(name: &str, chosen: &mut T, floor: T, mistakes: &mut Vec<String>) {
    if *chosen < floor {
        mistakes.push(format!(
            "{name}={} is below the server's floor: {} counts",
            chosen.word(),
            floor.word()
        ));
        *chosen = floor;
    }
}

/// In force only with a reason, until a time that is neither over nor far away.
pub(super) fn break_glass(until: &str, reason: Option<&String>, now: Timestamp) -> Result<String, String> {
    let end: Timestamp = until
        .parse()
        .map_err(|_| format!("{ALLOW_UNTIL}={until:?} is no time such as 2026-01-31T12:00:00Z"))?;
    let Some(reason) = reason.map(|it| it.trim()).filter(|it| !it.is_empty()) else {
        return Err(format!("{ALLOW_UNTIL} is not followed without {ALLOW_REASON}"));
    };
    let left = end.duration_since(now);
    if left <= SignedDuration::ZERO {
        Err(format!("{ALLOW_UNTIL}={until} is over"))
    } else if left > LONGEST_BREAK_GLASS {
        Err(format!("{ALLOW_UNTIL}={until} is more than 24 hours ahead"))
    } else {
        Ok(format!("{reason} (until {until})"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn annotations(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    fn resolve_all(floor: &Floor, sources: &[&[(&str, &str)]]) -> Resolved {
        let sources: Vec<_> = sources.iter().map(|pairs| annotations(pairs)).collect();
        let now = "2026-01-31T12:00:00Z".parse().unwrap();
        resolve(&Defaults::default(), floor, &sources.iter().collect::<Vec<_>>(), now)
    }

    #[test]
    fn without_annotations_everything_is_denied_that_can_be() {
        let policy = resolve_all(&Floor::default(), &[]).policy;
        assert_eq!(
            (policy.leader, policy.mode, policy.break_glass),
            (LeaderPolicy::Deny, Mode::Enforce, None)
        );
        assert_eq!((policy.single_member, policy.ephemeral_data), (Permission::Deny, Permission::Deny));
    }

    #[test]
    fn the_source_nearest_to_the_pod_wins() {
        let sources: &[&[_]] = &[&[(LEADER, "allow"), (MODE, "audit")], &[(LEADER, "transfer")], &[]];
        let policy = resolve_all(&Floor::default(), sources).policy;
        assert_eq!((policy.leader, policy.mode), (LeaderPolicy::Transfer, Mode::Audit));
        let stricter = resolve_all(&Floor::default(), &[&[(LEADER, "allow")], &[(LEADER, "deny")]]).policy;
        assert_eq!(stricter.leader, LeaderPolicy::Deny);
    }

    #[test]
    fn nothing_goes_below_the_floor() {
        let floor = Floor { leader: LeaderPolicy::Transfer, mode: Mode::Enforce, ..Floor::default() };
        let sources: &[&[_]] = &[&[(LEADER, "allow"), (MODE, "audit"), (SINGLE_MEMBER, "allow")]];
        let Resolved { policy, mistakes } = resolve_all(&floor, sources);
        assert_eq!((policy.leader, policy.mode), (LeaderPolicy::Transfer, Mode::Enforce));
        assert_eq!(policy.single_member, Permission::Allow);
        assert_eq!(
            mistakes,
            [
                "etcd-guard.io/leader=allow is below the server's floor: transfer counts",
                "etcd-guard.io/mode=audit is below the server's floor: enforce counts"
            ]
        );
    }

    #[test]
    fn what_is_stricter_than_the_floor_stays_so() {
        let floor = Floor { leader: LeaderPolicy::Transfer, ..Floor::default() };
        let resolved = resolve_all(&floor, &[&[(LEADER, "deny")]]);
        assert_eq!((resolved.policy.leader, resolved.mistakes), (LeaderPolicy::Deny, Vec::new()));
    }

    #[test]
    fn the_servers_own_choice_counts_until_an_annotation_makes_another() {
        let server = Defaults { leader: LeaderPolicy::Transfer, mode: Mode::Audit, ..Defaults::default() };
        let now = "2026-01-31T12:00:00Z".parse().unwrap();
        let policy = resolve(&server, &Floor::default(), &[&annotations(&[(MODE, "enforce")])], now).policy;
        assert_eq!((policy.leader, policy.mode), (LeaderPolicy::Transfer, Mode::Enforce));
    }

    #[test]
    fn a_member_that_may_not_be_disowned_is_told_of() {
        let resolved = resolve_all(&Floor::default(), &[&[(MEMBER_ANNOTATION, OVERRULED)]]);
        assert!(
            resolved.mistakes[0].contains("member=false is below the server's floor"),
            "{:?}",
            resolved.mistakes
        );
    }

    #[test]
    fn a_break_glass_that_the_floor_forbids_overrules_nothing() {
        let floor = Floor { break_glass: Permission::Deny, ..Floor::default() };
        let resolved =
            resolve_all(&floor, &[&[(ALLOW_UNTIL, "2026-02-01T12:00:00Z"), (ALLOW_REASON, "fire")]]);
        assert_eq!(resolved.policy.break_glass, None);
        assert!(resolved.mistakes[0].contains("below the server's floor"), "{:?}", resolved.mistakes);
    }

    #[test]
    fn what_cannot_be_followed_is_told_and_changes_nothing() {
        let resolved = resolve_all(&Floor::default(), &[&[(LEADER, "maybe")]]);
        assert_eq!(resolved.policy, Policy::default());
        assert_eq!(
            resolved.mistakes,
            ["etcd-guard.io/leader=\"maybe\" is not followed: it is one of deny, transfer, allow"]
        );
    }

    #[test]
    fn a_break_glass_needs_a_reason_and_an_end_within_a_day() {
        let mistake = |pairs: &[(&str, &str)]| {
            let resolved = resolve_all(&Floor::default(), &[pairs]);
            assert_eq!(resolved.policy.break_glass, None);
            resolved.mistakes.join("; ")
        };
        assert!(mistake(&[(ALLOW_UNTIL, "2026-01-31T13:00:00Z")]).contains("not followed without"));
        assert!(
            mistake(&[(ALLOW_UNTIL, "2026-01-31T13:00:00Z"), (ALLOW_REASON, " ")])
                .contains("not followed without")
        );
        assert!(
            mistake(&[(ALLOW_UNTIL, "2026-01-31T13:59:59+02:00"), (ALLOW_REASON, "x")]).contains("is over")
        );
        assert!(mistake(&[(ALLOW_UNTIL, "2026-01-31T11:59:59Z"), (ALLOW_REASON, "x")]).contains("is over"));
        assert!(
            mistake(&[(ALLOW_UNTIL, "2026-02-01T12:00:01Z"), (ALLOW_REASON, "x")])
                .contains("more than 24 hours")
        );
        assert!(mistake(&[(ALLOW_UNTIL, "tomorrow"), (ALLOW_REASON, "x")]).contains("is no time"));
        let good = resolve_all(
            &Floor::default(),
            &[&[(ALLOW_UNTIL, "2026-02-01T12:00:00Z"), (ALLOW_REASON, "fire")]],
        );
        assert_eq!(good.policy.break_glass.as_deref(), Some("fire (until 2026-02-01T12:00:00Z)"));
    }

    #[test]
    fn a_leader_without_time_to_hand_over_is_not_let_go() {
        let allow = Policy { leader: LeaderPolicy::Allow, ..Policy::default() };
        assert_eq!(allow.clone().for_grace_period(Some(30)).leader, LeaderPolicy::Allow);
        assert_eq!(allow.clone().for_grace_period(None).leader, LeaderPolicy::Allow);
        assert_eq!(allow.for_grace_period(Some(0)).leader, LeaderPolicy::Deny);
        let transfer = Policy { leader: LeaderPolicy::Transfer, ..Policy::default() };
        assert_eq!(transfer.for_grace_period(Some(0)).leader, LeaderPolicy::Transfer);
    }
}
