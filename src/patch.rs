//! A draft of an object that somebody else owns: changes are made on untyped JSON and told as RFC 6902 operations.
//!
//! What the apiserver sends may hold fields that no library knows yet, so nothing is ever read into types and written
//! back. A draft adds; what is there stays as it is. The two exceptions are named for what they are, and meant for
//! what this program wrote itself: [`Draft::rewrite`] and [`Draft::take_back`].
//!
//! A patch that does not apply fails the request even where the webhook's `failurePolicy` is `Ignore` (apiserver
//! `pkg/admission/plugin/webhook/mutating/dispatcher.go`). So a draft never changes the object otherwise than by applying
//! an operation, from the root on by the path that the apiserver will read, in the moment in which it is added; and what
//! the operation says to be there is then read from where the path leads. The object with all changes is what the
//! operations make of the object as it came, or there is an error and no patch.
//!
//! Operations are applied here and not by `json_patch`, which copies each value and allocates twice per step of a path:
//! decision 0024 has the figures. That both make the same of any pod is a property test.

mod object;
#[cfg(test)]
mod tests;

use json_patch::jsonptr::{Pointer, PointerBuf, Resolve, ResolveMut, Token};
use serde::{Serialize, Serializer};
use serde_json::{Map, Value};

pub use self::object::read;

/// An object and what was changed on it.
#[derive(Debug)]
pub struct Draft {
    /// What the operations make of the object as it came.
    object: Value,
    patch: Patch,
    /// Whether one of them did not apply: the object is then nothing that anybody wanted.
    is_broken: bool,
}

/// A JSON patch, in JSON from the beginning: as values, the operations would be as much work again as the object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Patch {
    /// An open bracket and the operations, with commas between them; nothing without an operation.
    text: Vec<u8>,
    count: usize,
}

/// What an operation does at its path.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Verb {
    Add,
    Replace,
    Remove,
}

/// Where items go in a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Before the item that has this index so far, in the order in which they are given.
    Before(usize),
    /// Behind all others.
    Last,
}

/// What a draft came to.
#[derive(Debug)]
pub struct Finished {
    /// The object with all changes.
    pub object: Value,
    /// The operations that lead to it from the object as it came; empty if nothing was changed.
    pub patch: Patch,
}

/// A change that the object has no place for, or a patch that does not lead where it should.
#[derive(Debug, thiserror::Error)]
pub enum PatchError {
    /// The object is not shaped as its kind says.
    #[error("{place} is no {wanted}")]
    WrongShape {
        /// A JSON pointer.
        place: PointerBuf,
        /// `map` or `list`.
        wanted: &'static str,
    },
    /// An operation does not apply to the object as the ones before it made it.
    #[error("the patch does not apply at {0}")]
    DoesNotApply(PointerBuf),
    /// It applies, and leads elsewhere.
    #[error("the patch does not lead to the object that was meant")]
    LeadsElsewhere,
}

/// A JSON pointer of these steps; each is escaped as it must be.
pub fn pointer<'a>(steps: impl IntoIterator<Item = &'a str>) -> PointerBuf {
    PointerBuf::from_tokens(steps.into_iter().map(Token::new))
}

// === impl Draft ===

impl Draft {
    /// A draft of `object`, without a change.
    #[must_use]
    pub fn new(object: Value) -> Self {
        Self { object, patch: Patch::default(), is_broken: false }
    }

    /// The object with the changes so far.
    #[must_use]
    pub fn object(&self) -> &Value {
        &self.object
    }

    /// Whether nothing was changed so far.
    #[must_use]
    pub fn is_unchanged(&self) -> bool {
        self.patch.is_empty()
    }

    /// How many operations the changes so far are.
    #[must_use]
    pub fn changes(&self) -> usize {
        self.patch.len()
    }

    /// Adds members to a map, which is made if there is none. Members that are there stay: null counts as absent, as in
    /// Go.
    pub fn add_members(
        &mut self,
        map: &Pointer,
        members: impl IntoIterator<Item = (String, Value)>,
    ) -> Result<(), PatchError> {
        let present = match self.get(map) {
            None => None,
            Some(Value::Object(present)) => Some(present),
            Some(_) => return Err(PatchError::WrongShape { place: map.to_buf(), wanted: "map" }),
        };
        let is_new = |key: &str| present.and_then(|it| it.get(key)).is_none_or(Value::is_null);
        let members: Map<String, Value> = members.into_iter().filter(|(key, _)| is_new(key)).collect();
        let exists = present.is_some();
        if members.is_empty() {
            return Ok(());
        }
        if exists {
            for (key, value) in members {
                self.add(&map.with_trailing_token(key), value)?;
            }
            return Ok(());
        }
        self.make_parents(map)?;
        self.add(map, Value::Object(members))
    }

    /// Adds items to a list, which is made if there is none.
    pub fn add_items(&mut self, list: &Pointer, items: Vec<Value>, place: Place) -> Result<(), PatchError> {
        if items.is_empty() {
            return Ok(());
        }
        match self.get(list) {
            None => {
                self.make_parents(list)?;
                self.add(list, Value::Array(items))
            }
            Some(Value::Array(_)) => match place {
                Place::Last => self.append(list, items),
                Place::Before(index) => {
                    let place = list.with_trailing_token(index);
                    items.into_iter().rev().try_for_each(|item| self.add(&place, item))
                }
            },
            Some(_) => Err(PatchError::WrongShape { place: list.to_buf(), wanted: "list" }),
        }
    }

    /// Gives a member that this program owns, or whose value it only extends, another value. Without a change of the
    /// value nothing happens.
    pub fn rewrite(&mut self, member: &Pointer, value: Value) -> Result<(), PatchError> {
        match self.object.resolve(member).ok() {
            Some(present) if *present == value => Ok(()),
            Some(_) => self.change(Verb::Replace, member, value),
            None => {
                self.make_parents(member)?;
                self.add(member, value)
            }
        }
    }

    /// Removes a member that this program wrote. Without one nothing happens.
    pub fn take_back(&mut self, member: &Pointer) -> Result<(), PatchError> {
        match self.object.resolve(member).ok() {
            None => Ok(()),
            Some(_) => self.change(Verb::Remove, member, Value::Null),
        }
    }

    /// The object with all changes and the operations that made it, unless one of them did not apply.
    pub fn finish(self) -> Result<Finished, PatchError> {
        let Self { object, patch, is_broken } = self;
        if is_broken { Err(PatchError::LeadsElsewhere) } else { Ok(Finished { object, patch }) }
    }

    /// What is at a place, if it is more than null.
    fn get(&self, place: &Pointer) -> Option<&Value> {
        self.object.resolve(place).ok().filter(|it| !it.is_null())
    }

    /// Makes the maps that lead to a place.
    fn make_parents(&mut self, place: &Pointer) -> Result<(), PatchError> {
        let Some(parent) = place.parent().filter(|it| !it.is_root()) else { return Ok(()) };
        match self.get(parent) {
            Some(Value::Object(_)) => Ok(()),
            Some(_) => Err(PatchError::WrongShape { place: parent.to_buf(), wanted: "map" }),
            None => {
                let parent = parent.to_buf();
                self.make_parents(&parent)?;
                self.add(&parent, Value::Object(Map::new()))
            }
        }
    }

    /// Adds items behind those of a list that is there: one way from the root for all of them.
    fn append(&mut self, list: &Pointer, items: Vec<Value>) -> Result<(), PatchError> {
        let path = list.with_trailing_token("-");
        let Ok(Value::Array(present)) = self.object.resolve_mut(list) else {
            self.is_broken = true;
            return Err(PatchError::DoesNotApply(path));
        };
        let mut told = Some(());
        for item in items {
            present.push(item);
            told = told.and(self.patch.push(Verb::Add, &path, present.last()));
        }
        self.is_broken |= told.is_none();
        told.ok_or(PatchError::LeadsElsewhere)
    }

    fn add(&mut self, path: &Pointer, value: Value) -> Result<(), PatchError> {
        self.change(Verb::Add, path, value)
    }

    fn change(&mut self, verb: Verb, path: &Pointer, value: Value) -> Result<(), PatchError> {
        let error = if apply(&mut self.object, verb, path, value).is_none() {
            PatchError::DoesNotApply(path.to_buf())
        } else {
            match self.patch.push(verb, path, value_at(&self.object, path)) {
                Some(()) => return Ok(()),
                None => PatchError::LeadsElsewhere,
            }
        };
        self.is_broken = true;
        Err(error)
    }
}

/// Does what an operation says, as RFC 6902 has it, except that no member is replaced by an addition. Nothing if it does
/// not apply.
fn apply(object: &mut Value, verb: Verb, path: &Pointer, value: Value) -> Option<()> {
    let (parent, last) = path.split_back()?;
    match (verb, object.resolve_mut(parent).ok()?) {
        (Verb::Add, Value::Object(map)) => {
            map.insert(last.decoded().into_owned(), value).is_none_or(|it| it.is_null()).then_some(())
        }
        (Verb::Add, Value::Array(items)) => {
            let index = last.to_index().ok()?.for_len_incl(items.len()).ok()?;
            items.insert(index, value);
            Some(())
        }
        (Verb::Replace, Value::Object(map)) => {
            *map.get_mut(last.decoded().as_ref())? = value;
            Some(())
        }
        (Verb::Remove, Value::Object(map)) => map.remove(last.decoded().as_ref()).map(drop),
        _ => None,
    }
}

/// What is at an operation's path after it was applied.
fn value_at<'a>(object: &'a Value, path: &Pointer) -> Option<&'a Value> {
    let (parent, last) = path.split_back()?;
    match object.resolve(parent).ok()? {
        Value::Array(items) => items.get(last.to_index().ok()?.for_len(items.len()).ok()?),
        Value::Object(map) => map.get(last.decoded().as_ref()),
        _ => None,
    }
}

// === impl Patch ===

impl Patch {
    /// Whether it changes nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// How many operations it has.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count
    }

    /// The whole patch in JSON; nothing if it changes nothing.
    #[must_use]
    pub fn into_json(mut self) -> Option<Vec<u8>> {
        if self.is_empty() {
            return None;
        }
        self.text.push(b']');
        Some(self.text)
    }

    /// The operations, read from the JSON.
    #[must_use]
    pub fn operations(&self) -> json_patch::Patch {
        let json = self.clone().into_json().unwrap_or_default();
        serde_json::from_slice(&json).unwrap_or_default()
    }

    /// Writes an operation that was applied, of which `value` was found at its path. Nothing if it did not do what it says.
    fn push(&mut self, verb: Verb, path: &Pointer, value: Option<&Value>) -> Option<()> {
        if value.is_none() != (verb == Verb::Remove) {
            return None;
        }
        self.text.extend(if self.count == 0 { b"[" } else { b"," });
        self.text.extend(br#"{"op":""#);
        self.text.extend(match verb {
            Verb::Add => &b"add"[..],
            Verb::Replace => b"replace",
            Verb::Remove => b"remove",
        });
        self.text.extend(br#"","path":"#);
        serde_json::to_writer(&mut self.text, path.as_str()).ok()?;
        if let Some(value) = value {
            self.text.extend(br#","value":"#);
            serde_json::to_writer(&mut self.text, value).ok()?;
        }
        self.text.push(b'}');
        self.count += 1;
        Some(())
    }
}

impl Serialize for Patch {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.operations().serialize(serializer)
    }
}
