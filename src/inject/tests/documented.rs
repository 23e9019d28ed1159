//! What docs/injection.md shows is what a pod gets.

use serde_json::Value;

use super::inject_with;
use crate::config::Config;

const PAGE: &str = include_str!("../../../docs/injection.md");

/// The YAML of a section, block by block.
fn blocks(section: &str) -> Vec<&'static str> {
    let (_, section) = PAGE.split_once(&format!("\n## {section}\n")).unwrap();
    let section = section.split("\n## ").next().unwrap();
    section.split("```yaml\n").skip(1).map(|it| it.split("```").next().unwrap()).collect()
}

#[test]
fn the_files_of_lxcfs_that_are_shown_are_those_that_the_pod_that_is_shown_gets() {
    let [before, after, ..] = blocks("lxcfs")[..] else { panic!("two blocks of YAML") };
    let [before, after]: [Value; 2] = [before, after].map(|it| serde_saphyr::from_str(it).unwrap());
    let injection = inject_with(&before, &[], &Config::default()).unwrap();
    assert_eq!(injection.notes.iter().filter_map(|it| it.warning.as_ref()).count(), 0);
    assert_eq!(injection.pod, Some(after));
}

#[test]
fn the_sidecar_that_is_shown_is_what_the_pod_that_is_shown_gets() {
    let [file, before, after, ..] = blocks("Sidecars")[..] else { panic!("three blocks of YAML") };
    let config = Config::read(file).unwrap();
    let before: Value = serde_saphyr::from_str(before).unwrap();
    let injection = inject_with(&before, &[], &config).unwrap();
    assert_eq!(injection.notes.iter().filter_map(|it| it.warning.as_ref()).count(), 0);
    assert_eq!(serde_saphyr::to_string(&injection.pod.unwrap()).unwrap(), after);
}
