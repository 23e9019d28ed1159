//! The printed report in each format, and the Role alone.

use std::io::Write;

use serde_json::{Value, json};

use etcd_guard_cli::{
    printing::{Output, yaml},
    terminal::{EMPHASIS, SUCCESS, WARNING, paint},
};
use etcd_guard_core::{
    escape::{MAX_NAME_CHARS, MAX_TEXT_CHARS, escape_texts, to_bounded_line},
    inspect::{Inspection, access::InspectedCredential},
};

/// Title and value of a table row. A row without a title continues the row above.
type Row = (&'static str, String);

/// Writes the report. Texts of pods, annotations and Secrets are escaped and cut.
pub(crate) fn print(inspections: &[Inspection], output: Output, out: &mut impl Write) -> anyhow::Result<()> {
    match output {
        // The table has all facts.
        Output::Table | Output::Wide => {
            for (number, inspection) in inspections.iter().enumerate() {
                if number > 0 {
                    writeln!(out)?;
                }
                write_table(inspection, out)?;
            }
        }
        Output::Name => {
            for inspection in inspections {
                writeln!(out, "pod/{}", to_bounded_line(&inspection.pod, MAX_NAME_CHARS))?;
            }
        }
        Output::Json | Output::Yaml => {
            output.write_document(&escaped(inspections)?, out)?;
        }
    }
    Ok(out.flush()?)
}

/// Returns the report as a value: one object, or a list if a file has several.
fn escaped(inspections: &[Inspection]) -> anyhow::Result<Value> {
    let mut value = match inspections {
        [inspection] => serde_json::to_value(inspection)?,
        several => json!({"items": several}),
    };
    escape_texts(&mut value, &|text| to_bounded_line(text, MAX_TEXT_CHARS));
    Ok(value)
}

/// Writes the Roles as YAML documents, or a comment for each object that needs none.
pub(crate) fn print_roles(inspections: &[Inspection], out: &mut impl Write) -> anyhow::Result<()> {
    let mut is_first = true;
    for inspection in inspections {
        let object = to_bounded_line(&inspection.object, MAX_TEXT_CHARS);
        if inspection.role.is_empty() {
            let cause = if inspection.recognized { "no credentials" } else { inspection.reason.as_str() };
            writeln!(out, "# etcd-guard needs no Role for {object}: {cause}")?;
        } else {
            writeln!(out, "# Permits etcd-guard to read the credentials of {object}.")?;
        }
        for part in &inspection.role {
            if !std::mem::take(&mut is_first) {
                writeln!(out, "---")?;
            }
            write!(out, "{}", yaml(part)?)?;
        }
    }
    Ok(out.flush()?)
}

fn write_table(inspection: &Inspection, out: &mut impl Write) -> anyhow::Result<()> {
    let escaped = |text: &str| to_bounded_line(text, MAX_TEXT_CHARS);
    let (style, title) =
        if inspection.recognized { (SUCCESS, "RECOGNIZED") } else { (WARNING, "NOT RECOGNIZED") };
    let reason = if inspection.recognized {
        String::new()
    } else {
        format!(" {}", paint(EMPHASIS, inspection.reason.as_str()))
    };
    let title = format!("{}{reason}", paint(style, title));
    writeln!(out, "{title}: {}", escaped(&inspection.object))?;
    let rows = rows(inspection);
    let width = rows.iter().map(|(title, _)| title.len()).max().unwrap_or_default();
    for (title, value) in rows {
        // Computed here, because a format width would count the color codes.
        let pad = width - title.len();
        let title = if title.is_empty() { String::new() } else { paint(EMPHASIS, title) };
        writeln!(out, "  {title}{:pad$}   {}", "", escaped(&value))?;
    }
    Ok(())
}

/// Returns a row for each known fact.
fn rows(inspection: &Inspection) -> Vec<Row> {
    let mut rows = vec![("WHY", inspection.message.clone())];
    let mut add = |title: &'static str, values: Vec<String>| {
        let mut unique: Vec<String> = Vec::with_capacity(values.len());
        for value in values {
            if !unique.contains(&value) {
                unique.push(value);
            }
        }
        let titles = std::iter::once(title).chain(std::iter::repeat(""));
        rows.extend(titles.zip(unique));
    };
    add("RULE", inspection.rule.iter().cloned().collect());
    add("VETOES", inspection.vetoes.clone());
    let guarded = inspection.guarded.map(|guarded| {
        let text =
            if guarded { "has the label of the guard" } else { "does not have the label of the guard" };
        format!("{} {text}", inspection.namespace)
    });
    add("NAMESPACE", guarded.into_iter().collect());
    let is_probed = inspection.scheme == Some("probed");
    let endpoints = inspection.endpoint.iter().chain(&inspection.other_endpoints).map(|url| {
        let note = if is_probed { ", or https: a probe determines the scheme" } else { "" };
        format!("{url}{note}")
    });
    add("ENDPOINT", endpoints.collect());
    add("TLS NAME", inspection.server_name.iter().cloned().collect());
    let storage = inspection.storage.map(|storage| match inspection.claims.as_slice() {
        [] => storage.to_owned(),
        claims => format!("{storage} ({})", claims.join(", ")),
    });
    add("STORAGE", storage.into_iter().collect());
    add("CREDENTIALS", inspection.credentials.iter().map(credential).collect());
    let suggestions = inspection.suggestions.iter().map(|suggestion| {
        format!("{}: {}  ({})", suggestion.annotation, suggestion.value, suggestion.condition)
    });
    add("ANNOTATIONS", suggestions.collect());
    let policy = inspection.policy.iter().map(|setting| {
        let name = setting.name.trim_start_matches("etcd-guard.io/");
        format!("{name}: {} ({})", setting.value, setting.from)
    });
    add("POLICY", policy.collect());
    let configuration = Some(inspection.configuration.clone()).filter(|_| inspection.recognized);
    add("CONFIGURATION", configuration.into_iter().collect());
    add("ROLE", role(inspection).into_iter().collect());
    add("WARNING", inspection.warnings.clone());
    rows
}

/// Returns for instance `Secret etcd-tls (certificates): exists, readable by the guard, keys tls.crt, tls.key`.
fn credential(credential: &InspectedCredential) -> String {
    let InspectedCredential { kind, name, purpose, keys, found, .. } = credential;
    let mut facts = Vec::new();
    let mut add = |known: Option<bool>, yes: &str, no: &str| {
        facts.extend(known.map(|known| if known { yes.to_owned() } else { no.to_owned() }));
    };
    add(credential.exists, "exists", "does not exist");
    add(credential.caller_can_read, "readable by you", "not readable by you");
    add(credential.guard_can_read, "readable by the guard", "not readable by the guard");
    let keys = if found.is_empty() { keys } else { found };
    if !keys.is_empty() {
        facts.push(format!("keys {}", keys.join(", ")));
    }
    if !credential.needed {
        facts.push(String::from("not needed"));
    }
    let facts = if facts.is_empty() { String::new() } else { format!(": {}", facts.join("; ")) };
    format!("{} {name} ({purpose}){facts}", kind.as_str())
}

/// Returns the advice to apply the Role, unless the guard has all permissions already.
fn role(inspection: &Inspection) -> Option<String> {
    let needed = inspection.credentials.iter().filter(|credential| credential.needed);
    let is_granted = needed.clone().all(|credential| credential.guard_can_read == Some(true));
    if inspection.role.is_empty() {
        return inspection.recognized.then(|| String::from("none needed"));
    }
    if is_granted {
        return Some(String::from("granted already"));
    }
    Some(format!("to apply: {}", inspection.apply_command))
}
