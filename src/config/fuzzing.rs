//! What any configuration file must come to.

#![allow(clippy::expect_used, reason = "a fuzzer is told by a panic")]

use serde_json::Value;

use super::{Config, Template};
use crate::k8s::quantity::Quantity;

/// A file's text. Either all mistakes are told, each with a line that there is, or the configuration does to pods what
/// it should.
///
/// # Panics
///
/// Where that does not hold.
pub fn config(text: &[u8]) {
    let Ok(text) = std::str::from_utf8(text) else { return };
    match Config::read(text) {
        Ok(config) => {
            config.sidecars.templates.iter().for_each(assert_decodes);
            crate::inject::fuzzing::assert_injects(&config);
        }
        Err(mistakes) => {
            assert!(!mistakes.is_empty());
            // YAML begins a line after a carriage return as well.
            let breaks = text.replace("\r\n", "\n").matches(['\n', '\r']).count();
            let lines = u64::try_from(breaks + 1).expect("a number of lines");
            for mistake in mistakes {
                let line = mistake.line.expect("a mistake has a line");
                assert!((1..=lines).contains(&line), "{lines} lines: {mistake}");
                assert!(!mistake.text.is_empty(), "{mistake:?}");
                assert!(!mistake.to_string().contains('\n'), "{mistake:?}");
            }
        }
    }
}

/// An apiserver can decode what containers get.
fn assert_decodes(template: &Template) {
    for container in template.containers.iter().chain(&template.init_containers) {
        for list in ["/resources/limits", "/resources/requests"] {
            for (name, amount) in container.pointer(list).and_then(Value::as_object).into_iter().flatten() {
                assert!(amount.as_str().and_then(Quantity::parse).is_some(), "{list}/{name}: {amount}");
            }
        }
    }
}
