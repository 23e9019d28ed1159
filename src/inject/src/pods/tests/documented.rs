//! The examples in docs/injection.md match the results.

use serde_json::Value;

use super::inject_with;
use crate::config::Config;

const PAGE: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/injection.md"));

/// The YAML blocks of a section.
fn blocks(section: &str) -> Vec<&'static str> {
    let (_, section) = PAGE.split_once(&format!("\n## {section}\n")).unwrap();
    let section = section.split("\n## ").next().unwrap();
    section.split("```yaml\n").skip(1).map(|block| block.split("```").next().unwrap()).collect()
}

#[test]
fn documented_lxcfs_example_matches_the_injection() {
    let [before, after, ..] = blocks("lxcfs")[..] else { panic!("two blocks of YAML") };
    let [before, after]: [Value; 2] = [before, after].map(|block| serde_saphyr::from_str(block).unwrap());
    let injection = inject_with(&before, &[], &Config::default()).unwrap();
    assert_eq!(injection.notes.iter().filter_map(|note| note.warning.as_ref()).count(), 0);
    assert_eq!(injection.pod, Some(after));
}

#[test]
fn documented_sidecar_example_matches_the_injection() {
    let [file, before, after, ..] = blocks("Sidecars")[..] else { panic!("three blocks of YAML") };
    let config = Config::read(file).unwrap();
    let before: Value = serde_saphyr::from_str(before).unwrap();
    let injection = inject_with(&before, &[], &config).unwrap();
    assert_eq!(injection.notes.iter().filter_map(|note| note.warning.as_ref()).count(), 0);
    assert_eq!(serde_saphyr::to_string(&injection.pod.unwrap()).unwrap(), after);
}
