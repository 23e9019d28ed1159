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

#[cfg(test)]
mod tests;

use std::{borrow::Cow, ops::Range};

use json_patch::jsonptr::{Pointer, PointerBuf};
use serde::{Serialize, Serializer};

use crate::json::{Json, Members, write_text};

/// Longer than most paths, in bytes.
const COMMON_PATH: usize = 64;

/// Longer than most patches, in bytes: lxcfs and a sidecar for three containers are 7 KB.
const COMMON_PATCH: usize = 8 << 10;

/// An object and what was changed on it.
#[derive(Debug)]
pub struct Draft<'a> {
    /// What the operations make of the object as it came.
    object: Json<'a>,
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
pub struct Finished<'a> {
    /// The object with all changes.
    pub object: Json<'a>,
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
    // The root's, which is an empty text, with room for the steps: without it almost each of them would allocate.
    let root = PointerBuf::parse(String::with_capacity(COMMON_PATH)).unwrap_or_default();
    steps.into_iter().fold(root, |mut path, step| {
        path.push_back(step);
        path
    })
}

// === impl Draft ===

impl<'a> Draft<'a> {
    /// A draft of `object`, without a change.
    #[must_use]
    pub fn new(object: impl Into<Json<'a>>) -> Self {
        Self { object: object.into(), patch: Patch::default(), is_broken: false }
    }

    /// The object with the changes so far.
    #[must_use]
    pub fn object(&self) -> &Json<'a> {
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
    pub fn add_members<K: Into<Cow<'a, str>>, V: Into<Json<'a>>>(
        &mut self,
        map: &Pointer,
        members: impl IntoIterator<Item = (K, V)>,
    ) -> Result<(), PatchError> {
        let present = self.get(map);
        if present.is_some_and(|it| it.as_map().is_none()) {
            return Err(PatchError::WrongShape { place: map.to_buf(), wanted: "map" });
        }
        let is_new = |key: &str| present.and_then(|it| it.get(key)).is_none_or(Json::is_null);
        let members = members.into_iter().map(|(key, value)| (key.into(), value.into()));
        let members: Members<'a> = members.filter(|(key, _)| is_new(key)).collect();
        let exists = present.is_some();
        if members.is_empty() {
            return Ok(());
        }
        if exists {
            for (key, value) in members {
                self.add(&map.with_trailing_token(&*key), value)?;
            }
            return Ok(());
        }
        self.make_parents(map)?;
        self.add(map, Json::Map(members))
    }

    /// Adds items to a list, which is made if there is none.
    pub fn add_items<V: Into<Json<'a>>>(
        &mut self,
        list: &Pointer,
        items: impl IntoIterator<Item = V>,
        place: Place,
    ) -> Result<(), PatchError> {
        let mut items: Vec<Json<'a>> = items.into_iter().map(Into::into).collect();
        if items.is_empty() || place == Place::Last && self.append(list, &mut items)? {
            return Ok(());
        }
        match self.get(list).map(Json::as_list) {
            None => {
                self.make_parents(list)?;
                self.add(list, Json::List(items))
            }
            Some(Some(present)) => {
                let index = if let Place::Before(index) = place { index } else { present.len() };
                let place = list.with_trailing_token(index);
                items.into_iter().rev().try_for_each(|item| self.add(&place, item))
            }
            Some(None) => Err(PatchError::WrongShape { place: list.to_buf(), wanted: "list" }),
        }
    }

    /// Gives a member that this program owns, or whose value it only extends, another value. Without a change of the
    /// value nothing happens.
    pub fn rewrite(&mut self, member: &Pointer, value: impl Into<Json<'a>>) -> Result<(), PatchError> {
        let value = value.into();
        match self.object.at(member) {
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
        match self.object.at(member) {
            None => Ok(()),
            Some(_) => self.change(Verb::Remove, member, Json::Null),
        }
    }

    /// The object with all changes and the operations that made it, unless one of them did not apply.
    pub fn finish(self) -> Result<Finished<'a>, PatchError> {
        let Self { object, patch, is_broken } = self;
        if is_broken { Err(PatchError::LeadsElsewhere) } else { Ok(Finished { object, patch }) }
    }

    /// What is at a place, if it is more than null.
    fn get(&self, place: &Pointer) -> Option<&Json<'a>> {
        self.object.at(place).filter(|it| !it.is_null())
    }

    /// Makes the maps that lead to a place.
    fn make_parents(&mut self, place: &Pointer) -> Result<(), PatchError> {
        let Some(parent) = place.parent().filter(|it| !it.is_root()) else { return Ok(()) };
        match self.get(parent).map(Json::as_map) {
            Some(Some(_)) => Ok(()),
            Some(None) => Err(PatchError::WrongShape { place: parent.to_buf(), wanted: "map" }),
            None => {
                let parent = parent.to_buf();
                self.make_parents(&parent)?;
                self.add(&parent, Json::Map(Members::new()))
            }
        }
    }

    /// Adds items behind those of a list: one way from the root for all of them. Whether there is a list; if not, they are
    /// left.
    fn append(&mut self, list: &Pointer, items: &mut Vec<Json<'a>>) -> Result<bool, PatchError> {
        let Some(Json::List(present)) = self.object.at_mut(list).map(Json::own) else { return Ok(false) };
        let before = present.len();
        present.append(items);
        let new = present.get(before..).unwrap_or_default();
        let path = [list.as_str(), "/-"].concat();
        let told = self.patch.push_each(Verb::Add, &path, new.iter().map(Some));
        self.is_broken |= told.is_none();
        told.map(|()| true).ok_or(PatchError::LeadsElsewhere)
    }

    fn add(&mut self, path: &Pointer, value: Json<'a>) -> Result<(), PatchError> {
        self.change(Verb::Add, path, value)
    }

    fn change(&mut self, verb: Verb, path: &Pointer, value: Json<'a>) -> Result<(), PatchError> {
        let error = if apply(&mut self.object, verb, path, value).is_none() {
            PatchError::DoesNotApply(path.to_buf())
        } else {
            match self.patch.push_each(verb, path.as_str(), [self.object.at(path)]) {
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
fn apply<'a>(object: &mut Json<'a>, verb: Verb, path: &Pointer, value: Json<'a>) -> Option<()> {
    let (parent, last) = path.split_back()?;
    let parent = object.at_mut(parent)?.own();
    if let Json::List(items) = parent {
        let index = last.to_index().ok()?.for_len_incl(items.len()).ok()?;
        return (verb == Verb::Add).then(|| items.insert(index, value));
    }
    let Json::Map(members) = parent else { return None };
    let key = last.decoded();
    let present = members.iter().rposition(|(own, _)| *own == key);
    match (verb, present) {
        (Verb::Add, None) => members.push((Cow::Owned(key.into_owned()), value)),
        (Verb::Add | Verb::Replace, Some(index)) => {
            let (_, present) = members.get_mut(index)?;
            if verb == Verb::Add && !present.is_null() {
                return None;
            }
            *present = value;
        }
        (Verb::Remove, Some(_)) => members.retain(|(own, _)| *own != key),
        (Verb::Replace | Verb::Remove, None) => return None,
    }
    Some(())
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

    /// Writes operations that were applied, all at one path, with what was found there after each. Nothing if one did not
    /// do what it says.
    fn push_each<'v, 'a: 'v>(
        &mut self,
        verb: Verb,
        path: &str,
        values: impl IntoIterator<Item = Option<&'v Json<'a>>>,
    ) -> Option<()> {
        if self.text.capacity() == 0 {
            self.text.reserve(COMMON_PATCH);
        }
        let mut head = None;
        for value in values {
            if value.is_none() != (verb == Verb::Remove) {
                return None;
            }
            self.text.push(if self.count == 0 { b'[' } else { b',' });
            match head.clone() {
                Some(head) => self.text.extend_from_within(head),
                None => head = Some(self.push_head(verb, path)?),
            }
            if let Some(value) = value {
                self.text.extend_from_slice(br#","value":"#);
                value.write(&mut self.text)?;
            }
            self.text.push(b'}');
            self.count += 1;
        }
        Some(())
    }

    /// Writes what operations at one path begin with; returns where it is.
    fn push_head(&mut self, verb: Verb, path: &str) -> Option<Range<usize>> {
        let begin = self.text.len();
        self.text.extend_from_slice(match verb {
            Verb::Add => br#"{"op":"add","path":"#,
            Verb::Replace => br#"{"op":"replace","path":"#,
            Verb::Remove => br#"{"op":"remove","path":"#,
        });
        write_text(path, &mut self.text)?;
        Some(begin..self.text.len())
    }
}

impl Serialize for Patch {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.operations().serialize(serializer)
    }
}
