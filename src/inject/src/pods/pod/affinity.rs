//! Additions to a pod's affinity, combined with its own affinity so that both apply.

use json_patch::jsonptr::{Pointer, PointerBuf};
use serde_json::{Map, Value, json};

use super::{equality::is_same, items};
use crate::patch::{ListPosition, PatchBuilder, PatchError, pointer};

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

/// The lists of a node selector term: conditions on labels and on fields of the node.
pub(crate) const EXPRESSIONS: &str = "matchExpressions";
const FIELDS: &str = "matchFields";

/// Conditions of a term: the name of their list and its items.
type Conditions<'a> = (&'static str, &'a [Value]);

/// Requires nodes that meet these conditions as well. A pod's terms are alternatives, so that each term receives all
/// conditions.
pub(crate) fn require(builder: &mut PatchBuilder, conditions: &[Conditions<'_>]) -> Result<(), PatchError> {
    let required = pointer(["spec", "affinity", "nodeAffinity", REQUIRED]);
    let terms = required.with_trailing_token("nodeSelectorTerms");
    let Some(present) = builder.object().pointer(terms.as_str()).and_then(Value::as_array) else {
        let term = conditions.iter().filter(|(_, items)| !items.is_empty());
        let term: Map<_, _> = term.map(|(list, items)| ((*list).to_owned(), Value::from(*items))).collect();
        return builder.add_members(&required, [("nodeSelectorTerms", json!([term]))]);
    };
    let paths: Vec<PointerBuf> = present
        .iter()
        .enumerate()
        .filter(|(_, term)| has_conditions(term))
        .map(|(index, _)| terms.with_trailing_token(index))
        .collect();
    paths.iter().try_for_each(|term| {
        conditions
            .iter()
            .try_for_each(|(list, items)| add_missing(builder, &term.with_trailing_token(*list), items))
    })
}

/// Whether a term selects any node. A term without conditions selects none, and an added condition would make it select
/// some.
fn has_conditions(term: &Value) -> bool {
    [EXPRESSIONS, FIELDS].iter().any(|list| !items(term.get(list)).is_empty())
}

/// Adds preferences for nodes.
pub(crate) fn prefer(builder: &mut PatchBuilder, terms: &[Value]) -> Result<(), PatchError> {
    add_missing(builder, &pointer(["spec", "affinity", "nodeAffinity", PREFERRED]), terms)
}

/// Adds a complete affinity. Its `nodeSelectorTerms` have at most one term.
pub(crate) fn merge(builder: &mut PatchBuilder, affinity: &Value) -> Result<(), PatchError> {
    let list = |path: [&str; 2]| items(affinity.pointer(pointer(path).as_str()));
    let term = pointer(["nodeAffinity", REQUIRED, "nodeSelectorTerms", "0"]);
    if let Some(term) = affinity.pointer(term.as_str()) {
        let conditions = [EXPRESSIONS, FIELDS].map(|list| (list, items(term.get(list))));
        if conditions.iter().any(|(_, items)| !items.is_empty()) {
            require(builder, &conditions)?;
        }
    }
    prefer(builder, list(["nodeAffinity", PREFERRED]))?;
    for kind in ["podAffinity", "podAntiAffinity"] {
        for terms in [REQUIRED, PREFERRED] {
            add_missing(builder, &pointer(["spec", "affinity", kind, terms]), list([kind, terms]))?;
        }
    }
    Ok(())
}

fn add_missing(builder: &mut PatchBuilder, list: &Pointer, items: &[Value]) -> Result<(), PatchError> {
    let present = super::items(builder.object().pointer(list.as_str()));
    let is_new = |item: &&Value| !present.iter().any(|present| is_same(present, item));
    let new: Vec<_> = items.iter().filter(is_new).cloned().collect();
    builder.add_items(list, new, ListPosition::Last)
}
