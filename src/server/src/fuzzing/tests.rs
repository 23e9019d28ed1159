//! Runs the fuzzers on their seeds and on mutations of the seeds for a second or two, as `cargo fuzz` does for hours.

use std::{fs, panic, path::Path};

use super::mutation::{self, Random};

/// Number of mutated inputs per fuzzer: they take less than a second in a debug build.
const MUTATIONS: usize = 2_000;

/// The same for the fuzzer that applies hundreds of changes to a pod per input.
const PATCH_MUTATIONS: usize = 100;

/// Runs a fuzzer on its seeds and on mutations of them.
fn replay(fuzzer: &str, mutations: usize, run: fn(&[u8]), mutate: fn(&[u8], &mut Random) -> Vec<u8>) {
    let seeds = seeds(fuzzer);
    let mut random = Random::new(1);
    let mut sources = seeds.clone();
    for input in &seeds {
        run(input);
    }
    for _ in 0..mutations {
        let at = random.below(sources.len());
        let input = mutate(&sources[at], &mut random);
        let outcome = panic::catch_unwind(|| run(&input));
        assert!(outcome.is_ok(), "{fuzzer} fails on {:?}", String::from_utf8_lossy(&input));
        // Inputs are mutated further. Seeds are never replaced.
        let index = seeds.len() + random.below(seeds.len() * 4);
        if index < sources.len() {
            sources[index] = input;
        } else {
            sources.push(input);
        }
    }
}

fn seeds(fuzzer: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("fuzz/seeds").join(fuzzer);
    let mut files: Vec<_> = fs::read_dir(&folder).unwrap().map(|file| file.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty(), "no seeds for {fuzzer}");
    files.iter().map(|file| fs::read(file).unwrap()).collect()
}

/// Mutates parts of the JSON, or sometimes bytes.
fn json(text: &[u8], random: &mut Random) -> Vec<u8> {
    let mutated = if random.below(8) == 0 { None } else { mutation::json(text, random) };
    mutated.unwrap_or_else(|| mutation::bytes(text, random))
}

fn lines(text: &[u8], random: &mut Random) -> Vec<u8> {
    match std::str::from_utf8(text) {
        Ok(text) if random.below(8) > 0 => mutation::lines(text, random).into_bytes(),
        _ => mutation::bytes(text, random),
    }
}

#[test]
fn any_body_gets_response_with_its_uid() {
    replay("review", MUTATIONS, super::review, json);
}

#[test]
fn any_pod_is_parsed_without_loss() {
    replay("pod", MUTATIONS, etcd_guard_guard::fuzzing::pod, json);
}

#[test]
fn any_pod_gets_idempotent_patch_that_preserves_it() {
    replay("patch", PATCH_MUTATIONS, etcd_guard_inject::pods::fuzzing::patch, json);
}

#[test]
fn any_configuration_is_valid_or_gets_diagnostics() {
    replay("config", MUTATIONS, etcd_guard_inject::config::fuzzing::config, lines);
}

#[test]
fn any_script_that_starts_etcd_is_recognized() {
    replay("recognition", MUTATIONS, etcd_guard_guard::fuzzing::recognition, lines);
}

#[test]
fn any_settings_are_parsed_as_by_etcd() {
    replay("settings", MUTATIONS, etcd_guard_guard::fuzzing::member_settings, lines);
}
