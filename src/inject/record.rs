//! The annotation that records the injected parts of a pod.

use std::{borrow::Cow, collections::BTreeMap};

use serde::{Deserialize, Serialize};

/// The annotation with the injected parts.
pub const INJECTED: &str = "etcd-guard.io/injected";

/// The content of the annotation. It lists all selected parts, whether this pass added them or not, so that a second
/// pass writes the same record.
#[derive(Default, Deserialize, Serialize)]
#[serde(default)]
pub(super) struct Record<'a> {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) lxcfs: Vec<Cow<'a, str>>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) templates: BTreeMap<Cow<'a, str>, Cow<'a, str>>,
}

// === impl Record ===

impl Record<'_> {
    pub(super) fn is_empty(&self) -> bool {
        self.lxcfs.is_empty() && self.templates.is_empty()
    }

    /// Adds the record of an earlier pass. Used if this pass cannot evaluate selectors, because the namespace's labels
    /// are unknown.
    pub(super) fn preserve(&mut self, earlier: Option<&str>) {
        let earlier: Option<Record<'static>> = earlier.and_then(|text| serde_json::from_str(text).ok());
        let Some(earlier) = earlier else { return };
        if self.lxcfs.is_empty() {
            self.lxcfs = earlier.lxcfs;
        }
        for (name, hash) in earlier.templates {
            self.templates.entry(name).or_insert(hash);
        }
    }
}
