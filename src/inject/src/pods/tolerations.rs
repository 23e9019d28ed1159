//! Tolerations for nodes with a limited remaining lifespan.

use serde_json::{Value, json};

use super::{
    context::{Denial, InjectionError},
    pod::{PodView, equality::is_same_toleration},
    reason::{Note, Reason, truncated},
};
use crate::{
    config::lifespan::Lifespan,
    patch::{ListPosition, PatchBuilder, pointer},
};

/// Adds tolerations for all lifespans from the pod's request to the maximum.
pub(super) fn apply(
    builder: &mut PatchBuilder,
    settings: &Lifespan,
    notes: &mut Vec<Note>,
) -> Result<(), InjectionError> {
    let pod = PodView::new(builder.object());
    let Some(text) = pod.label(&settings.label) else { return Ok(()) };
    let requested = parse_lifespan(text, settings).map_err(InjectionError::Denied)?;
    let present = pod.items("tolerations");
    let wanted = (requested..=settings.most).map(|lifespan| {
        json!({
            "key": settings.taint,
            "operator": "Equal",
            "value": lifespan.to_string(),
            "effect": settings.effect.as_str(),
        })
    });
    let new: Vec<Value> =
        wanted.filter(|wanted| !present.iter().any(|present| tolerates(present, wanted))).collect();
    notes.push(Note::without_warning(if new.is_empty() {
        Reason::AlreadyInjected
    } else {
        Reason::Lifespan
    }));
    builder.add_items(&pointer(["spec", "tolerations"]), new, ListPosition::Last)?;
    Ok(())
}

/// Whether a toleration covers `wanted`.
fn tolerates(present: &Value, wanted: &Value) -> bool {
    let field = |key: &str| present.get(key).and_then(Value::as_str).unwrap_or_default();
    let any_value = field("operator") == "Exists"
        && (field("key").is_empty() || wanted.get("key").is_some_and(|key| *key == field("key")))
        && (field("effect").is_empty()
            || wanted.get("effect").is_some_and(|effect| *effect == field("effect")));
    any_value || is_same_toleration(present, wanted)
}

fn parse_lifespan(text: &str, settings: &Lifespan) -> Result<u32, Denial> {
    let Lifespan { label, least, most, .. } = settings;
    // The parsers of Go and Rust accept a plus sign, with which the value of a label cannot begin.
    match text.parse::<u32>() {
        Ok(lifespan) if (*least..=*most).contains(&lifespan) => Ok(lifespan),
        _ => Err(Denial {
            reason: Reason::BadLifespan,
            message: format!(
                "label {label}: {:?} is not a whole number from {least} to {most}",
                truncated(text)
            ),
        }),
    }
}
