//! Quantities in parts of pods. An API server cannot decode a pod with an invalid quantity.

use json_patch::jsonptr::{Pointer, PointerBuf};
use serde_json::Value;

use super::diagnostic::Validator;
use crate::objects::quantity::Quantity;

/// The resources without a domain prefix of containers and claims (`pkg/apis/core/helper/helpers.go`).
const STANDARD_RESOURCES: [&str; 4] = ["cpu", "memory", "ephemeral-storage", "storage"];
/// The prefix of the resources of huge pages.
const HUGE_PAGES: &str = "hugepages-";

/// Converts numeric quantities in a part of a pod to strings. Kubernetes accepts numbers but returns strings, so that a
/// pod that is submitted again would not match the template.
pub fn convert_to_strings(part: &mut Value) {
    visit_quantities(part, ["", ""], &mut PointerBuf::new(), &mut |_, quantity| {
        if let Value::Number(number) = quantity {
            *quantity = Value::String(number.to_string());
        }
    });
}

/// Validates the quantities in a part of a pod. Values that are not strings are left to the type check.
pub fn validate(part: &mut Value, validator: &mut Validator<'_>) {
    visit_quantities(part, ["", ""], &mut PointerBuf::new(), &mut |pointer, quantity| {
        let Some(text) = quantity.as_str() else { return };
        let mut validator = validator.at_pointer(pointer);
        match Quantity::parse(text) {
            Some(amount) if amount < Quantity::from_units(0) => validator.report(format!("{text} is negative")),
            Some(_) => {}
            None => validator.report(format!(
                "{text:?} is not a quantity: expected a number with an optional suffix n, u, m, k, M, G, T, P, E, Ki, Mi, \
                 Gi, Ti, Pi or Ei"
            )),
        }
        let name = pointer.last().map(|token| token.decoded().into_owned()).unwrap_or_default();
        let is_fixed = matches!(name.as_str(), "sizeLimit" | "divisor");
        let is_standard = STANDARD_RESOURCES.contains(&name.as_str()) || name.starts_with(HUGE_PAGES);
        if !is_fixed && !is_standard && !name.contains('/') {
            validator.report(format!(
                "is not a resource name: expected {}, {HUGE_PAGES}SIZE or a name with a domain prefix",
                STANDARD_RESOURCES.join(", ")
            ));
        }
    });
}

/// Calls `visit` with each quantity and its pointer. `parent` and `key` are the two innermost keys above `part`.
fn visit_quantities(
    part: &mut Value,
    [parent, key]: [&str; 2],
    pointer: &mut PointerBuf,
    visit: &mut dyn FnMut(&Pointer, &mut Value),
) {
    match part {
        Value::Object(fields) => {
            for (name, field) in fields {
                pointer.push_back(name.as_str());
                match (parent, key, name.as_str()) {
                    ("resources", "limits" | "requests", _)
                    | (_, "emptyDir", "sizeLimit")
                    | (_, "resourceFieldRef", "divisor") => visit(pointer, field),
                    (_, _, name) => visit_quantities(field, [key, name], pointer, visit),
                }
                pointer.pop_back();
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter_mut().enumerate() {
                pointer.push_back(index);
                visit_quantities(item, [parent, key], pointer, visit);
                pointer.pop_back();
            }
        }
        _ => {}
    }
}
