//! Checks that every edge case of docs/edge-cases.md has a test that names its number.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

/// Edge cases that need no Kubernetes; their tests run on every release line.
const WITHOUT_KUBERNETES: [u32; 22] =
    [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 22, 25, 26, 32];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files
}

/// Returns the numbers in a comment: the first three of `Edge cases 5, 23 and 24: words of 7`.
fn numbers(line: &str) -> Vec<u32> {
    let Some((_, rest)) = line.split_once("Edge case") else { return Vec::new() };
    let rest = rest.split(['.', ':']).next().unwrap_or_default();
    rest.split(|c: char| !c.is_ascii_digit()).filter_map(|word| word.parse().ok()).collect()
}

/// Returns the numbers in comments directly above functions or their attributes.
fn numbers_of_tests(text: &str, is_in: impl Fn(&str) -> bool) -> BTreeSet<u32> {
    let mut found = BTreeSet::new();
    let (mut pending, mut place) = (Vec::new(), "");
    for line in text.lines() {
        if !line.starts_with([' ', '/', '#', '}']) && !line.is_empty() {
            place = line;
        }
        let line = line.trim();
        if line.starts_with("///") {
            pending.extend(numbers(line));
        } else if line.contains("fn ") {
            if is_in(place) {
                found.extend(&pending);
            }
            pending.clear();
        } else if !line.starts_with('#') {
            pending.clear();
        }
    }
    found
}

/// Returns the cells of each row of the table of edge cases.
fn rows(page: &str) -> Vec<Vec<&str>> {
    page.lines()
        .filter(|line| line.starts_with("| ") && line.as_bytes()[2].is_ascii_digit())
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
        .collect()
}

#[test]
fn reads_numbers_from_comments_on_tests() {
    let text = "\
on_every_version! {
    /// Edge cases 5, 23 and 24: of 7 members.
    #[tokio::test]
    async fn first(version) {}

    /// Edge case 9.
    const NO_TEST: u32 = 1;
    fn other() {}
}
/// Edge case 3.
async fn single() {}
";
    assert_eq!(numbers_of_tests(text, |_| true), [3, 5, 23, 24].into());
    assert_eq!(numbers_of_tests(text, |place| place.starts_with("on_every_version!")), [5, 23, 24].into());
}

#[test]
fn every_edge_case_has_a_test() {
    let mut found = BTreeSet::new();
    for folder in ["src", "tests"] {
        for file in sources(&root().join(folder)) {
            // This file contains examples.
            if !file.ends_with("edge_cases.rs") {
                found.extend(numbers_of_tests(&fs::read_to_string(file).unwrap(), |_| true));
            }
        }
    }
    let table = fs::read_to_string(root().join("docs/edge-cases.md")).unwrap();
    let listed: BTreeSet<u32> = rows(&table).iter().map(|row| row[0].parse().unwrap()).collect();
    assert_eq!(found, listed);
}

#[test]
fn tests_without_kubernetes_run_on_every_release_line() {
    let mut found = BTreeSet::new();
    for file in sources(&root().join("tests/etcd")) {
        let text = fs::read_to_string(file).unwrap();
        found.extend(numbers_of_tests(&text, |place| place.starts_with("on_every_version!")));
    }
    let missing: Vec<u32> = WITHOUT_KUBERNETES.into_iter().filter(|number| !found.contains(number)).collect();
    assert_eq!(missing, [0; 0]);
}

#[test]
fn table_has_every_edge_case_and_no_empty_cell() {
    let table = fs::read_to_string(root().join("docs/edge-cases.md")).unwrap();
    let rows = rows(&table);
    let numbers: Vec<u32> = rows.iter().map(|row| row[0].parse().unwrap()).collect();
    assert!(numbers.len() >= 32 && numbers.is_sorted_by(|a, b| a < b), "{numbers:?}");
    for row in rows {
        assert!(row[1..].iter().all(|cell| !cell.is_empty() && *cell != "-"), "{row:?}");
    }
}
