//! Where a number that a writer sends comes from: the machine, this program, or somebody who is not known.

use super::{
    Amounts,
    record::{Record, Resource},
};
use crate::k8s::quantity::Quantity;

/// Where the two numbers of a resource come from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Origin {
    allocatable: Number,
    capacity: Number,
}

/// Where one number comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Number {
    /// What the machine has: as it was sent, or what the number sent was once raised from.
    Raw(Quantity),
    /// What this program wrote to make the kubelet say its own.
    Asked,
    /// The number that is stored, and nobody knows who wrote it.
    Unknown,
}

// === impl Origin ===

impl Origin {
    /// Judges what was sent by what is stored and by records, of which the first that knows a number counts.
    pub(super) fn of(
        resource: Resource,
        sent: Amounts,
        stored: Option<Amounts>,
        records: [&Record; 2],
    ) -> Self {
        let number = |sent: Quantity, of: fn(Amounts) -> Quantity| {
            let raised_from = |record: &&Record| {
                let (raw, out) = record.raised(resource)?;
                (of(out) == sent).then_some(of(raw))
            };
            let is_asked = |record: &&Record| record.asked(resource).map(of) == Some(sent);
            if let Some(raw) = records.iter().find_map(raised_from) {
                Number::Raw(raw)
            } else if records.iter().any(is_asked) {
                Number::Asked
            } else if stored.map(of) == Some(sent) && resource.count(sent) > 0 {
                Number::Unknown
            } else {
                Number::Raw(sent)
            }
        };
        Self {
            allocatable: number(sent.allocatable, |it| it.allocatable),
            capacity: number(sent.capacity, |it| it.capacity),
        }
    }

    /// What the machine has, if both numbers say so.
    pub(super) fn raw(self) -> Option<Amounts> {
        match self {
            Self { allocatable: Number::Raw(allocatable), capacity: Number::Raw(capacity) } => {
                Some(Amounts { allocatable, capacity })
            }
            _ => None,
        }
    }

    /// What the machine has, and what was sent where that is not known.
    pub(super) fn raw_or_as_sent(self, sent: Amounts) -> Amounts {
        let either = |number, sent| if let Number::Raw(raw) = number { raw } else { sent };
        Amounts {
            allocatable: either(self.allocatable, sent.allocatable),
            capacity: either(self.capacity, sent.capacity),
        }
    }

    /// Whether the kubelet was asked and has not answered yet.
    pub(super) fn is_asked(self) -> bool {
        self.allocatable == Number::Asked && self.capacity == Number::Asked
    }
}
