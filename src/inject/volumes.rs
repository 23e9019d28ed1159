//! Volumes that a pod gets, beside those that it has.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{content::is_same, pod::Pod};

/// The longest name of a volume: a DNS label.
const LONGEST_NAME: usize = 63;

/// A volume that a pod can have.
#[derive(Debug)]
pub(super) struct Placed {
    /// The name under which it is mounted.
    pub(super) name: String,
    /// The volume, if the pod does not have it yet.
    pub(super) new: Option<Value>,
}

/// A volume under its own name; if the pod has another one of that name, or one that was just placed has it, under the
/// other name. `None` if both are taken.
pub(super) fn place(
    pod: Pod<'_>,
    volume: &Value,
    other_name: impl FnOnce() -> Option<String>,
    just_placed: &BTreeMap<&str, String>,
) -> Option<Placed> {
    let name = volume.get("name").and_then(Value::as_str)?;
    let is_free = |name: &str| just_placed.values().all(|it| it != name);
    let own = is_free(name).then(|| place_as(pod, volume.clone(), name)).flatten();
    own.or_else(|| {
        let other_name = other_name()?;
        let name = cut(&other_name);
        is_free(name).then(|| place_as(pod, with_name(volume, name), name)).flatten()
    })
}

/// A volume under its own name, unless the pod has another one of that name.
fn place_as(pod: Pod<'_>, volume: Value, name: &str) -> Option<Placed> {
    let new = match pod.volume(name) {
        None => Some(volume),
        Some(present) if is_same(present, &volume) => None,
        Some(_) => return None,
    };
    Some(Placed { name: name.to_owned(), new })
}

fn cut(name: &str) -> &str {
    name.get(..LONGEST_NAME).unwrap_or(name).trim_end_matches('-')
}

fn with_name(volume: &Value, name: &str) -> Value {
    let mut volume = volume.clone();
    if let Some(map) = volume.as_object_mut() {
        map.insert(String::from("name"), name.into());
    }
    volume
}
