//! The `guard` section: default policies for deletions, the floor below which annotations have no effect, and the
//! addresses of probes.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    config::{diagnostic::Validator, owner_kinds, owner_kinds::OwnerKind, probe::Probe},
    escape::MAX_NAME_CHARS,
    request::Requester,
};

/// Which deletions of etcd pods are denied, unless annotations choose other policies.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct Policies {
    /// The policies of clusters without annotations.
    pub defaults: Defaults,
    /// The weakest values that annotations may choose. A weaker annotation is raised to the floor, with a warning.
    pub floor: Floor,
    /// Where the guard asks members.
    pub probe: Probe,
    /// When leadership moves off a node that is about to be disrupted. Requires the flag `--handover`.
    pub handover: HandoverSignals,
    /// Users that count as programs, such as a controller that logs in by OIDC: under `leader: auto`, leadership moves
    /// before they delete a leader. So do users whose names begin with `system:`, except `system:admin` and
    /// `system:anonymous`.
    pub programs: Vec<String>,
    /// Custom resources that own etcd pods, directly or through other listed kinds. Their annotations choose policies, and
    /// their deletion can be judged. Deployment and `ReplicaSet` need no entry. Each entry needs all four keys.
    pub owner_kinds: Vec<OwnerKind>,
}

/// When leadership moves off a node that is about to be disrupted.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct HandoverSignals {
    /// Keys of further taints that announce a disruption, such as `example.com/retiring`. Those of autoscalers and clouds
    /// are known.
    pub taints: Vec<String>,
}

/// The policies of clusters without annotations.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct Defaults {
    /// Deletion of the leader's pod. `auto`: denied to people; leadership moves first for drains and controllers. `deny`:
    /// denied to everybody. `transfer`: leadership moves first for everybody. Not set: `auto`, or the floor if it is stricter.
    pub leader: Option<LeaderPolicy>,
    /// Deletion of the only voter's pod. `allow`: it may go if its data stays.
    pub single_member: Permission,
    /// Deletion of a pod that loses its data. `deny`: one more voter must be healthy. `allow`: it may go like any other.
    pub ephemeral_data: Permission,
    /// Deny deletions while the cluster has fewer voters. Not set: the floor.
    pub min_voters: Option<u32>,
    /// `audit`: approve what would be denied, with a warning and a count in the metrics.
    pub mode: Mode,
}

/// The weakest values that annotations may choose.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct Floor {
    /// `deny` rules out `auto` and `transfer`, `auto` rules out `transfer`.
    pub leader: LeaderPolicy,
    /// `deny` rules out `allow`.
    pub single_member: Permission,
    /// `deny` rules out `allow`.
    pub ephemeral_data: Permission,
    /// The smallest number that annotations may choose.
    pub min_voters: u32,
    /// `enforce` rules out `audit`.
    pub mode: Mode,
    /// `deny` switches off the break-glass annotations.
    pub break_glass: Permission,
}

/// The policy for a deletion of the leader. Later variants are stricter.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema, PartialEq, Eq, PartialOrd, Ord, Serialize)]
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
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Permission {
    /// Approve it.
    Allow,
    /// Deny it.
    #[default]
    Deny,
}

/// Whether denials are enforced. Later variants are stricter.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema, PartialEq, Eq, PartialOrd, Ord, Serialize)]
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
    fn as_str(self) -> &'static str {
        Self::VARIANTS.iter().find(|(_, value)| *value == self).map_or("", |(name, _)| name)
    }

    /// The value with this name.
    fn parse(text: &str) -> Option<Self> {
        Self::VARIANTS.iter().find(|(name, _)| *name == text).map(|(_, value)| *value)
    }
}

// === impl LeaderPolicy ===

impl LeaderPolicy {
    /// Returns `deny` or `transfer`: what the policy means for this requester.
    pub fn for_requester(self, requester: Requester) -> Self {
        match (self, requester) {
            (Self::Auto, Requester::Person) => Self::Deny,
            (Self::Auto, Requester::ServiceAccount | Requester::Program) => Self::Transfer,
            (Self::Transfer | Self::Deny, _) => self,
        }
    }

    /// Whether leadership moves before a disruption of the leader that no person requests.
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

// === impl Defaults ===

impl Defaults {
    /// Returns the policy for deletions of the leader.
    pub fn leader(&self, floor: &Floor) -> LeaderPolicy {
        self.leader.unwrap_or_else(|| LeaderPolicy::default().max(floor.leader))
    }

    /// Returns the number of voters that a cluster must have.
    pub fn min_voters(&self, floor: &Floor) -> u32 {
        self.min_voters.unwrap_or(floor.min_voters)
    }
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
    pub fn owner_kind(&self, group: &str, kind: &str) -> Option<&OwnerKind> {
        owner_kinds::find(&self.owner_kinds, |entry| entry.group == group && entry.kind == kind)
    }

    /// Returns the kind of owners with this group and resource, if annotations of its objects choose policies.
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
        check_floor(&mut validator, "leader", defaults.leader(floor), floor.leader);
        check_floor(&mut validator, "singleMember", defaults.single_member, floor.single_member);
        check_floor(&mut validator, "ephemeralData", defaults.ephemeral_data, floor.ephemeral_data);
        check_floor(&mut validator, "mode", defaults.mode, floor.mode);
        let min_voters = defaults.min_voters(floor);
        if min_voters < floor.min_voters {
            report_below(&mut validator, "minVoters", &min_voters.to_string(), &floor.min_voters.to_string());
        }
    }
}

fn check_floor<T: PolicyValue>(validator: &mut Validator<'_>, key: &'static str, value: T, floor: T) {
    if value < floor {
        report_below(validator, key, value.as_str(), floor.as_str());
    }
}

fn report_below(validator: &mut Validator<'_>, key: &'static str, value: &str, floor: &str) {
    let message =
        format!("{value} is less strict than guard.floor.{key}, {floor}: remove it here, or lower the floor");
    validator.at(key).report(message);
}
