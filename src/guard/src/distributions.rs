//! The corpus: pods as the distributions of etcd create them, in tests/data/corpus, each with the expected result.
//!
//! `docs/compatibility.md` is generated from it. `UPDATE_CORPUS=1` writes the page, and removes the known gaps that no
//! longer exist.

mod expectation;
mod observation;
mod page;

use std::{fs, path::PathBuf};

use self::expectation::Expectation;
use crate::fuzzing;
use etcd_guard_core::objects::pod::Pod;

/// Set to rewrite the generated texts.
const UPDATE: &str = "UPDATE_CORPUS";

/// A pod of the corpus with its expected result.
struct Entry {
    name: String,
    pod: Pod,
    expected: Expectation,
}

fn repository() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
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
            let pod = serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
            let expected: Expectation = serde_saphyr::from_str(&read(".expected.yaml"))
                .unwrap_or_else(|error| panic!("{name}: {error}"));
            if let Err(problem) = check_source(&text, &expected) {
                panic!("{name}: {problem}");
            }
            Entry { name, pod, expected }
        })
        .collect()
}

/// Checks that the comment of a pod names a project with its version or commit, or that the pod is invented.
fn check_source(text: &str, expected: &Expectation) -> Result<(), &'static str> {
    let comment: Vec<&str> = text.lines().take_while(|line| line.starts_with('#')).collect();
    let comment = comment.join(" ");
    if comment.starts_with("# Invented") {
        return Ok(());
    }
    if !comment.starts_with("# Source: github.com/") {
        return Err("the first line names no project");
    }
    let is_commit = |word: &str| word.len() >= 7 && word.chars().all(|letter| letter.is_ascii_hexdigit());
    let is_version = |word: &str| {
        let numbers = word.trim_start_matches('v');
        numbers.contains('.')
            && numbers
                .split('.')
                .all(|part| !part.is_empty() && part.chars().all(|digit| digit.is_ascii_digit()))
    };
    let mut words = comment.split([' ', ',', ';', ':', '(', ')']).map(|word| word.trim_end_matches('.'));
    if !words.any(|word| is_commit(word) || is_version(word)) {
        return Err("the comment names neither a version nor a commit");
    }
    let is_from_memory = [comment.as_str(), &expected.version].iter().any(|text| text.contains("knowledge"));
    if is_from_memory || !expected.version.contains(|letter: char| letter.is_ascii_digit()) {
        return Err("the pod is from no source");
    }
    Ok(())
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
fn nearly_all_recognized_members_are_reached() {
    let entries = entries();
    let recognized: Vec<&Entry> = entries.iter().filter(|entry| entry.expected.recognized).collect();
    let unreached = recognized.iter().filter(|entry| entry.expected.reached.as_deref() == Some("no"));
    let unreached: Vec<&str> = unreached.map(|entry| entry.name.as_str()).collect();
    assert_eq!((recognized.len(), unreached), (47, vec!["sample-apiserver"]));
    assert!(entries.iter().all(|entry| entry.expected.known_gap.is_none()));
    assert!(entries.iter().all(|entry| entry.expected.annotations.len() <= 1));
}

/// A member that is not recognized is found by the survey, or is the mirror of a static pod. [`corpus_is_read_as_expected`]
/// compares both values with the pods.
#[test]
fn all_unrecognized_distributions_are_reported() {
    for Entry { name, expected, .. } in entries() {
        let is_unrecognized_member = expected.reached.is_some() && !expected.recognized;
        let is_found = expected.reported.is_some() || expected.reason == "MirrorPod";
        assert!(!is_unrecognized_member || is_found, "{name}");
    }
}

/// The fuzzers check these properties with arbitrary pods.
#[test]
fn corpus_has_the_properties_of_all_pods() {
    for Entry { name, pod, expected } in entries() {
        let text = fs::read_to_string(corpus().join(format!("{name}.yaml"))).unwrap();
        let value: serde_json::Value = serde_saphyr::from_str(&text).unwrap();
        let has_address = !pod.status.pod_ip.is_empty();
        assert!(has_address || !expected.recognized, "the credentials of {name} are not checked");
        fuzzing::pod(&serde_json::to_vec(&value).unwrap());
    }
}

#[test]
fn sources_name_a_version_or_a_commit() {
    let expected = |version: &str| Expectation { version: version.to_owned(), ..Expectation::default() };
    let source = "# Source: github.com/a/b, c/d.yaml";
    for (comment, version) in [
        (format!("{source} (commit 5851d1e7): text."), "commit 5851d1e7"),
        (format!("{source} of chart 12.0.20."), "12"),
        (format!("{source}\n# of v1.9.0."), "1.9.0"),
        (String::from("# Invented: a job."), ""),
    ] {
        assert_eq!(check_source(&comment, &expected(version)), Ok(()), "{comment}");
    }
    for (comment, version) in [
        (format!("{source} of the chart."), "12"),
        (format!("{source} (commit 5851d1e7)"), ""),
        (format!("{source} (commit 5851d1e7)"), "3.6 (from knowledge)"),
        (String::from("# Source: knowledge of kubeadm 1.34.2."), "1.34"),
        (String::from("metadata: {}\n# Source: github.com/a/b (commit 5851d1e7)"), "1"),
    ] {
        assert!(check_source(&comment, &expected(version)).is_err(), "{comment}");
    }
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
