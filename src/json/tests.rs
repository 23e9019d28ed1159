//! Borrowed, owned and shared values are equivalent to `serde_json::Value`.

use json_patch::jsonptr::PointerBuf;
use proptest::{collection::vec, prelude::*};
use serde_json::{Value, json};

use super::{Json, SharedJson, read_object};

/// Arbitrary JSON, with keys that pointers escape.
fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        // Multiples of 1/4, which all parsers represent exactly.
        any::<i32>().prop_map(|number| (f64::from(number) / 4.0).into()),
        "[a-z\"\\\\\n\u{e9}]{0,6}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 40, 5, |inner| {
        let key = prop_oneof![Just(String::from("name")), "[a-c~/0-1\"\u{e9}]{0,4}"];
        prop_oneof![
            vec(inner.clone(), 0..5).prop_map(Value::from),
            vec((key, inner), 0..5).prop_map(|members| members.into_iter().collect()),
        ]
    })
}

/// Collects the paths of all parts of a value, and some paths that do not exist.
fn collect_paths(value: &Value, path: &PointerBuf, found: &mut Vec<PointerBuf>) {
    let below = |token: &str| path.with_trailing_token(token);
    found.extend([path.clone(), below("-"), below("00"), below("name")]);
    match value {
        Value::Array(items) => {
            found.push(below(&items.len().to_string()));
            for (index, item) in items.iter().enumerate() {
                collect_paths(item, &below(&index.to_string()), found);
            }
        }
        Value::Object(members) => {
            for (key, member) in members {
                collect_paths(member, &below(key), found);
            }
        }
        _ => {}
    }
}

fn round_trip(json: &Json<'_>) -> Value {
    let mut text = Vec::new();
    json.write(&mut text).unwrap();
    serde_json::from_slice(&text).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn borrowed_owned_and_shared_values_are_equal(value in any_json(), other in any_json()) {
        let shared = SharedJson::from(value.clone());
        let mut unshared = Json::from(&shared);
        unshared.unshare();
        for json in [Json::from(&value), Json::from(value.clone()), Json::from(&shared), unshared] {
            prop_assert_eq!(&Value::from(&json), &value);
            prop_assert_eq!(&round_trip(&json), &value);
            prop_assert_eq!(&serde_json::to_value(&json).unwrap(), &value);
            prop_assert_eq!(json == Json::from(&shared), true);
            prop_assert_eq!(json == Json::from(&other), value == other);
        }
    }

    #[test]
    fn paths_resolve_as_in_other_implementations(value in any_json()) {
        use json_patch::jsonptr::Resolve;

        let mut found = Vec::new();
        collect_paths(&value, &PointerBuf::root(), &mut found);
        let shared = SharedJson::from(value.clone());
        for path in &found {
            let expected = value.resolve(path).ok().cloned();
            for mut json in [Json::from(&value), Json::from(&shared)] {
                prop_assert_eq!(json.at(path).map(Value::from), expected.clone(), "{}", path);
                prop_assert_eq!(json.at_mut(path).map(|found| Value::from(&*found)), expected.clone(), "{}", path);
                prop_assert_eq!(&Value::from(&json), &value);
            }
        }
    }

    #[test]
    fn reads_objects_as_other_parsers_do(value in any_json()) {
        let raw = serde_json::value::to_raw_value(&json!({"spec": value})).unwrap();
        let value: Value = serde_json::from_str(raw.get()).unwrap();
        let variables = std::collections::BTreeSet::new();
        prop_assert_eq!(read_object(&raw, &variables).as_ref().map(Value::from), Some(value));
    }
}

#[test]
fn last_of_duplicate_keys_is_effective_as_in_go() {
    let raw = serde_json::value::RawValue::from_string(String::from(r#"{"a":1,"b":0,"a":2}"#)).unwrap();
    let mut json = read_object(&raw, &std::collections::BTreeSet::new()).unwrap();
    assert_eq!(json.get("a").and_then(Json::as_u64), Some(2));
    assert_eq!(Value::from(&json), json!({"a": 2, "b": 0}));
    let path = PointerBuf::from_tokens(["a"]);
    assert_eq!(json.at_mut(&path).map(|value| value.as_u64()), Some(Some(2)));
    assert_eq!(Value::from(&json.with("a", 3)), json!({"a": 3, "b": 0}));
}

#[test]
fn change_of_a_shared_value_affects_only_one_object() {
    let shared = SharedJson::from(json!({"list": [{"name": "a"}]}));
    let mut json = Json::from(&shared);
    let path = PointerBuf::from_tokens(["list", "0", "name"]);
    *json.at_mut(&path).unwrap() = Json::from("b");
    assert_eq!(Value::from(&json), json!({"list": [{"name": "b"}]}));
    assert_eq!(Value::from(&Json::from(&shared)), json!({"list": [{"name": "a"}]}));
}
