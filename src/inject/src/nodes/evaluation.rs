//! Evaluation of a node's status by the label, the configuration and the record.

use json_patch::Patch;
use serde_json::{Map, Value, json};

use super::{
    amounts::{Amounts, Resource},
    error::NodeError,
    factors::factors,
    origin::Origin,
    reason::Reason,
    record::{RECORD, Record},
};
use crate::{
    config::over_commit::{Factor, OverCommit},
    patch::{PatchBuilder, PatchError, pointer},
};
use etcd_guard_core::escape::to_single_line;

/// The result for a node's status.
#[derive(Debug)]
pub struct Outcome {
    /// The changed node; absent if the node is unchanged.
    pub node: Option<Value>,
    /// The operations that change the node; empty if the node is unchanged.
    pub patch: Patch,
    /// The reason for the result.
    pub reason: Reason,
    /// A warning for administrators.
    pub warning: Option<String>,
}

/// Raises the amounts in the status of `node`, which a client sends; `stored` is the stored node. Without settings
/// nothing is raised, and previously raised amounts are restored.
pub fn over_commit(node: Value, stored: Option<&Value>, settings: Option<&OverCommit>) -> Outcome {
    let mut builder = PatchBuilder::new(node);
    match apply(&mut builder, stored, settings) {
        Ok((reason, warning)) => {
            let (object, patch) = builder.finish();
            let node = (!patch.is_empty()).then_some(object);
            Outcome { node, patch, reason, warning }
        }
        Err(NodeError::Malformed(text)) => Outcome::unchanged(Reason::Malformed, &text),
        Err(NodeError::Failed(error)) => Outcome::unchanged(Reason::PatchFailed, &error.to_string()),
    }
}

/// The change of a stored node.
pub struct Correction {
    /// A merge patch for the status of the version that was evaluated; `None` if the node is as configured.
    pub patch: Option<Value>,
    /// The reason for the result.
    pub reason: Reason,
    /// A warning for administrators.
    pub warning: Option<String>,
}

/// Evaluates a stored node as if a client had sent it. `is_raw`: amounts without a record are those of the machine.
pub fn correct(stored: &Value, is_raw: bool, settings: Option<&OverCommit>) -> Correction {
    let before = (!is_raw).then_some(stored);
    let Outcome { node, reason, warning, .. } = over_commit(stored.clone(), before, settings);
    let patch = node.map(|node| merge_patch(stored, &node));
    Correction { patch, reason, warning }
}

/// Returns the amounts and the record of `node`, as a change of this version of the stored node.
fn merge_patch(stored: &Value, node: &Value) -> Value {
    let record = node.pointer("/metadata/annotations").and_then(|annotations| annotations.get(RECORD));
    let mut status = Map::new();
    for list in ["allocatable", "capacity"] {
        let amounts = [Resource::Cpu, Resource::Memory].into_iter().filter_map(|resource| {
            let amount = node.get("status")?.get(list)?.get(resource.key())?;
            Some((resource.key().to_owned(), amount.clone()))
        });
        status.insert(list.to_owned(), amounts.collect::<Map<_, _>>().into());
    }
    json!({
        "metadata": {
            "resourceVersion": stored.pointer("/metadata/resourceVersion"),
            // A merge patch removes members that are null.
            "annotations": {RECORD: record},
        },
        "status": status,
    })
}

fn apply(
    builder: &mut PatchBuilder,
    stored: Option<&Value>,
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
    builder: &mut PatchBuilder,
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

impl Outcome {
    /// The unchanged node, with a warning.
    fn unchanged(reason: Reason, warning: &str) -> Self {
        Self { node: None, patch: Patch::default(), reason, warning: Some(to_single_line(warning)) }
    }
}
