//! The templates, and which of them pods get that name none.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use super::{
    Check,
    template::{Native, Template},
};

/// The name that stands for lxcfs in lists of templates.
pub(super) const LXCFS: &str = "lxcfs";

/// What pods can get by name or by selector.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct Sidecars {
    /// Names of templates, and `lxcfs`: what pods get that ask with `true`, and all pods of namespaces with the label
    /// `sidecar-injector=enabled` or `etcd-guard.io/inject=enabled`.
    pub default: Vec<String>,
    /// What becomes of a pod that asks for a template that there is not.
    pub unknown_template: UnknownTemplate,
    /// Whether containers become native sidecars, for templates that do not say.
    pub native: Native,
    /// The templates.
    pub templates: Vec<Template>,
    /// Names of the pod's own variables that some template looks at.
    #[serde(skip)]
    pub variables: BTreeSet<String>,
}

/// What becomes of a pod that asks for a template that there is not.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub enum UnknownTemplate {
    /// It is admitted without it, with a warning.
    #[default]
    Warn,
    /// It is denied.
    Deny,
}

// === impl Sidecars ===

impl Sidecars {
    /// Puts the templates in the order in which they are applied, and works out what is always the same.
    pub(super) fn settle(&mut self) {
        self.templates.sort_by(|a, b| (a.order, &a.name, &a.version).cmp(&(b.order, &b.name, &b.version)));
        for template in &mut self.templates {
            template.settle(self.native);
            self.variables.extend(template.variables());
        }
    }

    /// The template that is meant by `name` or `name:version`.
    #[must_use]
    pub fn template(&self, asked: &str) -> Option<&Template> {
        self.templates.iter().find(|it| self.is_meant(it, asked))
    }

    /// Whether a template is meant by `name` or `name:version`. A bare name means the one without a version, and the only
    /// one whatever its version.
    #[must_use]
    pub fn is_meant(&self, template: &Template, asked: &str) -> bool {
        let (name, version) = asked.split_once(':').unwrap_or((asked, ""));
        let is_only = || self.templates.iter().filter(|it| it.name == name).count() == 1;
        template.name == name && (template.version == version || !asked.contains(':') && is_only())
    }

    pub(super) fn check(&self, check: &mut Check<'_>) {
        let mut names = BTreeSet::new();
        for (index, template) in self.templates.iter().enumerate() {
            let mut check = check.at("templates");
            let mut check = check.at(index);
            if template.name == LXCFS {
                check.at("name").say("lxcfs is the name of the section of that name");
            } else if !names.insert(template.full_name()) {
                check.at("name").say(format!("{} is the name of another template", template.full_name()));
            } else if self.template(&template.name).is_none() {
                let text = format!(
                    "of several templates {}, one has no version: a bare name means it",
                    template.name
                );
                check.at("version").say(text);
            }
            template.check(&mut check);
        }
        for (index, name) in self.default.iter().enumerate() {
            if name != LXCFS && self.template(name).is_none() {
                check.at("default").at(index).say(format!("there is no template {name:?}"));
            }
        }
        self.check_conflicts(check);
    }

    /// Two templates may share a volume, but neither a container nor a volume's name for different things.
    fn check_conflicts(&self, check: &mut Check<'_>) {
        let mut containers: BTreeMap<&str, &str> = BTreeMap::new();
        let mut volumes: BTreeMap<&str, (&str, &Value)> = BTreeMap::new();
        for (index, template) in self.templates.iter().enumerate() {
            for name in template.container_names() {
                match containers.get(name) {
                    Some(other) if *other != template.name => {
                        let text = format!("template {other} has a container {name} as well");
                        check.at("templates").at(index).say(text);
                    }
                    _ => drop(containers.insert(name, &template.name)),
                }
            }
            for (position, volume) in template.volumes.iter().enumerate() {
                let Some(name) = volume.get("name").and_then(Value::as_str) else { continue };
                match volumes.get(name) {
                    Some((other, content)) if *content != volume.value() && *other != template.name => {
                        let text = format!("template {other} has another volume {name}");
                        check.at("templates").at(index).at("volumes").at(position).say(text);
                    }
                    _ => drop(volumes.insert(name, (&template.name, volume.value()))),
                }
            }
        }
    }
}
