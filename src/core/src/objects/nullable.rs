//! Fields that are null instead of absent.

use serde::{Deserialize, Deserializer};

/// Deserializes null as the default: Go encodes an empty slice or map as null unless its field is `omitempty`.
pub fn null_as_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}
