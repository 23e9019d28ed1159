//! Compares the table of requesters with the tests that it names.

use std::{fs, path::Path};

const TABLE: &str = include_str!("../../../docs/requesters.md");

#[test]
fn table_of_requesters_names_existing_tests() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/control_plane");
    let sources = sources(&directory);
    let rows = TABLE.lines().filter(|line| line.starts_with("| ")).skip(2);
    let mut named = 0;
    for row in rows {
        let last = row.trim_end_matches('|').rsplit('|').next().unwrap();
        let tests: Vec<&str> = last.split('`').skip(1).step_by(2).collect();
        assert!(!tests.is_empty(), "no test: {row}");
        for test in tests {
            assert!(sources.contains(&format!("async fn {test}()")), "no test is called {test}");
            named += 1;
        }
    }
    assert!(named > 15, "{named} tests in the table");
}

/// Returns the contents of all files of a folder and its subfolders.
fn sources(folder: &Path) -> String {
    let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    paths.map(|path| if path.is_dir() { sources(&path) } else { fs::read_to_string(path).unwrap() }).collect()
}
