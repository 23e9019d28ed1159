//! Merges the defaults, the annotations and the floor of the configuration into the effective policy. Pure.
//!
//! The sources are ordered from the weakest to the strongest: the defaults, the namespace, the owners, the pod. A
//! value below the floor of the configuration is raised to the floor.

use std::collections::BTreeMap;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

pub use crate::config::policies::{LeaderPolicy, Mode, Permission};
use crate::{
    annotations::{
        ALLOW_REASON, ALLOW_UNTIL, EPHEMERAL_DATA, LEADER, MEMBER, MEMBER_OVERRULED, MIN_VOTERS, MODE,
        SINGLE_MEMBER, TOO_LONG,
    },
    config::policies::{Defaults, Floor, PolicyValue},
    escape::to_bounded_line,
    request::Requester,
};

/// Longest time that a break-glass may last from now on.
const MAX_BREAK_GLASS: SignedDuration = SignedDuration::from_hours(24);

/// Maximum length of the value of an annotation in a text, in characters.
const MAX_VALUE_CHARS: usize = 64;

/// Maximum length of the reason of a break-glass, in characters: one or two sentences.
const MAX_REASON_CHARS: usize = 256;

/// Source that a [`PolicySetting`] names for a default.
const CONFIGURATION: &str = "configuration";

/// Source that a [`PolicySetting`] names for a value that was raised to the floor.
const CONFIGURATION_FLOOR: &str = "floor of the configuration";

/// The effective policy for one pod, or for the pods of one owner.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// Deletions of the leader.
    pub leader: LeaderPolicy,
    /// Deletions of the only voter.
    pub single_member: Permission,
    /// Deletions that end a member for good while the cluster has no spare voter.
    pub ephemeral_data: Permission,
    /// Number of voters in the member list below which no deletion may cost a serving voter.
    pub min_voters: u32,
    /// Whether denials are enforced.
    pub mode: Mode,
    /// Reason and end of the break-glass that is active, escaped and cut.
    pub break_glass: Option<String>,
}

/// One value of the effective policy, with the source that chose it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicySetting {
    /// Annotation that chooses the value, for instance `etcd-guard.io/leader`.
    pub name: String,
    /// The value; for a break-glass, its reason and its end.
    pub value: String,
    /// The source: the configuration, its floor, or an object with the annotation.
    pub from: String,
}

/// The effective policy with its sources, and warnings about annotations that have no effect.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResolvedPolicy {
    /// The effective policy.
    pub policy: Policy,
    /// Each of its values with its source.
    pub settings: Vec<PolicySetting>,
    /// One line for each annotation that is invalid or below the floor, and for each owner that could not be read.
    pub warnings: Vec<String>,
    /// Whether an owner could not be read. Its annotations may be stricter or less strict than this policy.
    pub has_unreadable_owner: bool,
}

/// An object with annotations that choose policies.
pub struct PolicySource<'a> {
    /// Kind and name, for instance `pod etcd-0`.
    pub object: String,
    /// Those annotations of the object that are read.
    pub annotations: &'a BTreeMap<String, String>,
}

/// A resolution in progress.
struct Resolution<'a> {
    sources: &'a [PolicySource<'a>],
    settings: Vec<PolicySetting>,
    invalid: Vec<String>,
    below_floor: Vec<String>,
}

// === impl Policy ===

impl Policy {
    /// Whether denials are enforced: neither break-glass nor audit mode overrules them.
    pub fn enforces_denials(&self) -> bool {
        self.break_glass.is_none() && self.mode == Mode::Enforce
    }

    /// Returns the policy as it applies to this requester.
    pub fn for_requester(self, requester: Requester) -> Self {
        Self { leader: self.leader.for_requester(requester), ..self }
    }
}

/// Resolves the effective policy from `sources`, the weakest first.
pub fn resolve(
    defaults: &Defaults,
    floor: &Floor,
    sources: &[PolicySource<'_>],
    now: Timestamp,
) -> ResolvedPolicy {
    let mut resolution =
        Resolution { sources, settings: Vec::new(), invalid: Vec::new(), below_floor: Vec::new() };
    let policy = Policy {
        leader: resolution.choose(LEADER, defaults.leader(floor), floor.leader),
        single_member: resolution.choose(SINGLE_MEMBER, defaults.single_member, floor.single_member),
        ephemeral_data: resolution.choose(EPHEMERAL_DATA, defaults.ephemeral_data, floor.ephemeral_data),
        min_voters: resolution.choose_min_voters(defaults.min_voters(floor), floor.min_voters),
        mode: resolution.choose(MODE, defaults.mode, floor.mode),
        break_glass: resolution.choose_break_glass(floor.break_glass, now),
    };
    let Resolution { settings, invalid: mut warnings, below_floor, .. } = resolution;
    warnings.extend(below_floor);
    ResolvedPolicy { policy, settings, warnings, has_unreadable_owner: false }
}

// === impl Resolution ===

impl Resolution<'_> {
    /// Returns the value of the strongest source with a valid value for the annotation `name`.
    fn choose<T: PolicyValue>(&mut self, name: &str, default: T, floor: T) -> T {
        let (mut value, mut from) = (default, CONFIGURATION);
        for source in self.sources {
            let Some(text) = source.annotations.get(name) else { continue };
            match T::parse(text) {
                Some(chosen) => (value, from) = (chosen, source.object.as_str()),
                None => self.invalid.push(invalid_value::<T>(name, text)),
            }
        }
        // The configuration is rejected if a default is below the floor, so an annotation chose such a value.
        if value < floor {
            self.below_floor.push(format!(
                "{name}={} is below the floor of the configuration: {} applies",
                value.as_str(),
                floor.as_str()
            ));
            (value, from) = (floor, CONFIGURATION_FLOOR);
        }
        self.settings.push(PolicySetting {
            name: name.to_owned(),
            value: value.as_str().to_owned(),
            from: from.to_owned(),
        });
        value
    }

    /// Returns the number of the strongest source with a number. A policy without this limit has no setting.
    fn choose_min_voters(&mut self, default: u32, floor: u32) -> u32 {
        let (mut value, mut from) = (default, CONFIGURATION);
        for source in self.sources {
            let Some(text) = source.annotations.get(MIN_VOTERS) else { continue };
            match text.parse() {
                Ok(chosen) => (value, from) = (chosen, source.object.as_str()),
                Err(_) => {
                    let text = to_bounded_line(text, MAX_VALUE_CHARS);
                    self.invalid.push(format!("{MIN_VOTERS}=\"{text}\" has no effect: it is not a number"));
                }
            }
        }
        if value < floor {
            self.below_floor.push(format!(
                "{MIN_VOTERS}={value} is below the floor of the configuration: {floor} applies"
            ));
            (value, from) = (floor, CONFIGURATION_FLOOR);
        }
        if value > 0 {
            self.settings.push(PolicySetting {
                name: MIN_VOTERS.to_owned(),
                value: value.to_string(),
                from: from.to_owned(),
            });
        }
        value
    }

    fn choose_break_glass(&mut self, floor: Permission, now: Timestamp) -> Option<String> {
        let mut chosen = None;
        for source in self.sources {
            let Some(until) = source.annotations.get(ALLOW_UNTIL) else { continue };
            match break_glass(until, source.annotations.get(ALLOW_REASON), now) {
                Ok(reason) => chosen = Some((reason, source)),
                Err(warning) => self.invalid.push(warning),
            }
        }
        let is_overruled = |source: &PolicySource<'_>| {
            source.annotations.get(MEMBER).is_some_and(|value| value == MEMBER_OVERRULED)
        };
        if self.sources.iter().any(is_overruled) {
            self.below_floor.push(format!(
                "{MEMBER}=false is below the floor of the configuration: a pod that runs etcd is a member"
            ));
        }
        let (reason, source) = chosen?;
        if floor == Permission::Deny {
            self.below_floor.push(format!(
                "{ALLOW_UNTIL} is below the floor of the configuration: denials stay in effect"
            ));
            return None;
        }
        self.settings.push(PolicySetting {
            name: ALLOW_UNTIL.to_owned(),
            value: reason.clone(),
            from: source.object.clone(),
        });
        Some(reason)
    }
}

fn invalid_value<T: PolicyValue>(name: &str, text: &str) -> String {
    let values: Vec<&str> = T::VARIANTS.iter().map(|(value, _)| *value).collect();
    let text = to_bounded_line(text, MAX_VALUE_CHARS);
    format!("{name}=\"{text}\" has no effect: the values are {}", values.join(", "))
}

/// Returns reason and end of a break-glass, or a warning where it has no effect. It requires a reason and an end that
/// is in the future and at most [`MAX_BREAK_GLASS`] ahead.
fn break_glass(until: &str, reason: Option<&String>, now: Timestamp) -> Result<String, String> {
    let parsed: Result<Timestamp, _> = until.parse();
    let until = to_bounded_line(until, MAX_VALUE_CHARS);
    let end = parsed.map_err(|_| {
        format!("{ALLOW_UNTIL}=\"{until}\" has no effect: it is not a time such as 2026-01-31T12:00:00Z")
    })?;
    let Some(reason) = reason.map(|reason| reason.trim()).filter(|reason| !reason.is_empty()) else {
        return Err(format!("{ALLOW_UNTIL} has no effect without {ALLOW_REASON}"));
    };
    if reason == TOO_LONG {
        return Err(format!("{ALLOW_UNTIL} has no effect: {ALLOW_REASON} is {TOO_LONG}"));
    }
    let left = end.duration_since(now);
    if left <= SignedDuration::ZERO {
        Err(format!("{ALLOW_UNTIL}={until} has no effect: it is in the past"))
    } else if left > MAX_BREAK_GLASS {
        Err(format!("{ALLOW_UNTIL}={until} has no effect: it is more than 24 hours ahead"))
    } else {
        Ok(format!("{} (until {until})", to_bounded_line(reason, MAX_REASON_CHARS)))
    }
}

#[cfg(test)]
mod tests;
