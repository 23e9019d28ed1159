//! JSON that is read of a body, looked at and changed without a copy of what is in it.
//!
//! A `serde_json::Value` owns each key and each text. Here they are borrowed from the body, and what a configuration gives to
//! many pods is shared with it, together with how it is written: decision 0025 has what that saves.

mod abridge;
mod read;
mod shared;
#[cfg(test)]
mod tests;

use std::{borrow::Cow, iter};

use json_patch::jsonptr::{Pointer, Token, index::Index};
use serde::{Serialize, Serializer};
use serde_json::{Map, Number, Value};

pub(crate) use self::{abridge::abridged, read::Text};
pub use self::{
    read::{Reader, read},
    shared::Shared,
};

/// The members of a map, in their order. Of several with one key the last counts, as for Go.
pub type Members<'a> = Vec<(Cow<'a, str>, Json<'a>)>;

/// A JSON value.
#[derive(Clone, Debug)]
pub enum Json<'a> {
    /// `null`
    Null,
    /// `true` or `false`
    Bool(bool),
    /// A number.
    Number(Number),
    /// A text, unescaped.
    Text(Cow<'a, str>),
    /// A list.
    List(Vec<Json<'a>>),
    /// A map.
    Map(Members<'a>),
    /// What many objects have.
    Shared(&'a Shared),
}

// === impl Json ===

impl<'a> Json<'a> {
    /// The value itself, also where it is shared.
    #[must_use]
    pub fn plain(&self) -> &Json<'a> {
        match self {
            Self::Shared(shared) => shared.json(),
            own => own,
        }
    }

    /// A member of a map.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Json<'a>> {
        self.as_map()?.iter().rev().find(|(own, _)| own == key).map(|(_, value)| value)
    }

    /// What is at a place, if there is anything.
    #[must_use]
    pub fn at(&self, place: &Pointer) -> Option<&Json<'a>> {
        steps(place).try_fold(self, |it, step| it.child(&step))
    }

    /// The same, to be changed.
    pub fn at_mut(&mut self, place: &Pointer) -> Option<&mut Json<'a>> {
        steps(place).try_fold(self, |it, step| it.child_mut(&step))
    }

    /// The text of a text.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        if let Self::Text(text) = self.plain() { Some(text) } else { None }
    }

    /// The items of a list.
    #[must_use]
    pub fn as_list(&self) -> Option<&[Json<'a>]> {
        if let Self::List(items) = self.plain() { Some(items) } else { None }
    }

    /// The members of a map.
    #[must_use]
    pub fn as_map(&self) -> Option<&Members<'a>> {
        if let Self::Map(members) = self.plain() { Some(members) } else { None }
    }

    /// A whole number that is not negative.
    #[must_use]
    pub fn as_u64(&self) -> Option<u64> {
        if let Self::Number(number) = self.plain() { number.as_u64() } else { None }
    }

    /// The items of a list; none of anything else.
    #[must_use]
    pub fn items(&self) -> &[Json<'a>] {
        self.as_list().unwrap_or_default()
    }

    /// Whether it is null.
    #[must_use]
    pub fn is_null(&self) -> bool {
        matches!(self.plain(), Self::Null)
    }

    /// Whether it is `true`.
    #[must_use]
    pub fn is_true(&self) -> bool {
        matches!(self.plain(), Self::Bool(true))
    }

    /// Writes it behind what is written. Nothing if it cannot be written, which is never seen.
    pub(crate) fn write(&self, out: &mut Vec<u8>) -> Option<()> {
        match self {
            Self::Shared(shared) => out.extend_from_slice(shared.text().as_bytes()),
            Self::Text(text) => write_text(text, out)?,
            Self::List(items) => {
                out.push(b'[');
                for (index, item) in items.iter().enumerate() {
                    if index > 0 {
                        out.push(b',');
                    }
                    item.write(out)?;
                }
                out.push(b']');
            }
            Self::Map(members) => {
                out.push(b'{');
                for (index, (key, value)) in members.iter().enumerate() {
                    if index > 0 {
                        out.push(b',');
                    }
                    write_text(key, out)?;
                    out.push(b':');
                    value.write(out)?;
                }
                out.push(b'}');
            }
            Self::Null => out.extend_from_slice(b"null"),
            Self::Bool(true) => out.extend_from_slice(b"true"),
            Self::Bool(false) => out.extend_from_slice(b"false"),
            Self::Number(number) => serde_json::to_writer(out, number).ok()?,
        }
        Some(())
    }

    fn child(&self, step: &str) -> Option<&Json<'a>> {
        match self.plain() {
            Self::List(items) => items.get(index(step, items.len())?),
            it => it.get(step),
        }
    }

    fn child_mut(&mut self, step: &str) -> Option<&mut Json<'a>> {
        match self.own() {
            Self::List(items) => {
                let index = index(step, items.len())?;
                items.get_mut(index)
            }
            Self::Map(members) => {
                members.iter_mut().rev().find(|(key, _)| key == step).map(|(_, value)| value)
            }
            _ => None,
        }
    }

    /// A map with this member, whether or not it had one of the key; what is no map as it is.
    #[must_use]
    pub fn with(mut self, key: &'a str, value: impl Into<Json<'a>>) -> Self {
        if let Self::Map(members) = self.own() {
            members.retain(|(own, _)| own != key);
            members.push((Cow::Borrowed(key), value.into()));
        }
        self
    }

    /// The value itself, to be changed: what was shared no longer is.
    pub(crate) fn own(&mut self) -> &mut Self {
        if let Self::Shared(shared) = self {
            *self = Self::from(shared.value());
        }
        self
    }
}

/// The steps of a pointer, unescaped.
fn steps(place: &Pointer) -> impl Iterator<Item = Cow<'_, str>> {
    // Behind the slash that it begins with; the root has none.
    let mut rest = place.as_str().get(1..);
    iter::from_fn(move || {
        let left = rest?;
        // By bytes: steps are short, and a search for a character takes longer to begin than to find it.
        let end = left.bytes().position(|it| it == b'/');
        rest = end.and_then(|end| left.get(end + 1..));
        Some(unescaped(end.and_then(|end| left.get(..end)).unwrap_or(left)))
    })
}

fn unescaped(step: &str) -> Cow<'_, str> {
    if step.bytes().any(|it| it == b'~') {
        Token::from_encoded(step).map_or(Cow::Borrowed(step), |it| Cow::Owned(it.decoded().into_owned()))
    } else {
        Cow::Borrowed(step)
    }
}

/// The index of an item that a list of this length has.
fn index(step: &str, length: usize) -> Option<usize> {
    step.parse::<Index>().ok()?.for_len(length).ok()
}

/// Writes a text behind what is written, as [`Json::write`] does.
pub(crate) fn write_text(text: &str, out: &mut Vec<u8>) -> Option<()> {
    // Most texts have nothing to be escaped, and are copied at once.
    if text.bytes().any(|it| it < b' ' || it == b'"' || it == b'\\') {
        return serde_json::to_writer(out, text).ok();
    }
    out.reserve(text.len() + 2);
    out.push(b'"');
    out.extend_from_slice(text.as_bytes());
    out.push(b'"');
    Some(())
}

impl PartialEq<Json<'_>> for Json<'_> {
    fn eq(&self, other: &Json<'_>) -> bool {
        match (self.plain(), other.plain()) {
            (Json::Null, Json::Null) => true,
            (Json::Bool(a), Json::Bool(b)) => a == b,
            (Json::Number(a), Json::Number(b)) => a == b,
            (Json::Text(a), Json::Text(b)) => a == b,
            (Json::List(a), Json::List(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a == b),
            (Json::Map(a), Json::Map(b)) => {
                a.len() == b.len()
                    && a.iter().all(|(key, value)| other.get(key).is_some_and(|it| it == value))
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

impl<'a> From<&'a Shared> for Json<'a> {
    fn from(shared: &'a Shared) -> Self {
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
