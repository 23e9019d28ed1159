//! The quantities in parts of pods. Where one is none, an apiserver cannot even decode the pod that got it.

use json_patch::jsonptr::{Pointer, PointerBuf};
use serde_json::Value;

use super::Check;
use crate::k8s::quantity::Quantity;

/// The resources without a prefix that containers and claims have (`pkg/apis/core/helper/helpers.go`); those of huge pages
/// have this prefix.
const STANDARD: [&str; 4] = ["cpu", "memory", "ephemeral-storage", "storage"];
const HUGE_PAGES: &str = "hugepages-";

/// Writes the quantities of a part of a pod as texts. Kubernetes takes a number as well, and answers with a text: a pod that
/// comes back would not be known again.
pub(super) fn write_as_texts(part: &mut Value) {
    each(part, ["", ""], &mut PointerBuf::new(), &mut |_, quantity| {
        if let Value::Number(number) = quantity {
            *quantity = Value::String(number.to_string());
        }
    });
}

/// Checks the quantities of a part of a pod, as far as they are texts.
pub(super) fn check(part: &mut Value, check: &mut Check<'_>) {
    each(part, ["", ""], &mut PointerBuf::new(), &mut |place, quantity| {
        let Some(text) = quantity.as_str() else { return };
        let mut check = check.at_place(place);
        match Quantity::parse(text) {
            Some(amount) if amount < Quantity::of_whole(0) => check.say(format!("{text} is less than 0")),
            Some(_) => {}
            None => check.say(format!(
                "{text:?} is no quantity: a number is expected, with nothing or one of n, u, m, k, M, G, T, P, E, Ki, Mi, \
                 Gi, Ti, Pi and Ei behind it"
            )),
        }
        let name = place.last().map(|it| it.decoded().into_owned()).unwrap_or_default();
        let is_fixed = matches!(name.as_str(), "sizeLimit" | "divisor");
        let is_standard = STANDARD.contains(&name.as_str()) || name.starts_with(HUGE_PAGES);
        if !is_fixed && !is_standard && !name.contains('/') {
            check.say(format!(
                "is no resource: {}, {HUGE_PAGES}SIZE or one with a prefix is expected",
                STANDARD.join(", ")
            ));
        }
    });
}

/// Calls `seen` with each quantity and its place. `above` and `key` are the keys of the part and of what it is in.
fn each(
    part: &mut Value,
    [above, key]: [&str; 2],
    place: &mut PointerBuf,
    seen: &mut dyn FnMut(&Pointer, &mut Value),
) {
    match part {
        Value::Object(fields) => {
            for (name, field) in fields {
                place.push_back(name.as_str());
                match (above, key, name.as_str()) {
                    ("resources", "limits" | "requests", _)
                    | (_, "emptyDir", "sizeLimit")
                    | (_, "resourceFieldRef", "divisor") => seen(place, field),
                    (_, _, name) => each(field, [key, name], place, seen),
                }
                place.pop_back();
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter_mut().enumerate() {
                place.push_back(index);
                each(item, [above, key], place, seen);
                place.pop_back();
            }
        }
        _ => {}
    }
}
