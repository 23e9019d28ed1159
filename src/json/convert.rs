//! Comparisons and conversions of JSON values.

use std::{borrow::Cow, ops::Deref};

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

use super::value::{Json, SharedJson};

// === impl Json ===

impl PartialEq<Json<'_>> for Json<'_> {
    fn eq(&self, other: &Json<'_>) -> bool {
        match (self.resolved(), other.resolved()) {
            (Json::Null, Json::Null) => true,
            (Json::Bool(a), Json::Bool(b)) => a == b,
            (Json::Number(a), Json::Number(b)) => a == b,
            (Json::Text(a), Json::Text(b)) => a == b,
            (Json::List(a), Json::List(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a == b),
            (Json::Map(a), Json::Map(b)) => {
                a.len() == b.len()
                    && a.iter().all(|(key, value)| other.get(key).is_some_and(|other| other == value))
            }
            _ => false,
        }
    }
}

impl PartialEq<str> for Json<'_> {
    fn eq(&self, text: &str) -> bool {
        self.as_str() == Some(text)
    }
}

impl PartialEq<&str> for Json<'_> {
    fn eq(&self, text: &&str) -> bool {
        self == *text
    }
}

impl From<bool> for Json<'_> {
    fn from(value: bool) -> Self {
        Self::Bool(value)
    }
}

impl From<u32> for Json<'_> {
    fn from(number: u32) -> Self {
        Self::Number(number.into())
    }
}

impl From<String> for Json<'_> {
    fn from(text: String) -> Self {
        Self::Text(Cow::Owned(text))
    }
}

impl<'a> From<&'a str> for Json<'a> {
    fn from(text: &'a str) -> Self {
        Self::Text(Cow::Borrowed(text))
    }
}

impl<'a> From<&'a SharedJson> for Json<'a> {
    fn from(shared: &'a SharedJson) -> Self {
        Self::Shared(shared)
    }
}

impl From<Value> for Json<'_> {
    fn from(value: Value) -> Self {
        match value {
            Value::Null => Self::Null,
            Value::Bool(value) => Self::Bool(value),
            Value::Number(number) => Self::Number(number),
            Value::String(text) => text.into(),
            Value::Array(items) => Self::List(items.into_iter().map(Self::from).collect()),
            Value::Object(members) => {
                Self::Map(members.into_iter().map(|(key, value)| (key.into(), value.into())).collect())
            }
        }
    }
}

impl<'a> From<&'a Value> for Json<'a> {
    fn from(value: &'a Value) -> Self {
        match value {
            Value::Null => Self::Null,
            Value::Bool(value) => Self::Bool(*value),
            Value::Number(number) => Self::Number(number.clone()),
            Value::String(text) => text.as_str().into(),
            Value::Array(items) => Self::List(items.iter().map(Self::from).collect()),
            Value::Object(members) => {
                Self::Map(members.iter().map(|(key, value)| (key.into(), value.into())).collect())
            }
        }
    }
}

impl From<&Json<'_>> for Value {
    fn from(json: &Json<'_>) -> Self {
        match json {
            Json::Null => Self::Null,
            Json::Bool(value) => Self::Bool(*value),
            Json::Number(number) => Self::Number(number.clone()),
            Json::Text(text) => Self::String(text.clone().into_owned()),
            Json::List(items) => Self::Array(items.iter().map(Self::from).collect()),
            Json::Map(members) => {
                let members = members.iter().map(|(key, value)| (key.clone().into_owned(), value.into()));
                Self::Object(members.collect::<Map<_, _>>())
            }
            Json::Shared(shared) => shared.value().clone(),
        }
    }
}

impl Serialize for Json<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Value::from(self).serialize(serializer)
    }
}

// === impl SharedJson ===

impl From<Value> for SharedJson {
    fn from(value: Value) -> Self {
        Self { json: value.clone().into(), serialized: value.to_string(), value }
    }
}

impl Deref for SharedJson {
    type Target = Value;

    fn deref(&self) -> &Value {
        &self.value
    }
}

impl PartialEq for SharedJson {
    fn eq(&self, other: &Self) -> bool {
        self.value == other.value
    }
}

impl<'de> Deserialize<'de> for SharedJson {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Value::deserialize(deserializer).map(Self::from)
    }
}

impl Serialize for SharedJson {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.value.serialize(serializer)
    }
}
