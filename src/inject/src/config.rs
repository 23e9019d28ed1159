//! The sections of the configuration file, one module each, and [`Config`], which holds them all.

#[cfg(any(test, feature = "fixtures"))]
pub mod fuzzing;
pub(crate) mod lifespan;
mod loader;
pub(crate) mod lxcfs;
pub(crate) mod over_commit;
pub(crate) mod pod;
pub(crate) mod pod_names;
pub(crate) mod pod_parts;
mod schema;
pub(crate) mod sidecars;
pub(crate) mod template;
#[cfg(test)]
mod tests;

use schemars::JsonSchema;
use serde::Deserialize;

pub use self::{
    lifespan::Lifespan,
    lxcfs::{
        Lxcfs, LxcfsFile, LxcfsMount, NODE_LABEL, NodeAffinity, NodeLabel, Profile, SharedProcessNamespace,
    },
    over_commit::{Factor, NodeFactors, OverCommit},
    pod_names::PodNames,
    schema::schema,
    sidecars::{Sidecars, UnknownTemplate},
    template::{AppContainers, Native, OnConflict, Overrides, Position, Template, TransferEnv},
};
use crate::config::pod::security_level::PodSecurityLevel;
use etcd_guard_core::config::{diagnostic::Validator, policies::Policies};

/// The supported `apiVersion`.
pub(crate) const API_VERSION: &str = "etcd-guard.io/v1alpha1";

/// The supported `kind`.
const KIND: &str = "Configuration";

/// The configuration of etcd-guard.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct Config {
    /// The version of this format. Required.
    #[schemars(required, extend("const" = API_VERSION))]
    pub api_version: String,
    /// For editors and linters that expect the kind of an object. You may leave it out.
    #[schemars(extend("const" = KIND))]
    pub kind: Option<String>,
    /// Which deletions of etcd pods are denied.
    pub guard: Policies,
    /// Namespaces whose pods are never changed, whatever annotations, labels and selectors say.
    pub skip_namespaces: Vec<String>,
    /// The Pod Security level of namespaces without the label `pod-security.kubernetes.io/enforce`. Set it to the default in
    /// your API server's `PodSecurity` configuration.
    pub pod_security_default: PodSecurityLevel,
    /// Mounts of lxcfs files, so that a container sees its own limits in /proc and /sys.
    pub lxcfs: Lxcfs,
    /// Containers, volumes and other parts that pods get by name or by selector.
    pub sidecars: Sidecars,
    /// Tolerations for nodes with a limited lifespan, by a label of the pod. Not set: none are added.
    #[schemars(extend("default" = null))]
    pub lifespan: Option<Lifespan>,
    /// Words that the names of pods must not contain. Not set: all names are allowed.
    #[schemars(extend("default" = null))]
    pub pod_names: Option<PodNames>,
    /// Nodes that offer more CPU or memory than they have. Not set: off, and over-committed nodes get their real values
    /// back.
    #[schemars(extend("default" = null))]
    pub over_commit: Option<OverCommit>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            api_version: String::from(API_VERSION),
            kind: None,
            guard: Policies::default(),
            skip_namespaces: ["kube-system", "kube-public", "kube-node-lease", "etcd-guard"]
                .map(String::from)
                .into(),
            pod_security_default: PodSecurityLevel::default(),
            lxcfs: Lxcfs::default(),
            sidecars: Sidecars::default(),
            lifespan: None,
            pod_names: None,
            over_commit: None,
        }
    }
}

// === impl Config ===

impl Config {
    /// Reports the errors that the types cannot detect.
    pub(super) fn validate(&self, validator: &mut Validator<'_>, has_api_version: bool) {
        if !has_api_version {
            validator.report(format!("apiVersion is missing: expected {API_VERSION}"));
        } else if self.api_version != API_VERSION {
            let message = format!("{:?} is not supported: expected {API_VERSION}", self.api_version);
            validator.at("apiVersion").report(message);
        }
        if let Some(kind) = self.kind.as_ref().filter(|kind| *kind != KIND) {
            validator.at("kind").report(format!("{kind:?} is not supported: expected {KIND}"));
        }
        self.guard.validate(&mut validator.at("guard"));
        self.lxcfs.validate(&mut validator.at("lxcfs"));
        self.sidecars.validate(&mut validator.at("sidecars"));
        if let Some(lifespan) = &self.lifespan {
            lifespan.validate(&mut validator.at("lifespan"));
        }
        if let Some(names) = &self.pod_names {
            names.validate(&mut validator.at("podNames"));
        }
        if let Some(over_commit) = &self.over_commit {
            over_commit.validate(&mut validator.at("overCommit"));
        }
    }
}
