//! The annotation that records the injected parts of a pod.

use std::{borrow::Cow, collections::BTreeMap};

use serde::{Deserialize, Serialize};

use crate::config::template::Template;

/// The annotation with the injected parts.
pub const INJECTED: &str = "etcd-guard.io/injected";

/// Separates the hashes of several versions of a template of which a pod has parts.
const MIXTURE: &str = "+";

/// The content of the annotation. It lists all selected parts that the pod has, whether this pass added them or not, so
/// that a second pass writes the same record.
#[derive(Default, Deserialize, Serialize)]
#[serde(default)]
pub(super) struct Record<'a> {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) lxcfs: Vec<Cow<'a, str>>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) templates: BTreeMap<Cow<'a, str>, Cow<'a, str>>,
}

// === impl Record ===

impl<'a> Record<'a> {
    /// Parses the annotation of an earlier pass; empty if it is absent or invalid.
    pub(super) fn parse(annotation: Option<&str>) -> Record<'static> {
        annotation.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
    }

    /// Adds a template whose parts the pod has after this pass. `has_changed` states whether this pass added one of them.
    ///
    /// While a configuration file propagates, the API server may call replicas with different files for the same pod. An
    /// existing part of another version is never replaced, so that the record names a version alone only if the pod
    /// has all its parts:
    ///
    /// - A pass that adds nothing to a pod with an earlier record of another version preserves that record.
    /// - A pass that adds parts to such a pod records a mixture of the versions (`old+new`).
    /// - A mixture remains a mixture.
    pub(super) fn add(&mut self, template: &'a Template, has_changed: bool, earlier: &Record<'static>) {
        let name_of = |full: &str| full.split_once(':').map_or(full, |(name, _)| name).to_owned();
        let versions = earlier.templates.iter().filter(|(full, _)| name_of(full) == template.name);
        let versions: BTreeMap<_, _> = versions.map(|(full, hash)| (full.clone(), hash.clone())).collect();
        let mut hashes: Vec<&str> = Vec::new();
        for hash in versions.values().flat_map(|hash| hashes_of(hash)) {
            if !hashes.contains(&hash) {
                hashes.push(hash);
            }
        }
        let own = template.hash.as_str();
        if hashes.iter().all(|hash| *hash == own) {
            self.templates.insert(template.full_name(), Cow::from(own));
        } else if hashes.contains(&own) || !has_changed {
            self.templates.extend(versions);
        } else {
            hashes.push(own);
            let mixture = hashes.join(MIXTURE);
            let names = versions.keys().cloned().chain([template.full_name()]);
            self.templates.extend(names.map(|name| (name, Cow::from(mixture.clone()))));
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lxcfs.is_empty() && self.templates.is_empty()
    }

    /// Adds the record of an earlier pass. Used if this pass cannot evaluate selectors, because the namespace's labels
    /// are unknown.
    pub(super) fn preserve(&mut self, earlier: Record<'static>) {
        if self.lxcfs.is_empty() {
            self.lxcfs = earlier.lxcfs;
        }
        for (name, hash) in earlier.templates {
            self.templates.entry(name).or_insert(hash);
        }
    }
}

/// The hashes of the versions in a value of the record: one, or those of a mixture.
pub(super) fn hashes_of(value: &str) -> impl Iterator<Item = &str> {
    value.split(MIXTURE)
}
