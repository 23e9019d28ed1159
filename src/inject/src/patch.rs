//! Changes of an object that another client owns, as RFC 6902 operations on untyped JSON.
//!
//! Objects from the API server may contain fields that no library knows yet, so that no object is ever parsed into
//! types and serialized again. A [`PatchBuilder`] only adds and never changes existing values, except by two methods
//! for values of this program itself: [`PatchBuilder::set`] and [`PatchBuilder::remove`].
//!
//! A patch that does not apply fails the request even if the webhook's `failurePolicy` is `Ignore` (API server,
//! `pkg/admission/plugin/webhook/mutating/dispatcher.go`). The builder therefore applies each operation to its own
//! object when the operation is added: the final object is by construction the result of the operations.

use std::slice;

use json_patch::{
    AddOperation, Patch, PatchOperation, RemoveOperation, ReplaceOperation,
    jsonptr::{Pointer, PointerBuf, Token},
};
use serde_json::{Map, Value};

/// An object with changes, and the operations that lead to it.
#[derive(Debug)]
pub(crate) struct PatchBuilder {
    /// The original object with all operations applied.
    object: Value,
    patch: Patch,
}

/// The position of new items in a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ListPosition {
    /// Before the item with this index, in the given order.
    Before(usize),
    /// After all other items.
    Last,
}

/// A change that the object's structure does not permit.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PatchError {
    /// A value does not have the type that the object's kind requires.
    #[error("{path} is not a {expected}")]
    WrongType {
        /// A JSON pointer.
        path: PointerBuf,
        /// `map` or `list`.
        expected: &'static str,
    },
    /// An operation does not apply to the object after the previous operations.
    #[error("the patch does not apply: {0}")]
    DoesNotApply(#[from] json_patch::PatchError),
}

/// Returns the JSON pointer with these tokens, which are escaped.
pub(crate) fn pointer<'a>(tokens: impl IntoIterator<Item = &'a str>) -> PointerBuf {
    PointerBuf::from_tokens(tokens.into_iter().map(Token::new))
}

// === impl PatchBuilder ===

impl PatchBuilder {
    /// Starts with an unchanged object.
    pub(crate) fn new(object: Value) -> Self {
        Self { object, patch: Patch::default() }
    }

    /// The object with the changes so far.
    pub(crate) fn object(&self) -> &Value {
        &self.object
    }

    /// The number of operations so far.
    pub(crate) fn operation_count(&self) -> usize {
        self.patch.len()
    }

    /// Adds members to a map, which is created if it does not exist. Existing members are unchanged; null counts as
    /// absent, as in Go.
    pub(crate) fn add_members<K: Into<String>, V: Into<Value>>(
        &mut self,
        map: &Pointer,
        members: impl IntoIterator<Item = (K, V)>,
    ) -> Result<(), PatchError> {
        let present = self.get(map);
        if present.is_some_and(|value| !value.is_object()) {
            return Err(PatchError::WrongType { path: map.to_buf(), expected: "map" });
        }
        let is_new = |key: &str| present.and_then(|map| map.get(key)).is_none_or(Value::is_null);
        let members = members.into_iter().map(|(key, value)| (key.into(), value.into()));
        let members: Map<String, Value> = members.filter(|(key, _)| is_new(key)).collect();
        let exists = present.is_some();
        if members.is_empty() {
            return Ok(());
        }
        if exists {
            return members
                .into_iter()
                .try_for_each(|(key, value)| self.add(map.with_trailing_token(key), value));
        }
        self.create_parents(map)?;
        self.add(map.to_buf(), members.into())
    }

    /// Adds items to a list, which is created if it does not exist.
    pub(crate) fn add_items(
        &mut self,
        list: &Pointer,
        items: Vec<Value>,
        position: ListPosition,
    ) -> Result<(), PatchError> {
        if items.is_empty() {
            return Ok(());
        }
        match (self.get(list), position) {
            (None, _) => {
                self.create_parents(list)?;
                self.add(list.to_buf(), items.into())
            }
            (Some(Value::Array(_)), ListPosition::Last) => {
                let end = list.with_trailing_token("-");
                items.into_iter().try_for_each(|item| self.add(end.clone(), item))
            }
            (Some(Value::Array(_)), ListPosition::Before(index)) => {
                let path = list.with_trailing_token(index);
                items.into_iter().rev().try_for_each(|item| self.add(path.clone(), item))
            }
            (Some(_), _) => Err(PatchError::WrongType { path: list.to_buf(), expected: "list" }),
        }
    }

    /// Sets a member that this program owns, or a member to which it only appends. An equal value is no operation.
    pub(crate) fn set(&mut self, member: &Pointer, value: impl Into<Value>) -> Result<(), PatchError> {
        let value = value.into();
        match member.resolve(&self.object) {
            Ok(present) if *present == value => Ok(()),
            Ok(_) => self.apply(PatchOperation::Replace(ReplaceOperation { path: member.to_buf(), value })),
            Err(_) => {
                self.create_parents(member)?;
                self.add(member.to_buf(), value)
            }
        }
    }

    /// Removes a member that this program wrote. An absent member is no operation.
    pub(crate) fn remove(&mut self, member: &Pointer) -> Result<(), PatchError> {
        if member.resolve(&self.object).is_err() {
            return Ok(());
        }
        self.apply(PatchOperation::Remove(RemoveOperation { path: member.to_buf() }))
    }

    /// Returns the object with all changes, and the operations that lead to it: none if nothing was changed.
    pub(crate) fn finish(self) -> (Value, Patch) {
        (self.object, self.patch)
    }

    /// Returns the value at a path, unless it is null.
    fn get(&self, path: &Pointer) -> Option<&Value> {
        path.resolve(&self.object).ok().filter(|value| !value.is_null())
    }

    /// Creates the maps along a path.
    fn create_parents(&mut self, path: &Pointer) -> Result<(), PatchError> {
        let Some(parent) = path.parent().filter(|parent| !parent.is_root()) else { return Ok(()) };
        match self.get(parent) {
            Some(Value::Object(_)) => Ok(()),
            Some(_) => Err(PatchError::WrongType { path: parent.to_buf(), expected: "map" }),
            None => {
                self.create_parents(parent)?;
                self.add(parent.to_buf(), Map::new().into())
            }
        }
    }

    fn add(&mut self, path: PointerBuf, value: Value) -> Result<(), PatchError> {
        self.apply(PatchOperation::Add(AddOperation { path, value }))
    }

    fn apply(&mut self, operation: PatchOperation) -> Result<(), PatchError> {
        json_patch::patch_unsafe(&mut self.object, slice::from_ref(&operation))?;
        self.patch.0.push(operation);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
