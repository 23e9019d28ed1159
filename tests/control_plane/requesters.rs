//! The table of requesters, held against the tests that it names.

use std::{fs, path::Path};

const TABLE: &str = include_str!("../../docs/requesters.md");

#[test]
fn every_test_that_the_table_of_requesters_names_is_there_and_every_row_names_one() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/control_plane");
    let files = fs::read_dir(directory).unwrap().map(|file| file.unwrap().path());
    let sources: String = files.map(|file| fs::read_to_string(file).unwrap()).collect();
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
