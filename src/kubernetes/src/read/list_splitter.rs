//! Splits the body of a list into its objects while the body arrives.
//!
//! A page of a list can have many megabytes, of which the guard keeps little. Only one object is buffered at a time. The
//! splitter finds the ends of texts, objects and arrays; `serde_json` parses the objects.

use memchr::memchr2;
use serde::{
    Deserialize,
    de::{DeserializeOwned, IgnoredAny},
};

/// Maximum size of one object in bytes. An API server stores at most 1.5 MiB; JSON escapes can multiply a part of it.
pub(super) const MAX_OBJECT_BYTES: usize = 8 << 20;

/// Maximum size in bytes of the parts of a page that belong to no object: kind, resource version and continue token.
const MAX_ENVELOPE_BYTES: usize = 64 << 10;

/// The depth of the objects of a list: `{"items":[` are two levels.
const ITEMS_DEPTH: usize = 2;

/// A list with a body that arrives in pieces.
#[derive(Default)]
pub(super) struct ListSplitter {
    region: Region,
    /// The number of objects and arrays that have begun and not ended.
    depth: usize,
    text: Text,
    /// The body without its objects.
    envelope: Vec<u8>,
    /// The object that has begun.
    object: Vec<u8>,
    /// Whether objects are dropped instead of buffered.
    drops_objects: bool,
}

/// The part of the body at the present position.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Region {
    /// Outside of `items`.
    #[default]
    Envelope,
    /// In `items`, between two objects.
    Items,
    /// In an object of `items`.
    Object,
}

/// Whether the present position is in a text.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Text {
    #[default]
    Outside,
    Inside,
    /// Behind a backslash.
    Escaped,
}

/// `ListMeta` (`meta/v1`), in part.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ListMetadata {
    /// Continue token of the next page; empty on the last one.
    #[serde(default, rename = "continue")]
    pub(super) next: Option<String>,
    /// The version at which a watch continues the list.
    #[serde(default)]
    pub(super) resource_version: Option<String>,
}

#[derive(Deserialize)]
struct Envelope {
    #[serde(default)]
    metadata: ListMetadata,
    /// Distinguishes a list from other responses.
    #[serde(rename = "items")]
    _items: IgnoredAny,
}

/// The reason why a body cannot be split.
#[derive(Debug, thiserror::Error)]
pub(super) enum SplitError {
    /// An object is larger than [`MAX_OBJECT_BYTES`].
    #[error("an object has more than {} MiB", MAX_OBJECT_BYTES >> 20)]
    TooLarge,
    /// The body is not a list.
    #[error("the body is not a list: {0}")]
    Malformed(String),
}

// === impl ListSplitter ===

impl ListSplitter {
    /// Creates a splitter that returns only the metadata of the list. Objects can have any size.
    pub(super) fn without_objects() -> Self {
        Self { drops_objects: true, ..Self::default() }
    }

    /// Continues with the next piece of the body. `on_object` receives each object that ends in this piece.
    pub(super) fn push<E: From<SplitError>>(
        &mut self,
        mut piece: &[u8],
        mut on_object: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        while !piece.is_empty() {
            let length = self.next_token(piece);
            let (token, rest) = piece.split_at_checked(length).unwrap_or((piece, &[]));
            piece = rest;
            self.append(token)?;
            let Some(last) = token.last() else { continue };
            match self.text {
                Text::Escaped => self.text = Text::Inside,
                Text::Inside if *last == b'\\' => self.text = Text::Escaped,
                Text::Inside if *last == b'"' => self.text = Text::Outside,
                Text::Inside => {}
                Text::Outside => {
                    self.enter_or_leave(*last)?;
                    if self.region == Region::Object && self.depth == ITEMS_DEPTH {
                        self.region = Region::Items;
                        if !self.drops_objects {
                            on_object(&self.object)?;
                        }
                        self.object.clear();
                    }
                }
            }
        }
        Ok(())
    }

    /// Parses the rest of a body that has ended.
    pub(super) fn finish(self) -> Result<ListMetadata, SplitError> {
        // An incomplete body is incomplete JSON: the end of `items` is part of the envelope.
        Ok(parse::<Envelope>(&self.envelope)?.metadata)
    }

    /// Returns the length of the piece up to and including the next byte that changes the state.
    fn next_token(&self, piece: &[u8]) -> usize {
        let end = match (self.text, self.region) {
            (Text::Escaped, _) | (Text::Outside, Region::Items) => Some(0),
            (Text::Inside, _) => memchr2(b'"', b'\\', piece),
            (Text::Outside, _) => {
                piece.iter().position(|byte| matches!(byte, b'"' | b'{' | b'}' | b'[' | b']'))
            }
        };
        end.map_or(piece.len(), |end| end + 1)
    }

    fn append(&mut self, token: &[u8]) -> Result<(), SplitError> {
        match self.region {
            Region::Envelope => {
                if self.envelope.len() + token.len() > MAX_ENVELOPE_BYTES {
                    return Err(SplitError::Malformed(String::from("its metadata is too long")));
                }
                self.envelope.extend_from_slice(token);
            }
            Region::Object if self.drops_objects => {}
            Region::Object => {
                if self.object.len() + token.len() > MAX_OBJECT_BYTES {
                    return Err(SplitError::TooLarge);
                }
                self.object.extend_from_slice(token);
            }
            Region::Items => match token {
                b"{" => {
                    self.region = Region::Object;
                    self.object.extend_from_slice(token);
                }
                b"]" => {
                    self.region = Region::Envelope;
                    self.envelope.extend_from_slice(token);
                }
                b"," | b" " | b"\t" | b"\r" | b"\n" => {}
                _ => return Err(SplitError::Malformed(String::from("an item is not an object"))),
            },
        }
        Ok(())
    }

    /// Updates the depth after a byte outside of a text.
    fn enter_or_leave(&mut self, byte: u8) -> Result<(), SplitError> {
        match byte {
            b'"' => self.text = Text::Inside,
            b'{' | b'[' => {
                self.depth += 1;
                if byte == b'[' && self.depth == ITEMS_DEPTH && ends_with_items(&self.envelope) {
                    self.region = Region::Items;
                }
            }
            b'}' | b']' => {
                let depth = self.depth.checked_sub(1);
                self.depth =
                    depth.ok_or_else(|| SplitError::Malformed(String::from("it ends more than once")))?;
            }
            _ => {}
        }
        Ok(())
    }
}

/// Whether the body so far ends with the name of the items and an opening bracket.
fn ends_with_items(envelope: &[u8]) -> bool {
    let body = envelope.strip_suffix(b"[").unwrap_or_default().trim_ascii_end();
    let body = body.strip_suffix(b":").unwrap_or_default().trim_ascii_end();
    body.ends_with(b"\"items\"")
}

/// Parses an object or the envelope.
pub(super) fn parse<T: DeserializeOwned>(json: &[u8]) -> Result<T, SplitError> {
    serde_json::from_slice(json).map_err(|error| SplitError::Malformed(error.to_string()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    /// Splits a body in pieces of these sizes, which are repeated.
    fn split(body: &[u8], sizes: &[usize]) -> Result<(Vec<Value>, ListMetadata), SplitError> {
        let (mut splitter, mut objects) = (ListSplitter::default(), Vec::new());
        let (mut rest, mut sizes) = (body, sizes.iter().cycle());
        while !rest.is_empty() {
            let (piece, next) = rest.split_at((*sizes.next().unwrap()).clamp(1, rest.len()));
            rest = next;
            splitter.push(piece, |object| {
                objects.push(parse(object)?);
                Ok::<_, SplitError>(())
            })?;
        }
        Ok((objects, splitter.finish()?))
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let text = r#"[a-z"\\{}\[\],:é ]{0,8}|items"#;
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i32>().prop_map(Value::from),
            text.prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 24, 4, move |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map(text, inner, 0..4).prop_map(|map| json!(map)),
            ]
        })
    }

    proptest! {
        #[test]
        fn finds_the_objects_that_serde_json_finds(
            values in prop::collection::vec(any_json(), 0..5),
            other in any_json(),
            is_pretty in any::<bool>(),
            sizes in prop::collection::vec(1_usize..9, 1..4),
        ) {
            let items: Vec<Value> = values.into_iter().map(|value| json!({"value": value})).collect();
            let metadata = json!({"continue": "next", "resourceVersion": "7", "items": other});
            let list = json!({"before": other, "items": items, "metadata": metadata, "other": [[], {"items": []}]});
            let text = if is_pretty { serde_json::to_string_pretty(&list) } else { serde_json::to_string(&list) };
            let (objects, found) = split(text.unwrap().as_bytes(), &sizes).unwrap();
            prop_assert_eq!(objects, items);
            prop_assert_eq!((found.next.as_deref(), found.resource_version.as_deref()), (Some("next"), Some("7")));
        }
    }

    #[test]
    fn rejects_bodies_that_are_no_lists() {
        for body in [
            "",
            "{}",
            r#"{"items":[{}]"#,
            r#"{"items":[{"a":"#,
            r#"{"items":[1]}"#,
            r#"{"items":[{}]}}"#,
            r#"{"kind":"Status","message":"items"}"#,
        ] {
            assert!(matches!(split(body.as_bytes(), &[3]), Err(SplitError::Malformed(_))), "{body}");
        }
        assert!(split(br#"{"items":null}"#, &[3]).unwrap().0.is_empty());
        assert!(split(br#" {"items" : [ ] } "#, &[3]).unwrap().0.is_empty());
    }

    #[test]
    fn reads_the_metadata_beside_an_object_of_any_size() {
        let object = format!(r#"{{"a":["{}"]}}"#, "x".repeat(MAX_OBJECT_BYTES));
        let body = format!(r#"{{"metadata":{{"resourceVersion":"7"}},"items":[{object}]}}"#);
        let mut splitter = ListSplitter::without_objects();
        for piece in body.as_bytes().chunks(9000) {
            splitter.push(piece, |_| Err(SplitError::TooLarge)).unwrap();
            assert!(splitter.object.capacity() < 100);
        }
        assert_eq!(splitter.finish().unwrap().resource_version.as_deref(), Some("7"));
    }

    #[test]
    fn limits_the_size_of_an_object() {
        let body = |bytes: usize| format!(r#"{{"items":[{{"a":"{}"}}]}}"#, "x".repeat(bytes));
        assert_eq!(split(body(MAX_OBJECT_BYTES - 8).as_bytes(), &[9000]).unwrap().0.len(), 1);
        let error = split(body(MAX_OBJECT_BYTES).as_bytes(), &[9000]).unwrap_err();
        assert_eq!(error.to_string(), "an object has more than 8 MiB");
        let long =
            format!(r#"{{"metadata":{{"continue":"{}"}},"items":[]}}"#, "x".repeat(MAX_ENVELOPE_BYTES));
        assert!(matches!(split(long.as_bytes(), &[9000]), Err(SplitError::Malformed(_))));
    }
}
