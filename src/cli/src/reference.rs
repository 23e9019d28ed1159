//! Tables of arguments for the generated pages of the manual.

use std::fmt::Write;

use anyhow::Context as _;
use clap::{Arg, builder::PossibleValue};

/// Returns a text for a cell of a table.
pub fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ").trim().to_owned()
}

/// Returns the row of an argument.
fn row(argument: &Arg) -> String {
    let value = argument.get_value_names().unwrap_or_default().iter().map(ToString::to_string);
    let value = value.collect::<Vec<_>>().join(" ");
    let takes_value = argument.get_action().takes_values();
    let mut names = Vec::new();
    if let Some(short) = argument.get_short() {
        names.push(format!("-{short}"));
    }
    if let Some(long) = argument.get_long() {
        names.push(format!("--{long}"));
    }
    let name = match (names.is_empty(), takes_value) {
        (true, _) => value,
        // The flags that require `=` may stand without a value.
        (false, true) if argument.is_require_equals_set() => format!("{}[={value}]", names.join(", ")),
        (false, true) => format!("{} {value}", names.join(", ")),
        (false, false) => names.join(", "),
    };
    let mut text = argument.get_help().map(ToString::to_string).unwrap_or_default();
    let defaults: Vec<_> =
        argument.get_default_values().iter().map(|value| format!("`{}`", value.to_string_lossy())).collect();
    if takes_value && !defaults.is_empty() {
        let _ = write!(text, " (default: {})", defaults.join(", "));
    }
    let possible = argument.get_possible_values();
    let possible: Vec<_> =
        possible.iter().filter(|value| !value.is_hide_set()).map(PossibleValue::get_name).collect();
    if takes_value && !possible.is_empty() {
        let _ = write!(text, ": {}", possible.join(", "));
    }
    if let Some(variable) = argument.get_env() {
        let _ = write!(text, "; also ${}", variable.to_string_lossy());
    }
    format!("| `{}` | {} |\n", cell(&name), cell(&text))
}

/// Returns a table of arguments, each with its effect, default, values and environment variable.
pub fn table(arguments: &[&Arg]) -> String {
    if arguments.is_empty() {
        return String::new();
    }
    let rows: String = arguments.iter().map(|argument| row(argument)).collect();
    format!("| argument | effect |\n| --- | --- |\n{rows}\n")
}

/// Fails unless the file has this content. With the variable `UPDATE_CLI`, writes it first.
///
/// # Errors
///
/// If the content differs, or the file cannot be read or written.
pub fn ensure_current(file: &str, page: &str) -> anyhow::Result<()> {
    if std::env::var_os("UPDATE_CLI").is_some() {
        std::fs::write(file, page).with_context(|| format!("writing {file}"))?;
    }
    let current = std::fs::read_to_string(file).with_context(|| format!("reading {file}"))?;
    anyhow::ensure!(current == page, "{file} is out of date: write it with UPDATE_CLI=1");
    Ok(())
}
