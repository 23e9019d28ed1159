//! Tolerations for nodes with little time left.

use serde_json::json;

use super::Stop;
use super::{
    Denial,
    choose::shortened,
    content::is_same_toleration,
    pod::Pod,
    reason::{Note, Reason},
};
use crate::{
    config::Lifespan,
    json::Json,
    patch::{Draft, Place, pointer},
};

pub(super) fn apply(draft: &mut Draft<'_>, settings: &Lifespan, notes: &mut Vec<Note>) -> Result<(), Stop> {
    let pod = Pod::of(draft.object());
    let Some(text) = pod.label(&settings.label) else { return Ok(()) };
    let asked = asked(text, settings).map_err(Stop::Denied)?;
    let present = pod.items("tolerations");
    let wanted = (asked..=settings.most).map(|lifespan| {
        Json::from(json!({
            "key": settings.taint,
            "operator": "Equal",
            "value": lifespan.to_string(),
            "effect": settings.effect.word(),
        }))
    });
    let new: Vec<Json<'_>> =
        wanted.filter(|it| !present.iter().any(|present| tolerates(present, it))).collect();
    notes.push(Note::done(if new.is_empty() { Reason::AlreadyInjected } else { Reason::Lifespan }));
    draft.add_items(&pointer(["spec", "tolerations"]), new, Place::Last)?;
    Ok(())
}

/// Whether a toleration tolerates at least what `wanted` does.
fn tolerates(present: &Json<'_>, wanted: &Json<'_>) -> bool {
    let field = |key: &str| present.get(key).and_then(Json::as_str).unwrap_or_default();
    let any_value = field("operator") == "Exists"
        && (field("key").is_empty() || wanted.get("key").is_some_and(|key| *key == field("key")))
        && (field("effect").is_empty() || wanted.get("effect").is_some_and(|it| *it == field("effect")));
    any_value || is_same_toleration(present, wanted)
}

fn asked(text: &str, settings: &Lifespan) -> Result<u32, Denial> {
    let Lifespan { label, least, most, .. } = settings;
    // Go's and Rust's parsers know a plus sign; a label's value cannot begin with one.
    match text.parse::<u32>() {
        Ok(asked) if (*least..=*most).contains(&asked) => Ok(asked),
        _ => Err(Denial {
            reason: Reason::BadLifespan,
            message: format!(
                "label {label}: {:?} is no whole number from {least} to {most}",
                shortened(text)
            ),
        }),
    }
}
