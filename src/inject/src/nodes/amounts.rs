//! Amounts of the resources in a node's status.

use serde_json::Value;

use super::error::NodeError;
use crate::config::over_commit::Factor;
use etcd_guard_core::objects::quantity::Quantity;

/// The resources that can be raised. Pods, storage, huge pages and devices are excluded: using more of them than the
/// node has fails immediately.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Resource {
    Cpu,
    Memory,
}

/// The amounts of a resource: the part that pods may use, and the total.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Amounts {
    pub(super) allocatable: Quantity,
    pub(super) capacity: Quantity,
}

// === impl Resource ===

impl Resource {
    pub(super) fn key(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Memory => "memory",
        }
    }

    /// Converts a quantity to whole units: thousandths of a CPU or bytes of memory, rounded down.
    pub(super) fn count(self, quantity: Quantity) -> i128 {
        match self {
            Self::Cpu => quantity.milli(),
            Self::Memory => quantity.units(),
        }
    }

    pub(super) fn quantity(self, count: i128) -> Quantity {
        match self {
            Self::Cpu => Quantity::from_milli(count),
            Self::Memory => Quantity::from_units(count),
        }
    }
}

// === impl Amounts ===

impl Amounts {
    /// Reads the amounts of a resource from a node's status; `None` if one is absent, as in the status of a new node.
    pub(super) fn read(node: &Value, resource: Resource) -> Result<Option<Self>, NodeError> {
        let read = |list: &str| {
            let status = node.get("status").and_then(|status| status.get(list));
            let value = status.and_then(|amounts| amounts.get(resource.key()));
            let Some(value) = value.filter(|value| !value.is_null()) else { return Ok(None) };
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            let unreadable =
                || NodeError::Malformed(format!("status.{list}.{}: {text:?} is no quantity", resource.key()));
            Quantity::parse(&text).map(Some).ok_or_else(unreadable)
        };
        Ok(read("allocatable")?
            .zip(read("capacity")?)
            .map(|(allocatable, capacity)| Self { allocatable, capacity }))
    }

    /// Multiplies the allocatable part by the factor and adds the reserved part once.
    pub(super) fn raised(self, resource: Resource, factor: Factor) -> Self {
        let count = |quantity| resource.count(quantity);
        let reserved = (count(self.capacity) - count(self.allocatable)).max(0);
        let allocatable = factor.times(count(self.allocatable));
        let quantity = |count| resource.quantity(count);
        Self { allocatable: quantity(allocatable), capacity: quantity(allocatable.saturating_add(reserved)) }
    }

    /// Reduces both amounts by one unit, so that they differ from the machine's. A kubelet with a stale cache may send
    /// only one of the two amounts again, so that allocatable is limited to the capacity.
    pub(super) fn minus_one(self, resource: Resource) -> Self {
        let reduced = |quantity| resource.quantity((resource.count(quantity) - 1).max(0));
        let (allocatable, capacity) = (reduced(self.allocatable), reduced(self.capacity));
        Self { allocatable: allocatable.min(capacity), capacity }
    }
}
