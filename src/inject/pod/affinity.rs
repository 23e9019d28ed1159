//! Additions to a pod's affinity, combined with its own affinity so that both apply.

use super::equality::is_same;
use crate::{
    json::{Json, SharedJson},
    patch::{ListPosition, PatchBuilder, PatchError, pointer},
};
use json_patch::jsonptr::{Pointer, PointerBuf};

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

/// The lists of a node selector term: conditions on labels and on fields of the node.
pub(in crate::inject) const EXPRESSIONS: &str = "matchExpressions";
const FIELDS: &str = "matchFields";

/// Conditions of a term: the name of their list and its items.
type Conditions<'s, 'a> = (&'static str, &'s [Json<'a>]);

/// Requires nodes that meet these conditions as well. A pod's terms are alternatives, so that each term receives all
/// conditions.
pub(in crate::inject) fn require<'a>(
    builder: &mut PatchBuilder<'a>,
    conditions: &[Conditions<'_, 'a>],
) -> Result<(), PatchError> {
    let required = pointer(["spec", "affinity", "nodeAffinity", REQUIRED]);
    let terms = required.with_trailing_token("nodeSelectorTerms");
    let Some(present) = builder.object().at(&terms).and_then(Json::as_list) else {
        let term = conditions.iter().filter(|(_, items)| !items.is_empty());
        let term = term.map(|(list, items)| ((*list).into(), Json::List(items.to_vec()))).collect();
        return builder.add_members(&required, [("nodeSelectorTerms", Json::List(vec![Json::Map(term)]))]);
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
fn has_conditions(term: &Json<'_>) -> bool {
    [EXPRESSIONS, FIELDS].iter().any(|list| term.get(list).is_some_and(|list| !list.items().is_empty()))
}

/// Adds preferences for nodes.
pub(in crate::inject) fn prefer<'a>(
    builder: &mut PatchBuilder<'a>,
    terms: &[Json<'a>],
) -> Result<(), PatchError> {
    add_missing(builder, &pointer(["spec", "affinity", "nodeAffinity", PREFERRED]), terms)
}

/// Adds a complete affinity. Its `nodeSelectorTerms` have at most one term.
pub(in crate::inject) fn merge<'a>(
    builder: &mut PatchBuilder<'a>,
    affinity: &'a SharedJson,
) -> Result<(), PatchError> {
    let affinity: &Json<'a> = affinity.json();
    let items = |path: [&str; 2]| affinity.at(&pointer(path)).map_or(&[][..], Json::items);
    let term = affinity.at(&pointer(["nodeAffinity", REQUIRED, "nodeSelectorTerms", "0"]));
    if let Some(term) = term {
        let items = |list| term.get(list).map_or(&[][..], Json::items);
        let conditions = [EXPRESSIONS, FIELDS].map(|list| (list, items(list)));
        if conditions.iter().any(|(_, items)| !items.is_empty()) {
            require(builder, &conditions)?;
        }
    }
    prefer(builder, items(["nodeAffinity", PREFERRED]))?;
    for kind in ["podAffinity", "podAntiAffinity"] {
        for list in [REQUIRED, PREFERRED] {
            add_missing(builder, &pointer(["spec", "affinity", kind, list]), items([kind, list]))?;
        }
    }
    Ok(())
}

fn add_missing<'a>(
    builder: &mut PatchBuilder<'a>,
    list: &Pointer,
    items: &[Json<'a>],
) -> Result<(), PatchError> {
    let present = builder.object().at(list).map_or(&[][..], Json::items);
    let is_new = |item: &&Json<'_>| !present.iter().any(|present| is_same(present, item));
    let new: Vec<_> = items.iter().filter(is_new).cloned().collect();
    builder.add_items(list, new, ListPosition::Last)
}
