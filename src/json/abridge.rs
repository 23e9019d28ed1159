//! A text in JSON, abridged by what nobody here reads.

use std::{borrow::Cow, sync::LazyLock};

use memchr::{memchr2, memmem::Finder};

/// Who set which field of an object: a third of a pod, often more.
const MEMBER: &str = r#""managedFields":["#;

static FINDER: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(MEMBER));

/// The text with an empty list of managed fields, where it has one of texts, lists and maps written without space, as an
/// apiserver does. Whatever is not so stays as it is: the text is JSON exactly if it was so before, but for control characters
/// in what is left out.
pub(crate) fn abridged(text: &str) -> Cow<'_, str> {
    without_managed_fields(text).map_or(Cow::Borrowed(text), Cow::Owned)
}

fn without_managed_fields(text: &str) -> Option<String> {
    let place = FINDER.find(text.as_bytes())?;
    let (before, member) = text.split_at_checked(place)?;
    // A quotation mark that begins a key, and is not itself a character of one.
    if !before.ends_with(['{', ',']) {
        return None;
    }
    let list = member.get(MEMBER.len() - 1..)?;
    let after = list.get(length(list.as_bytes())?..)?;
    Some([before, r#""managedFields":[]"#, after].concat())
}

/// The length of the value that a text begins with, in bytes.
fn length(text: &[u8]) -> Option<usize> {
    // A one, and behind it a bit for each list (0) and map (1) that is open.
    let mut open = 1_u64;
    let mut at = 0;
    loop {
        match (*text.get(at)?, text.get(at + 1)?) {
            (b'"', _) => at = end_of_text(text, at + 1)?,
            (b'[', b']') | (b'{', b'}') => at += 2,
            (b'[', _) => {
                open = open.checked_mul(2)?;
                at += 1;
                continue;
            }
            (b'{', _) => {
                open = open.checked_mul(2)? + 1;
                at = end_of_key(text, at + 1)?;
                continue;
            }
            _ => return None,
        }
        // A value has ended here, and all that ends with it does.
        while open > 1 {
            match (*text.get(at)?, open & 1) {
                (b'}', 1) | (b']', 0) => open /= 2,
                (b',', 1) => {
                    at = end_of_key(text, at + 1)?;
                    break;
                }
                (b',', _) => {
                    at += 1;
                    break;
                }
                _ => return None,
            }
            at += 1;
        }
        if open == 1 {
            return Some(at);
        }
    }
}

/// Where the value begins whose key begins here.
fn end_of_key(text: &[u8], at: usize) -> Option<usize> {
    if *text.get(at)? != b'"' {
        return None;
    }
    let end = end_of_text(text, at + 1)?;
    (*text.get(end)? == b':').then_some(end + 1)
}

/// Where a text ends that begins here, behind its quotation mark.
fn end_of_text(text: &[u8], mut at: usize) -> Option<usize> {
    loop {
        at += memchr2(b'"', b'\\', text.get(at..)?)?;
        if *text.get(at)? == b'"' {
            return Some(at + 1);
        }
        if !matches!(*text.get(at + 1)?, b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') {
            return None;
        }
        at += 2;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    /// What such lists and their surroundings are made of.
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

    /// With no managed fields anywhere.
    fn emptied(value: Value) -> Value {
        let list = |it: Vec<Value>| it.into_iter().map(emptied).collect();
        let member = |(key, value): (String, Value)| {
            let is_list = key == "managedFields" && value.is_array();
            (key, if is_list { json!([]) } else { emptied(value) })
        };
        match value {
            Value::Array(items) => Value::Array(list(items)),
            Value::Object(members) => Value::Object(members.into_iter().map(member).collect()),
            other => other,
        }
    }

    #[test]
    fn managed_fields_are_left_out_and_nothing_else() {
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
    fn what_is_not_as_an_apiserver_writes_it_stays() {
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
    fn what_is_no_json_becomes_none() {
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
            assert!(serde_json::from_str::<Value>(&abridged(&text)).is_err(), "{list}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20_000))]

        #[test]
        fn a_text_says_the_same_but_for_managed_fields_and_is_json_exactly_if_it_was(
            pieces in prop::collection::vec(prop::sample::select(&PIECES[..]), 0..14),
        ) {
            let middle = pieces.concat();
            for text in [middle.clone(), format!(r#"{{"managedFields":[{middle}]}}"#), format!(r#"["{middle}"]"#)] {
                let read = |text: &str| serde_json::from_str::<Value>(text).ok().map(emptied);
                prop_assert_eq!(read(&text), read(&abridged(&text)), "{}", text);
            }
        }
    }
}
