//! Volumes that a pod gets, beside those that it has.

use std::{borrow::Cow, collections::BTreeMap};

use super::{content::is_same, pod::Pod};
use crate::json::{Json, Shared};

/// The longest name of a volume: a DNS label.
const LONGEST_NAME: usize = 63;

/// A volume that a pod can have.
#[derive(Debug)]
pub(super) struct Placed<'a> {
    /// The name under which it is mounted.
    pub(super) name: Cow<'a, str>,
    /// The volume, if the pod does not have it yet.
    pub(super) new: Option<Json<'a>>,
}

/// A volume under its own name; if the pod has another one of that name, or one that was just placed has it, under the
/// other name. `None` if both are taken.
pub(super) fn place<'a>(
    pod: Pod<'_>,
    volume: &'a Shared,
    other_name: impl FnOnce() -> Option<String>,
    just_placed: &BTreeMap<&str, Cow<'_, str>>,
) -> Option<Placed<'a>> {
    let name = volume.json().get("name").and_then(Json::as_str)?;
    let is_free = |name: &str| just_placed.values().all(|it| it != name);
    let own = is_free(name).then(|| place_as(pod, volume.into(), Cow::Borrowed(name))).flatten();
    own.or_else(|| {
        let other_name = other_name()?;
        let name = cut(&other_name);
        let volume = Json::from(volume).with("name", name.to_owned());
        is_free(name).then(|| place_as(pod, volume, Cow::Owned(name.to_owned()))).flatten()
    })
}

/// A volume under its own name, unless the pod has another one of that name.
fn place_as<'a>(pod: Pod<'_>, volume: Json<'a>, name: Cow<'a, str>) -> Option<Placed<'a>> {
    let new = match pod.volume(&name) {
        None => Some(volume),
        Some(present) if is_same(present, &volume) => None,
        Some(_) => return None,
    };
    Some(Placed { name, new })
}

fn cut(name: &str) -> &str {
    name.get(..LONGEST_NAME).unwrap_or(name).trim_end_matches('-')
}
