//! An object, read to be changed.

use std::{borrow::Cow, collections::BTreeSet, fmt};

use serde::{
    Deserialize, Deserializer,
    de::{DeserializeSeed, Error, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_json::{Number, value::RawValue};

use super::Json;

/// Who set which field: often as long as the rest of the object, and nothing here reads or changes it.
const MANAGED_FIELDS: &str = "managedFields";

/// Reads an object, without its managed fields, and of containers' variables only those of these names: of most pods the
/// rest of what is long. Nothing if it is no map, or its metadata none.
#[must_use]
pub fn read<'a>(object: &'a RawValue, variables: &BTreeSet<String>) -> Option<Json<'a>> {
    Reader { variables }.deserialize(&mut serde_json::Deserializer::from_str(object.get())).ok()?
}

/// Reads an object as [`read`] does, where it stands in other JSON.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    /// Names of variables that are read.
    pub variables: &'a BTreeSet<String>,
}

/// Reads a part of an object, or passes it over.
#[derive(Clone, Copy)]
struct Sieve<'a> {
    part: Part,
    variables: &'a BTreeSet<String>,
}

/// The parts in which something may be left out.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Object,
    Metadata,
    ManagedFields,
    Spec,
    Containers,
    Container,
    Variables,
    Variable,
    /// Whatever else there is, with all that is in it.
    Whole,
}

/// A text that is borrowed where it can be.
#[derive(Default, Deserialize)]
pub(crate) struct Text<'a>(#[serde(borrow)] pub(crate) Cow<'a, str>);

// === impl Reader ===

impl<'de> DeserializeSeed<'de> for Reader<'_> {
    type Value = Option<Json<'de>>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        let object = Sieve { part: Part::Object, variables: self.variables }.deserialize(deserializer)?;
        let is_map = |it: &Json<'_>| it.as_map().is_some() || it.is_null();
        Ok(object.filter(|it| it.as_map().is_some() && it.get("metadata").is_none_or(is_map)))
    }
}

// === impl Part ===

impl Part {
    fn member(self, key: &str) -> Self {
        match (self, key) {
            (Self::Object, "metadata") => Self::Metadata,
            (Self::Object, "spec") => Self::Spec,
            (Self::Metadata, MANAGED_FIELDS) => Self::ManagedFields,
            (Self::Spec, "containers" | "initContainers") => Self::Containers,
            (Self::Container, "env") => Self::Variables,
            _ => Self::Whole,
        }
    }

    fn item(self) -> Self {
        match self {
            Self::Containers => Self::Container,
            Self::Variables => Self::Variable,
            _ => Self::Whole,
        }
    }
}

// === impl Sieve ===

impl Sieve<'_> {
    fn of(self, part: Part) -> Self {
        Self { part, ..self }
    }

    /// Whether a map with this member is a variable that nobody looks at. One that cannot be read somebody may.
    fn leaves_out(self, key: &str, value: Option<&Json<'_>>) -> bool {
        let name =
            if self.part == Part::Variable && key == "name" { value.and_then(Json::as_str) } else { None };
        name.is_some_and(|it| !self.variables.contains(it))
    }
}

/// Passes over what is left of a variable, of which most are so: nothing is kept of it.
fn pass_over<'de, A: MapAccess<'de>>(mut access: A) -> Result<Option<Json<'de>>, A::Error> {
    while let Some(Text(key)) = access.next_key()? {
        if key == "name" {
            return Err(A::Error::duplicate_field("name"));
        }
        access.next_value::<IgnoredAny>()?;
    }
    Ok(None)
}

impl<'de> DeserializeSeed<'de> for Sieve<'_> {
    type Value = Option<Json<'de>>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        match self.part {
            Part::ManagedFields => IgnoredAny::deserialize(deserializer).map(|_| None),
            _ => deserializer.deserialize_any(self),
        }
    }
}

impl<'de> Visitor<'de> for Sieve<'_> {
    type Value = Option<Json<'de>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Self::Value, E> {
        Ok(Some(Json::Bool(value)))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Self::Value, E> {
        Ok(Some(Json::Number(number.into())))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Self::Value, E> {
        Ok(Some(Json::Number(number.into())))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Self::Value, E> {
        Ok(Some(Number::from_f64(number).map_or(Json::Null, Json::Number)))
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(Some(Json::Text(Cow::Borrowed(text))))
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Some(Json::Text(Cow::Owned(text.to_owned()))))
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(Some(Json::Null))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Self::Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = access.next_element_seed(self.of(self.part.item()))? {
            if let Some(item) = item {
                items.push(item);
            }
        }
        Ok(Some(Json::List(items)))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Self::Value, A::Error> {
        let mut members = Vec::new();
        while let Some(Text(key)) = access.next_key()? {
            let value = access.next_value_seed(self.of(self.part.member(&key)))?;
            if self.leaves_out(&key, value.as_ref()) {
                return pass_over(access);
            }
            if let Some(value) = value {
                members.push((key, value));
            }
        }
        Ok(Some(Json::Map(members)))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::{Value, json, value::to_raw_value};

    use super::read;

    fn read_value(object: &Value) -> Option<Value> {
        let raw = to_raw_value(object).unwrap();
        read(&raw, &BTreeSet::from([String::from("WANTED")])).as_ref().map(Value::from)
    }

    #[test]
    fn of_variables_those_that_somebody_looks_at_are_read() {
        let variables =
            json!([{"name": "A", "value": "1"}, {"name": "WANTED", "value": "2"}, {"odd": 1}, "odd", null]);
        let containers =
            json!([{"name": "web", "env": variables, "ports": [{"env": variables}]}, 7, {"env": null}]);
        let mut object =
            json!({"spec": {"containers": containers, "initContainers": containers, "env": variables}});
        let read = read_value(&object).unwrap();
        for list in ["containers", "initContainers"] {
            object["spec"][list][0]["env"].as_array_mut().unwrap().remove(0);
        }
        assert_eq!(read, object);
    }

    #[test]
    fn all_but_the_managed_fields_is_read_as_it_is() {
        let mut object = json!({
            "metadata": {"name": "a", "tomorrow": {"managedFields": [1]}, "annotations": null},
            "spec": {"managedFields": {"x": 18_446_744_073_709_551_615_u64}, "list": [{}, null, "\u{e9}\n", 1.5]},
            "managedFields": 1,
        });
        assert_eq!(read_value(&object).as_ref(), Some(&object));
        let expected = object.clone();
        object["metadata"]["managedFields"] = json!([{"fieldsV1": {"f:spec": {}}}]);
        assert_eq!(read_value(&object), Some(expected));
    }

    #[test]
    fn what_is_no_object_is_not_read() {
        for odd in [json!([]), json!("x"), json!(null), json!({"metadata": []})] {
            assert_eq!(read_value(&odd), None, "{odd}");
        }
        for bare in [json!({}), json!({"metadata": null})] {
            assert_eq!(read_value(&bare), Some(bare));
        }
    }
}
