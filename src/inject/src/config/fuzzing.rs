//! Properties of every input of the configuration parser.

#![allow(clippy::expect_used, reason = "a fuzzer detects a violation by its panic")]

use serde_json::Value;

use crate::config::{Config, Template};
use etcd_guard_core::objects::quantity::Quantity;

/// Parses the text of a configuration file. A valid one must inject correctly; an invalid one must have diagnostics on
/// existing lines.
///
/// # Panics
///
/// If a property is violated.
pub fn config(text: &[u8]) {
    let Ok(text) = std::str::from_utf8(text) else { return };
    match Config::read(text) {
        Ok(config) => {
            config.sidecars.templates.iter().for_each(assert_decodes);
            crate::pods::fuzzing::assert_injects(&config);
        }
        Err(diagnostics) => {
            assert!(!diagnostics.is_empty());
            // YAML begins a line after a carriage return as well.
            let breaks = text.replace("\r\n", "\n").matches(['\n', '\r']).count();
            let lines = u64::try_from(breaks + 1).expect("a number of lines");
            for diagnostic in diagnostics {
                let line = diagnostic.line.expect("a diagnostic has a line");
                assert!((1..=lines).contains(&line), "{lines} lines: {diagnostic}");
                assert!(!diagnostic.message.is_empty(), "{diagnostic:?}");
                assert!(!diagnostic.to_string().contains('\n'), "{diagnostic:?}");
            }
        }
    }
}

/// Asserts that an API server can decode the quantities of the template's containers.
fn assert_decodes(template: &Template) {
    for container in template.containers.iter().chain(&template.init_containers) {
        for list in ["/resources/limits", "/resources/requests"] {
            for (name, amount) in container.pointer(list).and_then(Value::as_object).into_iter().flatten() {
                assert!(amount.as_str().and_then(Quantity::parse).is_some(), "{list}/{name}: {amount}");
            }
        }
    }
}
