//! The `sidecars` section: the templates, and the pods that get them.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::template::{Native, Template};
use etcd_guard_core::config::diagnostic::Validator;

/// The name of the `lxcfs` section in lists of templates.
pub(super) const LXCFS: &str = "lxcfs";

/// Templates that pods get by name or by selector.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct Sidecars {
    /// Names of templates, and `lxcfs` for lxcfs files. Pods that ask with `true` get them, and all pods of namespaces with
    /// the label `etcd-guard.io/inject=enabled` or `sidecar-injector=enabled`.
    pub default: Vec<String>,
    /// A pod asks for a template that does not exist. `warn`: it is created without, with a warning. `deny`: it is denied.
    pub unknown_template: UnknownTemplate,
    /// Whether containers become native sidecars: init containers that run until the pod ends. `auto`: if the API server and
    /// all kubelets know them; otherwise they are ordinary containers, and pods of Jobs do not get them.
    pub native: Native,
    /// What a pod can ask for.
    pub templates: Vec<Template>,
}

/// How to treat a pod that requests an unknown template.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum UnknownTemplate {
    /// Admit the pod without the template, with a warning.
    #[default]
    Warn,
    /// Deny the pod.
    Deny,
}

// === impl Sidecars ===

impl Sidecars {
    /// Sorts the templates into the order in which they are applied, and computes the values that are equal for all
    /// pods.
    pub(crate) fn prepare(&mut self) {
        self.templates.sort_by(|a, b| (a.order, &a.name, &a.version).cmp(&(b.order, &b.name, &b.version)));
        for template in &mut self.templates {
            template.prepare(self.native);
        }
    }

    /// Returns the template that a pod requests as `name` or `name:version`.
    pub fn template(&self, requested: &str) -> Option<&Template> {
        self.templates.iter().find(|template| self.is_requested(template, requested))
    }

    /// Whether `requested`, which is `name` or `name:version`, selects a template. A name without a version selects the
    /// template without a version, or the only template of that name.
    pub fn is_requested(&self, template: &Template, requested: &str) -> bool {
        let (name, version) = requested.split_once(':').unwrap_or((requested, ""));
        let is_only = || self.templates.iter().filter(|other| other.name == name).count() == 1;
        template.name == name && (template.version == version || !requested.contains(':') && is_only())
    }

    pub(crate) fn validate(&self, validator: &mut Validator<'_>) {
        let mut names = BTreeSet::new();
        for (index, template) in self.templates.iter().enumerate() {
            let mut validator = validator.at("templates");
            let mut validator = validator.at(index);
            if template.name == LXCFS {
                validator.at("name").report("lxcfs is reserved for the lxcfs section");
            } else if !names.insert(template.full_name()) {
                validator
                    .at("name")
                    .report(format!("template name {} is used more than once", template.full_name()));
            } else if self.template(&template.name).is_none() {
                let message = format!(
                    "one of the templates named {} must have no version: it is the default",
                    template.name
                );
                validator.at("version").report(message);
            }
            template.validate(&mut validator);
        }
        for (index, name) in self.default.iter().enumerate() {
            if name != LXCFS && self.template(name).is_none() {
                validator.at("default").at(index).report(format!("unknown template {name:?}"));
            }
        }
        self.check_conflicts(validator);
    }

    /// Reports a container that two templates define, and volumes of the same name with different content. Templates
    /// may share an identical volume.
    fn check_conflicts(&self, validator: &mut Validator<'_>) {
        let mut containers: BTreeMap<&str, &str> = BTreeMap::new();
        let mut volumes: BTreeMap<&str, (&str, &Value)> = BTreeMap::new();
        for (index, template) in self.templates.iter().enumerate() {
            for name in template.container_names() {
                match containers.get(name) {
                    Some(other) if *other != template.name => {
                        let message = format!("container {name} is also defined by template {other}");
                        validator.at("templates").at(index).report(message);
                    }
                    _ => drop(containers.insert(name, &template.name)),
                }
            }
            for (position, volume) in template.volumes.iter().enumerate() {
                let Some(name) = volume.get("name").and_then(Value::as_str) else { continue };
                match volumes.get(name) {
                    Some((other, content)) if *content != volume && *other != template.name => {
                        let message =
                            format!("volume {name} differs from the volume of that name in template {other}");
                        validator.at("templates").at(index).at("volumes").at(position).report(message);
                    }
                    _ => drop(volumes.insert(name, (&template.name, volume))),
                }
            }
        }
    }
}
