//! Which policy is in force, choice by choice, and who chose it.

use std::collections::BTreeMap;

use k8s_openapi::jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::policy::{
    ALLOW_REASON, ALLOW_UNTIL, EPHEMERAL_DATA, LEADER, MODE, Permission, SINGLE_MEMBER, break_glass,
};
use crate::config::{Choice, Defaults, Floor};

/// A choice that is in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setting {
    /// The annotation that chooses it, for instance `etcd-guard.io/leader`.
    pub name: String,
    /// The word that is in force, or of a break-glass the reason that was given.
    pub value: String,
    /// Who chose it: the configuration, its floor, or an object with an annotation.
    pub from: String,
}

/// An object with annotations, and what people call it.
pub(super) type Source<'a> = (String, &'a BTreeMap<String, String>);

/// What [`super::policy::resolve`] makes of the same sources, the weakest first, choice by choice.
pub(super) fn settings(
    defaults: &Defaults,
    floor: &Floor,
    sources: &[Source<'_>],
    now: Timestamp,
) -> Vec<Setting> {
    let mut settings = vec![
        setting(LEADER, defaults.leader, floor.leader, sources),
        setting(SINGLE_MEMBER, defaults.single_member, floor.single_member, sources),
        setting(EPHEMERAL_DATA, defaults.ephemeral_data, floor.ephemeral_data, sources),
        setting(MODE, defaults.mode, floor.mode, sources),
    ];
    let in_force = |(from, annotations): &Source<'_>| {
        let why = break_glass(annotations.get(ALLOW_UNTIL)?, annotations.get(ALLOW_REASON), now).ok()?;
        Some(Setting { name: ALLOW_UNTIL.to_owned(), value: why, from: from.clone() })
    };
    if floor.break_glass == Permission::Allow {
        settings.extend(sources.iter().rev().find_map(in_force));
    }
    settings
}

fn setting<T: Choice>(name: &str, default: T, floor: T, sources: &[Source<'_>]) -> Setting {
    let chosen = sources
        .iter()
        .rev()
        .find_map(|(from, annotations)| Some((T::of(annotations.get(name)?)?, from.as_str())));
    let (value, from) = match chosen.unwrap_or((default, "configuration")) {
        (value, _) if value < floor => (floor, "floor of the configuration"),
        chosen => chosen,
    };
    Setting { name: name.to_owned(), value: value.word().to_owned(), from: from.to_owned() }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::guard::policy::{LeaderPolicy, Mode, resolve};

    fn annotations() -> impl Strategy<Value = BTreeMap<String, String>> {
        let choice = |name: &'static str, words: &'static [&'static str]| {
            proptest::option::of(prop::sample::select(words)).prop_map(move |word| Some((name, word?)))
        };
        (
            choice(LEADER, &["deny", "transfer", "allow", "maybe"]),
            choice(SINGLE_MEMBER, &["deny", "allow", ""]),
            choice(MODE, &["enforce", "audit", "Audit"]),
            choice(ALLOW_UNTIL, &["2026-01-31T13:00:00Z", "2026-01-31T11:00:00Z", "soon"]),
            choice(ALLOW_REASON, &["", "planned"]),
        )
            .prop_map(|(a, b, c, d, e)| {
                let pairs = [a, b, c, d, e].into_iter().flatten();
                pairs.map(|(name, word)| (name.to_owned(), word.to_owned())).collect()
            })
    }

    fn floor() -> impl Strategy<Value = Floor> {
        let leader = prop::sample::select(&[LeaderPolicy::Allow, LeaderPolicy::Transfer, LeaderPolicy::Deny]);
        let mode = prop::sample::select(&[Mode::Audit, Mode::Enforce]);
        let permission = || prop::sample::select(&[Permission::Allow, Permission::Deny]);
        (leader, permission(), mode, permission()).prop_map(|(leader, single_member, mode, break_glass)| {
            Floor { leader, single_member, mode, break_glass, ..Floor::default() }
        })
    }

    proptest! {
        #[test]
        fn what_is_told_is_what_is_in_force(
            sources in prop::collection::vec(annotations(), 3),
            floor in floor(),
        ) {
            let now = "2026-01-31T12:00:00Z".parse().unwrap();
            let defaults = Defaults::default();
            let policy = resolve(&defaults, &floor, &sources.iter().collect::<Vec<_>>(), now).policy;
            let named: Vec<Source<'_>> = sources.iter().map(|it| (String::from("somebody"), it)).collect();
            let told = settings(&defaults, &floor, &named, now);
            let of = |name: &str| told.iter().find(|it| it.name == name).map(|it| it.value.as_str());
            prop_assert_eq!(of(LEADER), Some(policy.leader.word()));
            prop_assert_eq!(of(SINGLE_MEMBER), Some(policy.single_member.word()));
            prop_assert_eq!(of(EPHEMERAL_DATA), Some(policy.ephemeral_data.word()));
            prop_assert_eq!(of(MODE), Some(policy.mode.word()));
            prop_assert_eq!(of(ALLOW_UNTIL), policy.break_glass.as_deref());
        }
    }

    #[test]
    fn the_nearest_to_the_pod_is_named_and_so_is_the_floor() {
        let of_namespace = BTreeMap::from([(LEADER.to_owned(), String::from("allow"))]);
        let of_pod = BTreeMap::from([(MODE.to_owned(), String::from("audit"))]);
        let sources =
            [(String::from("namespace prod"), &of_namespace), (String::from("pod etcd-0"), &of_pod)];
        let floor = Floor { leader: LeaderPolicy::Transfer, ..Floor::default() };
        let told = settings(&Defaults::default(), &floor, &sources, Timestamp::UNIX_EPOCH);
        let told: Vec<_> = told.iter().map(|it| (it.value.as_str(), it.from.as_str())).collect();
        assert_eq!(
            told,
            [
                ("transfer", "floor of the configuration"),
                ("deny", "configuration"),
                ("deny", "configuration"),
                ("audit", "pod etcd-0"),
            ]
        );
    }
}
