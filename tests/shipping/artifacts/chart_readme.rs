//! The table of values in the chart's README, which this test generates from `values.yaml` and its comments.

use std::fs;

use serde_json::Value;

use crate::project_path;

const VALUES: &str = "deploy/chart/etcd-guard/values.yaml";
const README: &str = "deploy/chart/etcd-guard/README.md";

/// Writes the table instead of comparing it.
const UPDATE: &str = "UPDATE_CHART_README";

const BEGIN: &str = "<!-- values: begin -->\n";
const END: &str = "<!-- values: end -->\n";

/// Returns the table: one row for each value that is no table, and for each commented table.
fn table(file: &str) -> String {
    let values: Value = serde_saphyr::from_str(file).unwrap();
    let mut table = String::from("| value | default | description |\n| --- | --- | --- |\n");
    let (mut comment, mut path) = (Vec::new(), Vec::new());
    for line in file.lines() {
        let text = line.trim_start();
        let depth = (line.len() - text.len()) / 2;
        if text.is_empty() {
            comment.clear();
        } else if let Some(text) = text.strip_prefix("# ") {
            comment.push(text.to_owned());
        } else if let Some((key, _)) = text.split_once(':').filter(|_| !text.starts_with("- ")) {
            path.truncate(depth);
            path.push(key.to_owned());
            let default = values.pointer(&format!("/{}", path.join("/")));
            // Items of a list, and keys of a list or of a table in one line.
            let Some(default) = default else { continue };
            table.push_str(&row(&path.join("."), default, &comment.join(" ")));
            comment.clear();
        }
    }
    table
}

fn row(path: &str, default: &Value, description: &str) -> String {
    let description = description.replace('|', "\\|");
    let is_table = default.as_object().is_some_and(|table| !table.is_empty());
    // A table in one line is a default, like a list.
    if is_table && !path.ends_with("labels") && path != "resources" {
        return if description.is_empty() {
            String::new()
        } else {
            format!("| `{path}.*` | | {description} |\n")
        };
    }
    format!("| `{path}` | `{default}` | {description} |\n")
}

#[test]
fn readme_lists_every_value() {
    let table = table(&fs::read_to_string(project_path(VALUES)).unwrap());
    let readme = fs::read_to_string(project_path(README)).unwrap();
    let (before, rest) = readme.split_once(BEGIN).unwrap();
    let (current, after) = rest.split_once(END).unwrap();
    let wanted = format!("\n{table}\n");
    if std::env::var_os(UPDATE).is_some() {
        fs::write(project_path(README), format!("{before}{BEGIN}{wanted}{END}{after}")).unwrap();
        return;
    }
    assert_eq!(current, wanted, "{README} differs: run this test with {UPDATE}=1");
}
