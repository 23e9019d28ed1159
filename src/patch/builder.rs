//! The builder of a patch: applies each operation to the object and records it.

use std::borrow::Cow;

use json_patch::jsonptr::{Pointer, PointerBuf};

use super::operations::{Operation, Patch};
use crate::json::{Json, Members};

/// Initial capacity of a path, in bytes: longer than most paths.
const PATH_CAPACITY: usize = 64;

/// An object with changes, and the operations that lead to it.
#[derive(Debug)]
pub struct PatchBuilder<'a> {
    /// The original object with all operations applied.
    object: Json<'a>,
    patch: Patch,
    /// Whether an operation failed to apply. The object is invalid then.
    is_broken: bool,
}

/// The position of new items in a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListPosition {
    /// Before the item with this index, in the given order.
    Before(usize),
    /// After all other items.
    Last,
}

/// The result of a [`PatchBuilder`].
#[derive(Debug)]
pub struct PatchedObject<'a> {
    /// The object with all changes.
    pub object: Json<'a>,
    /// The operations that lead to it from the original object; empty if nothing was changed.
    pub patch: Patch,
}

/// A change that the object's structure does not permit, or an inconsistent patch.
#[derive(Debug, thiserror::Error)]
pub enum PatchError {
    /// A value does not have the type that the object's kind requires.
    #[error("{path} is not a {expected}")]
    WrongType {
        /// A JSON pointer.
        path: PointerBuf,
        /// `map` or `list`.
        expected: &'static str,
    },
    /// An operation does not apply to the object after the previous operations.
    #[error("the patch does not apply at {0}")]
    DoesNotApply(PointerBuf),
    /// The operations do not produce the intended object.
    #[error("the patch does not produce the intended object")]
    Inconsistent,
}

/// Returns the JSON pointer with these tokens, which are escaped.
pub fn pointer<'a>(tokens: impl IntoIterator<Item = &'a str>) -> PointerBuf {
    // The pointer of the root is empty. The capacity avoids an allocation per token.
    let root = PointerBuf::parse(String::with_capacity(PATH_CAPACITY)).unwrap_or_default();
    tokens.into_iter().fold(root, |mut path, token| {
        path.push_back(token);
        path
    })
}

// === impl PatchBuilder ===

impl<'a> PatchBuilder<'a> {
    /// Starts with an unchanged object.
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

    /// The number of operations so far.
    #[must_use]
    pub fn operation_count(&self) -> usize {
        self.patch.len()
    }

    /// Adds members to a map, which is created if it does not exist. Existing members are unchanged; null counts as
    /// absent, as in Go.
    pub fn add_members<K: Into<Cow<'a, str>>, V: Into<Json<'a>>>(
        &mut self,
        map: &Pointer,
        members: impl IntoIterator<Item = (K, V)>,
    ) -> Result<(), PatchError> {
        let present = self.get(map);
        if present.is_some_and(|value| value.as_map().is_none()) {
            return Err(PatchError::WrongType { path: map.to_buf(), expected: "map" });
        }
        let is_new = |key: &str| present.and_then(|map| map.get(key)).is_none_or(Json::is_null);
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
        self.create_parents(map)?;
        self.add(map, Json::Map(members))
    }

    /// Adds items to a list, which is created if it does not exist.
    pub fn add_items<V: Into<Json<'a>>>(
        &mut self,
        list: &Pointer,
        items: impl IntoIterator<Item = V>,
        position: ListPosition,
    ) -> Result<(), PatchError> {
        let mut items: Vec<Json<'a>> = items.into_iter().map(Into::into).collect();
        if items.is_empty() || position == ListPosition::Last && self.append(list, &mut items)? {
            return Ok(());
        }
        match self.get(list).map(Json::as_list) {
            None => {
                self.create_parents(list)?;
                self.add(list, Json::List(items))
            }
            Some(Some(present)) => {
                let index = if let ListPosition::Before(index) = position { index } else { present.len() };
                let path = list.with_trailing_token(index);
                items.into_iter().rev().try_for_each(|item| self.add(&path, item))
            }
            Some(None) => Err(PatchError::WrongType { path: list.to_buf(), expected: "list" }),
        }
    }

    /// Sets a member that this program owns, or a member to which it only appends. An equal value is no operation.
    pub fn set(&mut self, member: &Pointer, value: impl Into<Json<'a>>) -> Result<(), PatchError> {
        let value = value.into();
        match self.object.at(member) {
            Some(present) if *present == value => Ok(()),
            Some(_) => self.change(Operation::Replace, member, value),
            None => {
                self.create_parents(member)?;
                self.add(member, value)
            }
        }
    }

    /// Removes a member that this program wrote. An absent member is no operation.
    pub fn remove(&mut self, member: &Pointer) -> Result<(), PatchError> {
        match self.object.at(member) {
            None => Ok(()),
            Some(_) => self.change(Operation::Remove, member, Json::Null),
        }
    }

    /// Returns the object with all changes and the operations, or an error if an operation failed to apply.
    pub fn finish(self) -> Result<PatchedObject<'a>, PatchError> {
        let Self { object, patch, is_broken } = self;
        if is_broken { Err(PatchError::Inconsistent) } else { Ok(PatchedObject { object, patch }) }
    }

    /// Returns the value at a path, unless it is null.
    fn get(&self, path: &Pointer) -> Option<&Json<'a>> {
        self.object.at(path).filter(|value| !value.is_null())
    }

    /// Creates the maps along a path.
    fn create_parents(&mut self, path: &Pointer) -> Result<(), PatchError> {
        let Some(parent) = path.parent().filter(|parent| !parent.is_root()) else { return Ok(()) };
        match self.get(parent).map(Json::as_map) {
            Some(Some(_)) => Ok(()),
            Some(None) => Err(PatchError::WrongType { path: parent.to_buf(), expected: "map" }),
            None => {
                let parent = parent.to_buf();
                self.create_parents(&parent)?;
                self.add(&parent, Json::Map(Members::new()))
            }
        }
    }

    /// Appends items to an existing list, with one traversal from the root for all of them. Returns false, and leaves
    /// the items, if there is no list.
    fn append(&mut self, list: &Pointer, items: &mut Vec<Json<'a>>) -> Result<bool, PatchError> {
        let Some(Json::List(present)) = self.object.at_mut(list).map(Json::unshare) else { return Ok(false) };
        let before = present.len();
        present.append(items);
        let new = present.get(before..).unwrap_or_default();
        let path = [list.as_str(), "/-"].concat();
        let recorded = self.patch.push_each(Operation::Add, &path, new.iter().map(Some));
        self.is_broken |= recorded.is_none();
        recorded.map(|()| true).ok_or(PatchError::Inconsistent)
    }

    fn add(&mut self, path: &Pointer, value: Json<'a>) -> Result<(), PatchError> {
        self.change(Operation::Add, path, value)
    }

    fn change(&mut self, operation: Operation, path: &Pointer, value: Json<'a>) -> Result<(), PatchError> {
        let error = if apply(&mut self.object, operation, path, value).is_none() {
            PatchError::DoesNotApply(path.to_buf())
        } else {
            match self.patch.push_each(operation, path.as_str(), [self.object.at(path)]) {
                Some(()) => return Ok(()),
                None => PatchError::Inconsistent,
            }
        };
        self.is_broken = true;
        Err(error)
    }
}

/// Applies an operation as defined by RFC 6902, except that an addition does not replace an existing member. `None` if
/// the operation does not apply.
fn apply<'a>(object: &mut Json<'a>, operation: Operation, path: &Pointer, value: Json<'a>) -> Option<()> {
    let (parent, last) = path.split_back()?;
    let parent = object.at_mut(parent)?.unshare();
    if let Json::List(items) = parent {
        let index = last.to_index().ok()?.for_len_incl(items.len()).ok()?;
        return (operation == Operation::Add).then(|| items.insert(index, value));
    }
    let Json::Map(members) = parent else { return None };
    let key = last.decoded();
    let present = members.iter().rposition(|(member, _)| *member == key);
    match (operation, present) {
        (Operation::Add, None) => members.push((Cow::Owned(key.into_owned()), value)),
        (Operation::Add | Operation::Replace, Some(index)) => {
            let (_, present) = members.get_mut(index)?;
            if operation == Operation::Add && !present.is_null() {
                return None;
            }
            *present = value;
        }
        (Operation::Remove, Some(_)) => members.retain(|(member, _)| *member != key),
        (Operation::Replace | Operation::Remove, None) => return None,
    }
    Some(())
}
