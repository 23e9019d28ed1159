//! The object of a review, read to be changed.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, MapAccess, Visitor},
};
use serde_json::{Map, Value, value::RawValue};

/// Who set which field: often as long as the rest of the object, and nothing here reads or changes it.
const MANAGED_FIELDS: &str = "managedFields";

/// Reads an object, without its managed fields. Nothing if it is no map, or its metadata none.
pub(super) fn read(object: &RawValue) -> Option<Value> {
    serde_json::from_str::<Object>(object.get()).ok().map(|it| Value::Object(it.0))
}

struct Object(Map<String, Value>);

struct Metadata(Map<String, Value>);

impl<'de> Deserialize<'de> for Object {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ObjectVisitor)
    }
}

impl<'de> Deserialize<'de> for Metadata {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(MetadataVisitor)
    }
}

struct ObjectVisitor;

impl<'de> Visitor<'de> for ObjectVisitor {
    type Value = Object;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Object, A::Error> {
        let mut object = Map::new();
        while let Some(key) = access.next_key::<String>()? {
            let value = if key == "metadata" {
                access.next_value::<Option<Metadata>>()?.map_or(Value::Null, |it| Value::Object(it.0))
            } else {
                access.next_value()?
            };
            object.insert(key, value);
        }
        Ok(Object(object))
    }
}

struct MetadataVisitor;

impl<'de> Visitor<'de> for MetadataVisitor {
    type Value = Metadata;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("metadata")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Metadata, A::Error> {
        let mut metadata = Map::new();
        while let Some(key) = access.next_key::<String>()? {
            if key == MANAGED_FIELDS {
                access.next_value::<IgnoredAny>()?;
            } else {
                metadata.insert(key, access.next_value()?);
            }
        }
        Ok(Metadata(metadata))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json, value::to_raw_value};

    use super::read;

    fn read_value(object: &Value) -> Option<Value> {
        read(&to_raw_value(object).unwrap())
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
