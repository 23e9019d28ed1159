//! JSON values that borrow from a request or share parts of a configuration.

use std::{borrow::Cow, iter};

use json_patch::jsonptr::{Pointer, Token, index::Index};
use serde_json::{Number, Value};

/// The members of a map, in order. If a key occurs several times, the last member is effective, as in Go.
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
    /// An unescaped text.
    Text(Cow<'a, str>),
    /// A list.
    List(Vec<Json<'a>>),
    /// A map.
    Map(Members<'a>),
    /// A value of the configuration that many objects contain.
    Shared(&'a SharedJson),
}

/// A value of the configuration that many objects contain, parsed and serialized once.
#[derive(Clone, Debug)]
pub struct SharedJson {
    pub(super) value: Value,
    pub(super) json: Json<'static>,
    pub(super) serialized: String,
}

// === impl Json ===

impl<'a> Json<'a> {
    /// The value, resolved if it is shared: never [`Json::Shared`].
    #[must_use]
    pub fn resolved(&self) -> &Json<'a> {
        match self {
            Self::Shared(shared) => shared.json(),
            value => value,
        }
    }

    /// Returns a member of a map.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Json<'a>> {
        self.as_map()?.iter().rev().find(|(member, _)| member == key).map(|(_, value)| value)
    }

    /// Returns the value at a path.
    #[must_use]
    pub fn at(&self, path: &Pointer) -> Option<&Json<'a>> {
        tokens(path).try_fold(self, |value, token| value.child(&token))
    }

    /// Returns the mutable value at a path.
    pub fn at_mut(&mut self, path: &Pointer) -> Option<&mut Json<'a>> {
        tokens(path).try_fold(self, |value, token| value.child_mut(&token))
    }

    /// The content of a text.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        if let Self::Text(text) = self.resolved() { Some(text) } else { None }
    }

    /// The items of a list.
    #[must_use]
    pub fn as_list(&self) -> Option<&[Json<'a>]> {
        if let Self::List(items) = self.resolved() { Some(items) } else { None }
    }

    /// The members of a map.
    #[must_use]
    pub fn as_map(&self) -> Option<&Members<'a>> {
        if let Self::Map(members) = self.resolved() { Some(members) } else { None }
    }

    /// A whole number that is not negative.
    #[must_use]
    pub fn as_u64(&self) -> Option<u64> {
        if let Self::Number(number) = self.resolved() { number.as_u64() } else { None }
    }

    /// The items of a list; empty for all other values.
    #[must_use]
    pub fn items(&self) -> &[Json<'a>] {
        self.as_list().unwrap_or_default()
    }

    /// Whether the value is null.
    #[must_use]
    pub fn is_null(&self) -> bool {
        matches!(self.resolved(), Self::Null)
    }

    /// Whether the value is `true`.
    #[must_use]
    pub fn is_true(&self) -> bool {
        matches!(self.resolved(), Self::Bool(true))
    }

    /// Whether this is the boolean `false`.
    #[must_use]
    pub fn is_false(&self) -> bool {
        matches!(self.resolved(), Self::Bool(false))
    }

    /// Appends the serialized value to `out`. `None` if serialization fails, which no input is known to cause.
    pub(crate) fn write(&self, out: &mut Vec<u8>) -> Option<()> {
        match self {
            Self::Shared(shared) => out.extend_from_slice(shared.serialized.as_bytes()),
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

    fn child(&self, token: &str) -> Option<&Json<'a>> {
        match self.resolved() {
            Self::List(items) => items.get(index(token, items.len())?),
            value => value.get(token),
        }
    }

    fn child_mut(&mut self, token: &str) -> Option<&mut Json<'a>> {
        match self.unshare() {
            Self::List(items) => {
                let index = index(token, items.len())?;
                items.get_mut(index)
            }
            Self::Map(members) => {
                members.iter_mut().rev().find(|(key, _)| key == token).map(|(_, value)| value)
            }
            _ => None,
        }
    }

    /// Sets a member of a map and returns the map. Values other than maps are returned unchanged.
    #[must_use]
    pub fn with(mut self, key: &'a str, value: impl Into<Json<'a>>) -> Self {
        if let Self::Map(members) = self.unshare() {
            members.retain(|(member, _)| member != key);
            members.push((Cow::Borrowed(key), value.into()));
        }
        self
    }

    /// Returns the value for a change: a shared value is replaced by a copy first.
    pub(crate) fn unshare(&mut self) -> &mut Self {
        if let Self::Shared(shared) = self {
            *self = Self::from(shared.value());
        }
        self
    }
}

/// The tokens of a path, unescaped.
fn tokens(path: &Pointer) -> impl Iterator<Item = Cow<'_, str>> {
    // Skips the leading slash; the path of the root is empty.
    let mut rest = path.as_str().get(1..);
    iter::from_fn(move || {
        let left = rest?;
        // By bytes: tokens are short, and starting a substring search takes longer than a scan.
        let end = left.bytes().position(|byte| byte == b'/');
        rest = end.and_then(|end| left.get(end + 1..));
        Some(unescaped(end.and_then(|end| left.get(..end)).unwrap_or(left)))
    })
}

fn unescaped(token: &str) -> Cow<'_, str> {
    if token.bytes().any(|byte| byte == b'~') {
        Token::from_encoded(token)
            .map_or(Cow::Borrowed(token), |decoder| Cow::Owned(decoder.decoded().into_owned()))
    } else {
        Cow::Borrowed(token)
    }
}

/// The index that a token denotes in a list of this length, if it is in range.
fn index(token: &str, length: usize) -> Option<usize> {
    token.parse::<Index>().ok()?.for_len(length).ok()
}

/// Appends a serialized text to `out`. `None` if serialization fails, as [`Json::write`].
pub(crate) fn write_text(text: &str, out: &mut Vec<u8>) -> Option<()> {
    // Most texts need no escaping and are copied as a whole.
    if text.bytes().any(|byte| byte < b' ' || byte == b'"' || byte == b'\\') {
        return serde_json::to_writer(out, text).ok();
    }
    out.reserve(text.len() + 2);
    out.push(b'"');
    out.extend_from_slice(text.as_bytes());
    out.push(b'"');
    Some(())
}

// === impl SharedJson ===

impl SharedJson {
    /// The value, for the validation of the configuration.
    #[must_use]
    pub fn value(&self) -> &Value {
        &self.value
    }

    /// The value, for comparisons with parts of objects.
    #[must_use]
    pub fn json(&self) -> &Json<'static> {
        &self.json
    }
}
