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
    other_name: Option<&str>,
    just_placed: &BTreeMap<&str, String>,
) -> Option<Placed> {
    let name = volume.get("name").and_then(Value::as_str)?;
    let other_name = other_name.map(cut);
    let is_free = |name: &&str| just_placed.values().all(|it| it != name);
    [Some(name), other_name].into_iter().flatten().filter(is_free).find_map(|name| {
        let renamed = with_name(volume, name);
        let name = name.to_owned();
        match pod.volume(&name) {
            None => Some(Placed { name, new: Some(renamed) }),
            Some(present) => {
                is_same(&Value::Object(present.clone()), &renamed).then_some(Placed { name, new: None })
            }
        }
    })
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
