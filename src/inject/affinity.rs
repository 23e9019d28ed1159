//! Affinity that a pod gets, joined to its own so that both hold.

use json_patch::jsonptr::{Pointer, PointerBuf};
use serde_json::{Map, Value, json};

use super::content::is_same;
use crate::patch::{Draft, PatchError, Place, pointer};

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

/// What a term's nodes must have: labels, and fields of their own.
pub(super) const EXPRESSIONS: &str = "matchExpressions";
const FIELDS: &str = "matchFields";

/// Conditions of a term: the list that they are in, and what it holds.
pub(super) type Conditions<'a> = (&'static str, &'a [Value]);

/// Asks for nodes that meet these conditions as well. Terms of a pod are alternatives: each of them gets them all.
pub(super) fn require(draft: &mut Draft, conditions: &[Conditions<'_>]) -> Result<(), PatchError> {
    let required = pointer(["spec", "affinity", "nodeAffinity", REQUIRED]);
    let terms = required.with_trailing_token("nodeSelectorTerms");
    let Some(present) = draft.object().pointer(terms.as_str()).and_then(Value::as_array) else {
        let term = conditions.iter().filter(|(_, items)| !items.is_empty());
        let term: Map<_, _> = term.map(|(list, items)| ((*list).to_owned(), Value::from(*items))).collect();
        return draft.add_members(&required, [(String::from("nodeSelectorTerms"), json!([term]))]);
    };
    let is_empty =
        |term: &Value, key: &str| term.get(key).and_then(Value::as_array).is_none_or(Vec::is_empty);
    // A term without a condition selects no node; one more condition would make it select some.
    let alive = |term: &Value| !is_empty(term, EXPRESSIONS) || !is_empty(term, FIELDS);
    let places: Vec<PointerBuf> = present
        .iter()
        .enumerate()
        .filter(|(_, term)| alive(term))
        .map(|(index, _)| terms.with_trailing_token(index))
        .collect();
    places.iter().try_for_each(|term| {
        conditions
            .iter()
            .try_for_each(|(list, items)| add_missing(draft, &term.with_trailing_token(*list), items))
    })
}

/// Prefers nodes by these terms as well.
pub(super) fn prefer(draft: &mut Draft, terms: &[Value]) -> Result<(), PatchError> {
    add_missing(draft, &pointer(["spec", "affinity", "nodeAffinity", PREFERRED]), terms)
}

/// Joins a whole affinity, of which `nodeSelectorTerms` holds at most one term.
pub(super) fn join(draft: &mut Draft, affinity: &Value) -> Result<(), PatchError> {
    let items = |steps: [&str; 2]| {
        affinity.pointer(pointer(steps).as_str()).and_then(Value::as_array).cloned().unwrap_or_default()
    };
    let term = affinity
        .get("nodeAffinity")
        .and_then(|it| it.get(REQUIRED))
        .and_then(|it| it.get("nodeSelectorTerms"));
    if let Some(term) = term.and_then(|it| it.get(0)) {
        let items = |list| term.get(list).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        let conditions = [EXPRESSIONS, FIELDS].map(|list| (list, items(list)));
        if conditions.iter().any(|(_, items)| !items.is_empty()) {
            require(draft, &conditions)?;
        }
    }
    prefer(draft, &items(["nodeAffinity", PREFERRED]))?;
    for kind in ["podAffinity", "podAntiAffinity"] {
        for list in [REQUIRED, PREFERRED] {
            add_missing(draft, &pointer(["spec", "affinity", kind, list]), &items([kind, list]))?;
        }
    }
    Ok(())
}

fn add_missing(draft: &mut Draft, list: &Pointer, items: &[Value]) -> Result<(), PatchError> {
    let present =
        draft.object().pointer(list.as_str()).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let is_new = |item: &&Value| !present.iter().any(|it| is_same(it, item));
    let new = items.iter().filter(is_new).cloned().collect();
    draft.add_items(list, new, Place::Last)
}
