//! Over-commit: nodes that offer more CPU or memory than they have, by changes of updates of their status.
//!
//! Several clients write a node's status, and most of them send back the raised values that they read. An annotation of
//! the node therefore records the original and the raised values: a value that equals a recorded raised value is not
//! raised again.
//!
//! A value that is neither recorded nor new may be the machine's value, or a raised value without its record, which was
//! removed from the node. The two cases are indistinguishable. The value is then written one unit smaller: the kubelet
//! sends values that differ from the stored node, so that it reports the machine's value, which can then be raised.
//!
//! Sources: kubernetes `pkg/kubelet/kubelet_node_status.go`, `pkg/util/node/node.go`. The module is pure and does not
//! know admission reviews.

mod amounts;
mod error;
mod factors;
mod origin;
mod reason;
mod record;
#[cfg(test)]
mod tests;

use self::{
    amounts::{Amounts, Resource},
    error::NodeError,
    factors::factors,
    origin::Origin,
    record::Record,
};
pub use self::{reason::Reason, record::RECORD};
use crate::{
    config::{Factor, OverCommit},
    escape::to_single_line,
    json::Json,
    patch::{Patch, PatchBuilder, PatchError, PatchedObject, pointer},
};

/// The result for a node's status.
#[derive(Debug)]
pub struct Outcome<'a> {
    /// The changed node; absent if the node is unchanged.
    pub node: Option<Json<'a>>,
    /// The operations that change the node; empty if the node is unchanged.
    pub patch: Patch,
    /// The reason for the result.
    pub reason: Reason,
    /// A warning for administrators.
    pub warning: Option<String>,
}

/// Raises the amounts in the status of `node`, which a client sends; `stored` is the stored node. Without settings
/// nothing is raised, and previously raised amounts are restored.
#[must_use]
pub fn over_commit<'a>(
    node: Json<'a>,
    stored: Option<&Json<'_>>,
    settings: Option<&OverCommit>,
) -> Outcome<'a> {
    let mut builder = PatchBuilder::new(node);
    match apply(&mut builder, stored, settings) {
        Ok((reason, warning)) => match builder.finish() {
            Ok(PatchedObject { object, patch }) => {
                let node = (!patch.is_empty()).then_some(object);
                Outcome { node, patch, reason, warning }
            }
            Err(error) => Outcome::unchanged(Reason::PatchFailed, &error.to_string()),
        },
        Err(NodeError::Malformed(text)) => Outcome::unchanged(Reason::Malformed, &text),
        Err(NodeError::Failed(error)) => Outcome::unchanged(Reason::PatchFailed, &error.to_string()),
    }
}

fn apply(
    builder: &mut PatchBuilder<'_>,
    stored: Option<&Json<'_>>,
    settings: Option<&OverCommit>,
) -> Result<(Reason, Option<String>), NodeError> {
    let sent_record = Record::from_node(builder.object())?;
    // The client may have dropped or changed the record. The stored amounts were written with the stored record.
    let stored_record = stored.map(Record::from_node).transpose()?.unwrap_or_default();
    let (factors, warning) = factors(builder.object(), settings)?;
    let (mut record, mut raised) = (Record::default(), true);
    for (resource, factor) in factors {
        let Some(incoming) = Amounts::read(builder.object(), resource)? else { continue };
        // Unreadable stored amounts differ from the sent ones.
        let stored = stored.and_then(|node| Amounts::read(node, resource).ok()?);
        let origin = Origin::determine(resource, incoming, stored, [&sent_record, &stored_record]);
        let wanted = if factor == Factor::NONE {
            origin.raw_or_sent(incoming)
        } else if let Some(raw) = origin.raw() {
            let offered = raw.raised(resource, factor);
            record.set_raised(resource, factor, raw, offered);
            offered
        } else {
            raised = false;
            let reduced = if origin.is_reduced() { incoming } else { incoming.minus_one(resource) };
            record.set_reduced(resource, reduced);
            reduced
        };
        write_amounts(builder, resource, incoming, wanted)?;
    }
    let path = pointer(["metadata", "annotations", RECORD]);
    let reason = if !record.is_empty() {
        builder.set(&path, record.to_text())?;
        if raised { Reason::OverCommitted } else { Reason::KubeletAsked }
    } else if sent_record.is_empty() && stored_record.is_empty() {
        Reason::NotOverCommitted
    } else {
        builder.remove(&path)?;
        Reason::Restored
    };
    Ok((reason, warning))
}

fn write_amounts(
    builder: &mut PatchBuilder<'_>,
    resource: Resource,
    incoming: Amounts,
    wanted: Amounts,
) -> Result<(), PatchError> {
    let lists = [
        ("allocatable", incoming.allocatable, wanted.allocatable),
        ("capacity", incoming.capacity, wanted.capacity),
    ];
    for (list, incoming, wanted) in lists {
        // A quantity has several representations: the client's text is preserved if its amount is unchanged.
        if incoming != wanted {
            let path = pointer(["status", list, resource.key()]);
            builder.set(&path, wanted.to_string())?;
        }
    }
    Ok(())
}

// === impl Outcome ===

impl Outcome<'_> {
    /// The unchanged node, with a warning.
    fn unchanged(reason: Reason, warning: &str) -> Self {
        Self { node: None, patch: Patch::default(), reason, warning: Some(to_single_line(warning)) }
    }
}
