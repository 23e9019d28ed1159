//! Affinity that a pod gets, joined to its own so that both hold.

use super::content::is_same;
use crate::{
    json::{Json, Shared},
    patch::{Draft, PatchError, Place, pointer},
};
use json_patch::jsonptr::{Pointer, PointerBuf};

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

/// What a term's nodes must have: labels, and fields of their own.
pub(super) const EXPRESSIONS: &str = "matchExpressions";
const FIELDS: &str = "matchFields";

/// Conditions of a term: the list that they are in, and what it holds.
pub(super) type Conditions<'s, 'a> = (&'static str, &'s [Json<'a>]);

/// Asks for nodes that meet these conditions as well. Terms of a pod are alternatives: each of them gets them all.
pub(super) fn require<'a>(
    draft: &mut Draft<'a>,
    conditions: &[Conditions<'_, 'a>],
) -> Result<(), PatchError> {
    let required = pointer(["spec", "affinity", "nodeAffinity", REQUIRED]);
    let terms = required.with_trailing_token("nodeSelectorTerms");
    let Some(present) = draft.object().at(&terms).and_then(Json::as_list) else {
        let term = conditions.iter().filter(|(_, items)| !items.is_empty());
        let term = term.map(|(list, items)| ((*list).into(), Json::List(items.to_vec()))).collect();
        return draft.add_members(&required, [("nodeSelectorTerms", Json::List(vec![Json::Map(term)]))]);
    };
    let is_empty = |term: &Json<'_>, key: &str| term.get(key).is_none_or(|it| it.items().is_empty());
    // A term without a condition selects no node; one more condition would make it select some.
    let alive = |term: &Json<'_>| !is_empty(term, EXPRESSIONS) || !is_empty(term, FIELDS);
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
pub(super) fn prefer<'a>(draft: &mut Draft<'a>, terms: &[Json<'a>]) -> Result<(), PatchError> {
    add_missing(draft, &pointer(["spec", "affinity", "nodeAffinity", PREFERRED]), terms)
}

/// Joins a whole affinity, of which `nodeSelectorTerms` holds at most one term.
pub(super) fn join<'a>(draft: &mut Draft<'a>, affinity: &'a Shared) -> Result<(), PatchError> {
    let affinity: &Json<'a> = affinity.json();
    let items = |steps: [&str; 2]| affinity.at(&pointer(steps)).map_or(&[][..], Json::items);
    let term = affinity.at(&pointer(["nodeAffinity", REQUIRED, "nodeSelectorTerms", "0"]));
    if let Some(term) = term {
        let items = |list| term.get(list).map_or(&[][..], Json::items);
        let conditions = [EXPRESSIONS, FIELDS].map(|list| (list, items(list)));
        if conditions.iter().any(|(_, items)| !items.is_empty()) {
            require(draft, &conditions)?;
        }
    }
    prefer(draft, items(["nodeAffinity", PREFERRED]))?;
    for kind in ["podAffinity", "podAntiAffinity"] {
        for list in [REQUIRED, PREFERRED] {
            add_missing(draft, &pointer(["spec", "affinity", kind, list]), items([kind, list]))?;
        }
    }
    Ok(())
}

fn add_missing<'a>(draft: &mut Draft<'a>, list: &Pointer, items: &[Json<'a>]) -> Result<(), PatchError> {
    let present = draft.object().at(list).map_or(&[][..], Json::items);
    let is_new = |item: &&Json<'_>| !present.iter().any(|it| is_same(it, item));
    let new: Vec<_> = items.iter().filter(is_new).cloned().collect();
    draft.add_items(list, new, Place::Last)
}
