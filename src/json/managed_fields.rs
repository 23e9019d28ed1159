//! Trimming of managed fields from JSON text before it is parsed.

use std::{borrow::Cow, sync::LazyLock};

use memchr::{memchr2, memmem::Finder};

/// The owners of an object's fields: a third of a pod or more.
const MEMBER: &str = r#""managedFields":["#;

static FINDER: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(MEMBER));

/// Replaces the list of managed fields by an empty list if it consists of texts, lists and maps without white space, as
/// the API server writes it. Any other text is returned unchanged. The result is valid JSON exactly if `text` is,
/// except for control characters in the removed part.
#[must_use]
pub fn trim_managed_fields(text: &str) -> Cow<'_, str> {
    without_managed_fields(text).map_or(Cow::Borrowed(text), Cow::Owned)
}

fn without_managed_fields(text: &str) -> Option<String> {
    let start = FINDER.find(text.as_bytes())?;
    let (before, member) = text.split_at_checked(start)?;
    // The quotation mark must begin a key: an escaped one is a character inside a text.
    if !before.ends_with(['{', ',']) {
        return None;
    }
    let list = member.get(MEMBER.len() - 1..)?;
    let after = list.get(value_length(list.as_bytes())?..)?;
    Some([before, r#""managedFields":[]"#, after].concat())
}

/// The length of the value at the beginning of a text, in bytes.
fn value_length(text: &[u8]) -> Option<usize> {
    // A leading one, followed by a bit for each open list (0) and map (1).
    let mut open = 1_u64;
    let mut position = 0;
    loop {
        match (*text.get(position)?, text.get(position + 1)?) {
            (b'"', _) => position = end_of_text(text, position + 1)?,
            (b'[', b']') | (b'{', b'}') => position += 2,
            (b'[', _) => {
                open = open.checked_mul(2)?;
                position += 1;
                continue;
            }
            (b'{', _) => {
                open = open.checked_mul(2)? + 1;
                position = end_of_key(text, position + 1)?;
                continue;
            }
            _ => return None,
        }
        // A value ends here, together with the lists and maps that end with it.
        while open > 1 {
            match (*text.get(position)?, open & 1) {
                (b'}', 1) | (b']', 0) => open /= 2,
                (b',', 1) => {
                    position = end_of_key(text, position + 1)?;
                    break;
                }
                (b',', _) => {
                    position += 1;
                    break;
                }
                _ => return None,
            }
            position += 1;
        }
        if open == 1 {
            return Some(position);
        }
    }
}

/// The position of the value after the key that begins at `position`.
fn end_of_key(text: &[u8], position: usize) -> Option<usize> {
    if *text.get(position)? != b'"' {
        return None;
    }
    let end = end_of_text(text, position + 1)?;
    (*text.get(end)? == b':').then_some(end + 1)
}

/// The position after a text; `position` is that of its first character, after the opening quotation mark.
fn end_of_text(text: &[u8], mut position: usize) -> Option<usize> {
    loop {
        position += memchr2(b'"', b'\\', text.get(position..)?)?;
        if *text.get(position)? == b'"' {
            return Some(position + 1);
        }
        if !matches!(*text.get(position + 1)?, b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') {
            return None;
        }
        position += 2;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    /// Fragments of such lists and of the text around them.
    const PIECES: [&str; 18] = [
        "[",
        "]",
        "{",
        "}",
        ",",
        ":",
        "\"",
        "\\",
        "\"a\"",
        "\"a\":",
        "{\"a\":",
        "\"managedFields\":[",
        "\"}",
        "\"]",
        " ",
        "1",
        "]}",
        "[{}",
    ];

    /// Removes all managed fields.
    fn without_any_managed_fields(value: Value) -> Value {
        let list = |items: Vec<Value>| items.into_iter().map(without_any_managed_fields).collect();
        let member = |(key, value): (String, Value)| {
            let is_list = key == "managedFields" && value.is_array();
            (key, if is_list { json!([]) } else { without_any_managed_fields(value) })
        };
        match value {
            Value::Array(items) => Value::Array(list(items)),
            Value::Object(members) => Value::Object(members.into_iter().map(member).collect()),
            other => other,
        }
    }

    #[test]
    fn trims_only_managed_fields() {
        let fields = json!([
            {"manager": "kubelet", "fieldsV1": {"f:status": {"k:{\"type\":\"Ready\\n\"}": {".": {}}}}},
            {}, [], "\u{e9}", [[], {"": ""}],
        ]);
        let mut object = json!({"a": 1, "managedFields": fields, "z": {"managedFields": "x"}});
        let text = object.to_string();
        object["managedFields"] = json!([]);
        assert_eq!(without_managed_fields(&text), Some(object.to_string()));
        assert_eq!(without_managed_fields(&object.to_string()), Some(object.to_string()));
    }

    #[test]
    fn preserves_text_that_no_api_server_writes() {
        for list in ["[1]", "[ ]", "[\"\\u00e9\"]", "[null]", "[\"\\x\"]", "[{\"a\":1}]"] {
            assert_eq!(without_managed_fields(&format!(r#"{{"managedFields":{list}}}"#)), None, "{list}");
        }
        for text in
            [r#"{"managedFields": []}"#, r#"{"managedFields":{}}"#, r#"{"\"managedFields":[]}"#, "", "{}"]
        {
            assert_eq!(without_managed_fields(text), None, "{text}");
        }
        let deep = "[".repeat(100) + &"]".repeat(100);
        assert_eq!(without_managed_fields(&format!(r#"{{"managedFields":{deep}}}"#)), None);
    }

    #[test]
    fn preserves_invalidity_of_invalid_json() {
        for list in [
            "[",
            "[]]",
            "[}",
            "[,]",
            "[\"\",]",
            "[{]",
            "[{\"a\"}]",
            "[{\"a\":}]",
            "[{\"a\":\"\",}]",
            "[\"",
            "[\"\\",
            "[[]",
        ] {
            let text = format!(r#"{{"managedFields":{list}}}"#);
            assert!(serde_json::from_str::<Value>(&text).is_err());
            assert!(serde_json::from_str::<Value>(&trim_managed_fields(&text)).is_err(), "{list}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20_000))]

        #[test]
        fn preserves_validity_and_all_other_content(
            pieces in prop::collection::vec(prop::sample::select(&PIECES[..]), 0..14),
        ) {
            let middle = pieces.concat();
            for text in [middle.clone(), format!(r#"{{"managedFields":[{middle}]}}"#), format!(r#"["{middle}"]"#)] {
                let read = |text: &str| serde_json::from_str::<Value>(text).ok().map(without_any_managed_fields);
                prop_assert_eq!(read(&text), read(&trim_managed_fields(&text)), "{}", text);
            }
        }
    }
}
