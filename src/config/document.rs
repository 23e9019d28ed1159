//! YAML with the line of each of its parts, read into types without stopping at the first mistake.
//!
//! serde stops where a value does not fit. So a part that does not fit is noted, taken out, and the rest read again,
//! until all of it fits: a file with five mistakes is told all five.

use std::fmt;

use json_patch::jsonptr::{Pointer, PointerBuf};
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, MapAccess, SeqAccess, Visitor},
};
use serde_json::{Map, Value};
use serde_path_to_error::Segment;
use serde_saphyr::Spanned;

use super::mistake::{Check, Mistake, in_words};

/// More mistakes than anyone reads at once; a bound on the work for a file that is no configuration at all.
const MOST_MISTAKES: usize = 100;

/// A part of a document.
#[derive(Clone, Debug)]
enum Tree {
    Scalar(Value),
    /// Each with its index in the text, which stays when others are taken out.
    List(Vec<(usize, Part)>),
    Map(Vec<(String, Part)>),
}

/// A part of a document and where it begins: for the value of a key, the line of the key.
#[derive(Clone, Debug)]
pub(super) struct Part {
    line: u64,
    tree: Tree,
}

/// Reads a text into `T`. `check` finds what the type alone cannot say; it is also told whether the text names an
/// `apiVersion`.
pub fn read<T: DeserializeOwned>(
    text: &str,
    check: impl FnOnce(&T, &mut Check<'_>, bool),
) -> Result<T, Vec<Mistake>> {
    // An empty document is null.
    // `off`, `on`, `yes` and `no` are words, as YAML 1.2 has it: annotations are full of them.
    let options = serde_saphyr::options! { strict_booleans: true };
    let spanned: Spanned<Tree> =
        serde_saphyr::from_str_with_options(text, options).map_err(|error| vec![unreadable(&error)])?;
    let mut root = Part { line: 1, tree: spanned.value };
    let mut mistakes = Vec::new();
    let fitted = root.fit::<T>(|root, place, text| mistakes.push(root.mistake(place, &text)));
    let Some(read) = fitted else { return Err(mistakes) };
    let mut found = Vec::new();
    check(&read, &mut Check::new(&mut found), root.get("apiVersion").is_some());
    mistakes.extend(found.into_iter().map(|(place, text)| root.mistake(&place, &text)));
    mistakes.sort();
    if mistakes.is_empty() { Ok(read) } else { Err(mistakes) }
}

fn unreadable(error: &serde_saphyr::Error) -> Mistake {
    let error = error.without_snippet();
    let line = error.location().map(|it| it.line());
    let text = error.to_string();
    let first = text.lines().next().unwrap_or_default();
    Mistake::new(line, "", &format!("no YAML that can be read: {first}"))
}

fn pointer_to(path: &serde_path_to_error::Path) -> PointerBuf {
    PointerBuf::from_tokens(path.iter().filter_map(|segment| match segment {
        Segment::Seq { index } => Some(index.to_string()),
        Segment::Map { key } => Some(key.clone()),
        Segment::Enum { variant } => Some(variant.clone()),
        Segment::Unknown => None,
    }))
}

// === impl Part ===

impl Part {
    /// Reads it into a type. What does not fit is told to `note` with its place, taken out, and the rest read again; nothing
    /// is read where too little would be left.
    pub(super) fn fit<T: DeserializeOwned>(
        &mut self,
        mut note: impl FnMut(&Self, &Pointer, String),
    ) -> Option<T> {
        for _ in 0..MOST_MISTAKES {
            match serde_path_to_error::deserialize::<_, T>(self.value()) {
                Ok(read) => return Some(read),
                Err(error) => {
                    let place = pointer_to(error.path());
                    note(self, &place, error.inner().to_string());
                    if !self.take_out(&place) {
                        break;
                    }
                }
            }
        }
        None
    }

    /// What is left of it.
    pub(super) fn value(&self) -> Value {
        match &self.tree {
            Tree::Scalar(value) => value.clone(),
            Tree::List(items) => items.iter().map(|(_, part)| part.value()).collect(),
            Tree::Map(entries) => Value::Object(
                entries.iter().map(|(key, part)| (key.clone(), part.value())).collect::<Map<_, _>>(),
            ),
        }
    }

    fn get(&self, step: &str) -> Option<&Self> {
        match &self.tree {
            Tree::Scalar(_) => None,
            Tree::List(items) => items.get(step.parse::<usize>().ok()?).map(|(_, part)| part),
            Tree::Map(entries) => entries.iter().find(|(key, _)| key == step).map(|(_, part)| part),
        }
    }

    /// A mistake at a place, told as it is in the text; with the line of the nearest part around it that is there.
    fn mistake(&self, place: &Pointer, text: &str) -> Mistake {
        let (in_text, line) = self.in_text(place);
        Mistake::new(Some(line), &in_words(&in_text), text)
    }

    /// A place as it was before anything was taken out, and the line of the nearest part around it that is there.
    pub(super) fn in_text(&self, place: &Pointer) -> (PointerBuf, u64) {
        let (mut part, mut in_text) = (Some(self), PointerBuf::new());
        let mut line = self.line;
        for token in place.tokens() {
            let step = token.decoded();
            let items = part.and_then(|it| if let Tree::List(items) = &it.tree { Some(items) } else { None });
            let index = items.and_then(|it| it.get(step.parse::<usize>().ok()?)).map(|(index, _)| *index);
            match index {
                Some(index) => in_text.push_back(index),
                None => in_text.push_back(token.clone()),
            }
            part = part.and_then(|it| it.get(&step));
            line = part.map_or(line, |it| it.line);
        }
        (in_text, line)
    }

    /// Takes out the part at a place; whether there was one.
    fn take_out(&mut self, place: &Pointer) -> bool {
        let Some((step, rest)) = place.split_front() else { return false };
        let step = step.decoded();
        match &mut self.tree {
            Tree::Scalar(_) => false,
            Tree::List(items) => {
                let Some(index) = step.parse::<usize>().ok().filter(|it| *it < items.len()) else {
                    return false;
                };
                if rest.is_root() {
                    items.remove(index);
                    return true;
                }
                items.get_mut(index).is_some_and(|(_, part)| part.take_out(rest))
            }
            Tree::Map(entries) => {
                let Some(index) = entries.iter().position(|(key, _)| *key == step) else { return false };
                if rest.is_root() {
                    entries.remove(index);
                    return true;
                }
                entries.get_mut(index).is_some_and(|(_, part)| part.take_out(rest))
            }
        }
    }
}

impl From<Value> for Part {
    /// A part whose lines nobody asks for.
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
        f.write_str("YAML")
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
            items.push((items.len(), Part { line: item.referenced.line(), tree: item.value }));
        }
        Ok(Tree::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Tree, A::Error> {
        let mut entries = Vec::new();
        while let Some(key) = access.next_key::<Spanned<String>>()? {
            let tree = access.next_value::<Tree>()?;
            entries.push((key.value, Part { line: key.referenced.line(), tree }));
        }
        Ok(Tree::Map(entries))
    }
}
