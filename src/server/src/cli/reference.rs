//! Generates `docs/configuration-reference.md` from the schema of the configuration file and the command line of the server.
//! `UPDATE_CLI=1 cargo test -p etcd-guard-server --lib cli::reference` writes it.

use std::fmt::Write;

use clap::{Arg, CommandFactory};
use serde_json::Value;

use super::Arguments;
use etcd_guard_cli::reference::{cell, ensure_current, table};
use etcd_guard_inject::config::schema;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/configuration-reference.md");

const BEGINNING: &str = "\
# Configuration reference

<!-- Generated from the schema and the command line: UPDATE_CLI=1 cargo test -p etcd-guard-server --lib cli::reference -->

Every key of the [configuration file](configuration.md), and every [flag of the server](#flags-of-the-server). `[]` stands for an
entry of a list. A key without a default is empty or not set. Editors check the same by [config.schema.json](config.schema.json).

";

const FLAGS: &str = "\
## Flags of the server

`$ETCD_GUARD_…` is an environment variable that sets the flag. For a flag without a value, set it to `true`.

### All commands

";

/// Objects with a section of their own: the title, and the name in the schema.
const SECTIONS: [(&str, &str); 9] = [
    ("guard", "Policies"),
    ("lxcfs", "Lxcfs"),
    ("sidecars", "Sidecars"),
    ("Template", "Template"),
    ("lifespan", "Lifespan"),
    ("podNames", "PodNames"),
    ("overCommit", "OverCommit"),
    ("Pod selector", "Match"),
    ("Label selector", "Selector"),
];

/// Returns the reference in a schema, if it is one.
fn reference(schema: &Value) -> Option<&str> {
    let schema = ["allOf", "anyOf"].iter().find_map(|of| schema[of].get(0)).unwrap_or(schema);
    schema["$ref"].as_str()
}

/// Returns the title of the section that describes this schema.
fn title(schema: &Value) -> Option<&'static str> {
    let name = reference(schema)?.rsplit('/').next()?;
    SECTIONS.iter().find(|(_, object)| *object == name).map(|(title, _)| *title)
}

/// Returns the schema that a reference refers to, and any other schema as it is.
fn resolved<'a>(root: &'a Value, schema: &'a Value) -> &'a Value {
    reference(schema).map_or(schema, |reference| root.pointer(reference.trim_start_matches('#')).unwrap())
}

fn codes<'a>(values: impl IntoIterator<Item = &'a Value>) -> String {
    let code =
        |value: &Value| format!("`{}`", value.as_str().map_or_else(|| value.to_string(), str::to_owned));
    values.into_iter().map(code).collect::<Vec<_>>().join(", ")
}

/// Returns the allowed values of a key, or their type.
fn values(root: &Value, schema: &Value) -> String {
    if let Some(title) = title(schema) {
        return format!("[{title}](#{})", title.to_lowercase().replace(' ', "-"));
    }
    let schema = resolved(root, schema);
    if let Some(variants) = schema["oneOf"].as_array() {
        return codes(variants.iter().map(|variant| &variant["const"]));
    }
    if let Some(values) = schema["enum"].as_array() {
        return codes(values);
    }
    if let Some(value) = schema.get("const") {
        return codes([value]);
    }
    let others = &schema["additionalProperties"];
    match schema["type"].as_str().or(schema["type"][0].as_str()).unwrap() {
        "array" => {
            let items = values(root, &schema["items"]);
            let plural = if items.ends_with('`') { "" } else { "s" };
            format!("list of {items}{plural}")
        }
        "object" if others.is_object() => format!("map of {}s", values(root, others)),
        "object" if *others == true => String::from("Kubernetes object"),
        other => other.to_owned(),
    }
}

/// Returns the rows of an object's keys, and of the keys below them that have no section.
fn rows(root: &Value, object: &Value, path: &str) -> String {
    let mut table = String::new();
    for (name, key) in object["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}{name}");
        let default = match &key["default"] {
            default if key.get("const").is_some() || *default == "" || default.is_object() => String::new(),
            Value::Null => String::new(),
            Value::Array(items) => codes(items),
            default => codes([default]),
        };
        let description = cell(key["description"].as_str().unwrap());
        let _ = writeln!(table, "| `{path}` | {} | {default} | {description} |", values(root, key));
        let item = resolved(root, key).get("items");
        let (schema, separator) = item.map_or((key, "."), |item| (item, "[]."));
        let below = resolved(root, schema);
        if title(schema).is_none() && below["additionalProperties"] == false {
            table.push_str(&rows(root, below, &format!("{path}{separator}")));
        }
    }
    table
}

fn page() -> String {
    const HEAD: &str = "| key | values | default | effect |\n| --- | --- | --- | --- |\n";
    let root = schema();
    let mut page = format!("{BEGINNING}{HEAD}{}\n", rows(&root, &root, ""));
    for (title, name) in SECTIONS {
        let object = &root["definitions"][name];
        let path = if root["properties"].get(title).is_some() { format!("{title}.") } else { String::new() };
        let about = object["description"].as_str().unwrap().replace('\n', " ");
        let _ = writeln!(page, "## {title}\n\n{about}\n\n{HEAD}{}", rows(&root, object, &path));
    }
    page.push_str(FLAGS);
    let command = Arguments::command();
    page.push_str(&table(&command.get_arguments().collect::<Vec<_>>()));
    for command in command.get_subcommands() {
        let flags: Vec<&Arg> = command.get_arguments().collect();
        if !flags.is_empty() {
            let (name, about) = (command.get_name(), command.get_about().unwrap());
            let _ = write!(page, "### etcd-guard {name}\n\n{about}.\n\n{}", table(&flags));
        }
    }
    format!("{}\n", page.trim_end())
}

#[test]
fn page_is_current() -> anyhow::Result<()> {
    ensure_current(PAGE, &page())
}
