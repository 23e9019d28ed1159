//! An object, read to be changed.

use std::{borrow::Cow, collections::BTreeSet, fmt};

use serde::{
    Deserialize, Deserializer,
    de::{DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_json::{Map, Value, value::RawValue};

/// Who set which field: often as long as the rest of the object, and nothing here reads or changes it.
const MANAGED_FIELDS: &str = "managedFields";

/// Reads an object, without its managed fields, and of containers' variables only those of these names: of most pods the
/// rest of what is long. Nothing if it is no map, or its metadata none.
#[must_use]
pub fn read(object: &RawValue, variables: &BTreeSet<String>) -> Option<Value> {
    let sieve = Sieve { part: Part::Object, variables };
    let object = sieve.deserialize(&mut serde_json::Deserializer::from_str(object.get())).ok()?;
    let is_map = |it: &Value| it.is_object() || it.is_null();
    (object.is_object() && object.get("metadata").is_none_or(is_map)).then_some(object)
}

/// Reads a part of an object, without what nobody looks at.
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
    Spec,
    Containers,
    Container,
    Variables,
    /// Whatever else there is, with all that is in it.
    Whole,
}

#[derive(Deserialize)]
struct Variable<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
}

// === impl Part ===

impl Part {
    fn member(self, key: &str) -> Self {
        match (self, key) {
            (Self::Object, "metadata") => Self::Metadata,
            (Self::Object, "spec") => Self::Spec,
            (Self::Spec, "containers" | "initContainers") => Self::Containers,
            (Self::Container, "env") => Self::Variables,
            _ => Self::Whole,
        }
    }
}

// === impl Sieve ===

impl Sieve<'_> {
    fn of(self, part: Part) -> Self {
        Self { part, ..self }
    }

    /// Whether a variable is one that somebody looks at; one that cannot be read may be.
    fn wants(self, variable: &RawValue) -> bool {
        let variable = serde_json::from_str::<Variable<'_>>(variable.get());
        variable.map_or(true, |it| self.variables.contains(it.name.as_ref()))
    }
}

impl<'de> DeserializeSeed<'de> for Sieve<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        match self.part {
            Part::Whole => Value::deserialize(deserializer),
            _ => deserializer.deserialize_any(self),
        }
    }
}

impl<'de> Visitor<'de> for Sieve<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        match self.part {
            Part::Variables => {
                while let Some(variable) = access.next_element::<&RawValue>()? {
                    if self.wants(variable) {
                        items.push(serde_json::from_str(variable.get()).map_err(serde::de::Error::custom)?);
                    }
                }
            }
            part => {
                let part = if part == Part::Containers { Part::Container } else { Part::Whole };
                while let Some(item) = access.next_element_seed(self.of(part))? {
                    items.push(item);
                }
            }
        }
        Ok(Value::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = access.next_key::<String>()? {
            if self.part == Part::Metadata && key == MANAGED_FIELDS {
                access.next_value::<IgnoredAny>()?;
            } else {
                let value = access.next_value_seed(self.of(self.part.member(&key)))?;
                map.insert(key, value);
            }
        }
        Ok(Value::Object(map))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::{Value, json, value::to_raw_value};

    use super::read;

    fn read_value(object: &Value) -> Option<Value> {
        read(&to_raw_value(object).unwrap(), &BTreeSet::from([String::from("WANTED")]))
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
