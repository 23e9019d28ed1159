//! The corpus: pods as the distributions of etcd create them, in tests/data/corpus, each with the expected result.
//!
//! `docs/compatibility.md` is generated from it. `UPDATE_CORPUS=1` writes the page, and removes the known gaps that no
//! longer exist. Edge cases 13, 14, 23, 24 and 90.

mod expectation;
mod observation;
mod page;

use std::{fs, path::PathBuf};

use self::expectation::Expectation;
use super::*;

/// Set to rewrite the generated texts.
const UPDATE: &str = "UPDATE_CORPUS";

/// A pod of the corpus with its expected result.
struct Entry {
    name: String,
    pod: Pod,
    expected: Expectation,
}

fn repository() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn corpus() -> PathBuf {
    repository().join("tests/data/corpus")
}

/// Returns all entries, sorted by name. The comments of every pod name its source.
fn entries() -> Vec<Entry> {
    let mut names: Vec<String> = fs::read_dir(corpus())
        .unwrap()
        .filter_map(|file| {
            file.unwrap().file_name().into_string().ok()?.strip_suffix(".yaml").map(str::to_owned)
        })
        .collect();
    names.sort();
    let (expectations, pods): (Vec<_>, Vec<_>) =
        names.into_iter().partition(|name| name.ends_with(".expected"));
    assert_eq!(expectations.len(), pods.len(), "each pod has one expectation");
    pods.into_iter()
        .map(|name| {
            let read =
                |suffix: &str| fs::read_to_string(corpus().join(format!("{name}{suffix}"))).expect(&name);
            let text = read(".yaml");
            let has_source = ["# Source: ", "# Invented"].iter().any(|start| text.starts_with(start));
            assert!(has_source, "{name} names no source");
            let pod = serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
            let expected = serde_saphyr::from_str(&read(".expected.yaml"))
                .unwrap_or_else(|error| panic!("{name}: {error}"));
            Entry { name, pod, expected }
        })
        .collect()
}

fn is_update() -> bool {
    std::env::var_os(UPDATE).is_some()
}

/// Removes the mark of a gap that no longer exists.
fn remove_gap(name: &str) {
    let file = corpus().join(format!("{name}.expected.yaml"));
    let text = fs::read_to_string(&file).unwrap();
    let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with("knownGap:")).collect();
    fs::write(file, lines.join("\n") + "\n").unwrap();
}

#[tokio::test]
async fn corpus_is_read_as_expected() {
    let mut problems = Vec::new();
    for Entry { name, pod, expected } in entries() {
        let differences = observation::differences(&pod, &expected).await;
        match &expected.known_gap {
            None => problems.extend(differences.iter().map(|difference| format!("{name}: {difference}"))),
            Some(_) if !differences.is_empty() => {}
            Some(_) if is_update() => remove_gap(&name),
            Some(gap) => problems.push(format!(
                "{name}: the known gap ({gap}) no longer exists: run this test again with {UPDATE}=1"
            )),
        }
    }
    assert!(problems.is_empty(), "{} differences:\n{}", problems.len(), problems.join("\n"));
}

/// The guard reaches these members with the Role that `inspect` prints, or after one annotation that it names, because
/// [`corpus_is_read_as_expected`] compares both.
#[test]
fn nearly_all_recognised_members_are_reached() {
    let entries = entries();
    let recognised: Vec<&Entry> = entries.iter().filter(|entry| entry.expected.recognised).collect();
    let unreached = recognised.iter().filter(|entry| entry.expected.reached.as_deref() == Some("no"));
    let unreached: Vec<&str> = unreached.map(|entry| entry.name.as_str()).collect();
    assert_eq!((recognised.len(), unreached), (46, vec!["sample-apiserver"]));
    assert!(entries.iter().all(|entry| entry.expected.known_gap.is_none()));
    assert!(entries.iter().all(|entry| entry.expected.annotations.len() <= 1));
}

#[test]
fn compatibility_page_equals_corpus() {
    let file = repository().join("docs/compatibility.md");
    let generated = page::generate(&entries());
    if is_update() {
        fs::write(&file, &generated).unwrap();
    }
    let committed = fs::read_to_string(&file).unwrap_or_default();
    assert!(
        committed == generated,
        "docs/compatibility.md differs: run the tests of the corpus with {UPDATE}=1"
    );
}
