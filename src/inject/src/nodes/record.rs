//! The annotation of a node that records its original, raised and reduced amounts.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    amounts::{Amounts, Resource},
    error::NodeError,
};
use crate::config::over_commit::Factor;
use etcd_guard_core::objects::quantity::Quantity;

/// The annotation with the record. Without it, the amounts in a status count as the machine's.
pub const RECORD: &str = "etcd-guard.io/over-commit";

/// The record, by resource.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(transparent)]
pub(super) struct Record(BTreeMap<String, Entry>);

/// The record of a resource.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(untagged)]
enum Entry {
    Raised(Raised),
    Reduced(Reduced),
}

/// The amounts were raised.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct Raised {
    factor: Factor,
    raw_allocatable: String,
    raw_capacity: String,
    out_allocatable: String,
    out_capacity: String,
}

/// The amounts were reduced by one unit, so that the kubelet reports the machine's.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct Reduced {
    asked_allocatable: String,
    asked_capacity: String,
}

// === impl Record ===

impl Record {
    /// Reads the record of a node; empty if the annotation is absent.
    pub(super) fn from_node(node: &Value) -> Result<Self, NodeError> {
        let annotations = node.get("metadata").and_then(|metadata| metadata.get("annotations"));
        let text = annotations.and_then(|annotations| annotations.get(RECORD));
        let Some(text) = text.and_then(Value::as_str) else { return Ok(Self::default()) };
        let malformed = |problem: &str| {
            NodeError::Malformed(format!("annotation {RECORD} {problem}; remove the annotation"))
        };
        let record: Self = serde_json::from_str(text).map_err(|_| malformed("is not readable"))?;
        for resource in [Resource::Cpu, Resource::Memory] {
            let unreadable = || malformed("contains an invalid quantity");
            match record.0.get(resource.key()) {
                Some(Entry::Raised(entry)) => {
                    let (raw, out) = entry.amounts().ok_or_else(unreadable)?;
                    if raw.raised(resource, entry.factor) != out {
                        return Err(malformed("is inconsistent"));
                    }
                }
                Some(Entry::Reduced(entry)) => drop(entry.amounts().ok_or_else(unreadable)?),
                None => {}
            }
        }
        Ok(record)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The machine's amounts and the raised amounts.
    pub(super) fn raised(&self, resource: Resource) -> Option<(Amounts, Amounts)> {
        if let Entry::Raised(entry) = self.0.get(resource.key())? { entry.amounts() } else { None }
    }

    /// The reduced amounts.
    pub(super) fn reduced(&self, resource: Resource) -> Option<Amounts> {
        if let Entry::Reduced(entry) = self.0.get(resource.key())? { entry.amounts() } else { None }
    }

    pub(super) fn set_raised(&mut self, resource: Resource, factor: Factor, raw: Amounts, out: Amounts) {
        let entry = Raised {
            factor,
            raw_allocatable: raw.allocatable.to_string(),
            raw_capacity: raw.capacity.to_string(),
            out_allocatable: out.allocatable.to_string(),
            out_capacity: out.capacity.to_string(),
        };
        self.0.insert(resource.key().to_owned(), Entry::Raised(entry));
    }

    pub(super) fn set_reduced(&mut self, resource: Resource, reduced: Amounts) {
        let entry = Reduced {
            asked_allocatable: reduced.allocatable.to_string(),
            asked_capacity: reduced.capacity.to_string(),
        };
        self.0.insert(resource.key().to_owned(), Entry::Reduced(entry));
    }

    pub(super) fn to_text(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

// === impl Raised ===

impl Raised {
    /// The machine's amounts and the raised amounts.
    fn amounts(&self) -> Option<(Amounts, Amounts)> {
        let raw = amounts(&self.raw_allocatable, &self.raw_capacity)?;
        Some((raw, amounts(&self.out_allocatable, &self.out_capacity)?))
    }
}

// === impl Reduced ===

impl Reduced {
    fn amounts(&self) -> Option<Amounts> {
        amounts(&self.asked_allocatable, &self.asked_capacity)
    }
}

fn amounts(allocatable: &str, capacity: &str) -> Option<Amounts> {
    let (allocatable, capacity) = (Quantity::parse(allocatable)?, Quantity::parse(capacity)?);
    Some(Amounts { allocatable, capacity })
}
