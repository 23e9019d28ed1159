//! The `guard` section: default policies for deletions, the floor below which annotations have no effect, and the
//! addresses of probes.

use schemars::JsonSchema;
use serde::Deserialize;

use crate::{
    config::{diagnostic::Validator, owner_kinds, owner_kinds::OwnerKind, probe::Probe},
    escape::MAX_NAME_CHARS,
    request::Requester,
};

/// Policies for the deletion of etcd pods.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct Policies {
    /// The policies of clusters without annotations. A policy without an entry has its default.
    pub defaults: Defaults,
    /// The least strict values that annotations may choose. A less strict annotation is replaced by the floor, with a
    /// warning. A policy without an entry has no floor.
    pub floor: Floor,
    /// The addresses at which members are probed.
    pub probe: Probe,
    /// The signals on which leadership moves before a disruption. They require `--handover`.
    pub handover: HandoverSignals,
    /// Names of users that are programs, for instance a controller that logs in by OIDC. Under `leader: auto`, leadership moves
    /// before they delete a leader, as for all users whose names begin with `system:`.
    pub programs: Vec<String>,
    /// Kinds of custom resources that own member pods, directly or through other owners of listed kinds. Their annotations
    /// choose policies, and their deletion can be evaluated. Deployment and `ReplicaSet` of `apps` need no entry.
    pub owner_kinds: Vec<OwnerKind>,
}

/// The signals on which leadership moves before a disruption.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct HandoverSignals {
    /// Keys of further taints that nodes get before their pods are disrupted.
    pub taints: Vec<String>,
}

/// The policies of clusters without annotations.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct Defaults {
    /// Deletion of the leader's pod.
    pub leader: LeaderPolicy,
    /// Deletion of the pod of the only voter.
    pub single_member: Permission,
    /// Deletion of a pod that loses its data, while every other voter is needed for the quorum.
    pub ephemeral_data: Permission,
    /// Number of voters in the member list below which no deletion may cost a serving voter. 0 requires none.
    pub min_voters: u32,
    /// Whether denials are enforced.
    pub mode: Mode,
}

/// The least strict values that annotations may choose.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct Floor {
    /// `deny` excludes `auto` and `transfer`, `auto` excludes `transfer`.
    pub leader: LeaderPolicy,
    /// `deny` excludes `allow`.
    pub single_member: Permission,
    /// `deny` excludes `allow`.
    pub ephemeral_data: Permission,
    /// Annotations cannot choose a smaller number.
    pub min_voters: u32,
    /// `enforce` excludes `audit`.
    pub mode: Mode,
    /// `deny` disables the break-glass annotations.
    pub break_glass: Permission,
}

/// The policy for a deletion of the leader. Later variants are stricter.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "lowercase")]
pub enum LeaderPolicy {
    /// Move leadership to another voter first.
    Transfer,
    /// Deny it if a person deletes the pod. Move leadership first for evictions and for programs.
    #[default]
    Auto,
    /// Deny it.
    Deny,
}

/// The policy for a deletion that causes an outage or a loss of data in any case. Later variants are stricter.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "lowercase")]
pub enum Permission {
    /// Approve it.
    Allow,
    /// Deny it.
    #[default]
    Deny,
}

/// Whether denials are enforced. Later variants are stricter.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Approve, with a warning and a count in the metrics.
    Audit,
    /// Deny.
    #[default]
    Enforce,
}

/// A policy with named values in files and annotations.
pub trait PolicyValue: Copy + Ord + 'static {
    /// All values with their names.
    const VARIANTS: &'static [(&'static str, Self)];

    /// The name of this value.
    #[must_use]
    fn as_str(self) -> &'static str {
        Self::VARIANTS.iter().find(|(_, value)| *value == self).map_or("", |(name, _)| name)
    }

    /// The value with this name.
    #[must_use]
    fn parse(text: &str) -> Option<Self> {
        Self::VARIANTS.iter().find(|(name, _)| *name == text).map(|(_, value)| *value)
    }
}

// === impl LeaderPolicy ===

impl LeaderPolicy {
    /// Returns `deny` or `transfer`: what the policy means for this requester.
    #[must_use]
    pub fn for_requester(self, requester: Requester) -> Self {
        match (self, requester) {
            (Self::Auto, Requester::Person) => Self::Deny,
            (Self::Auto, Requester::ServiceAccount | Requester::Program) => Self::Transfer,
            (Self::Transfer | Self::Deny, _) => self,
        }
    }

    /// Whether leadership moves before a disruption of the leader that no person requests.
    #[must_use]
    pub fn transfers(self) -> bool {
        self.for_requester(Requester::Program) == Self::Transfer
    }
}

// === impl PolicyValue ===

impl PolicyValue for LeaderPolicy {
    const VARIANTS: &'static [(&'static str, Self)] =
        &[("auto", Self::Auto), ("deny", Self::Deny), ("transfer", Self::Transfer)];
}

impl PolicyValue for Permission {
    const VARIANTS: &'static [(&'static str, Self)] = &[("deny", Self::Deny), ("allow", Self::Allow)];
}

impl PolicyValue for Mode {
    const VARIANTS: &'static [(&'static str, Self)] = &[("enforce", Self::Enforce), ("audit", Self::Audit)];
}

// === impl Floor ===

impl Default for Floor {
    fn default() -> Self {
        Self {
            leader: LeaderPolicy::Transfer,
            single_member: Permission::Allow,
            ephemeral_data: Permission::Allow,
            min_voters: 0,
            mode: Mode::Audit,
            break_glass: Permission::Allow,
        }
    }
}

// === impl Policies ===

impl Policies {
    /// Returns the kind of owners with this group and kind, if annotations of its objects choose policies.
    #[must_use]
    pub fn owner_kind(&self, group: &str, kind: &str) -> Option<&OwnerKind> {
        owner_kinds::find(&self.owner_kinds, |entry| entry.group == group && entry.kind == kind)
    }

    /// Returns the kind of owners with this group and resource, if annotations of its objects choose policies.
    #[must_use]
    pub fn owner_kind_of_resource(&self, group: &str, resource: &str) -> Option<&OwnerKind> {
        owner_kinds::find(&self.owner_kinds, |entry| entry.group == group && entry.resource == resource)
    }

    /// Reports the errors that the types cannot detect.
    pub fn validate(&self, validator: &mut Validator<'_>) {
        let Self { defaults, floor, probe: _, handover, programs, owner_kinds } = self;
        owner_kinds::validate(owner_kinds, &mut validator.at("ownerKinds"));
        for key in handover.taints.iter().filter(|key| key.is_empty() || key.contains(char::is_whitespace)) {
            let message = format!("{key:?} is not the key of a taint, such as example.com/retiring");
            validator.at("handover").at("taints").report(message);
        }
        for name in programs.iter().filter(|name| name.is_empty() || name.chars().count() > MAX_NAME_CHARS) {
            let message =
                format!("{name:?} is not the name of a user, with 1 to {MAX_NAME_CHARS} characters");
            validator.at("programs").report(message);
        }
        let mut validator = validator.at("defaults");
        // A file may set the floor alone: the floor then is the default.
        if defaults.leader != Defaults::default().leader {
            check_floor(&mut validator, "leader", defaults.leader, floor.leader);
        }
        check_floor(&mut validator, "singleMember", defaults.single_member, floor.single_member);
        check_floor(&mut validator, "ephemeralData", defaults.ephemeral_data, floor.ephemeral_data);
        check_floor(&mut validator, "mode", defaults.mode, floor.mode);
        if defaults.min_voters < floor.min_voters {
            let message = format!(
                "{} is less strict than guard.floor.minVoters, {}",
                defaults.min_voters, floor.min_voters
            );
            validator.at("minVoters").report(message);
        }
    }
}

fn check_floor<T: PolicyValue>(validator: &mut Validator<'_>, key: &'static str, value: T, floor: T) {
    if value < floor {
        let message = format!("{} is less strict than guard.floor.{key}, {}", value.as_str(), floor.as_str());
        validator.at(key).report(message);
    }
}
