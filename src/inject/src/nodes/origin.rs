//! The origin of an amount that a client sends: the machine, this program, or unknown.

use super::{
    amounts::{Amounts, Resource},
    record::Record,
};
use etcd_guard_core::objects::quantity::Quantity;

/// The origins of both amounts of a resource.
#[derive(Clone, Copy, Debug)]
pub(super) struct Origin {
    allocatable: AmountOrigin,
    capacity: AmountOrigin,
}

/// The origin of one amount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AmountOrigin {
    /// The machine's amount: the sent amount, or the recorded original of a raised one.
    Raw(Quantity),
    /// The amount that this program reduced so that the kubelet reports the machine's.
    Reduced,
    /// The stored amount, without a record of its origin.
    Unknown,
}

// === impl Origin ===

impl Origin {
    /// Compares the sent amounts with the records, of which the first match is decisive, and with the stored amounts.
    pub(super) fn determine(
        resource: Resource,
        sent: Amounts,
        stored: Option<Amounts>,
        records: [&Record; 2],
    ) -> Self {
        let origin = |sent: Quantity, select: fn(Amounts) -> Quantity| {
            let raised_from = |record: &&Record| {
                let (raw, out) = record.raised(resource)?;
                (select(out) == sent).then_some(select(raw))
            };
            // Written while no webhook was called: a raised amount is always written together with its record.
            let is_original =
                |record: &&Record| record.raised(resource).map(|(raw, _)| select(raw)) == Some(sent);
            let is_reduced = |record: &&Record| record.reduced(resource).map(select) == Some(sent);
            if let Some(raw) = records.iter().find_map(raised_from) {
                AmountOrigin::Raw(raw)
            } else if records.iter().any(is_reduced) {
                AmountOrigin::Reduced
            } else if records.iter().any(is_original) {
                AmountOrigin::Raw(sent)
            } else if stored.map(select) == Some(sent) && resource.count(sent) > 0 {
                AmountOrigin::Unknown
            } else {
                AmountOrigin::Raw(sent)
            }
        };
        Self {
            allocatable: origin(sent.allocatable, |amounts| amounts.allocatable),
            capacity: origin(sent.capacity, |amounts| amounts.capacity),
        }
    }

    /// The machine's amounts, if both are known.
    pub(super) fn raw(self) -> Option<Amounts> {
        match self {
            Self { allocatable: AmountOrigin::Raw(allocatable), capacity: AmountOrigin::Raw(capacity) } => {
                Some(Amounts { allocatable, capacity })
            }
            _ => None,
        }
    }

    /// The machine's amounts; the sent amount where the machine's is unknown.
    pub(super) fn raw_or_sent(self, sent: Amounts) -> Amounts {
        let either = |origin, sent| if let AmountOrigin::Raw(raw) = origin { raw } else { sent };
        Amounts {
            allocatable: either(self.allocatable, sent.allocatable),
            capacity: either(self.capacity, sent.capacity),
        }
    }

    /// Whether both amounts are reduced: the kubelet has not reported the machine's yet.
    pub(super) fn is_reduced(self) -> bool {
        self.allocatable == AmountOrigin::Reduced && self.capacity == AmountOrigin::Reduced
    }
}
