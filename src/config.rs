//! The configuration file: its types, what they default to, and what is wrong with a file, line by line.
//!
//! One YAML file, strict keys. Every section has a sane default, so that no file at all is a good configuration.
//! This room knows what can be configured, never what is done with it: others read it, it knows
//! only how values are written.

pub mod document;
mod from_pod;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod lifespan;
mod lxcfs;
mod lxcfs_mounts;
mod mistake;
mod names;
mod over_commit;
mod policies;
mod quantities;
mod reload;
mod schema;
mod selector;
mod sidecars;
mod syntax;
mod template;
mod template_check;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;

pub use self::{
    from_pod::{Overrides, TransferEnv},
    lifespan::Lifespan,
    lxcfs::{Lxcfs, LxcfsFile, NodeAffinity, NodeLabel, Profile, SharedProcessNamespace},
    lxcfs_mounts::LxcfsMount,
    mistake::{Check, Mistake},
    names::PodNames,
    over_commit::{Factor, NodeFactors, OverCommit},
    policies::{Choice, Defaults, Floor, LeaderPolicy, Mode, Permission, Policies},
    reload::{Live, ReloadMetrics, follow},
    schema::schema,
    selector::{Expression, Match, Matched, Operator, Selector},
    sidecars::{Sidecars, UnknownTemplate},
    template::{AppContainers, Native, OnConflict, Position, Template},
    template_check::{MOST_NAME_SERVERS, MOST_SEARCHES},
};

/// The labels of an object, or its annotations.
pub type Labels = BTreeMap<String, String>;

/// The version that a file must name.
pub const API_VERSION: &str = "etcd-guard.io/v1alpha1";

/// A whole configuration.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct Config {
    /// `etcd-guard.io/v1alpha1`. Required.
    #[schemars(required, extend("const" = API_VERSION))]
    pub api_version: String,
    /// What is decided about deletions where safety leaves a choice.
    pub guard: Policies,
    /// Namespaces whose pods are never mutated, whatever else says so.
    pub skip_namespaces: Vec<String>,
    /// The files of lxcfs in the place of /proc's, so that a container sees its own limits.
    pub lxcfs: Lxcfs,
    /// Containers, volumes and more that pods get by name or by selector.
    pub sidecars: Sidecars,
    /// Tolerations for nodes that will go, by a label of the pod. Absent: no pod gets any.
    #[schemars(extend("default" = null))]
    pub lifespan: Option<Lifespan>,
    /// Words that no pod's name may contain. Absent: any name may be used.
    #[schemars(extend("default" = null))]
    pub pod_names: Option<PodNames>,
    /// Nodes that offer more than they have. Absent: none does, and what did is put right.
    #[schemars(extend("default" = null))]
    pub over_commit: Option<OverCommit>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            api_version: String::from(API_VERSION),
            guard: Policies::default(),
            skip_namespaces: ["kube-system", "kube-public", "kube-node-lease", "etcd-guard"]
                .map(String::from)
                .into(),
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
    /// Reads a file's text, or says all that is wrong with it, in the order of its lines.
    pub fn read(text: &str) -> Result<Self, Vec<Mistake>> {
        document::read(text, Self::check).map(|mut config: Self| {
            config.sidecars.settle();
            config
        })
    }

    /// What the types alone cannot say.
    fn check(&self, check: &mut Check<'_>, api_version_given: bool) {
        if !api_version_given {
            check.say(format!("names no apiVersion: {API_VERSION} is expected"));
        } else if self.api_version != API_VERSION {
            let text = format!("{:?} is not known: {API_VERSION} is", self.api_version);
            check.at("apiVersion").say(text);
        }
        self.guard.check(&mut check.at("guard"));
        self.lxcfs.check(&mut check.at("lxcfs"));
        self.sidecars.check(&mut check.at("sidecars"));
        if let Some(lifespan) = &self.lifespan {
            lifespan.check(&mut check.at("lifespan"));
        }
        if let Some(names) = &self.pod_names {
            names.check(&mut check.at("podNames"));
        }
        if let Some(over_commit) = &self.over_commit {
            over_commit.check(&mut check.at("overCommit"));
        }
    }
}
