//! That a value which borrows and shares is the value that it stands for.

use json_patch::jsonptr::PointerBuf;
use proptest::{collection::vec, prelude::*};
use serde_json::{Value, json};

use super::{Json, Shared, read};

/// Any JSON, with keys that pointers have to escape.
fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        // Quarters, of which each reader makes the same.
        any::<i32>().prop_map(|it| (f64::from(it) / 4.0).into()),
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

/// The places of all parts of a value, and some where there is none.
fn places(value: &Value, place: &PointerBuf, found: &mut Vec<PointerBuf>) {
    let below = |step: &str| place.with_trailing_token(step);
    found.extend([place.clone(), below("-"), below("00"), below("name")]);
    match value {
        Value::Array(items) => {
            found.push(below(&items.len().to_string()));
            for (index, item) in items.iter().enumerate() {
                places(item, &below(&index.to_string()), found);
            }
        }
        Value::Object(members) => members.iter().for_each(|(key, it)| places(it, &below(key), found)),
        _ => {}
    }
}

fn written(json: &Json<'_>) -> Value {
    let mut text = Vec::new();
    json.write(&mut text).unwrap();
    serde_json::from_slice(&text).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn borrowed_owned_and_shared_are_the_same_value(value in any_json(), other in any_json()) {
        let shared = Shared::from(value.clone());
        let mut own = Json::from(&shared);
        own.own();
        for json in [Json::from(&value), Json::from(value.clone()), Json::from(&shared), own] {
            prop_assert_eq!(&Value::from(&json), &value);
            prop_assert_eq!(&written(&json), &value);
            prop_assert_eq!(&serde_json::to_value(&json).unwrap(), &value);
            prop_assert_eq!(json == Json::from(&shared), true);
            prop_assert_eq!(json == Json::from(&other), value == other);
        }
    }

    #[test]
    fn a_pointer_leads_where_it_leads_in_any_other_value(value in any_json()) {
        use json_patch::jsonptr::Resolve;

        let mut found = Vec::new();
        places(&value, &PointerBuf::root(), &mut found);
        let shared = Shared::from(value.clone());
        for place in &found {
            let there = value.resolve(place).ok().cloned();
            for mut json in [Json::from(&value), Json::from(&shared)] {
                prop_assert_eq!(json.at(place).map(Value::from), there.clone(), "{}", place);
                prop_assert_eq!(json.at_mut(place).map(|it| Value::from(&*it)), there.clone(), "{}", place);
                prop_assert_eq!(&Value::from(&json), &value);
            }
        }
    }

    #[test]
    fn a_body_is_read_as_any_other_reader_reads_it(value in any_json()) {
        let raw = serde_json::value::to_raw_value(&json!({"spec": value})).unwrap();
        let value: Value = serde_json::from_str(raw.get()).unwrap();
        let variables = std::collections::BTreeSet::new();
        prop_assert_eq!(read(&raw, &variables).as_ref().map(Value::from), Some(value));
    }
}

#[test]
fn of_members_with_one_key_the_last_counts_as_for_go() {
    let raw = serde_json::value::RawValue::from_string(String::from(r#"{"a":1,"b":0,"a":2}"#)).unwrap();
    let mut json = read(&raw, &std::collections::BTreeSet::new()).unwrap();
    assert_eq!(json.get("a").and_then(Json::as_u64), Some(2));
    assert_eq!(Value::from(&json), json!({"a": 2, "b": 0}));
    let place = PointerBuf::from_tokens(["a"]);
    assert_eq!(json.at_mut(&place).map(|it| it.as_u64()), Some(Some(2)));
    assert_eq!(Value::from(&json.with("a", 3)), json!({"a": 3, "b": 0}));
}

#[test]
fn a_change_of_what_is_shared_changes_nobody_elses() {
    let shared = Shared::from(json!({"list": [{"name": "a"}]}));
    let mut json = Json::from(&shared);
    let place = PointerBuf::from_tokens(["list", "0", "name"]);
    *json.at_mut(&place).unwrap() = Json::from("b");
    assert_eq!(Value::from(&json), json!({"list": [{"name": "b"}]}));
    assert_eq!(Value::from(&Json::from(&shared)), json!({"list": [{"name": "a"}]}));
}
