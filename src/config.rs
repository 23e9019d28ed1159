//! The configuration file: its sections with their defaults, and the validation that reports every error with its line.
//!
//! The file is one YAML document with strict keys. Every section has a default, so that a file without sections is
//! valid. This module defines the settings; other modules read and implement them.

#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod loader;
mod schema;
mod sections;
#[cfg(test)]
mod tests;
mod validation;

pub use self::{
    loader::{LiveConfig, ReloadMetrics, follow},
    schema::schema,
    sections::{
        API_VERSION, AppContainers, Config, Defaults, Expression, Factor, Floor, Labels, LeaderPolicy,
        Lifespan, Lxcfs, LxcfsFile, LxcfsMount, Match, Mode, NODE_LABEL, Native, Network, NodeAffinity,
        NodeFactors, NodeLabel, OnConflict, Operator, OverCommit, Overrides, OwnerKind, Permission,
        PodAttributes, PodNames, Policies, PolicyValue, Position, Probe, Profile, Selector,
        SharedProcessNamespace, Sidecars, Template, TransferEnv, UnknownTemplate,
    },
    validation::{Diagnostic, MAX_NAME_SERVERS, MAX_SEARCH_DOMAINS, PodSecurity, PodSecurityLevel},
};
