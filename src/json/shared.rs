//! A part of a configuration that many objects get as it is.

use std::ops::Deref;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use super::Json;

/// A value that many objects get, read and written once.
#[derive(Clone, Debug)]
pub struct Shared {
    value: Value,
    json: Json<'static>,
    text: String,
}

// === impl Shared ===

impl Shared {
    /// The value, as configurations are checked.
    #[must_use]
    pub fn value(&self) -> &Value {
        &self.value
    }

    /// The value, as objects are looked at.
    #[must_use]
    pub fn json(&self) -> &Json<'static> {
        &self.json
    }

    /// As it is written.
    pub(super) fn text(&self) -> &str {
        &self.text
    }
}

impl From<Value> for Shared {
    fn from(value: Value) -> Self {
        Self { json: value.clone().into(), text: value.to_string(), value }
    }
}

impl Deref for Shared {
    type Target = Value;

    fn deref(&self) -> &Value {
        &self.value
    }
}

impl PartialEq for Shared {
    fn eq(&self, other: &Self) -> bool {
        self.value == other.value
    }
}

impl<'de> Deserialize<'de> for Shared {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Value::deserialize(deserializer).map(Self::from)
    }
}

impl Serialize for Shared {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.value.serialize(serializer)
    }
}
