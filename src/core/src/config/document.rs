//! Deserializes YAML and reports all type errors, each with its line, instead of only the first error.
//!
//! serde stops at the first value of a wrong type. This module reports that value, removes it and deserializes the rest
//! again, until no error is left: a file with five errors gets five diagnostics.

use std::fmt;

use json_patch::jsonptr::{Pointer, PointerBuf};
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, MapAccess, SeqAccess, Visitor},
};
use serde_json::{Map, Value};
use serde_path_to_error::Segment;
use serde_saphyr::Spanned;

use super::diagnostic::{Diagnostic, Validator, display_path};

/// Maximum number of type errors that are reported. Bounds the work for a file that is not a configuration at all.
const MAX_DIAGNOSTICS: usize = 100;

/// The parser's error of a text with several documents, which names its functions. The line and column follow.
const SEVERAL_DOCUMENTS: &str =
    "multiple YAML documents detected; use from_str_multiple or from_str_multiple_with_options";

/// The content of a node.
#[derive(Clone, Debug)]
enum Tree {
    Scalar(Value),
    /// The items, each with its index in the text, which does not change when other items are removed.
    List(Vec<(usize, Node)>),
    Map(Vec<(String, Node)>),
}

/// A value of a document and its line. The line of a value in a map is the line of its key.
#[derive(Clone, Debug)]
pub struct Node {
    line: u64,
    tree: Tree,
}

/// Deserializes a text into `T`. `validate` reports the errors that the types cannot detect; its last argument states
/// whether the text has an `apiVersion`.
pub fn read<T: DeserializeOwned>(
    text: &str,
    validate: impl FnOnce(&T, &mut Validator<'_>, bool),
) -> Result<T, Vec<Diagnostic>> {
    // An empty document is parsed as null. As in YAML 1.2, `off`, `on`, `yes` and `no` are strings, because they are
    // common values of annotations.
    let options = serde_saphyr::options! { strict_booleans: true };
    let spanned: Spanned<Tree> =
        serde_saphyr::from_str_with_options(text, options).map_err(|error| vec![yaml_diagnostic(&error)])?;
    if matches!(spanned.value, Tree::Scalar(Value::Null)) {
        return Err(vec![Diagnostic::new(Some(1), "", "the document is empty, expected a map")]);
    }
    let mut root = Node { line: 1, tree: spanned.value };
    let mut diagnostics = Vec::new();
    let value =
        root.deserialize::<T>(|root, pointer, text| diagnostics.push(root.diagnostic(pointer, &text)));
    let Some(value) = value else { return Err(diagnostics) };
    let mut found = Vec::new();
    validate(&value, &mut Validator::new(&mut found), root.get("apiVersion").is_some());
    diagnostics.extend(found.into_iter().map(|(pointer, text)| root.diagnostic(&pointer, &text)));
    diagnostics.sort();
    if diagnostics.is_empty() { Ok(value) } else { Err(diagnostics) }
}

fn yaml_diagnostic(error: &serde_saphyr::Error) -> Diagnostic {
    let line = error.location().map(|location| location.line());
    Diagnostic::new(line, "", &yaml_error(error))
}

/// Returns the error of the YAML parser on one line, with line and column.
pub fn yaml_error(error: &serde_saphyr::Error) -> String {
    let text = error.without_snippet().to_string();
    let first = text.lines().next().unwrap_or_default();
    match first.split_once(SEVERAL_DOCUMENTS) {
        Some((_, place)) => format!("one document is expected; another one begins{place}"),
        None => format!("invalid YAML: {first}"),
    }
}

/// Returns the text of a serde error with the words of YAML instead of the names of Rust's types.
pub fn in_words(error: &str) -> String {
    let Some((found, expected)) = error.rsplit_once(", expected ") else { return error.to_owned() };
    let kind = expected.split(' ').next().unwrap_or_default();
    let expected = match kind {
        "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number, 0 or more",
        "i8" | "i16" | "i32" | "i64" | "isize" => "a whole number",
        "f32" | "f64" => "a number",
        "struct" | "map" => "a map",
        "enum" | "internally" | "untagged" => "one of the documented forms",
        _ => match expected {
            "a sequence" => "a list",
            "a boolean" => "true or false",
            other => other,
        },
    };
    let found =
        found.replace("unit value", "nothing").replace("invalid type: sequence", "invalid type: list");
    let found = found.replace("invalid type: null", "no value").replace("unknown variant", "unknown value");
    let found = found.replace("floating point", "number");
    format!("{found}, expected {expected}")
}

fn pointer_to(path: &serde_path_to_error::Path) -> PointerBuf {
    PointerBuf::from_tokens(path.iter().filter_map(|segment| match segment {
        Segment::Seq { index } => Some(index.to_string()),
        Segment::Map { key } => Some(key.clone()),
        Segment::Enum { variant } => Some(variant.clone()),
        Segment::Unknown => None,
    }))
}

// === impl Node ===

impl Node {
    /// Deserializes the node into a type. Passes each value that does not fit to `report`, removes it and deserializes
    /// the rest. Returns `None` if the remaining value does not fit either.
    pub fn deserialize<T: DeserializeOwned>(
        &mut self,
        mut report: impl FnMut(&Self, &Pointer, String),
    ) -> Option<T> {
        for _ in 0..MAX_DIAGNOSTICS {
            match serde_path_to_error::deserialize::<_, T>(self.value()) {
                Ok(value) => return Some(value),
                Err(error) => {
                    let pointer = pointer_to(error.path());
                    report(self, &pointer, in_words(&error.inner().to_string()));
                    if !self.remove_at(&pointer) {
                        break;
                    }
                }
            }
        }
        None
    }

    /// Returns the value without the removed parts.
    pub fn value(&self) -> Value {
        match &self.tree {
            Tree::Scalar(value) => value.clone(),
            Tree::List(items) => items.iter().map(|(_, node)| node.value()).collect(),
            Tree::Map(entries) => Value::Object(
                entries.iter().map(|(key, node)| (key.clone(), node.value())).collect::<Map<_, _>>(),
            ),
        }
    }

    fn get(&self, step: &str) -> Option<&Self> {
        match &self.tree {
            Tree::Scalar(_) => None,
            Tree::List(items) => items.get(step.parse::<usize>().ok()?).map(|(_, node)| node),
            Tree::Map(entries) => entries.iter().find(|(key, _)| key == step).map(|(_, node)| node),
        }
    }

    /// Returns a diagnostic of the value at a pointer, with its position in the original text.
    fn diagnostic(&self, pointer: &Pointer, text: &str) -> Diagnostic {
        let (path, line) = self.position_in_text(pointer);
        Diagnostic::new(Some(line), &display_path(&path), text)
    }

    /// Translates a pointer into this node to a pointer into the original text, from which no value was removed. Also
    /// returns the line of the value, or of its nearest existing parent.
    pub fn position_in_text(&self, pointer: &Pointer) -> (PointerBuf, u64) {
        let (mut node, mut path) = (Some(self), PointerBuf::new());
        let mut line = self.line;
        for token in pointer.tokens() {
            let step = token.decoded();
            let items =
                node.and_then(|node| if let Tree::List(items) = &node.tree { Some(items) } else { None });
            let index =
                items.and_then(|items| items.get(step.parse::<usize>().ok()?)).map(|(index, _)| *index);
            match index {
                Some(index) => path.push_back(index),
                None => path.push_back(token.clone()),
            }
            node = node.and_then(|node| node.get(&step));
            line = node.map_or(line, |node| node.line);
        }
        (path, line)
    }

    /// Removes the value at a pointer. Returns whether it existed.
    fn remove_at(&mut self, pointer: &Pointer) -> bool {
        let Some((step, rest)) = pointer.split_front() else { return false };
        let step = step.decoded();
        match &mut self.tree {
            Tree::Scalar(_) => false,
            Tree::List(items) => {
                let Some(index) = step.parse::<usize>().ok().filter(|index| *index < items.len()) else {
                    return false;
                };
                if rest.is_root() {
                    items.remove(index);
                    return true;
                }
                items.get_mut(index).is_some_and(|(_, node)| node.remove_at(rest))
            }
            Tree::Map(entries) => {
                let Some(index) = entries.iter().position(|(key, _)| *key == step) else { return false };
                if rest.is_root() {
                    entries.remove(index);
                    return true;
                }
                entries.get_mut(index).is_some_and(|(_, node)| node.remove_at(rest))
            }
        }
    }
}

impl From<Value> for Node {
    /// Creates a node without line numbers, for a value that is already deserialized.
    fn from(value: Value) -> Self {
        let tree = match value {
            Value::Array(items) => Tree::List(items.into_iter().map(Self::from).enumerate().collect()),
            Value::Object(fields) => {
                Tree::Map(fields.into_iter().map(|(key, field)| (key, field.into())).collect())
            }
            scalar => Tree::Scalar(scalar),
        };
        Self { line: 0, tree }
    }
}

// === impl Tree ===

impl<'de> Deserialize<'de> for Tree {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TreeVisitor)
    }
}

struct TreeVisitor;

impl<'de> Visitor<'de> for TreeVisitor {
    type Value = Tree;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a YAML value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Tree, E> {
        Ok(Tree::Scalar(value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Tree, E> {
        Ok(Tree::Scalar(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Tree, E> {
        Ok(Tree::Scalar(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Tree, E> {
        Ok(Tree::Scalar(value.into()))
    }

    fn visit_str<E>(self, value: &str) -> Result<Tree, E> {
        Ok(Tree::Scalar(value.into()))
    }

    fn visit_unit<E>(self) -> Result<Tree, E> {
        Ok(Tree::Scalar(Value::Null))
    }

    fn visit_none<E>(self) -> Result<Tree, E> {
        Ok(Tree::Scalar(Value::Null))
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Tree, D::Error> {
        Tree::deserialize(deserializer)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Tree, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = access.next_element::<Spanned<Tree>>()? {
            items.push((items.len(), Node { line: item.referenced.line(), tree: item.value }));
        }
        Ok(Tree::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Tree, A::Error> {
        let mut entries = Vec::new();
        while let Some(key) = access.next_key::<Spanned<String>>()? {
            let tree = access.next_value::<Tree>()?;
            entries.push((key.value, Node { line: key.referenced.line(), tree }));
        }
        Ok(Tree::Map(entries))
    }
}
