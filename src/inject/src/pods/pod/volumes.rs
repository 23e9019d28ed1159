//! Additions of volumes to a pod.

use std::{borrow::Cow, collections::BTreeMap};

use serde_json::Value;

use super::{
    equality::is_same,
    view::{PodView, with_member},
};

/// Maximum length of a volume's name, which is a DNS label.
const MAX_NAME_LENGTH: usize = 63;

/// A volume with the name that it has in the pod.
#[derive(Debug)]
pub(crate) struct PlacedVolume<'a> {
    /// The name that mounts refer to.
    pub(crate) name: Cow<'a, str>,
    /// The volume, unless the pod already has it.
    pub(crate) new: Option<Value>,
}

/// Chooses a name for a volume: its own name, or `other_name` if a different volume of the pod or of `placed_names` has
/// its own name. Returns `None` if both names are in use.
pub(crate) fn place<'a>(
    pod: PodView<'_>,
    volume: &'a Value,
    other_name: impl FnOnce() -> Option<String>,
    placed_names: &BTreeMap<&str, Cow<'_, str>>,
) -> Option<PlacedVolume<'a>> {
    let name = volume.get("name").and_then(Value::as_str)?;
    let is_free = |name: &str| placed_names.values().all(|placed| placed != name);
    let with_own_name = is_free(name).then(|| place_as(pod, volume.clone(), Cow::Borrowed(name))).flatten();
    with_own_name.or_else(|| {
        let other_name = other_name()?;
        let name = truncated(&other_name);
        let volume = with_member(volume.clone(), "name", name);
        is_free(name).then(|| place_as(pod, volume, Cow::Owned(name.to_owned()))).flatten()
    })
}

/// Places a volume under a name, unless the pod has a different volume of that name.
fn place_as<'a>(pod: PodView<'_>, volume: Value, name: Cow<'a, str>) -> Option<PlacedVolume<'a>> {
    let new = match pod.volume(&name) {
        None => Some(volume),
        Some(present) if is_same(present, &volume) => None,
        Some(_) => return None,
    };
    Some(PlacedVolume { name, new })
}

fn truncated(name: &str) -> &str {
    name.get(..MAX_NAME_LENGTH).unwrap_or(name).trim_end_matches('-')
}
