//! What is decided about deletions where safety leaves a choice: the server's own answers, and how far owners may go.

use schemars::JsonSchema;
use serde::Deserialize;

use super::Check;

/// The policies of the guard.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct Policies {
    /// What counts where no annotation says otherwise. Without an entry everything is denied that can be.
    pub defaults: Defaults,
    /// The least strict that annotations may choose; a laxer one is taken for this, with a warning. Without an entry they
    /// may choose anything.
    pub floor: Floor,
}

/// What counts where no annotation says otherwise.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct Defaults {
    /// Deletion of the leader's pod.
    pub leader: LeaderPolicy,
    /// Deletion of the only voter's pod.
    pub single_member: Permission,
    /// Deletion of a pod whose data goes with it, while no voter is to spare.
    pub ephemeral_data: Permission,
    /// Whether denials are denials.
    pub mode: Mode,
}

/// The least strict that annotations may choose.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct Floor {
    /// `transfer` forbids `allow`; `deny` forbids both others.
    pub leader: LeaderPolicy,
    /// `deny` forbids `allow`.
    pub single_member: Permission,
    /// `deny` forbids `allow`.
    pub ephemeral_data: Permission,
    /// `enforce` forbids `audit`.
    pub mode: Mode,
    /// `deny` forbids to overrule denials by a break-glass annotation.
    pub break_glass: Permission,
}

/// What to do with a deletion of the leader. Later ones are stricter.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "lowercase")]
pub enum LeaderPolicy {
    /// Let it go if it is given the time to hand leadership over by itself.
    Allow,
    /// Move leadership to another voter first.
    Transfer,
    /// Deny it.
    #[default]
    Deny,
}

/// What to do where any deletion is an outage or a loss. Later ones are stricter.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "lowercase")]
pub enum Permission {
    /// Allow it.
    Allow,
    /// Deny it.
    #[default]
    Deny,
}

/// Whether denials are denials. Later ones are stricter.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Allow, warn and count.
    Audit,
    /// Deny.
    #[default]
    Enforce,
}

/// A choice with a word for each of its values, as files and annotations write them.
pub trait Choice: Copy + Ord + 'static {
    /// All values with their words.
    const WORDS: &'static [(&'static str, Self)];

    /// The word of this value.
    #[must_use]
    fn word(self) -> &'static str {
        Self::WORDS.iter().find(|(_, value)| *value == self).map_or("", |(word, _)| word)
    }

    /// The value of a word.
    #[must_use]
    fn of(word: &str) -> Option<Self> {
        Self::WORDS.iter().find(|(known, _)| *known == word).map(|(_, value)| *value)
    }
}

// === impl Choice ===

impl Choice for LeaderPolicy {
    const WORDS: &'static [(&'static str, Self)] =
        &[("deny", Self::Deny), ("transfer", Self::Transfer), ("allow", Self::Allow)];
}

impl Choice for Permission {
    const WORDS: &'static [(&'static str, Self)] = &[("deny", Self::Deny), ("allow", Self::Allow)];
}

impl Choice for Mode {
    const WORDS: &'static [(&'static str, Self)] = &[("enforce", Self::Enforce), ("audit", Self::Audit)];
}

// === impl Floor ===

impl Default for Floor {
    fn default() -> Self {
        Self {
            leader: LeaderPolicy::Allow,
            single_member: Permission::Allow,
            ephemeral_data: Permission::Allow,
            mode: Mode::Audit,
            break_glass: Permission::Allow,
        }
    }
}

// === impl Policies ===

impl Policies {
    pub(super) fn check(&self, check: &mut Check<'_>) {
        let Self { defaults, floor } = self;
        let mut check = check.at("defaults");
        not_below(&mut check, "leader", defaults.leader, floor.leader);
        not_below(&mut check, "singleMember", defaults.single_member, floor.single_member);
        not_below(&mut check, "ephemeralData", defaults.ephemeral_data, floor.ephemeral_data);
        not_below(&mut check, "mode", defaults.mode, floor.mode);
    }
}

fn not_below<T: Choice>(check: &mut Check<'_>, key: &'static str, value: T, floor: T) {
    if value < floor {
        check.at(key).say(format!("{} is below guard.floor.{key}, {}", value.word(), floor.word()));
    }
}
