//! What was raised, from what and to what, as it stands in an annotation of the node.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Amounts, Stop};
use crate::{config::Factor, json::Json, k8s::quantity::Quantity};

/// The annotation of the record. Without it, what a node says counts as what it has.
pub const RECORD: &str = "etcd-guard.io/over-commit";

/// The resources that can be raised. Never pods, storage, huge pages or devices: what is not there fails at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Resource {
    Cpu,
    Memory,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(transparent)]
pub(super) struct Record(BTreeMap<String, Entry>);

/// What is known of a resource.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(untagged)]
enum Entry {
    Raised(Raised),
    Asked(Asked),
}

/// It was raised.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct Raised {
    factor: Factor,
    raw_allocatable: String,
    raw_capacity: String,
    out_allocatable: String,
    out_capacity: String,
}

/// It was made one unit smaller, for the kubelet to say what the machine has.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct Asked {
    asked_allocatable: String,
    asked_capacity: String,
}

// === impl Resource ===

impl Resource {
    pub(super) fn key(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Memory => "memory",
        }
    }

    /// CPU in thousandths, memory in bytes; rounded down.
    pub(super) fn count(self, quantity: Quantity) -> i128 {
        match self {
            Self::Cpu => quantity.milli(),
            Self::Memory => quantity.whole(),
        }
    }

    pub(super) fn quantity(self, count: i128) -> Quantity {
        match self {
            Self::Cpu => Quantity::of_milli(count),
            Self::Memory => Quantity::of_whole(count),
        }
    }
}

// === impl Record ===

impl Record {
    /// The record of a node; an empty one if there is none.
    pub(super) fn of(node: &Json<'_>) -> Result<Self, Stop> {
        let text = node.get("metadata").and_then(|it| it.get("annotations")).and_then(|it| it.get(RECORD));
        let Some(text) = text.and_then(Json::as_str) else { return Ok(Self::default()) };
        let malformed = |why: &str| Stop::Malformed(format!("annotation {RECORD} {why}: remove it"));
        let record: Self = serde_json::from_str(text).map_err(|_| malformed("is not readable"))?;
        for resource in [Resource::Cpu, Resource::Memory] {
            let unreadable = || malformed("holds what is no quantity");
            match record.0.get(resource.key()) {
                Some(Entry::Raised(entry)) => {
                    let (raw, out) = entry.amounts().ok_or_else(unreadable)?;
                    if raw.raised(resource, entry.factor) != out {
                        return Err(malformed("does not add up"));
                    }
                }
                Some(Entry::Asked(entry)) => drop(entry.amounts().ok_or_else(unreadable)?),
                None => {}
            }
        }
        Ok(record)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What the machine has and what was made of it.
    pub(super) fn raised(&self, resource: Resource) -> Option<(Amounts, Amounts)> {
        if let Entry::Raised(entry) = self.0.get(resource.key())? { entry.amounts() } else { None }
    }

    /// What was written for the kubelet to answer.
    pub(super) fn asked(&self, resource: Resource) -> Option<Amounts> {
        if let Entry::Asked(entry) = self.0.get(resource.key())? { entry.amounts() } else { None }
    }

    pub(super) fn set(&mut self, resource: Resource, factor: Factor, raw: Amounts, out: Amounts) {
        let entry = Raised {
            factor,
            raw_allocatable: raw.allocatable.to_string(),
            raw_capacity: raw.capacity.to_string(),
            out_allocatable: out.allocatable.to_string(),
            out_capacity: out.capacity.to_string(),
        };
        self.0.insert(resource.key().to_owned(), Entry::Raised(entry));
    }

    pub(super) fn ask(&mut self, resource: Resource, asked: Amounts) {
        let entry = Asked {
            asked_allocatable: asked.allocatable.to_string(),
            asked_capacity: asked.capacity.to_string(),
        };
        self.0.insert(resource.key().to_owned(), Entry::Asked(entry));
    }

    pub(super) fn to_text(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

// === impl Raised ===

impl Raised {
    /// The raw amounts and the ones that were written.
    fn amounts(&self) -> Option<(Amounts, Amounts)> {
        let raw = amounts(&self.raw_allocatable, &self.raw_capacity)?;
        Some((raw, amounts(&self.out_allocatable, &self.out_capacity)?))
    }
}

// === impl Asked ===

impl Asked {
    fn amounts(&self) -> Option<Amounts> {
        amounts(&self.asked_allocatable, &self.asked_capacity)
    }
}

fn amounts(allocatable: &str, capacity: &str) -> Option<Amounts> {
    let (allocatable, capacity) = (Quantity::parse(allocatable)?, Quantity::parse(capacity)?);
    Some(Amounts { allocatable, capacity })
}
