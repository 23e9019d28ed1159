//! Reads of objects that are changed later, without the parts that this program never uses.

use std::{borrow::Cow, collections::BTreeSet, fmt};

use serde::{
    Deserialize, Deserializer,
    de::{DeserializeSeed, Error, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_json::{Number, value::RawValue};

use super::value::Json;

/// The owners of fields: often as long as the rest of the object, and never read or changed by this program.
const MANAGED_FIELDS: &str = "managedFields";

/// Reads an object without its managed fields, and of its containers' variables only those with the given names. These
/// two parts are most of the text of most pods. `None` if the object or its metadata is no map.
#[must_use]
pub fn read_object<'a>(object: &'a RawValue, variables: &BTreeSet<String>) -> Option<Json<'a>> {
    ObjectReader { variables }.deserialize(&mut serde_json::Deserializer::from_str(object.get())).ok()?
}

/// Reads an object inside other JSON, as [`read_object`] does.
#[derive(Clone, Copy, Debug)]
pub struct ObjectReader<'a> {
    /// Names of the variables to read.
    pub variables: &'a BTreeSet<String>,
}

/// Reads or skips a part of an object.
#[derive(Clone, Copy)]
struct PartReader<'a> {
    part: Part,
    variables: &'a BTreeSet<String>,
}

/// A part of an object, by the members that are skipped in it.
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
    /// A part that is read completely.
    Complete,
}

/// A text that is borrowed unless it has to be unescaped.
#[derive(Default, Deserialize)]
pub(crate) struct CowStr<'a>(#[serde(borrow)] pub(crate) Cow<'a, str>);

// === impl ObjectReader ===

impl<'de> DeserializeSeed<'de> for ObjectReader<'_> {
    type Value = Option<Json<'de>>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        let object =
            PartReader { part: Part::Object, variables: self.variables }.deserialize(deserializer)?;
        let is_map = |value: &Json<'_>| value.as_map().is_some() || value.is_null();
        Ok(object.filter(|object| object.as_map().is_some() && object.get("metadata").is_none_or(is_map)))
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
            _ => Self::Complete,
        }
    }

    fn item(self) -> Self {
        match self {
            Self::Containers => Self::Container,
            Self::Variables => Self::Variable,
            _ => Self::Complete,
        }
    }
}

// === impl PartReader ===

impl PartReader<'_> {
    fn for_part(self, part: Part) -> Self {
        Self { part, ..self }
    }

    /// Whether a map with this member is a variable that is not used. A variable without a readable name is read.
    fn is_unused_variable(self, key: &str, value: Option<&Json<'_>>) -> bool {
        let name =
            if self.part == Part::Variable && key == "name" { value.and_then(Json::as_str) } else { None };
        name.is_some_and(|name| !self.variables.contains(name))
    }
}

/// Skips the other members of an unused variable. Most variables are unused.
fn skip_variable<'de, A: MapAccess<'de>>(mut access: A) -> Result<Option<Json<'de>>, A::Error> {
    while let Some(CowStr(key)) = access.next_key()? {
        if key == "name" {
            return Err(A::Error::duplicate_field("name"));
        }
        access.next_value::<IgnoredAny>()?;
    }
    Ok(None)
}

impl<'de> DeserializeSeed<'de> for PartReader<'_> {
    type Value = Option<Json<'de>>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        match self.part {
            Part::ManagedFields => IgnoredAny::deserialize(deserializer).map(|_| None),
            _ => deserializer.deserialize_any(self),
        }
    }
}

impl<'de> Visitor<'de> for PartReader<'_> {
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
        while let Some(item) = access.next_element_seed(self.for_part(self.part.item()))? {
            if let Some(item) = item {
                items.push(item);
            }
        }
        Ok(Some(Json::List(items)))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Self::Value, A::Error> {
        let mut members = Vec::new();
        while let Some(CowStr(key)) = access.next_key()? {
            let value = access.next_value_seed(self.for_part(self.part.member(&key)))?;
            if self.is_unused_variable(&key, value.as_ref()) {
                return skip_variable(access);
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

    use super::read_object;

    fn read_value(object: &Value) -> Option<Value> {
        let raw = to_raw_value(object).unwrap();
        read_object(&raw, &BTreeSet::from([String::from("WANTED")])).as_ref().map(Value::from)
    }

    #[test]
    fn reads_only_used_variables_of_containers() {
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
    fn reads_everything_except_managed_fields() {
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
    fn rejects_values_that_are_no_object() {
        for odd in [json!([]), json!("x"), json!(null), json!({"metadata": []})] {
            assert_eq!(read_value(&odd), None, "{odd}");
        }
        for bare in [json!({}), json!({"metadata": null})] {
            assert_eq!(read_value(&bare), Some(bare));
        }
    }
}
