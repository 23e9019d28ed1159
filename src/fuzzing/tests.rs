//! The fuzzers' seeds, and inputs made of them: what `cargo fuzz` does for hours, for a second or two.

use std::{fs, panic, path::Path};

use super::mutation::{self, Random};

/// How many inputs are made for a fuzzer: as many as take less than a second, without optimisation.
const INPUTS: usize = 2_000;

/// The same where one input is hundreds of changes of a pod.
const FEWER_INPUTS: usize = 100;

/// Runs a fuzzer on its seeds, and on what comes of them by one change after the other.
fn replay(fuzzer: &str, inputs: usize, run: fn(&[u8]), change: fn(&[u8], &mut Random) -> Vec<u8>) {
    let seeds = seeds(fuzzer);
    let mut random = Random::new(1);
    let mut sources = seeds.clone();
    for input in &seeds {
        run(input);
    }
    for _ in 0..inputs {
        let at = random.below(sources.len());
        let input = change(&sources[at], &mut random);
        let outcome = panic::catch_unwind(|| run(&input));
        assert!(outcome.is_ok(), "{fuzzer} fails on {:?}", String::from_utf8_lossy(&input));
        // Some are changed further, and each seed stays.
        let kept = seeds.len() + random.below(seeds.len() * 4);
        if kept < sources.len() {
            sources[kept] = input;
        } else {
            sources.push(input);
        }
    }
}

fn seeds(fuzzer: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds").join(fuzzer);
    let mut files: Vec<_> = fs::read_dir(&folder).unwrap().map(|file| file.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty(), "no seeds for {fuzzer}");
    files.iter().map(|file| fs::read(file).unwrap()).collect()
}

/// Mostly of whole parts, now and then of bytes.
fn json(text: &[u8], random: &mut Random) -> Vec<u8> {
    let whole = if random.below(8) == 0 { None } else { mutation::json(text, random) };
    whole.unwrap_or_else(|| mutation::bytes(text, random))
}

fn lines(text: &[u8], random: &mut Random) -> Vec<u8> {
    match std::str::from_utf8(text) {
        Ok(text) if random.below(8) > 0 => mutation::lines(text, random).into_bytes(),
        _ => mutation::bytes(text, random),
    }
}

#[test]
fn any_body_is_read_in_one_way_and_answered_to_its_own_uid() {
    replay("review", INPUTS, super::review, json);
}

#[test]
fn any_pod_that_an_apiserver_can_send_is_read_as_it_is() {
    replay("pod", INPUTS, super::pod, json);
}

#[test]
fn any_pod_gets_a_patch_that_keeps_what_is_its_own_and_is_not_given_twice() {
    replay("patch", FEWER_INPUTS, super::patch, json);
}

#[test]
fn any_configuration_is_served_or_told_its_mistakes_by_line() {
    replay("config", INPUTS, super::config, lines);
}

#[test]
fn any_arguments_and_variables_are_read_as_etcd_reads_them() {
    replay("settings", INPUTS, super::settings, lines);
}
