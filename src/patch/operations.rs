//! The operations of a patch, as JSON text.

use std::ops::Range;

use serde::{Serialize, Serializer};

use crate::json::{Json, write_text};

/// Initial capacity of a patch, in bytes. lxcfs and a sidecar for three containers are 7 KB.
const PATCH_CAPACITY: usize = 8 << 10;

/// A JSON patch, serialized while it is built: operations as values would double the work.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Patch {
    /// An opening bracket and the operations, separated by commas; empty without operations.
    text: Vec<u8>,
    count: usize,
}

/// The kind of an operation.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Operation {
    Add,
    Replace,
    Remove,
}

// === impl Patch ===

impl Patch {
    /// Whether the patch changes nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The number of operations.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count
    }

    /// Returns the patch as JSON; `None` if it changes nothing.
    #[must_use]
    pub fn into_json(mut self) -> Option<Vec<u8>> {
        if self.is_empty() {
            return None;
        }
        self.text.push(b']');
        Some(self.text)
    }

    /// Returns the operations, parsed from the JSON.
    #[must_use]
    pub fn operations(&self) -> json_patch::Patch {
        let json = self.clone().into_json().unwrap_or_default();
        serde_json::from_slice(&json).unwrap_or_default()
    }

    /// Appends operations that have been applied at one path, with the value found there after each. `None` if a value
    /// is not consistent with its operation.
    pub(super) fn push_each<'v, 'a: 'v>(
        &mut self,
        operation: Operation,
        path: &str,
        values: impl IntoIterator<Item = Option<&'v Json<'a>>>,
    ) -> Option<()> {
        if self.text.capacity() == 0 {
            self.text.reserve(PATCH_CAPACITY);
        }
        let mut head = None;
        for value in values {
            if value.is_none() != (operation == Operation::Remove) {
                return None;
            }
            self.text.push(if self.count == 0 { b'[' } else { b',' });
            match head.clone() {
                Some(head) => self.text.extend_from_within(head),
                None => head = Some(self.push_head(operation, path)?),
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

    /// Appends the common beginning of operations at one path; returns its range in the text.
    fn push_head(&mut self, operation: Operation, path: &str) -> Option<Range<usize>> {
        let start = self.text.len();
        self.text.extend_from_slice(match operation {
            Operation::Add => br#"{"op":"add","path":"#,
            Operation::Replace => br#"{"op":"replace","path":"#,
            Operation::Remove => br#"{"op":"remove","path":"#,
        });
        write_text(path, &mut self.text)?;
        Some(start..self.text.len())
    }
}

impl Serialize for Patch {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.operations().serialize(serializer)
    }
}
