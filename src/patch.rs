//! A draft of an object that somebody else owns: changes are made on untyped JSON and told as RFC 6902 operations.
//!
//! What the apiserver sends may hold fields that no library knows yet, so nothing is ever read into types and written
//! back. A draft adds; what is there stays as it is. The two exceptions are named for what they are, and meant for
//! what this program wrote itself: [`Draft::rewrite`] and [`Draft::take_back`].
//!
//! A patch that does not apply fails the request even where the webhook's `failurePolicy` is `Ignore` (apiserver
//! `pkg/admission/plugin/webhook/mutating/dispatcher.go`). So each operation is applied to the object by the library that
//! knows the standard, not by hand, in the moment in which it is added: the object with all changes is what the
//! operations make of the object as it came, or there is an error and no patch. What the operation was meant to do is
//! looked at as well.

#[cfg(test)]
mod tests;

use json_patch::{
    AddOperation, PatchOperation, RemoveOperation, ReplaceOperation,
    jsonptr::{Pointer, PointerBuf, Token},
};
use serde_json::{Map, Value};

/// An object and what was changed on it.
#[derive(Debug)]
pub struct Draft {
    /// What the operations make of the object as it came.
    object: Value,
    operations: Vec<PatchOperation>,
    /// Whether one of them did not apply: the object is then nothing that anybody wanted.
    is_broken: bool,
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
    pub patch: json_patch::Patch,
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
    #[error("the patch does not apply: {0}")]
    DoesNotApply(#[from] json_patch::PatchError),
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
        Self { object, operations: Vec::new(), is_broken: false }
    }

    /// The object with the changes so far.
    #[must_use]
    pub fn object(&self) -> &Value {
        &self.object
    }

    /// Whether nothing was changed so far.
    #[must_use]
    pub fn is_unchanged(&self) -> bool {
        self.operations.is_empty()
    }

    /// How many operations the changes so far are.
    #[must_use]
    pub fn changes(&self) -> usize {
        self.operations.len()
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
                self.add(map.with_trailing_token(key), value)?;
            }
            return Ok(());
        }
        self.make_parents(map)?;
        self.add(map.to_buf(), Value::Object(members))
    }

    /// Adds items to a list, which is made if there is none.
    pub fn add_items(&mut self, list: &Pointer, items: Vec<Value>, place: Place) -> Result<(), PatchError> {
        if items.is_empty() {
            return Ok(());
        }
        match self.get(list) {
            None => {
                self.make_parents(list)?;
                self.add(list.to_buf(), Value::Array(items))
            }
            Some(Value::Array(_)) => match place {
                Place::Last => {
                    items.into_iter().try_for_each(|item| self.add(list.with_trailing_token("-"), item))
                }
                Place::Before(index) => {
                    let place = list.with_trailing_token(index);
                    items.into_iter().rev().try_for_each(|item| self.add(place.clone(), item))
                }
            },
            Some(_) => Err(PatchError::WrongShape { place: list.to_buf(), wanted: "list" }),
        }
    }

    /// Gives a member that this program owns, or whose value it only extends, another value. Without a change of the
    /// value nothing happens.
    pub fn rewrite(&mut self, member: &Pointer, value: Value) -> Result<(), PatchError> {
        match self.object.pointer(member.as_str()) {
            Some(present) if *present == value => Ok(()),
            Some(_) => {
                self.change(PatchOperation::Replace(ReplaceOperation { path: member.to_buf(), value }))
            }
            None => {
                self.make_parents(member)?;
                self.add(member.to_buf(), value)
            }
        }
    }

    /// Removes a member that this program wrote. Without one nothing happens.
    pub fn take_back(&mut self, member: &Pointer) -> Result<(), PatchError> {
        match self.object.pointer(member.as_str()) {
            None => Ok(()),
            Some(_) => self.change(PatchOperation::Remove(RemoveOperation { path: member.to_buf() })),
        }
    }

    /// The object with all changes and the operations that made it, unless one of them did not apply.
    pub fn finish(self) -> Result<Finished, PatchError> {
        let Self { object, operations, is_broken } = self;
        if is_broken {
            return Err(PatchError::LeadsElsewhere);
        }
        Ok(Finished { object, patch: json_patch::Patch(operations) })
    }

    /// What is at a place, if it is more than null.
    fn get(&self, place: &Pointer) -> Option<&Value> {
        self.object.pointer(place.as_str()).filter(|it| !it.is_null())
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
                self.add(parent, Value::Object(Map::new()))
            }
        }
    }

    fn add(&mut self, path: PointerBuf, value: Value) -> Result<(), PatchError> {
        self.change(PatchOperation::Add(AddOperation { path, value }))
    }

    fn change(&mut self, operation: PatchOperation) -> Result<(), PatchError> {
        let operation = [operation];
        let applied = json_patch::patch_unsafe(&mut self.object, &operation);
        let is_so = applied.is_ok() && operation.iter().all(|it| self.is_as_meant(it));
        self.is_broken |= !is_so;
        applied?;
        if !is_so {
            return Err(PatchError::LeadsElsewhere);
        }
        self.operations.extend(operation);
        Ok(())
    }

    /// Whether an operation that was applied did what it says.
    fn is_as_meant(&self, operation: &PatchOperation) -> bool {
        let path = operation.path();
        match operation {
            PatchOperation::Add(AddOperation { value, .. }) => match path.split_back() {
                Some((parent, last)) if last.encoded() == "-" => {
                    let list = self.object.pointer(parent.as_str()).and_then(Value::as_array);
                    list.and_then(|it| it.last()) == Some(value)
                }
                _ => self.object.pointer(path.as_str()) == Some(value),
            },
            PatchOperation::Replace(ReplaceOperation { value, .. }) => {
                self.object.pointer(path.as_str()) == Some(value)
            }
            PatchOperation::Remove(_) => self.object.pointer(path.as_str()).is_none(),
            _ => false,
        }
    }
}
